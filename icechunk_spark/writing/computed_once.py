"""Keeps the rows of a write between its two passes if computing them twice costs more.

A write reads its rows for their coordinates, and again to write them. Rows of files are cheap to
read twice. Rows that a shuffle or a Python function produces are expensive, and rows that are not
deterministic would differ. Rows are kept in memory and on disk of the executors.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Literal

from pyspark import StorageLevel
from pyspark.sql import DataFrame

ComputeOnce = Literal["auto", "true", "false"]

# Operators at the beginning of a line of Spark's plan, and functions anywhere in it.
_COSTLY = re.compile(
    r"^[\s:+\-|*()\d]*(Aggregate|Join|Sort|Window|Distinct|Repartition\w*|RebalancePartitions|"
    r"MapInArrow|MapInPandas|\w*FlatMap\w*|\w*EvalPython|\w*CoGroup\w*|Sample|\w*Limit|"
    r"PythonMapInArrow)\b"
    r"|\b(rand|randn|uuid|shuffle|monotonically_increasing_id)\(",
    re.MULTILINE,
)

# Functions that return the time of the query.
_CLOCK = re.compile(
    r"\b(current_timestamp|now|localtimestamp|current_date|curdate|current_time)\(",
    re.IGNORECASE,
)


@contextlib.contextmanager
def computed_once(frame: DataFrame, choice: ComputeOnce) -> Iterator[DataFrame]:
    """Return the rows, kept within the block if `choice` or their plan requires it."""
    if choice == "false" or _is_kept(frame) or (choice == "auto" and not is_costly(frame)):
        yield frame
        return
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


def is_costly(frame: DataFrame) -> bool:
    """Return True if the plan has a shuffle, a Python function or nondeterministic rows.

    The optimized plan has no calls of the clock: each run replaces them with its own time.
    """
    optimized, analyzed = _plans_of(frame)
    return _COSTLY.search(optimized) is not None or _CLOCK.search(analyzed) is not None


def _plans_of(frame: Any) -> tuple[str, str]:
    """Return the plan after and before the optimizer; in Connect sessions, all plans as each."""
    if getattr(frame, "_jdf", None) is None:
        plans = str(frame._explain_string(extended=True))
        return plans, plans
    execution = frame._jdf.queryExecution()
    return str(execution.optimizedPlan().toString()), str(execution.analyzed().toString())


def _is_kept(frame: DataFrame) -> bool:
    level = frame.storageLevel
    return level.useMemory or level.useDisk
