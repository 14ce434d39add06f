"""Cuts a selection along manifest extents and chunk edges into tasks of similar size.

Steps
-----
1. ``cover`` divides the hull of the selection into the extents and the space between them, so that
   every selected cell is in exactly one box.
2. A box with too many selected cells is cut at chunk edges, the first axis first. Boxes without a
   selected cell are dropped.
3. Boxes with few selected cells are grouped with their neighbours; boxes of a group that touch are
   merged.

Time and memory grow with the extents and tasks, not with the chunks; nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.axes import ChunkAxis, chunk_ranges
from icechunk_format.grid.cover import Boxes, cover, join_small, merge_adjacent
from icechunk_format.groups import DimSelection
from icechunk_format.tables.reading.scan import ScanTask

DEFAULT_ROWS_PER_PARTITION = 4_000_000
# Fetching a chunk costs as much as this many rows, even if it holds fewer.
CHUNK_COST_IN_ROWS = 100
# Spark spends about 60 ms on a task, and the driver keeps a record of each. Without an explicit
# size, tasks grow rather than exceed about this number.
MAX_DEFAULT_TASKS = 100_000
# An explicit size may make more tasks, up to the number that a driver can hold.
MAX_TASKS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cuts:
    """Disjoint boxes that hold every selected cell once."""

    boxes: Boxes
    """``int64 (n, ndim, 2)``, in C order of their lower corners."""
    rows: NDArray[np.int64]
    """``int64 (n,)``: selected cells of each box, each at least 1."""


def rows_of_task(
    total_rows: int,
    rows_per_partition: int | None,
    *,
    chunk_rows: int = CHUNK_COST_IN_ROWS,
    usual_rows: int = DEFAULT_ROWS_PER_PARTITION,
) -> int:
    """Return the target number of rows of a task.

    An explicit number is used as given. The default, ``usual_rows``, shrinks if chunks are so small
    that fetching them dominates, and grows with the selection to limit a plan to about
    ``MAX_DEFAULT_TASKS`` tasks. A cut box has at least a quarter of the target, hence the factor 4.
    """
    if rows_per_partition is not None:
        return rows_per_partition
    usual = usual_rows * min(chunk_rows, CHUNK_COST_IN_ROWS) // CHUNK_COST_IN_ROWS
    return max(1, usual, -(-total_rows * 4 // MAX_DEFAULT_TASKS))


def selected_rows(selections: Sequence[DimSelection]) -> int:
    """Return the number of selected cells: the product over all dimensions."""
    return math.prod(selection.count for selection in selections)


def cut(
    *,
    selections: Sequence[DimSelection],
    extents: Boxes,
    axes: Sequence[ChunkAxis],
    task_rows: int,
    skip_uncovered: bool = False,
    also_stored: Sequence[Boxes] = (),
) -> Cuts:
    """Cut the selected cells into boxes along extents and chunk edges.

    Parameters
    ----------
    extents
        Boxes of elements in which the leading array has chunks, ``int64 (n, ndim, 2)``.
    axes
        Edges at which boxes may be cut along each dimension.
    task_rows
        Target number of selected cells of a box.
    skip_uncovered
        Leave out boxes outside of ``extents`` and ``also_stored``.
    also_stored
        Extents of the other arrays of the table, used with ``skip_uncovered``.
    """
    ndim = len(selections)
    none = Cuts(boxes=np.empty((0, ndim, 2), dtype=np.int64), rows=np.empty(0, dtype=np.int64))
    if any(selection.count == 0 for selection in selections):
        return none
    hull = np.array([(s.start, s.stop) for s in selections], dtype=np.int64).reshape(ndim, 2)
    boxes, covered = cover(hull, extents)
    if skip_uncovered:
        stored = [boxes[covered]]
        free = boxes[~covered]
        for others in also_stored:
            parts = [cover(box, others) for box in free]
            stored.extend(part[flags] for part, flags in parts)
            free = np.concatenate([free[:0], *(part[~flags] for part, flags in parts)])
        boxes = np.concatenate(stored)
    rows = _count_rows(boxes, selections)
    boxes, rows = boxes[rows > 0], rows[rows > 0]
    if not len(boxes):
        return none
    small = rows <= task_rows
    cut_boxes = _cut_boxes(
        boxes[~small], rows[~small], selections, axes, task_rows, int(small.sum())
    )
    boxes = np.concatenate([boxes[small], cut_boxes])
    rows = np.concatenate([rows[small], _count_rows(cut_boxes, selections)])
    boxes, rows = boxes[rows > 0], rows[rows > 0]
    order = _c_order(boxes)
    return Cuts(boxes=boxes[order], rows=rows[order])


def group(
    cuts: Cuts,
    task_rows: int,
    owner: NDArray[np.int64] | None = None,
    *,
    counted: NDArray[np.int64] | None = None,
) -> list[ScanTask]:
    """Group small neighbouring boxes into tasks, and merge boxes of one owner that touch.

    Parameters
    ----------
    owner
        The number of the array that each box belongs to. Boxes of different owners may share a
        task, but are never merged.
    counted
        Rows to report instead of ``cuts.rows``, which then only weight the boxes.
    """
    owners = np.zeros(len(cuts.rows), dtype=np.int64) if owner is None else owner
    groups = join_small(cuts.rows, task_rows)
    ndim = cuts.boxes.shape[1]
    keyed = np.empty((len(groups), ndim + 2, 2), dtype=np.int64)
    keyed[:, 0, 0], keyed[:, 0, 1] = groups, groups + 1
    keyed[:, 1, 0], keyed[:, 1, 1] = owners, owners + 1
    keyed[:, 2:] = cuts.boxes
    # The first two axes are group and owner, so that boxes of different ones are not merged.
    merged = merge_adjacent(keyed, first_axis=2)
    merged = merged[_c_order(merged)]
    totals = np.zeros(int(groups[-1]) + 1 if len(groups) else 0, dtype=np.int64)
    np.add.at(totals, groups, cuts.rows if counted is None else counted)
    firsts = np.searchsorted(merged[:, 0, 0], np.arange(len(totals) + 1)).tolist()
    # The owner of each box, then its bounds.
    records = merged[:, 1:].reshape(len(merged), 2 * ndim + 2)
    parts = [(number, *bounds) for number, _, *bounds in records.tolist()]
    return [
        ScanTask(parts=tuple(parts[first:last]), rows=rows)
        for first, last, rows in zip(firsts[:-1], firsts[1:], totals.tolist(), strict=True)
    ]


def _c_order(boxes: Boxes) -> NDArray[np.int64]:
    if boxes.shape[1] == 0:
        return np.arange(len(boxes))
    return np.lexsort([boxes[:, axis, 0] for axis in reversed(range(boxes.shape[1]))])


def _count_rows(boxes: Boxes, selections: Sequence[DimSelection]) -> NDArray[np.int64]:
    rows = np.ones(len(boxes), dtype=np.int64)
    for axis, selection in enumerate(selections):
        ends = selection.rank(boxes[:, axis])
        rows *= ends[:, 1] - ends[:, 0]
    return rows


class _CutAxis:
    """Numbers the chunks along one dimension at which boxes may be cut.

    If single indices are selected, only chunks that hold one get a number, so that cuts divide the
    selected elements evenly.
    """

    def __init__(self, axis: ChunkAxis, selection: DimSelection) -> None:
        self._axis = axis
        self._chosen: NDArray[np.int64] | None = None
        if selection.indices is not None:
            self._chosen = np.unique(axis.chunk_of(selection.indices))

    def numbers(self, bounds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each range of elements, the numbers ``[first, last)`` of its chunks."""
        first, last = chunk_ranges(self._axis, bounds).T
        if self._chosen is None:
            return first, last
        return np.searchsorted(self._chosen, first), np.searchsorted(self._chosen, last)

    def starts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first element of each chunk by its number; one past the last is allowed."""
        if self._chosen is None:
            return self._axis.start_of(numbers)
        return self._axis.start_of(np.append(self._chosen, self._axis.count)[numbers])


def _cut_boxes(
    boxes: Boxes,
    rows: NDArray[np.int64],
    selections: Sequence[DimSelection],
    axes: Sequence[ChunkAxis],
    task_rows: int,
    others: int,
) -> Boxes:
    """Cut all boxes together; some of the cut boxes may hold no selected cell."""
    if not len(boxes):
        return boxes
    ndim = len(axes)
    cut_axes = [_CutAxis(axis, s) for axis, s in zip(axes, selections, strict=True)]
    firsts, lasts = np.empty((2, len(boxes), ndim), dtype=np.int64)
    for number, axis in enumerate(cut_axes):
        firsts[:, number], lasts[:, number] = axis.numbers(boxes[:, number])
    steps = _steps(np.maximum(lasts - firsts, 1), rows, task_rows)
    pieces = np.maximum(-(-(lasts - firsts) // steps), 1)
    if float(np.prod(pieces.astype(np.float64), axis=1).sum()) + others > MAX_TASKS:
        raise InvalidInputError(
            f"rowsPerPartition={task_rows} would cut the selection into more than {MAX_TASKS:,} "
            "partitions; raise it, leave it out, or select less",
            rows_per_partition=task_rows,
        )
    totals = np.prod(pieces, axis=1)
    owner = np.repeat(np.arange(len(boxes)), totals)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(totals) - totals, totals)
    cut_boxes = np.empty((len(owner), ndim, 2), dtype=np.int64)
    for number in reversed(range(ndim)):
        index, piece = np.divmod(index, pieces[owner, number])
        low = firsts[owner, number] + piece * steps[owner, number]
        high = np.minimum(low + steps[owner, number], lasts[owner, number])
        box = boxes[owner, number]
        # Nothing is selected between two pieces, so each piece extends to the next.
        cut_boxes[:, number, 0] = np.where(piece == 0, box[:, 0], cut_axes[number].starts(low))
        cut_boxes[:, number, 1] = np.where(
            high >= lasts[owner, number], box[:, 1], cut_axes[number].starts(high)
        )
    return cut_boxes


def _steps(counts: NDArray[np.int64], rows: NDArray[np.int64], task_rows: int) -> NDArray[np.int64]:
    """Choose the steps of many boxes: the vectorized ``steps_along``."""
    steps = counts.copy()
    left = rows.astype(np.float64)
    active = left > task_rows
    for axis in range(counts.shape[1]):
        per_step = left / counts[:, axis]
        fitting = np.clip(task_rows // np.maximum(per_step, 1e-300), 1, counts[:, axis])
        pieces = np.ceil(counts[:, axis] / fitting)
        chosen = np.ceil(counts[:, axis] / pieces).astype(np.int64)
        steps[active, axis] = chosen[active]
        left = np.where(active, per_step, left)
        active &= (fitting < 2) & (left > task_rows)
    return steps
