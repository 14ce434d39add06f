"""Describes Spark's jobs, so that the UI does not show source lines of this library."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from pyspark import SparkContext

from icechunk_format.storage.measures import Measures

_doing: ContextVar[str] = ContextVar("icechunk_doing", default="job")
_DESCRIPTION = "spark.job.description"
_log = logging.getLogger("icechunk_spark")


@contextlib.contextmanager
def described(what: str) -> Iterator[None]:
    """Describe the jobs of this thread within the block, and log the description.

    A description that the user has set is restored afterwards. Connect sessions have none.
    """
    _log.info(what)
    token = _doing.set(what)
    context = SparkContext._active_spark_context
    before: Any = context and context.getLocalProperty(_DESCRIPTION)
    try:
        if context is not None:
            context.setLocalProperty(_DESCRIPTION, f"icechunk: {what}")
        yield
    finally:
        _doing.reset(token)
        if context is not None:
            # None removes the property.
            context.setLocalProperty(_DESCRIPTION, before)


def log_totals(measures: Measures) -> None:
    """Log the counts of a job of this thread."""
    if measures.requests or measures.chunks_encoded:
        _log.info("%s: done, %s", _doing.get(), measures)
