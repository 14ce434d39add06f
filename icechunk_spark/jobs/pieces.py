"""Shuffles pieces of binary values between two steps of tasks: those that cut and those that join.

A piece is a row with the number of its group, a box, and values; the first step yields pieces, and
the second one gets all pieces of some groups, sorted by group.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.measures import Measures, measured
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.task_rows import (
    MAX_PARTITIONS,
    batches_of,
    collected,
    grouped_rows,
    rows_of,
    tasks_in,
    work_rows,
)
from icechunk_spark.schema import arrow_target

_PIECES: Final = StructType(
    [
        StructField("group", LongType()),
        StructField("box", BinaryType()),
        StructField("data", BinaryType()),
    ]
)
_BATCH_BYTES: Final = 8 * 2**20
_BATCH_PIECES: Final = 10_000


class Sent(NamedTuple):
    """A piece as a row."""

    group: int
    box: bytes
    values: bytes


def shuffled(
    spark: SparkSession,
    tasks: Sequence[Any],
    cut: Callable[[Any], Iterable[Any]],
    groups: int,
    join: Callable[[Iterable[Any]], Any],
) -> list[Any]:
    """Run `cut` on every task, and `join` on the pieces of all groups; return its receipts.

    Parameters
    ----------
    cut
        Yields pieces with the fields of `Sent`, whose groups are below `groups`.
    join
        Called with the pieces of some groups, sorted by group.
    """

    def cutting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_on_one_line():
            for number, task in tasks_in(batches):
                before = measured().chunks_decoded
                yield from _batches(cut(task))
                # Only the last tasks send receipts, so counts are sent as a piece of a group beyond
                # all others. Times are left out, since Spark fails the job if a repeated task
                # returns different rows.
                counts = Measures(tasks=1, chunks_decoded=measured().chunks_decoded - before)
                yield from _batches([Sent(groups + number, b"", pickle.dumps(counts))])

    def joining(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        counts = Measures()

        def pieces() -> Iterator[Sent]:
            nonlocal counts
            for piece in starmap(Sent, rows_of(batches)):
                if piece.group < groups:
                    yield piece
                else:
                    counts += pickle.loads(piece.values)

        yield join(pieces())
        yield counts

    rows = work_rows(spark, list(enumerate(tasks))).mapInArrow(cutting, _PIECES)
    return collected(grouped_rows(rows, "group", min(groups, MAX_PARTITIONS)), joining)


def _batches(pieces: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield pieces in batches of bounded size."""
    schema = arrow_target(_PIECES)
    sized = ((piece, len(piece.values)) for piece in pieces)
    for held in sized_batches(sized, _BATCH_PIECES, _BATCH_BYTES):
        yield from batches_of(held, schema, _BATCH_PIECES)
