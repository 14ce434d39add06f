"""Describes Spark's jobs, so that the UI shows what runs instead of a line of this library."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from pyspark import SparkContext

_DESCRIPTION = "spark.job.description"
_log = logging.getLogger("icechunk_spark")


@contextlib.contextmanager
def described(what: str) -> Iterator[None]:
    """Describe the jobs of this thread while the block runs, and log what begins.

    A description that the user has set is put back afterwards. Sessions of Connect have none.
    """
    _log.info(what)
    context = SparkContext._active_spark_context
    if context is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, f"icechunk: {what}")
    try:
        yield
    finally:
        # None removes the property; Python's signature does not know it.
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type,unused-ignore]
