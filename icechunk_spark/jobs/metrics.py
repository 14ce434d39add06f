"""Counts rows, requests and bytes in the tasks of reads, and returns the counts to the driver.

Why an accumulator
------------------
Spark (up to 4.3) has no metrics for Python data sources, and rows cannot contain counts. In classic
sessions, functions of `mapInArrow` and table functions can use accumulators; the readers of data
sources, streams among them, cannot, because Spark plans them in another process than the driver's.
A task adds its counts under the name of the read and the number of the query, which Spark passes to
tasks as a property.

Rules of this file
------------------
1. A SparkContext has one accumulator, which keeps only the newest queries, so the driver's memory
   does not grow with reads or tasks.
2. Executors import this module, so it imports nothing that only a driver needs.
3. Jobs of an iterator of rows belong to no query of Spark (`local_rows`), so they have a number of
   their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyspark import AccumulatorParam, TaskContext

from icechunk_format.errors import IcechunkError, UnsupportedError
from icechunk_format.storage.measures import Measures, measured
from icechunk_spark.jobs.session import is_connect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, Row, SparkSession

# The number of a query, and that of an iterator of rows that began after it, or 0.
_Number = tuple[int, int]
# The name of a read, and the query that runs it.
_Query = tuple[str, _Number]
_Counts = dict[_Query, Measures]

_MOST_QUERIES: Final = 1_000
_QUERY: Final = "spark.sql.execution.id"
_ITERATOR: Final = "icechunk.iterator"
_log = logging.getLogger("icechunk_spark.jobs")
# Programs cannot set levels on executors, where Spark collects the lines if it is configured to.
_log.setLevel(logging.INFO)
_accumulators: dict[str, Accumulator[_Counts]] = {}
_iterators = count(1)


class _Sums(AccumulatorParam[_Counts]):
    """Adds counts by read and query, and drops the oldest queries."""

    def zero(self, value: _Counts) -> _Counts:
        """Return no counts."""
        return {}

    def addInPlace(self, value1: _Counts, value2: _Counts) -> _Counts:
        """Add the counts of a task."""
        for query, measures in value2.items():
            value1[query] = value1.pop(query, Measures()) + measures
        while len(value1) > _MOST_QUERIES:
            del value1[next(iter(value1))]
        return value1


def accumulator_of(spark: SparkSession) -> Accumulator[_Counts] | None:
    """Return the accumulator of all reads of a context; None for a session of Connect."""
    if is_connect(spark):
        return None
    context = spark.sparkContext
    found = _accumulators.get(str(context.applicationId))
    if found is None:
        _accumulators.clear()
        found = context.accumulator({}, _Sums())
        _accumulators[str(context.applicationId)] = found
    return found


def counting(
    name: str,
    accumulator: Accumulator[_Counts] | None,
    batches: Iterator[pa.RecordBatch],
    key: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task, then log and add its counts, also if it is closed early.

    ``key`` is the name of the read in Spark's plans; by default, its name in the log.
    """
    before, rows = measured(), 0
    try:
        for batch in batches:
            rows += batch.num_rows
            yield batch
    except IcechunkError as error:
        # Spark prints every frame of a traceback.
        raise error.with_traceback(None) from None
    finally:
        done = replace(measured() - before, rows=rows, tasks=1)
        _log.info("%s: %s", name, done)
        if accumulator is not None:
            accumulator.add({(key or name, _query_of_task()): done})


def _query_of_task() -> _Number:
    task = TaskContext.get()
    if task is None:
        return (-1, 0)
    query, _, iterator = (task.getLocalProperty(_ITERATOR) or "").partition(" ")
    return (int(task.getLocalProperty(_QUERY) or query or -1), int(iterator or 0))


def local_rows(frame: DataFrame, start: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Start an iterator of the rows of a classic DataFrame, whose jobs belong to no query.

    ``DataFrame.toLocalIterator`` ends its query before the first job starts. Spark 4.3 keeps each
    job, with its rows, until its query ends, so the JVM would keep all rows for good. The jobs of
    an RDD belong to no query.
    """
    session = frame.sparkSession
    context: Any = session.sparkContext
    counts = accumulator_of(session)
    known = () if counts is None else [number for _, (number, _) in list(counts.value)]
    # Jobs inherit the properties of the thread that requests the iterator.
    before = {name: context.getLocalProperty(name) for name in (_QUERY, _ITERATOR)}
    try:
        context.setLocalProperty(_QUERY, None)
        context.setLocalProperty(_ITERATOR, f"{max(known, default=-1)} {next(_iterators)}")
        return start()
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)


def last_read_metrics(df: DataFrame) -> Measures | None:
    """Return the counts of the last query on a read: rows, requests, bytes, chunks and times.

    Parameters
    ----------
    df
        A DataFrame from `read`, from ``spark.read`` in a registered session, from a `view` or from
        the table function ``icechunk``, or a DataFrame derived from one of these. Reads of one
        snapshot with the same options count as one read, and so do all calls of the table function.

    Returns
    -------
    Measures
        Rows, requests, bytes, decoded chunks and the time of decoding, for the newest query that
        ran the read, summed over all reads in the DataFrame. None if no query ran it. Tasks that
        Spark repeats count again; tasks that a LIMIT stops do not count.

    Raises
    ------
    UnsupportedError
        The session is a Spark Connect session, which has no accumulators. Tasks log the same counts
        at INFO under ``icechunk_spark.jobs``.

    Examples
    --------
    >>> df.count()  # doctest: +SKIP
    >>> icechunk_spark.last_read_metrics(df).bytes_read  # doctest: +SKIP
    """
    accumulator = accumulator_of(df.sparkSession)
    if accumulator is None:
        raise UnsupportedError(
            "last_read_metrics needs accumulators, which Spark Connect sessions do not have:"
            " use a classic session, or read the lines of the logger icechunk_spark.jobs, which"
            " Spark 4.1 and newer collect with spark.sql.pyspark.worker.logging.enabled",
            method="last_read_metrics",
        )
    frame: Any = df
    plan = str(frame._jdf.queryExecution().analyzed().toString())
    found = [
        (number, measures)
        for (name, number), measures in accumulator.value.items()
        if f"{name}(" in plan
    ]
    if not found:
        return None
    newest = max(number for number, _ in found)
    return sum((one for number, one in found if number == newest), Measures())
