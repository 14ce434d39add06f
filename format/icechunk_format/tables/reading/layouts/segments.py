"""Reduces the blocks of a task to statistics of segments, for summaries and aggregates.

Edges along each dimension of the table divide its cells into segments. The layout ``summary`` has a
segment for each block; an aggregate has one for each label of the dimensions that it groups by.

Rules of this file
------------------
1. One read covers many small blocks, one block, or a slab of blocks that exceed the budget of the
   task. A slab may contain parts of many segments, so its statistics are merged segment by segment.
2. A measure computes only the statistics that are wanted of it.
3. A condition is evaluated on Arrow columns, since its kernels define Spark's semantics; it becomes
   a mask of the cells that count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.groups import DimSelection
from icechunk_format.tables.reading.layouts.arithmetic import Step, computed
from icechunk_format.tables.reading.layouts.batches import BatchBuilder
from icechunk_format.tables.reading.layouts.block_reads import (
    BlockColumns,
    BlockReads,
    TaskLabels,
    cell_column,
)
from icechunk_format.tables.reading.layouts.blocks import Block, block_shape
from icechunk_format.tables.reading.layouts.statistics import (
    Statistic,
    Statistics,
    count_kept,
    segment_lengths,
    summarize,
    summarized_cells,
)
from icechunk_format.tables.reading.scan import ScanContext, ScanTask
from icechunk_format.tables.table.table import Column

if TYPE_CHECKING:
    from icechunk_format.tables.selection.where.condition import Residual

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Statistics of one column.

    Parameters
    ----------
    source
        The source of the column; None counts cells.
    wanted
        The statistics beside the counts.
    exact_sum
        Sum integers as ``int64``, which wraps; otherwise sums are ``float64``.
    half
        Take the upper or lower 32 bits of 64-bit integers, whose sums are exact.
    steps
        Operations on the values before they are reduced.
    condition
        The cells that count, beside the condition of the scan; None for all.
    """

    source: str | None = None
    wanted: frozenset[Statistic] = frozenset()
    exact_sum: bool = False
    half: Literal["upper", "lower"] | None = None
    steps: tuple[Step, ...] = ()
    condition: Residual | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Converted:
    """The values of a column: numbers for statistics, Arrow for a condition."""

    values: NDArray[Any] | None = None
    valid: Mask | None = None
    arrow: pa.Array | None = None


class Segments:
    """The statistics of the segments of a part of a task, by the number of the measure.

    ``axes`` holds the edges of segments along each dimension; ``whole`` is the part.
    """

    def __init__(self, axes: Sequence[ChunkAxis], whole: Block) -> None:
        self._axes = axes
        self.whole = whole
        found = [_along(axis, selection) for axis, selection in zip(axes, whole, strict=True)]
        self.starts = [starts for starts, _ in found]
        self._numbers = [numbers for _, numbers in found]
        self.shape = tuple(len(first) for first in self.starts)
        self.lengths = segment_lengths(self.starts, block_shape(whole))
        self.cells = np.zeros(self.shape, dtype=np.int64)
        self.statistics: dict[int, Statistics] = {}

    def located(self, slab: Block) -> tuple[tuple[slice, ...], list[NDArray[np.int64]]]:
        """Return the segments with cells in a slab, and their starts along its axes."""
        at, starts = [], []
        for axis, selection, known in zip(self._axes, slab, self._numbers, strict=True):
            own, numbers = _along(axis, selection)
            starts.append(own)
            first = int(np.searchsorted(known, numbers[0]))
            at.append(slice(first, first + len(own)))
        return tuple(at), starts

    def add(self, measure: int, at: tuple[slice, ...], found: Statistics, *, last: bool) -> None:
        """Merge the statistics of a measure over one slab; ``last`` for the last slab."""
        known = self.statistics.get(measure)
        if known is None and last:
            # The only slab: nothing to merge.
            self.statistics[measure] = found
            return
        if known is None:
            known = self.statistics[measure] = Statistics.none(self.shape, found)
        known.add(at, found)

    def spread(self, dim: int) -> NDArray[np.int64]:
        """Return, for each segment in C order, its number along a dimension."""
        at = np.arange(self.shape[dim]).reshape(
            [-1 if axis == dim else 1 for axis in range(len(self.shape))]
        )
        return np.broadcast_to(at, self.shape).reshape(-1)


class Reduction:
    """Reduces the blocks of one task.

    Parameters
    ----------
    columns
        The columns to read, and the dimensions with labels: those of measures and conditions, and
        any others that the caller needs.
    axes
        The edges of segments along each dimension. None takes the blocks of the layout ``summary``;
        otherwise segments extend over a whole box of the task.
    """

    def __init__(
        self,
        context: ScanContext,
        task: ScanTask,
        measures: Sequence[Measure],
        columns: Sequence[Column],
        axes: Sequence[ChunkAxis] | None = None,
    ) -> None:
        self._context = context
        self._task = task
        self._measures = measures
        conditions = [m.condition for m in measures if m.condition is not None]
        if context.residual is not None:
            conditions.append(context.residual)
        self._conditional = {name for condition in conditions for name in condition.columns}
        self._measured = {measure.source for measure in measures}
        self._reads = BlockReads(
            context, context.open_arrays(), columns, self._convert, by_box=axes is not None
        )
        self._axes = self._reads.axes if axes is None else axes
        self.labels = TaskLabels(self._reads, task)
        self._builder = BatchBuilder()
        has_values = any(column.role != "dimension" for column in columns)
        self._counts_only = not (has_values or conditions or context.skip_missing)

    def segments(self) -> Iterator[Segments]:
        """Yield the segments of each part of the task, when they are complete."""
        if self._counts_only:
            yield from map(self._sized, self._reads.boxes(self._task))
            return
        waiting: Segments | None = None
        with closing(self._reads.read(self._task)) as blocks:
            for block in blocks:
                if waiting is None:
                    waiting = Segments(self._axes, block.slab.whole)
                self._add(waiting, block)
                if block.slab.completes:
                    yield waiting
                    waiting = None

    def _sized(self, box: Block) -> Segments:
        """Return the segments of a box whose cells all count; nothing is read."""
        segments = Segments(self._axes, box)
        segments.cells += summarized_cells(segments.lengths)
        none = np.zeros(segments.shape, dtype=np.int64)
        for number in range(len(self._measures)):
            segments.statistics[number] = Statistics(count=segments.cells, nulls=none)
        return segments

    def _convert(self, column: Column, values: NDArray[Any], shape: tuple[int, ...]) -> _Converted:
        converted = _Converted()
        decoder = column.decoder
        assert decoder is not None
        if column.source in self._conditional:
            converted.arrow = cell_column(column, values, shape)
        if column.source not in self._measured:
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

    def _add(self, segments: Segments, block: BlockColumns) -> None:
        shape = block_shape(block.block)
        at, starts = segments.located(block.block)
        keep = self._kept(self._context.residual, block, shape)
        if block.stored is not None:
            keep = block.stored if keep is None else keep & block.stored
        segments.cells[at] += (
            summarized_cells(segment_lengths(starts, shape))
            if keep is None
            else count_kept(keep, starts)
        )
        for number, measure in enumerate(self._measures):
            counted = keep
            if measure.condition is not None:
                own = self._kept(measure.condition, block, shape)
                counted = own if keep is None or own is None else own & keep
            values, valid = _numbers(measure, block, shape)
            found = summarize(
                values,
                valid=valid,
                keep=counted,
                starts=starts,
                exact_sum=measure.exact_sum,
                wanted=measure.wanted,
            )
            segments.add(number, at, found, last=block.slab.completes)

    def _kept(
        self, condition: Residual | None, block: BlockColumns, shape: tuple[int, ...]
    ) -> Mask | None:
        """Return a mask of the cells that meet a condition."""
        if condition is None:
            return None
        arrow: Mapping[str, pa.Array] = {
            name: block.values[name].arrow for name in condition.columns if name in block.values
        }
        if len(arrow) == len(condition.columns) and arrow:
            # Without labels, there are no columns to build for each batch.
            found = condition.evaluate(arrow, len(next(iter(arrow.values()))))
        else:
            rows = self.labels.rows(block.block, arrow, names=condition.columns)
            parts = [
                condition.evaluate(columns, len(next(iter(columns.values()))))
                for columns in self._builder.batches(rows)
            ]
            found = pa.chunked_array(parts)
        mask: Mask = found.to_numpy(zero_copy_only=False)
        return mask.reshape(shape)


def _numbers(
    measure: Measure, block: BlockColumns, shape: tuple[int, ...]
) -> tuple[NDArray[Any], Mask | None]:
    """Return the numbers of a measure in a block, and a mask of those that are present."""
    if measure.source is None:
        return np.broadcast_to(np.zeros((), dtype=np.int64), shape), None
    converted: _Converted = block.values[measure.source]
    values = converted.values
    assert values is not None
    if measure.half is not None:
        values = values >> 32 if measure.half == "upper" else values & 0xFFFFFFFF
        values = values.astype(np.int64, copy=False)
    return computed(values, measure.steps), converted.valid


def _along(axis: ChunkAxis, selection: DimSelection) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions at which segments begin along an axis, and their numbers."""
    if axis.count == 1:
        # A dimension that is not grouped by may be too long for a list of positions.
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    numbers = selection.chunks(axis)
    return selection.rank(axis.start_of(numbers)), numbers
