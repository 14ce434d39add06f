"""Reads a session's cores and time zone, distributes and cuts rows, and describes jobs.

Descriptions keep source lines of this library out of Spark's UI.

Spark limits an Arrow batch by rows (10,000 by default) and by bytes (64 MiB). To count the bytes,
it adds up the buffers of all columns after each row, which takes half of the transfer time of
numeric rows to Python.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    TimestampNTZType,
    TimestampType,
)

from icechunk_format.storage.measures import Measures

#: Spark's name of a streaming query's id among the properties of its threads and tasks.
QUERY_ID: Final = "sql.streaming.queryId"
#: The setting of the time zone in which a session reads and shows times.
TIME_ZONE: Final = "spark.sql.session.timeZone"

_doing: ContextVar[str] = ContextVar("icechunk_doing", default="job")
_DESCRIPTION = "spark.job.description"
_log = logging.getLogger("icechunk_spark")

_MAX_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_BOUND: Final = str(2**31 - 1)

_FIXED_WIDTH: Final = (
    BooleanType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    TimestampNTZType,
    TimestampType,
)


def session_time_zone(spark: SparkSession) -> str:
    """Return the time zone of a session, classic or of Connect."""
    return str(spark.conf.get(TIME_ZONE))


def is_connect(spark: SparkSession) -> bool:
    """Return True if a session is one of Spark Connect, which has no SparkContext."""
    return ".connect" in type(spark).__module__


def session_key(spark: SparkSession | None) -> str:
    """Return the id of a session, of which Spark makes several Python objects."""
    jvm_session = getattr(spark, "_jsparkSession", None)
    if jvm_session is not None:
        return str(jvm_session.sessionUUID())
    return str(getattr(spark, "session_id", id(spark)))


def cores_of(spark: SparkSession) -> int:
    """Return the approximate number of tasks that run at once."""
    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions", "2") or 2)
    return spark.sparkContext.defaultParallelism


def together(rows: DataFrame, number: Column, tasks: int) -> DataFrame:
    """Return the rows in `tasks` partitions, with equal numbers in the same partition."""
    dealt = dealt_out(rows, number, tasks)
    # By hash: ranges would need a pass over the rows, which would compute them twice.
    return rows.repartition(tasks, number) if dealt is None else dealt


def dealt_out(rows: DataFrame, number: Column, tasks: int) -> DataFrame | None:
    """Distribute numbers over tasks round-robin; return None before Spark 4.1."""
    by_id: Callable[..., DataFrame] | None = getattr(rows, "repartitionById", None)
    return None if by_id is None else by_id(tasks, (number % tasks).cast("int"))


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


def doing() -> str:
    """Return the description of the jobs of this thread."""
    return _doing.get()


def log_totals(measures: Measures) -> None:
    """Log the counts of a job of this thread."""
    if measures.requests or measures.chunks_encoded:
        _log.info("%s: done, %s", _doing.get(), measures)


@contextlib.contextmanager
def bounded_by_rows(frame: DataFrame) -> Iterator[None]:
    """Make Spark limit batches only by rows within the block, if rows have a fixed width.

    The setting belongs to the session, so it also affects concurrent jobs of other threads. A value
    that the user has set is kept.
    """
    conf = frame.sparkSession.conf
    is_fixed = all(isinstance(field.dataType, _FIXED_WIDTH) for field in frame.schema)
    if not is_fixed or not conf.isModifiable(_MAX_BYTES) or conf.get(_MAX_BYTES, None) is not None:
        yield
        return
    conf.set(_MAX_BYTES, _NO_BOUND)
    try:
        yield
    finally:
        conf.unset(_MAX_BYTES)
