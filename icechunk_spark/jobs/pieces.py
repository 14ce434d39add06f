"""Shuffles pieces of binary values between steps of tasks: one that cuts them, and one that joins.

A piece is a row with the number of its group, a box, and values. Steps yield pieces, and the next
step gets all pieces of some groups, sorted by group.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.measures import Measures, measured
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.metrics import accumulator_of
from icechunk_spark.jobs.session import dealt_out, together
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
    *,
    middle: tuple[int, Callable[[Iterable[Any]], Iterable[Any]]] | None = None,
) -> list[Any]:
    """Run `cut` on every task, and `join` on the pieces of all groups; return its receipts.

    Parameters
    ----------
    cut
        Yields pieces with the fields of `Sent`, whose groups are below those of the next step.
    groups
        Number of groups of `join`.
    join
        Called with the pieces of some groups, sorted by group.
    middle
        Number of groups of a step between both, and the step; None if there is one shuffle.
    """
    # Only the last tasks send receipts. An accumulator sends the counts of the others. Connect has
    # none, so there they are sent as a piece whose group is beyond all others: without requests
    # and times, since Spark fails the job if a repeated task returns different rows.
    accumulator = accumulator_of(spark)
    job = (f"shuffle {secrets.token_hex(8)}", (-1, 0))
    beyond = max(groups, middle[0] if middle else 0)

    def sent(counts: Measures, group: int) -> Iterator[pa.RecordBatch]:
        if accumulator is not None:
            accumulator.add({job: replace(counts, tasks=1)})
            return
        kept = Measures(tasks=1, chunks_decoded=counts.chunks_decoded)
        yield from _batches([Sent(group, b"", pickle.dumps(kept))])

    def cutting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_on_one_line():
            for number, task in tasks_in(batches):
                before = measured()
                yield from _batches(cut(task))
                yield from sent(measured() - before, beyond + number)

    def split(batches: Iterator[pa.RecordBatch], counts: list[Sent]) -> Iterator[Sent]:
        for piece in starmap(Sent, rows_of(batches)):
            if piece.group < beyond:
                yield piece
            else:
                counts.append(piece)

    def again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert middle is not None
        with errors_on_one_line():
            before, counts = measured(), list[Sent]()
            yield from _batches(middle[1](split(batches, counts)))
            yield from _batches(counts)
            yield from sent(measured() - before, beyond)

    def joining(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        counts: list[Sent] = []
        yield join(split(batches, counts))
        yield sum((pickle.loads(piece.values) for piece in counts), Measures())

    def earlier() -> Measures:
        return Measures() if accumulator is None else accumulator.value.pop(job, Measures())

    rows = work_rows(spark, list(enumerate(tasks))).mapInArrow(cutting, _PIECES)
    if middle is not None:
        rows = _dealt(rows, middle[0]).mapInArrow(again, _PIECES)
    return collected(_dealt(rows, groups), joining, earlier)


def _dealt(rows: DataFrame, groups: int) -> DataFrame:
    # A partition of one group is not sorted, since sorting would copy every piece again.
    if groups <= MAX_PARTITIONS and dealt_out(rows, F.col("group"), groups) is not None:
        return together(rows, F.col("group"), groups)
    return grouped_rows(rows, "group", min(groups, MAX_PARTITIONS))


def _batches(pieces: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield pieces in batches of bounded size."""
    schema = arrow_target(_PIECES)
    sized = ((piece, len(piece.values)) for piece in pieces)
    for held in sized_batches(sized, _BATCH_PIECES, _BATCH_BYTES):
        yield from batches_of(held, schema, _BATCH_PIECES)
