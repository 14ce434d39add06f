"""Reads arrays for rows of cover and reduces them: the second step of zonal statistics.

The rows of a task (one column and one split) are in one partition. Their chunks are read once, and
each block is reduced for all zones together. The results are the parts of statistics of each zone,
and for quantiles the values of its cells; `combining` joins them over columns.

Rules of this file
------------------
1. Rows are collected up to a limit of their cover; the reads of all their tasks then run ahead of
   the computation. If one task exceeds the limit, its chunks are read again.
2. Parts of a whole split are collected up to a limit, so that there are few rows.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.groups import DimSelection
from icechunk_format.tables.reading import Block, BlockReads, Column, ScanTask, block_shape
from icechunk_format.workflows.zonal.covering import COVER_SCHEMA, NO_GEOMETRY, binaries
from icechunk_format.workflows.zonal.plan import AREA, ZonalContext, numbers_or_nan
from icechunk_format.workflows.zonal.quantiles import Box, parts_within
from icechunk_format.workflows.zonal.statistics import CoverMatrix, block_parts, no_parts

#: The columns of a row of parts, before the keys of the zone.
PARTS_SCHEMA: Final = pa.schema(
    [
        ("zone", pa.binary()),
        ("split", pa.int64()),
        ("part", pa.int64()),
        ("region", pa.binary()),
        ("parts", pa.binary()),
        ("samples", pa.binary()),
    ]
)
_MOST_COVER_BYTES: Final = 24 << 20
_MOST_PARTS_BYTES: Final = 48 << 20
# Mean radius of the Earth in metres (IUGG).
_RADIUS: Final = 6_371_008.8
_KEYS: Final = len(COVER_SCHEMA)


@dataclass(slots=True, kw_only=True, eq=False)
class _Task:
    """The rows of one column and one split.

    Parameters
    ----------
    box
        Bounding box of the covered cells: ``(start, stop)`` along y and x.
    number
        Number of the first row within the partition.
    collected
        Parts of the whole split, ``(zones, variables, parts, *split)``; None if they are too large,
        so that each block yields rows.
    """

    rows: pa.Table
    number: int
    column: int
    split: int
    box: tuple[tuple[int, int], tuple[int, int]]
    cover: CoverMatrix
    collected: NDArray[np.float64] | None


class Summing:
    """Reduces the rows of cover of one partition."""

    def __init__(self, context: ZonalContext) -> None:
        self._context = context
        self._arrays = context.scan.open_arrays()
        self._variables = context.variables
        self._parts = context.parts
        self._seen = 0
        # Order of the axes of a block in parts: other dimensions, then y and x.
        self._order = (*context.others, *context.horizontal)
        self._reads = BlockReads(context.scan, self._arrays, self._variables, self._convert)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of parts for rows of cover, sorted by task."""
        waiting: list[pa.RecordBatch] = []
        total, group = 0, 0
        for batch in batches:
            sizes = [pc.binary_length(batch.column(name)) for name in ("cells", "fractions")]
            totals = total + np.cumsum(sizes[0].to_numpy() + sizes[1].to_numpy())
            groups = totals // _MOST_COVER_BYTES
            start = 0
            for stop in np.flatnonzero(np.diff(groups, prepend=group)).tolist():
                yield from self._of_rows([*waiting, batch.slice(start, stop - start)])
                waiting, start = [], stop
            waiting.append(batch.slice(start))
            total, group = totals[-1], groups[-1]
        if waiting:
            yield from self._of_rows(waiting)

    def _of_rows(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches).combine_chunks()
        if not len(rows):
            return
        numbers = rows.column("task").to_numpy()
        starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
        ends = np.append(starts[1:], len(numbers))
        tasks: dict[tuple[int, int], _Task] = {}
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            column, split = divmod(int(numbers[start]), self._context.split_count)
            some = rows.slice(start, end - start)
            if column < 0:
                yield from self._without_cells(some, column, split)
            else:
                tasks[column, split] = self._task(some, column, split)
        yield from self._read(tasks)

    def _without_cells(self, rows: pa.Table, column: int, split: int) -> Iterator[pa.RecordBatch]:
        """Yield the parts of zones that cover no cell."""
        shape = [s.count for s in self._context.split_selections(split)]
        none = no_parts(self._parts, shape)
        if column == NO_GEOMETRY:
            none[...] = np.nan
        width = len(self._variables) * none.size * 8
        at_once = max(1, _MOST_PARTS_BYTES // max(1, width))
        for first in range(0, len(rows), at_once):
            some = rows.slice(first, at_once)
            parts = np.broadcast_to(none, (len(some), len(self._variables), *none.shape))
            yield self._rows_of(some, split, [(0, size) for size in shape], parts)

    def _task(self, rows: pa.Table, column: int, split: int) -> _Task:
        context = self._context
        y_axis, x_axis = context.columns
        y_chunk, x_chunk = divmod(column, x_axis.count)
        (top, _), (left, right) = y_axis.bounds(y_chunk), x_axis.bounds(x_chunk)
        cells, counts = _numbers(rows.column("cells"), np.int32)
        some, in_part = _numbers(rows.column("fractions"), np.float64)
        starts = np.concatenate([[0], np.cumsum(counts)])
        fractions = np.ones(len(cells))
        within = np.arange(len(some)) - np.repeat(np.cumsum(in_part) - in_part, in_part)
        fractions[np.repeat(starts[:-1], in_part) + within] = some
        ys, xs = np.divmod(cells.astype(np.int64), right - left)
        ys, xs = ys + top, xs + left
        box = ((int(ys.min()), int(ys.max()) + 1), (int(xs.min()), int(xs.max()) + 1))
        chosen = [
            context.selection(dim).within(*ends)
            for dim, ends in zip(context.horizontal, box, strict=True)
        ]
        ys, xs = chosen[0].rank(ys), chosen[1].rank(xs)
        width = chosen[1].count
        weights = fractions
        if context.request.weights is not None:
            of_cells = self._weights_of(chosen)[ys, xs]
            is_known = ~np.isnan(of_cells)
            if not is_known.all():
                starts = np.concatenate([[0], np.cumsum(is_known)])[starts]
                ys, xs, fractions = ys[is_known], xs[is_known], fractions[is_known]
                of_cells = of_cells[is_known]
            weights = fractions * of_cells
        cover = CoverMatrix(
            starts=starts,
            cells=ys * width + xs,
            fractions=fractions,
            weights=weights,
            size=chosen[0].count * width,
        )
        shape = [s.count for s in context.split_selections(split)]
        kept = (len(rows), len(self._variables), len(self._parts), *shape)
        collected = None
        if 8 * math.prod(kept) <= _MOST_PARTS_BYTES:
            collected = np.empty(kept)
        self._seen += len(rows)
        return _Task(
            rows=rows,
            number=self._seen - len(rows),
            column=column,
            split=split,
            box=box,
            cover=cover,
            collected=collected,
        )

    def _weights_of(self, chosen: list[DimSelection]) -> NDArray[np.float64]:
        """Return the weights of selected cells along y and x; NaN for missing weights."""
        context, column = self._context, self._context.weights
        if column is None:
            assert context.request.weights == AREA
            ends = np.radians(context.y.edges)
            heights = np.abs(np.diff(np.sin(ends)))[chosen[0].positions()]
            widths = np.abs(np.diff(np.radians(context.x.edges)))
            # A last column that repeats the first has the width of the first.
            widths = widths.take(chosen[1].positions(), mode="wrap")
            return np.asarray(_RADIUS**2 * heights[:, None] * widths)
        dims = [context.scan.table.dims[dim] for dim in context.horizontal]
        stored = self._arrays.reader(str(column.path)).read(
            [chosen[dims.index(dim)] for dim in column.dims]
        )
        assert column.decoder is not None
        values = numbers_or_nan(column.decoder, stored).astype(np.float64)
        if column.dims == (dims[0],):
            values = values[:, None]
        elif column.dims == (dims[1], dims[0]):
            values = values.T
        return np.broadcast_to(values, (chosen[0].count, chosen[1].count))

    def _read(self, tasks: dict[tuple[int, int], _Task]) -> Iterator[pa.RecordBatch]:
        """Read the blocks of tasks; yield rows of parts."""
        if not tasks:
            return
        boxes = []
        for task in tasks.values():
            ends = dict(
                zip(self._context.others, self._context.split_ranges(task.split), strict=True)
            )
            ends.update(zip(self._context.horizontal, task.box, strict=True))
            boxes.append((0, *(end for dim in sorted(ends) for end in ends[dim])))
        current: _Task | None = None
        blocks = self._reads.read(ScanTask(parts=tuple(boxes), rows=0))
        try:
            for block in blocks:
                task = tasks[self._owner(block.block)]
                if current is not None and task is not current:
                    yield from self._collected(current)
                    current.collected = None
                current = task
                yield from self._add(task, block.block, block.values)
            if current is not None:
                yield from self._collected(current)
        finally:
            blocks.close()

    def _owner(self, block: Block) -> tuple[int, int]:
        """Return the column and the split of a block."""
        context = self._context
        at = [
            int(axis.chunk_of(np.array([block[dim].start], dtype=np.int64))[0])
            for axis, dim in zip(context.columns, context.horizontal, strict=True)
        ]
        splits = [
            bisect.bisect_right(ranges, block[dim].start, key=itemgetter(0)) - 1
            for dim, ranges in zip(context.others, context.splits, strict=True)
        ]
        split = int(np.ravel_multi_index(splits, context.split_counts))
        return at[0] * context.columns[1].count + at[1], split

    def _add(self, task: _Task, block: Block, values: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Reduce a block for all zones of its task."""
        context = self._context
        within = context.split_selections(task.split)
        region = []
        for number, selection in zip(context.others, within, strict=True):
            first = int(selection.rank(np.array([block[number].start]))[0])
            region.append((first, first + block[number].count))
        shape = block_shape(block)
        others = tuple(shape[number] for number in context.others)
        if context.shares:
            yield from self._samples(task, tuple(region), others, values)
        each = 8 * len(self._variables) * len(self._parts) * math.prod(others)
        at_once = max(1, _MOST_PARTS_BYTES // max(1, each))
        for first in range(0, task.cover.zones, at_once):
            cover = task.cover.some(first, first + at_once)
            found = np.empty((cover.zones, len(self._variables), len(self._parts), *others))
            for number, column in enumerate(self._variables):
                numbers, valid = values[column.source]
                moved = numbers.transpose(self._order)
                flat = moved.reshape(-1, cover.size)
                there = None if valid is None else valid.transpose(self._order).reshape(flat.shape)
                parts = block_parts(flat, there, cover, self._parts)
                # A variable may lack some of the other dimensions.
                found[:, number] = parts.reshape(*parts.shape[:2], *moved.shape[: len(others)])
            if task.collected is None:
                some = task.rows.slice(first, at_once)
                yield self._rows_of(some, task.split, region, found)
            else:
                at = tuple(slice(start, stop) for start, stop in region)
                zones = slice(first, first + at_once)
                task.collected[(zones, slice(None), slice(None), *at)] = found

    def _samples(
        self, task: _Task, region: Box, others: tuple[int, ...], values: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the values of the cells of each zone, cut into parts of the split."""
        cover, context = task.cover, self._context
        held = []
        for column in self._variables:
            numbers, valid = values[column.source]
            own = numbers.astype(np.float64)
            if valid is not None:
                own[~valid] = np.nan
            moved = own.transpose(self._order)
            wide = np.broadcast_to(moved, (*others, *moved.shape[len(others) :]))
            held.append(wide.reshape(*others, cover.size))
        split = [s.count for s in context.split_selections(task.split)]
        waiting: list[tuple[int, int, Box, bytes]] = []
        filled = 0
        for part, box in parts_within(region, split, context.part_steps(task.split)):
            at: list[Any] = [
                slice(a - o, b - o) for (a, b), (o, _) in zip(box, region, strict=True)
            ]
            for zone in range(cover.zones):
                cells = slice(int(cover.starts[zone]), int(cover.starts[zone + 1]))
                if cells.start == cells.stop:
                    continue
                head = np.array([task.column, task.number + zone], dtype=np.int64)
                numbers = [head.tobytes(), cover.weights[cells].tobytes()]
                numbers += [own[(*at, cover.cells[cells])].tobytes() for own in held]
                samples = b"".join(numbers)
                if waiting and filled + len(samples) > _MOST_PARTS_BYTES:
                    yield self._samples_rows(task, waiting)
                    waiting, filled = [], 0
                waiting.append((zone, part, box, samples))
                filled += len(samples)
        if waiting:
            yield self._samples_rows(task, waiting)

    def _samples_rows(
        self, task: _Task, waiting: list[tuple[int, int, Box, bytes]]
    ) -> pa.RecordBatch:
        zones, parts, boxes, samples = zip(*waiting, strict=True)
        rows = task.rows.take(pa.array(zones))
        return self._batch(
            rows,
            split=pa.array([task.split] * len(rows), pa.int64()),
            part=pa.array(parts, pa.int64()),
            region=pa.array([np.array(b, np.int64).tobytes() for b in boxes], pa.binary()),
            parts=pa.nulls(len(rows), pa.binary()),
            samples=pa.array(samples, pa.binary()),
        )

    def _collected(self, task: _Task) -> Iterator[pa.RecordBatch]:
        if task.collected is not None:
            region = [(0, size) for size in task.collected.shape[3:]]
            yield self._rows_of(task.rows, task.split, region, task.collected)

    def _rows_of(
        self, rows: pa.Table, split: int, region: list[tuple[int, int]], parts: NDArray[np.float64]
    ) -> pa.RecordBatch:
        where = np.array(region, dtype=np.int64).tobytes()
        each = parts[0].size
        return self._batch(
            rows,
            split=pa.array(np.full(len(rows), split, dtype=np.int64)),
            part=pa.array(np.full(len(rows), -1, dtype=np.int64)),
            region=pa.array([where] * len(rows), pa.binary()),
            parts=binaries(np.ascontiguousarray(parts), np.arange(len(rows) + 1) * each),
            samples=pa.nulls(len(rows), pa.binary()),
        )

    def _batch(self, rows: pa.Table, **columns: pa.Array) -> pa.RecordBatch:
        """Return rows of parts, with zones and keys from rows of cover."""
        columns = {"zone": rows.column("zone").combine_chunks(), **columns}
        keys = rows.column_names[_KEYS:]
        arrays = [*columns.values(), *(rows.column(key).combine_chunks() for key in keys)]
        return pa.RecordBatch.from_arrays(arrays, names=[*columns, *keys])

    def _convert(
        self, column: Column, values: NDArray[Any], shape: tuple[int, ...]
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        assert column.decoder is not None
        found, valid = column.decoder.decode_numeric(values)
        if valid is None and found.dtype.kind == "f":
            # NaN counts as missing even without CF decoding.
            missing = np.isnan(found)
            valid = ~missing if missing.any() else None
        return found, None if valid is None or valid.all() else valid


def _numbers(column: pa.ChunkedArray, dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the numbers in a column of bytes, joined, and their count in each row."""
    data = column.combine_chunks().cast(pa.large_binary())
    offsets = np.frombuffer(data.buffers()[1], np.int64)[data.offset : data.offset + len(data) + 1]
    held = data.buffers()[2]
    item = np.dtype(dtype).itemsize
    values = np.frombuffer(b"" if held is None else held, np.uint8)
    numbers = values[offsets[0] : offsets[-1]].view(dtype) if len(values) else np.empty(0, dtype)
    return numbers, np.diff(offsets) // item
