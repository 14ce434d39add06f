"""Sends tasks to executors as pickled rows, and collects their pickled receipts.

Rules of this file
------------------
1. Plans show rows, so tasks must not contain credentials. The function contains the location of the
   repository instead.
2. Tasks and receipts are pickled and unpickled here, so that Spark need not support their types.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from icechunk_format.storage.measures import Measures, measured
from icechunk_spark.jobs.cancelling import cancellable
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.session import dealt_out, log_totals, together
from icechunk_spark.jobs.totals import note_job
from icechunk_spark.schema import fitted

Batches = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]

_ROWS: Final = StructType([StructField("number", LongType()), StructField("task", BinaryType())])
_RECEIPTS: Final = StructType([StructField("receipt", BinaryType())])
# Rows of serialized ids are large, and Spark holds a whole batch in memory.
_ROWS_AT_ONCE: Final = 64
_NO_COUNTS: Final = Measures()
#: The part number of rows that hold the counts of a task, which `counted` adds.
COUNTS: Final = -1
#: Each task gets its own partition, up to this number.
MAX_PARTITIONS: Final = 10_000


def on_executors(
    spark: SparkSession,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    partitions: int = MAX_PARTITIONS,
) -> list[Any]:
    """Run a function on every task, on executors; return the receipts in any order.

    Function, tasks and receipts must be picklable, and tasks must hold no credentials.
    """
    if not tasks:
        return []
    rows = work_rows(spark, tasks, partitions)
    return collected(rows, lambda batches: map(function, tasks_in(batches)))


def collected(
    rows: DataFrame,
    step: Callable[[Batches], Iterable[Any]],
    earlier: Callable[[], Measures] = Measures,
) -> list[Any]:
    """Run a step on the rows of each partition, on executors; return what the steps yield.

    `earlier` returns the counts of the job's other tasks when it has ended.
    """
    receipts = rows.mapInArrow(with_receipts(step), _RECEIPTS)
    found = cancellable(receipts, receipts.collect)
    return noted((receipt[0] for receipt in found), earlier())


def noted(receipts: Iterable[bytes], earlier: Measures = _NO_COUNTS) -> list[Any]:
    """Add the counts among pickled receipts to the totals of the call; return the others."""
    found = [pickle.loads(bytes(receipt)) for receipt in receipts]
    measures = sum((one for one in found if isinstance(one, Measures)), earlier)
    note_job(measures)
    log_totals(measures)
    return [one for one in found if not isinstance(one, Measures)]


def with_receipts(step: Callable[[Batches], Iterable[Any]]) -> Step:
    """Return a step that yields the pickled receipts of another step, and its counts at the end."""
    return with_counts(lambda batches: map(_sent, step(batches)), _sent)


def counted(step: Step, schema: pa.Schema, column: str) -> Step:
    """Return a step that also yields its counts, in a last row of part `COUNTS`."""

    def row_of(counts: Measures) -> pa.RecordBatch:
        row = {"part": COUNTS, column: pickle.dumps(counts)}
        return pa.RecordBatch.from_pylist([row], schema=schema)

    return with_counts(step, row_of)


def with_counts(step: Step, last: Callable[[Measures], pa.RecordBatch]) -> Step:
    """Return a step that also yields a batch with its counts at the end."""

    def run(batches: Batches) -> Batches:
        with errors_on_one_line():
            before = measured()
            yield from step(batches)
            yield last(replace(measured() - before, tasks=1))

    return run


def _sent(receipt: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"receipt": [pickle.dumps(receipt)]})


def work_rows(
    spark: SparkSession, tasks: Sequence[Any], partitions: int = MAX_PARTITIONS
) -> DataFrame:
    """Return tasks as rows ``number``, ``task`` (pickled), in at most `partitions`."""
    table = pa.table(
        {
            "number": pa.array(range(len(tasks)), pa.int64()),
            "task": pa.array([pickle.dumps(task) for task in tasks], pa.binary()),
        }
    )
    rows = spark.createDataFrame(table, schema=_ROWS)
    partitions = max(1, min(len(tasks), partitions))
    dealt = dealt_out(rows, F.col("number"), partitions)
    # By range: Spark samples the rows, which are few and on the driver.
    return rows.repartitionByRange(partitions, "number") if dealt is None else dealt


def grouped_rows(rows: DataFrame, column: str, tasks: int) -> DataFrame:
    """Return rows sorted by number, with equal numbers in one partition."""
    return together(rows, F.col(column), tasks).sortWithinPartitions(column)


def tasks_in(batches: Batches) -> Iterator[Any]:
    """Yield the tasks in rows from ``work_rows``."""
    for batch in batches:
        for task in batch.column("task"):
            yield pickle.loads(task.as_py())


def over_tasks(step: Callable[[Any], Batches]) -> Step:
    """Return a step on batches that runs `step` on each task in them."""
    return lambda batches: chain.from_iterable(map(step, tasks_in(batches)))


def over_rows(step: Step, schema: pa.Schema) -> Step:
    """Return a step on batches that casts them to `schema` first."""
    return lambda batches: step(fitted(batch, schema) for batch in batches)


def rows_of(batches: Batches) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of batches, each as a tuple of Python values."""
    for batch in batches:
        for row in range(batch.num_rows):
            yield tuple(column[row].as_py() for column in batch.columns)


def batches_of(
    rows: Iterable[Sequence[Any]], schema: pa.Schema, rows_at_once: int = _ROWS_AT_ONCE
) -> Batches:
    """Yield large rows in small batches."""
    rows = iter(rows)
    while held := list(islice(rows, rows_at_once)):
        columns = zip(zip(*held, strict=True), schema, strict=True)
        arrays = [pa.array(values, field.type) for values, field in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
