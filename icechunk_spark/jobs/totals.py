"""Sums the counts of the tasks of jobs, for the result of a call.

Each task sends its counts with its receipts (:mod:`icechunk_spark.jobs.task_rows`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TypeVar

from icechunk_format.storage.measures import Measures

_R = TypeVar("_R")
_wanted: ContextVar[tuple[Totals, ...]] = ContextVar("icechunk_totals", default=())


class Totals:
    """The counts of the jobs of a call."""

    def __init__(self) -> None:
        self.measures = Measures()


@contextlib.contextmanager
def totalled() -> Iterator[Totals]:
    """Sum the counts of the jobs that this thread runs within the block."""
    totals = Totals()
    token = _wanted.set((*_wanted.get(), totals))
    try:
        yield totals
    finally:
        _wanted.reset(token)


def note_job(measures: Measures) -> None:
    """Add the counts of a finished job to the totals of the calls that run it."""
    for totals in _wanted.get():
        totals.measures += measures


def with_totals(result: _R, totals: Totals) -> _R:
    """Return a result with the totals of its jobs, unless it ran none."""
    if not totals.measures.tasks:
        return result
    return replace(result, totals=totals.measures)  # type: ignore[type-var]


def in_commit(result: _R, totals: Totals) -> _R:
    """Return a result whose ``commit``, if it exists, has the totals of its jobs."""
    commit = getattr(result, "commit", None)
    if commit is None:
        return result
    counted = replace(commit, totals=totals.measures)
    return replace(result, commit=counted)  # type: ignore[type-var]
