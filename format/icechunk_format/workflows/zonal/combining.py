"""Combines parts of statistics over columns to rows of the result: the third and last step.

Rows of parts of one zone and one split are in one partition. They are combined one after another,
and quantiles are computed part by part. Each selected position of the split becomes a row with the
keys of the zone, the labels of the other dimensions, and the statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from icechunk_format.workflows.zonal.plan import ZonalContext
from icechunk_format.workflows.zonal.quantiles import Box, Samples
from icechunk_format.workflows.zonal.statistics import combine, finish, no_parts
from icechunk_format.workflows.zonal.summing import PARTS_SCHEMA

_KEYS: Final = len(PARTS_SCHEMA)
# Maximum rows and bytes of a batch of the result.
_MOST_ROWS: Final = 1 << 16


class _Zone:
    """Accumulates the parts ``(variables, parts, *split)`` and quantiles of a zone in a split."""

    def __init__(self, context: ZonalContext, split: int, key: pa.RecordBatch) -> None:
        self.split, self.key = split, key
        self._parts = context.parts
        self._shares = tuple(context.shares.values())
        count = len(context.variables)
        shape = [s.count for s in context.split_selections(split)]
        self.found = np.repeat(no_parts(self._parts, shape)[None], count, axis=0)
        self.quantiles = np.full((count, len(self._shares), *shape), np.nan)
        self._samples: Samples | None = None
        self._part = 0

    def add(self, box: Box, parts: bytes) -> None:
        """Combine parts of some steps with the accumulated parts."""
        at = tuple(slice(*ends) for ends in box)
        shape = (*self.found.shape[:2], *(last - first for first, last in box))
        more = np.frombuffer(parts, dtype=np.float64).reshape(shape)
        for known, added in zip(self.found, more, strict=True):
            held = known[(slice(None), *at)]
            held[...] = combine(held, added, self._parts)

    def add_samples(self, part: int, box: Box, samples: bytes) -> None:
        """Keep values of cells until their part is complete."""
        if self._samples is None or part != self._part:
            self.close_part()
            keys = ", ".join(str(column[0].as_py())[:60] for column in self.key.columns)
            self._samples, self._part = Samples(keys), part
        self._samples.add(box, len(self.found), samples)

    def close_part(self) -> None:
        """Compute the quantiles of the completed part."""
        if self._samples is not None:
            self._samples.quantiles(self._shares, self.quantiles)
        self._samples = None


class Combining:
    """Combines the rows of parts of one partition to rows of the result."""

    def __init__(self, context: ZonalContext) -> None:
        self._context = context
        self._arrays = context.scan.open_arrays()
        self._labels: dict[int, list[pa.Array]] = {}
        self._types = [field.type for field in context.result_fields()]

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of the result from rows of parts, sorted by zone, split and part."""
        done: list[_Zone] = []
        filled = 0
        for (_, split), rows in groupby(_rows(batches), key=itemgetter(0, 1)):
            zone: _Zone | None = None
            for _, _, part, region, parts, samples, batch, number in rows:
                if zone is None:
                    key = batch.slice(number, 1).select(range(_KEYS, batch.num_columns))
                    zone = _Zone(self._context, split, key)
                ends = np.frombuffer(region, dtype=np.int64).reshape(-1, 2).tolist()
                box = tuple((first, last) for first, last in ends)
                if samples is None:
                    zone.add(box, parts)
                else:
                    zone.add_samples(part, box, samples)
            assert zone is not None
            zone.close_part()
            done.append(zone)
            filled += zone.found[0, 0].size
            if filled >= _MOST_ROWS:
                yield from self._finished(done)
                done, filled = [], 0
        yield from self._finished(done)

    def _finished(self, done: Sequence[_Zone]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of zones and splits."""
        if not done:
            return
        context = self._context
        counts = [zone.found[0, 0].size for zone in done]
        keys = pa.Table.from_batches([zone.key for zone in done]).combine_chunks()
        owner = pa.array(np.repeat(np.arange(len(done)), counts))
        arrays: list[Any] = [column.combine_chunks().take(owner) for column in keys.columns]
        labels = [self._labels_of(zone.split) for zone in done]
        arrays += [pa.concat_arrays(list(of_dim)) for of_dim in zip(*labels, strict=True)]
        flat, quantiles = (
            np.concatenate(
                [a.reshape(*a.shape[:2], n) for a, n in zip(of_zones, counts, strict=True)], axis=2
            )
            for of_zones in ([zone.found for zone in done], [zone.quantiles for zone in done])
        )
        shares = list(context.shares)
        for number in range(len(context.variables)):
            for statistic in context.request.statistics:
                if statistic in shares:
                    values = quantiles[number, shares.index(statistic)]
                    exists = ~np.isnan(values)
                else:
                    values, exists = finish(flat[number], context.parts, statistic)
                kind = self._types[len(arrays) - keys.num_columns]
                held = np.where(exists, values, 0.0)
                arrays.append(pa.array(held, mask=~exists).cast(kind, safe=False))
        names = [str(number) for number in range(len(arrays))]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        for first in range(0, batch.num_rows, _MOST_ROWS):
            yield batch.slice(first, _MOST_ROWS)

    def _labels_of(self, split: int) -> list[pa.Array]:
        """Return the labels of the other dimensions, for each row of a split."""
        if split not in self._labels:
            context = self._context
            table = context.scan.table
            chosen = context.split_selections(split)
            index = [axis.reshape(-1) for axis in np.indices([s.count for s in chosen])]
            columns = {c.source: c for c in table.columns if c.role == "dimension"}
            self._labels[split] = [
                columns[table.dims[dim]]
                .labels(self._arrays, table.sizes[dim], s)
                .take(pa.array(numbers))
                for dim, s, numbers in zip(context.others, chosen, index, strict=True)
            ]
        return self._labels[split]


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each row of parts before its keys, then its batch and row number."""
    for batch in batches:
        columns = (batch.column(number).to_pylist() for number in range(_KEYS))
        for number, values in enumerate(zip(*columns, strict=True)):
            yield *values, batch, number
