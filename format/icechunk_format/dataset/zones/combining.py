"""Joins parts of statistics over columns and makes rows of the result: the third and last step.

Rows of parts of one zone and one split come together. They are combined one after another; then
each selected position of the split is a row, with the keys of the zone, the labels of the other
dimensions, and the statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.dataset.reading.arrays.opened import ScanArrays
from icechunk_format.dataset.zones.plan import ZonalContext
from icechunk_format.dataset.zones.statistics import combine, finish, no_parts
from icechunk_format.dataset.zones.summing import PARTS_SCHEMA

_KEYS: Final = len(PARTS_SCHEMA)
# Rows and bytes of a batch of the result.
_MOST_ROWS: Final = 1 << 16


class Combining:
    """Makes the result of the rows of parts of one partition."""

    def __init__(self, context: ZonalContext) -> None:
        self._context = context
        self._arrays = ScanArrays(context.scan)
        self._labels: dict[int, list[pa.Array]] = {}
        self._types = [field.type for field in context.result_fields()]

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of the result for rows of parts, which are sorted by zone and split."""
        open_zone: tuple[bytes, int] | None = None
        found: NDArray[np.float64] = np.empty(0)
        key: pa.RecordBatch | None = None
        done: list[tuple[int, NDArray[np.float64], pa.RecordBatch]] = []
        filled = 0
        for batch in batches:
            zones, splits, places, parts = (batch.column(n).to_pylist() for n in range(_KEYS))
            for number, zone in enumerate(zip(zones, splits, strict=True)):
                if zone != open_zone:
                    if key is not None and open_zone is not None:
                        done.append((open_zone[1], found, key))
                        filled += found[0, 0].size
                    if filled >= _MOST_ROWS:
                        yield from self._finished(done)
                        done, filled = [], 0
                    open_zone, found = zone, self._empty(zone[1])
                    key = batch.slice(number, 1).select(range(_KEYS, batch.num_columns))
                self._add(found, places[number], parts[number])
        if key is not None and open_zone is not None:
            done.append((open_zone[1], found, key))
        yield from self._finished(done)

    def _empty(self, split: int) -> NDArray[np.float64]:
        """Return parts of no cells for all variables, ``(variables, parts, *split)``."""
        shape = [s.count for s in self._context.split_selections(split)]
        none = no_parts(self._context.parts, shape)
        return np.repeat(none[None], len(self._context.variables), axis=0)

    def _add(self, found: NDArray[np.float64], place: bytes, parts: bytes) -> None:
        ends = np.frombuffer(place, dtype=np.int64).reshape(-1, 2).tolist()
        at = tuple(slice(first, last) for first, last in ends)
        shape = (*found.shape[:2], *(last - first for first, last in ends))
        more = np.frombuffer(parts, dtype=np.float64).reshape(shape)
        for known, added in zip(found, more, strict=True):
            held = known[(slice(None), *at)]
            held[...] = combine(held, added, self._context.parts)

    def _finished(
        self, done: Sequence[tuple[int, NDArray[np.float64], pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of zones and splits."""
        if not done:
            return
        context = self._context
        counts = [found[0, 0].size for _, found, _ in done]
        keys = pa.Table.from_batches([key for _, _, key in done]).combine_chunks()
        owner = pa.array(np.repeat(np.arange(len(done)), counts))
        arrays: list[Any] = [_one(column).take(owner) for column in keys.columns]
        labels = [self._labels_of(split) for split, _, _ in done]
        arrays += [pa.concat_arrays(list(of_dim)) for of_dim in zip(*labels, strict=True)]
        flat = np.concatenate([found.reshape(*found.shape[:2], -1) for _, found, _ in done], axis=2)
        for number in range(len(context.variables)):
            for statistic in context.request.statistics:
                values, is_there = finish(flat[number], context.parts, statistic)
                kind = self._types[len(arrays) - keys.num_columns]
                held = np.where(is_there, values, 0.0)
                arrays.append(pa.array(held, mask=~is_there).cast(kind, safe=False))
        names = [str(number) for number in range(len(arrays))]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        for first in range(0, batch.num_rows, _MOST_ROWS):
            yield batch.slice(first, _MOST_ROWS)

    def _labels_of(self, split: int) -> list[pa.Array]:
        """Return the labels of the other dimensions for each row of a split."""
        if split not in self._labels:
            context = self._context
            table = context.scan.table
            chosen = context.split_selections(split)
            index = [axis.reshape(-1) for axis in np.indices([s.count for s in chosen])]
            columns = {c.source: c for c in table.columns if c.role == "dimension"}
            self._labels[split] = [
                self._arrays.labels(columns[table.dims[place]], table.sizes[place], s).take(
                    pa.array(numbers)
                )
                for place, s, numbers in zip(context.others, chosen, index, strict=True)
            ]
        return self._labels[split]


def _one(column: pa.ChunkedArray) -> pa.Array:
    held = column.combine_chunks()
    return pa.concat_arrays(held.chunks) if isinstance(held, pa.ChunkedArray) else held
