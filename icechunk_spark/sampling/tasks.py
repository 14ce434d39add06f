"""Samples points inside ``mapInArrow``, on executors.

Rules of this file
------------------
1. Batches are grouped up to a limit of bytes, so that a chunk is decoded once for many points.
   Batches keep their rows.
2. The columns of the points are passed through unchanged.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from icechunk_format.workflows.sampling import SamplePlan, Sampler
from icechunk_spark.jobs.errors import errors_on_one_line

_GROUP_BYTES: Final = 64 << 20


class SamplePoints:
    """A function for ``mapInArrow`` from points to points with values.

    `points` are the positions of the columns that hold coordinates. The first `kept` columns are
    returned, and later ones exist only for this function. The class defines no `repr`, since the
    plan may contain credentials.
    """

    def __init__(
        self, plan: SamplePlan, points: Sequence[int], kept: int, added: pa.Schema
    ) -> None:
        self.__name__ = "icechunk_sample"
        self._plan = plan
        self._points = tuple(points)
        self._kept = kept
        self._added = added

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the points of one task with their values."""
        with errors_on_one_line():
            sampler = None
            for group in grouped(batches, self._plan.bytes_of_a_point):
                sampler = sampler or Sampler(self._plan)
                yield from self._sampled(sampler, group)

    def _sampled(self, sampler: Sampler, group: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = [_joined(group, number) for number in self._points]
        positions = sampler.find(columns)
        if self._plan.outside == "error":
            sampler.check_outside(positions, columns)
        values = [
            array if array.type.equals(field.type) else array.cast(field.type)
            for array, field in zip(
                [*sampler.labels(positions.count), *sampler.sample(positions)],
                self._added,
                strict=True,
            )
        ]
        keep = pa.array(~positions.outside) if self._plan.outside == "drop" else None
        begin = 0
        for batch in group:
            rows = batch.num_rows
            schema = pa.schema([*list(batch.schema)[: self._kept], *self._added])
            own = batch.columns[: self._kept]
            made = pa.RecordBatch.from_arrays(
                [*own, *(array.slice(begin, rows) for array in values)], schema=schema
            )
            yield made if keep is None else made.filter(keep.slice(begin, rows))
            begin += rows


class NumberChunks:
    """A function for ``mapInArrow`` that adds the number of the chunk of a point."""

    def __init__(self, plan: SamplePlan, points: Sequence[int]) -> None:
        self.__name__ = "icechunk_chunk_of_point"
        self._plan = plan
        self._points = tuple(points)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the points of one task with the number."""
        with errors_on_one_line():
            sampler = Sampler(self._plan)
            for batch in batches:
                positions = sampler.find([batch.column(number) for number in self._points])
                numbers = pa.array(sampler.chunk_of(positions), pa.int64())
                schema = pa.schema([*batch.schema, pa.field("chunk", pa.int64())])
                yield pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema)


def grouped(
    batches: Iterator[pa.RecordBatch], bytes_of_a_point: int
) -> Iterator[list[pa.RecordBatch]]:
    """Group batches whose points can be sampled within the limit of bytes."""
    group: list[pa.RecordBatch] = []
    held = 0
    most_rows = max(1, _GROUP_BYTES // bytes_of_a_point)
    for whole in batches:
        for begin in range(0, whole.num_rows, most_rows):
            batch = whole.slice(begin, most_rows)
            needed = batch.nbytes + batch.num_rows * bytes_of_a_point
            if group and held + needed > 2 * _GROUP_BYTES:
                yield group
                group, held = [], 0
            group.append(batch)
            held += needed
    if group:
        yield group


def _joined(group: list[pa.RecordBatch], number: int) -> pa.Array:
    parts = [batch.column(number) for batch in group]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
