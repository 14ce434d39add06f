"""Sends pieces of work to Spark's tasks as pickled rows, and collects pickled answers.

Rules of this file
------------------
1. Rows show up in plans, so no credential may be in a piece. The location of the repository travels
   with the function instead.
2. Pieces and answers are pickled and unpickled here, so that Spark need not know their types.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from icechunk_spark.jobs.batches import fitted
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.partitions import dealt_out, together

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]

_ROWS: Final = StructType([StructField("number", LongType()), StructField("piece", BinaryType())])
_ANSWERS: Final = StructType([StructField("answer", BinaryType())])
# Packed ids are large, and Spark holds a whole batch.
_ROWS_AT_ONCE: Final = 64
#: A partition is a piece as long as there are not more of them than this.
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
    return collected(rows, lambda batches: map(function, pieces_in(batches)))


def collected(rows: DataFrame, step: Callable[[Batches], Iterable[Any]]) -> list[Any]:
    """Run a step on the rows of each partition, on executors; return all that steps yield."""
    answers = rows.mapInArrow(answering(step), _ANSWERS).collect()
    return [pickle.loads(bytes(answer[0])) for answer in answers]


def answering(step: Callable[[Batches], Iterable[Any]]) -> Task:
    """Return the task that yields what a step yields, pickled."""

    def run(batches: Batches) -> Batches:
        with errors_on_one_line():
            for answer in step(batches):
                yield pa.RecordBatch.from_pydict({"answer": [pickle.dumps(answer)]})

    return run


def work_rows(
    spark: SparkSession, pieces: Sequence[Any], partitions: int = MAX_PARTITIONS
) -> DataFrame:
    """Return pieces of work as rows ``number``, ``piece`` (pickled), in at most `partitions`."""
    table = pa.table(
        {
            "number": pa.array(range(len(pieces)), pa.int64()),
            "piece": pa.array([pickle.dumps(piece) for piece in pieces], pa.binary()),
        }
    )
    rows = spark.createDataFrame(table, schema=_ROWS)
    partitions = max(1, min(len(pieces), partitions))
    dealt = dealt_out(rows, F.col("number"), partitions)
    # Ranges are as even; Spark samples the rows for them, which are few and on the driver.
    return rows.repartitionByRange(partitions, "number") if dealt is None else dealt


def grouped_rows(rows: DataFrame, column: str, tasks: int) -> DataFrame:
    """Return rows with those of equal numbers in one partition, sorted by number."""
    return together(rows, F.col(column), tasks).sortWithinPartitions(column)


def pieces_in(batches: Batches) -> Iterator[Any]:
    """Yield the pieces of work in rows of ``work_rows``."""
    for batch in batches:
        for piece in batch.column("piece"):
            yield pickle.loads(piece.as_py())


def over_pieces(step: Callable[[Any], Batches]) -> Task:
    """Return the task that runs a step on each of its pieces of work."""
    return lambda batches: chain.from_iterable(map(step, pieces_in(batches)))


def over_rows(step: Task, schema: pa.Schema) -> Task:
    """Return the task that runs a step on all of its rows, in the types of `schema`."""
    return lambda batches: step(fitted(batch, schema) for batch in batches)


def rows_of(batches: Batches) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of batches, each as a tuple of Python values."""
    for batch in batches:
        for row in range(batch.num_rows):
            yield tuple(column[row].as_py() for column in batch.columns)


def batches_of(
    rows: Iterable[Sequence[Any]], schema: pa.Schema, rows_at_once: int = _ROWS_AT_ONCE
) -> Batches:
    """Yield rows, which may be large, in batches of a few."""
    rows = iter(rows)
    while held := list(islice(rows, rows_at_once)):
        columns = zip(zip(*held, strict=True), schema, strict=True)
        arrays = [pa.array(values, field.type) for values, field in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
