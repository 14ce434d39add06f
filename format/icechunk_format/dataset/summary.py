"""The layout ``summary``: one row for each block of the table, computed beside the data.

Spark's transport of rows is what limits the layout ``cells``; averages and quick-look maps need
a few numbers of each block instead of all of its cells.

Rules of this file
------------------
1. Blocks are the chunks of the leading variable, or ``block`` elements along each dimension,
   counted from the first element of the array. A selection takes cells out of blocks; a block of
   which nothing is left is no row.
2. ``<d>_first`` and ``<d>_last`` are the first and last selected label of the block along a
   dimension. Rows that a condition on values drops are left out of all counts, not of the labels.
3. A block larger than the budget of the task is read in pieces, and the pieces are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icechunk_format.dataset.block_reads import BlockReads, cell_column
from icechunk_format.dataset.block_statistics import (
    Statistics,
    count_kept,
    summarise,
    summarised_cells,
)
from icechunk_format.dataset.blocks import block_shape
from icechunk_format.dataset.cell_batches import BatchBuilder, BlockRows, join_thin
from icechunk_format.dataset.dimension_labels import TaskLabels
from icechunk_format.dataset.scan_arrays import ScanArrays
from icechunk_format.dataset.table_columns import sums_to_integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icechunk_format.dataset.block_reads import BlockColumns
    from icechunk_format.dataset.scan import ScanContext, ScanTask
    from icechunk_format.dataset.table import Column


@dataclass(slots=True, kw_only=True, eq=False)
class _Converted:
    """A variable of a block: numbers for statistics, Arrow for a condition."""

    values: NDArray[Any] | None = None
    valid: NDArray[np.bool_] | None = None
    arrow: pa.Array | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Segments:
    """The rows of one block, or of one piece of a block."""

    cells: NDArray[np.int64]
    firsts: dict[str, pa.Array]
    lasts: dict[str, pa.Array]
    statistics: dict[str, Statistics] = field(default_factory=dict)

    def merge(self, other: _Segments) -> _Segments:
        # Pieces come in C order, so the first one has the first labels and the last one the last.
        return _Segments(
            cells=self.cells + other.cells,
            firsts=self.firsts,
            lasts=other.lasts,
            statistics={n: s.merge(other.statistics[n]) for n, s in self.statistics.items()},
        )


def run_summary(context: ScanContext, task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Produce the rows of a task of the layout ``summary``; see ``scan.run_task`` for errors."""
    yield from join_thin(_SummaryRun(context, task).batches(), context.arrow_schema)


class _SummaryRun:
    def __init__(self, context: ScanContext, task: ScanTask) -> None:
        self._context = context
        self._task = task
        by_source = {column.source: column for column in context.table.value_columns}
        self._summarised = [
            by_source[source]
            for source in dict.fromkeys(c.source for c in context.table.columns)
            if by_source[source].role != "dimension"
        ]
        self._conditional = set(context.residual.columns if context.residual else ())
        needed = {column.source for column in self._summarised} | self._conditional
        arrays = ScanArrays(context)
        self._reads = BlockReads(
            context,
            arrays,
            [c for c in by_source.values() if c.source in needed and c.role != "dimension"],
            self._convert,
        )
        shown = {column.source for column in context.table.columns} | self._conditional
        dimensions = [c for c in by_source.values() if c.role == "dimension" and c.source in shown]
        self._labels = TaskLabels(arrays, context.table, dimensions, self._reads, task)
        self._sources = {column.source: column for column in self._summarised}

    def batches(self) -> Iterator[pa.RecordBatch]:
        waiting: _Segments | None = None
        blocks = self._reads.read(self._task)
        try:
            for block in blocks:
                segments = self._segments(block)
                waiting = segments if waiting is None else waiting.merge(segments)
                if block.completes:
                    yield from self._rows(waiting)
                    waiting = None
        finally:
            blocks.close()

    def _convert(self, column: Column, values: NDArray[Any], shape: tuple[int, ...]) -> _Converted:
        converted = _Converted()
        decoder = column.decoder
        assert decoder is not None
        if column.source in self._conditional:
            converted.arrow = cell_column(column, values, shape)
        if not any(column.source == c.source for c in self._summarised):
            return converted
        if decoder.is_numeric:
            numbers = decoder.decode_numeric(values)
            converted.values = np.broadcast_to(numbers.values.reshape(values.shape), shape)
            valid = numbers.valid
        else:
            # Only counted: any number will do.
            converted.values = np.broadcast_to(np.zeros((), dtype=np.int64), shape)
            decoded = decoder.decode(values.reshape(-1))
            valid = decoded.is_valid().to_numpy(zero_copy_only=False)
        if valid is not None and not valid.all():
            converted.valid = np.broadcast_to(valid.reshape(values.shape), shape)
        return converted

    def _segments(self, block: BlockColumns) -> _Segments:
        shape = block_shape(block.block)
        starts = [
            _segment_starts(axis.chunk_of(selection.positions()))
            for axis, selection in zip(self._reads.axes, block.block, strict=True)
        ]
        keep = self._keep(block, shape)
        counts = [len(first) for first in starts]
        lengths = [np.diff(np.append(f, size)) for f, size in zip(starts, shape, strict=True)]
        cells = summarised_cells(shape, lengths) if keep is None else count_kept(keep, starts)
        segments = _Segments(cells=cells, firsts={}, lasts={})
        for place, (name, labels) in self._labels.of_block(block.block).items():
            at = np.arange(counts[place]).reshape(
                [-1 if a == place else 1 for a in range(len(shape))]
            )
            spread = np.broadcast_to(at, counts).reshape(-1)
            ends = starts[place] + lengths[place] - 1
            segments.firsts[name] = labels.take(pa.array(starts[place][spread]))
            segments.lasts[name] = labels.take(pa.array(ends[spread]))
        for source, column in self._sources.items():
            converted: _Converted = block.values[source]
            assert converted.values is not None
            segments.statistics[source] = summarise(
                converted.values,
                valid=converted.valid,
                keep=keep,
                starts=starts,
                exact_sum=sums_to_integer(column.arrow_type),
            )
        return segments

    def _keep(self, block: BlockColumns, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """Return the cells that count, or None for all."""
        residual = self._context.residual
        if residual is None:
            return block.stored
        rows = BlockRows(
            shape=shape,
            labels=self._labels.of_block(block.block),
            keys=[(s.start, s.stop) for s in block.block],
            values={
                name: block.values[name].arrow for name in self._conditional & set(block.values)
            },
        )
        parts = [
            residual.evaluate(columns, len(next(iter(columns.values()))))
            for columns in BatchBuilder().batches(rows)
        ]
        kept: NDArray[np.bool_] = pa.chunked_array(parts).to_numpy().reshape(shape)
        return kept if block.stored is None else kept & block.stored

    def _rows(self, segments: _Segments) -> Iterator[pa.RecordBatch]:
        schema = self._context.arrow_schema
        columns = [self._column(column, segments) for column in self._context.table.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        cells = segments.cells.reshape(-1)
        yield batch if cells.all() else batch.filter(pa.array(cells > 0))

    def _column(self, column: Column, segments: _Segments) -> pa.Array:
        statistic = column.statistic
        if statistic == "first":
            return segments.firsts[column.source]
        if statistic == "last":
            return segments.lasts[column.source]
        found = segments.statistics[column.source]
        some: NDArray[np.bool_] = (found.count > 0).reshape(-1)
        if statistic == "count":
            return pa.array(found.count.reshape(-1))
        if statistic == "nulls":
            return pa.array(found.nulls.reshape(-1))
        if statistic in ("min", "max"):
            decoder = self._sources[column.source].decoder
            assert decoder is not None
            values = found.low if statistic == "min" else found.high
            return decoder.to_arrow(np.ascontiguousarray(values.reshape(-1)), some)
        values = {"sum": found.total, "mean": found.mean, "m2": found.m2}[str(statistic)]
        return pa.array(values.reshape(-1), type=column.arrow_type, mask=~some)


def _segment_starts(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where a new block begins among the positions of an axis."""
    return np.flatnonzero(np.concatenate([[True], blocks[1:] != blocks[:-1]]))
