"""Yields the layout ``summary``: one row of statistics for each block of the table.

The speed of the layout ``cells`` is limited by moving rows to Spark. Averages and quick-look maps
need only a few numbers of each block, which executors compute where they read the data.

Rules of this file
------------------
1. Blocks are the chunks of the leading variable, or ``block`` elements along each dimension,
   counted from the first element of the array. A selection removes cells from blocks; a block
   without selected cells has no row.
2. ``<d>_first`` and ``<d>_last`` are the first and last selected label of the block along a
   dimension. Cells dropped by a condition on values are not counted, but do not change these
   labels.
3. One read covers many small blocks, one block, or a slab of blocks that exceed the budget of the
   task. A slab may contain parts of many blocks, so its statistics are merged block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.dataset.reading.layouts.batches import BatchBuilder, join_thin
from icechunk_format.dataset.reading.layouts.block_reads import (
    BlockColumns,
    BlockReads,
    TaskLabels,
    cell_column,
)
from icechunk_format.dataset.reading.layouts.blocks import Block, block_shape
from icechunk_format.dataset.reading.layouts.statistics import (
    Statistics,
    count_kept,
    segment_lengths,
    summarize,
    summarized_cells,
)
from icechunk_format.dataset.reading.scan import ScanContext, ScanTask
from icechunk_format.dataset.table.columns import sums_to_integer
from icechunk_format.dataset.table.table import Column
from icechunk_format.grid.axes import ChunkAxis


@dataclass(slots=True, kw_only=True, eq=False)
class _Converted:
    """The values of a variable: numbers for statistics, Arrow for a condition."""

    values: NDArray[Any] | None = None
    valid: NDArray[np.bool_] | None = None
    arrow: pa.Array | None = None


class _Segments:
    """The statistics of blocks that are read together: one segment, later one row, for each.

    ``axes`` holds the edges of blocks along each dimension; ``whole`` is the union of the blocks.
    """

    def __init__(self, axes: Sequence[ChunkAxis], whole: Block) -> None:
        self._axes = axes
        numbers = [axis.chunk_of(s.positions()) for axis, s in zip(axes, whole, strict=True)]
        self.starts = [_segment_starts(found) for found in numbers]
        self._numbers = [n[first] for n, first in zip(numbers, self.starts, strict=True)]
        self.shape = tuple(len(first) for first in self.starts)
        self.lengths = segment_lengths(self.starts, block_shape(whole))
        self.cells = np.zeros(self.shape, dtype=np.int64)
        self.statistics: dict[str, Statistics] = {}

    def located(self, slab: Block) -> tuple[tuple[slice, ...], list[NDArray[np.int64]]]:
        """Return the segments with cells in a slab, and their starts along its axes."""
        at, starts = [], []
        for axis, selection, known in zip(self._axes, slab, self._numbers, strict=True):
            found = axis.chunk_of(selection.positions())
            starts.append(_segment_starts(found))
            first = int(np.searchsorted(known, found[0]))
            at.append(slice(first, first + len(starts[-1])))
        return tuple(at), starts

    def add(self, source: str, at: tuple[slice, ...], found: Statistics, *, last: bool) -> None:
        """Merge the statistics of a variable over one slab; ``last`` for the last slab."""
        known = self.statistics.get(source)
        if known is None and last:
            # The only slab: nothing to merge.
            self.statistics[source] = found
            return
        if known is None:
            known = self.statistics[source] = Statistics.none(self.shape, found)
        known.add(at, found)

    def ends(self, dim: int, labels: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the first and the last label of each segment along a dimension."""
        at = np.arange(self.shape[dim]).reshape(
            [-1 if axis == dim else 1 for axis in range(len(self.shape))]
        )
        spread = np.broadcast_to(at, self.shape).reshape(-1)
        firsts = self.starts[dim]
        lasts = firsts + self.lengths[dim] - 1
        return labels.take(pa.array(firsts[spread])), labels.take(pa.array(lasts[spread]))


def run_summary(context: ScanContext, task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task of the layout ``summary``; raises the errors of ``run_scan``."""
    yield from join_thin(_SummaryRun(context, task).batches(), context.arrow_schema)


class _SummaryRun:
    def __init__(self, context: ScanContext, task: ScanTask) -> None:
        self._context = context
        self._task = task
        shown = {column.source for column in context.table.columns}
        needed = context.table.needed(context.residual)
        # The variables that are summarized, by their source.
        self._summarized = {
            column.source: column
            for column in needed
            if column.source in shown and column.role != "dimension"
        }
        self._conditional = set(context.residual.columns if context.residual else ())
        self._reads = BlockReads(context, context.open_arrays(), needed, self._convert)
        self._labels = TaskLabels(self._reads, task)

    def batches(self) -> Iterator[pa.RecordBatch]:
        waiting: _Segments | None = None
        with closing(self._reads.read(self._task)) as blocks:
            for block in blocks:
                if waiting is None:
                    waiting = _Segments(self._reads.axes, block.slab.whole)
                self._add(waiting, block)
                if block.slab.completes:
                    yield self._rows(waiting, block.slab.whole)
                    waiting = None

    def _convert(self, column: Column, values: NDArray[Any], shape: tuple[int, ...]) -> _Converted:
        converted = _Converted()
        decoder = column.decoder
        assert decoder is not None
        if column.source in self._conditional:
            converted.arrow = cell_column(column, values, shape)
        if column.source not in self._summarized:
            return converted
        if decoder.is_numeric:
            numbers, valid = decoder.decode_numeric(values)
            converted.values = np.broadcast_to(numbers, shape)
        else:
            # Only counts are shown, so the numbers are arbitrary.
            converted.values = np.broadcast_to(np.zeros((), dtype=np.int64), shape)
            decoded = decoder.decode(values.reshape(-1))
            valid = decoded.is_valid().to_numpy(zero_copy_only=False)
        if valid is not None and not valid.all():
            converted.valid = np.broadcast_to(valid.reshape(values.shape), shape)
        return converted

    def _add(self, segments: _Segments, block: BlockColumns) -> None:
        shape = block_shape(block.block)
        at, starts = segments.located(block.block)
        keep = self._keep(block, shape)
        segments.cells[at] += (
            summarized_cells(segment_lengths(starts, shape))
            if keep is None
            else count_kept(keep, starts)
        )
        for source, column in self._summarized.items():
            converted: _Converted = block.values[source]
            assert converted.values is not None
            found = summarize(
                converted.values,
                valid=converted.valid,
                keep=keep,
                starts=starts,
                exact_sum=sums_to_integer(column.arrow_type),
            )
            segments.add(source, at, found, last=block.slab.completes)

    def _keep(self, block: BlockColumns, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """Return a mask of the cells to count, or None for all."""
        residual = self._context.residual
        if residual is None:
            return block.stored
        arrow = {name: block.values[name].arrow for name in self._conditional & set(block.values)}
        rows = self._labels.rows(block.block, arrow)
        parts = [
            residual.evaluate(columns, len(next(iter(columns.values()))))
            for columns in BatchBuilder().batches(rows)
        ]
        kept: NDArray[np.bool_] = pa.chunked_array(parts).to_numpy().reshape(shape)
        return kept if block.stored is None else kept & block.stored

    def _rows(self, segments: _Segments, whole: Block) -> pa.RecordBatch:
        ends = {
            name: segments.ends(dim, labels)
            for dim, (name, labels) in self._labels.of_block(whole).items()
        }
        columns = [self._column(column, segments, ends) for column in self._context.table.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._context.arrow_schema)
        cells = segments.cells.reshape(-1)
        return batch if cells.all() else batch.filter(pa.array(cells > 0))

    def _column(
        self, column: Column, segments: _Segments, ends: dict[str, tuple[pa.Array, pa.Array]]
    ) -> pa.Array:
        statistic = column.statistic
        if statistic == "first":
            return ends[column.source][0]
        if statistic == "last":
            return ends[column.source][1]
        found = segments.statistics[column.source]
        some: NDArray[np.bool_] = (found.count > 0).reshape(-1)
        if statistic == "count":
            return pa.array(found.count.reshape(-1))
        if statistic == "nulls":
            return pa.array(found.nulls.reshape(-1))
        if statistic in ("min", "max"):
            decoder = self._summarized[column.source].decoder
            assert decoder is not None
            values = found.low if statistic == "min" else found.high
            return decoder.to_arrow(np.ascontiguousarray(values.reshape(-1)), some)
        values = {"sum": found.total, "mean": found.mean, "m2": found.m2}[str(statistic)]
        return pa.array(values.reshape(-1), type=column.arrow_type, mask=~some)


def _segment_starts(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions along an axis at which a new block begins."""
    return np.flatnonzero(np.concatenate([[True], blocks[1:] != blocks[:-1]]))
