"""Turn a selection and the extents of manifests into tasks of about one size.

Steps
-----
1. The hull of the selection is covered by the extents and by what they leave free
   (``regions.cover``), so every selected cell is in exactly one box.
2. A box with more than the wanted number of selected cells is cut along chunk edges; the leading
   axis goes first. Pieces in which no index is selected disappear here.
3. Boxes far below the wanted number are joined with their neighbours, and what then touches
   becomes one box again.

Everything is a function of numbers; nothing is read. The cost follows the number of extents and
of tasks, never the number of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icechunk_format.dataset import regions
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icechunk_format.dataset.chunk_axis import ChunkAxis
    from icechunk_format.dataset.regions import Boxes
    from icechunk_format.dataset.selection import DimSelection

DEFAULT_ROWS_PER_PARTITION = 4_000_000
# Spark spends about 60 ms on a task and the driver keeps one record for each, so without an
# explicit size the tasks grow instead of becoming more than about this many.
MAX_DEFAULT_TASKS = 100_000
# An explicit size may ask for more, up to what a driver can hold.
MAX_TASKS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cuts:
    """Disjoint boxes that hold every selected cell once.

    Parameters
    ----------
    boxes
        ``int64 (n, ndim, 2)``, in C order of their lower corners.
    rows
        ``int64 (n,)``: selected cells of each box, each at least 1.
    """

    boxes: Boxes
    rows: NDArray[np.int64]


def rows_target(total_rows: int, rows_per_partition: int | None) -> int:
    """Return the wanted number of rows of a task.

    An explicit number is kept. The default grows with the selection, so that there are about
    ``MAX_DEFAULT_TASKS`` tasks at most; a cut lands between a quarter of the target and the
    target, hence the factor.
    """
    if rows_per_partition is not None:
        return rows_per_partition
    return max(DEFAULT_ROWS_PER_PARTITION, -(-total_rows * 4 // MAX_DEFAULT_TASKS))


def selected_rows(selections: Sequence[DimSelection]) -> int:
    """Return how many cells the selections of all dimensions pick together."""
    total = 1
    for selection in selections:
        total *= selection.count
    return total


def cut(
    *,
    selections: Sequence[DimSelection],
    extents: Boxes,
    axes: Sequence[ChunkAxis],
    target: int,
    skip_uncovered: bool = False,
    also_stored: Sequence[Boxes] = (),
) -> Cuts:
    """Cut the selected cells into boxes along extents and chunk edges.

    Parameters
    ----------
    selections
        What is selected along each dimension.
    extents
        Boxes of elements in which the leading array has chunks, ``int64 (n, ndim, 2)``.
    axes
        Where boxes may be cut along each dimension.
    target
        Wanted selected cells of a box.
    skip_uncovered
        Leave out boxes that neither ``extents`` nor ``also_stored`` reach.
    also_stored
        Extents of the other arrays of the table, used with ``skip_uncovered``.

    Raises
    ------
    InvalidInputError
        There would be more than ``MAX_TASKS`` boxes.
    """
    ndim = len(selections)
    none = Cuts(boxes=np.empty((0, ndim, 2), dtype=np.int64), rows=np.empty(0, dtype=np.int64))
    if any(selection.count == 0 for selection in selections):
        return none
    hull = np.array([(s.start, s.stop) for s in selections], dtype=np.int64).reshape(ndim, 2)
    boxes, covered = regions.cover(hull, extents)
    if skip_uncovered:
        stored = [boxes[covered]]
        free = boxes[~covered]
        for others in also_stored:
            parts = [regions.cover(box, others) for box in free]
            stored.extend(part[flags] for part, flags in parts)
            free = np.concatenate([free[:0], *(part[~flags] for part, flags in parts)])
        boxes = np.concatenate(stored)
    rows = _count_rows(boxes, selections)
    boxes, rows = boxes[rows > 0], rows[rows > 0]
    if not len(boxes):
        return none
    small = rows <= target
    pieces, piece_rows = [boxes[small]], [rows[small]]
    pieces_in_all = int(small.sum())
    for box, count in zip(boxes[~small], rows[~small].tolist(), strict=True):
        part, part_rows, number = _cut_box(box, count, selections, axes, target, pieces_in_all)
        pieces.append(part)
        piece_rows.append(part_rows)
        pieces_in_all += number
    boxes, rows = np.concatenate(pieces), np.concatenate(piece_rows)
    order = _c_order(boxes)
    return Cuts(boxes=boxes[order], rows=rows[order])


def group(
    cuts: Cuts,
    target: int,
    owner: NDArray[np.int64] | None = None,
    *,
    counted: NDArray[np.int64] | None = None,
) -> GroupedCuts:
    """Join small boxes of one owner into groups, and boxes that touch within a group into one.

    Parameters
    ----------
    cuts
        Boxes, in the order in which neighbours may be joined.
    target
        Wanted rows of a group.
    owner
        Not merged across: the number of the array that each box belongs to. Boxes of different
        owners may share a group.
    counted
        The rows to report, where ``cuts.rows`` are weights.
    """
    owners = np.zeros(len(cuts.rows), dtype=np.int64) if owner is None else owner
    groups = regions.join_small(cuts.rows, target)
    ndim = cuts.boxes.shape[1]
    keyed = np.empty((len(groups), ndim + 2, 2), dtype=np.int64)
    keyed[:, 0, 0], keyed[:, 0, 1] = groups, groups + 1
    keyed[:, 1, 0], keyed[:, 1, 1] = owners, owners + 1
    keyed[:, 2:] = cuts.boxes
    # The first two axes are labels: boxes of two groups or owners differ in them and stay apart.
    merged = regions.merge_adjacent(keyed, first_axis=2)
    merged = merged[_c_order(merged)]
    totals = np.zeros(int(groups[-1]) + 1 if len(groups) else 0, dtype=np.int64)
    np.add.at(totals, groups, cuts.rows if counted is None else counted)
    firsts = np.searchsorted(merged[:, 0, 0], np.arange(len(totals) + 1))
    return GroupedCuts(boxes=merged[:, 2:], owners=merged[:, 1, 0], firsts=firsts, rows=totals)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedCuts:
    """Boxes in groups: group ``g`` has boxes ``firsts[g]:firsts[g + 1]`` and ``rows[g]`` rows."""

    boxes: Boxes
    owners: NDArray[np.int64]
    firsts: NDArray[np.int64]
    rows: NDArray[np.int64]


def _c_order(boxes: Boxes) -> NDArray[np.int64]:
    if boxes.shape[1] == 0:
        return np.arange(len(boxes))
    return np.lexsort([boxes[:, axis, 0] for axis in reversed(range(boxes.shape[1]))])


def _count_rows(boxes: Boxes, selections: Sequence[DimSelection]) -> NDArray[np.int64]:
    rows = np.ones(len(boxes), dtype=np.int64)
    for axis, selection in enumerate(selections):
        rows *= _count_between(boxes[:, axis], selection)
    return rows


def _count_between(bounds: NDArray[np.int64], selection: DimSelection) -> NDArray[np.int64]:
    if selection.indices is None:
        return bounds[:, 1] - bounds[:, 0]
    ends = np.searchsorted(selection.indices, bounds)
    return np.asarray(ends[:, 1] - ends[:, 0], dtype=np.int64)


def _cut_box(
    box: NDArray[np.int64],
    rows: int,
    selections: Sequence[DimSelection],
    axes: Sequence[ChunkAxis],
    target: int,
    pieces_before: int,
) -> tuple[Boxes, NDArray[np.int64], int]:
    """Cut one box; along a dimension with selected indices only chunks that hold one count."""
    chosen: list[NDArray[np.int64] | None] = []
    ranges: list[tuple[int, int]] = []
    for (start, stop), selection, axis in zip(box.tolist(), selections, axes, strict=True):
        if selection.indices is None:
            chosen.append(None)
            ranges.append(axis.chunk_range(start, stop))
        else:
            first, last = np.searchsorted(selection.indices, (start, stop))
            chunks = np.unique(axis.chunk_of(selection.indices[first:last]))
            chosen.append(chunks)
            ranges.append((0, len(chunks)))
    steps = regions.steps_along([last - first for first, last in ranges], rows, target)
    pieces = 1
    for step, (first, last) in zip(steps, ranges, strict=True):
        pieces *= -(-(last - first) // step)
    if pieces_before + pieces > MAX_TASKS:
        raise InvalidInputError(
            f"rowsPerPartition={target} would cut the selection into more than {MAX_TASKS:,} "
            "partitions; raise it, leave it out, or select less",
            rows_per_partition=target,
        )
    bounds: list[NDArray[np.int64]] = []
    for number, (step, (first, last)) in enumerate(zip(steps, ranges, strict=True)):
        starts = np.arange(first, last, step, dtype=np.int64)
        chunks_chosen = chosen[number]
        if chunks_chosen is None:
            edges = axes[number].start_of(np.append(starts, last))
        else:
            # Up to the next piece's first chunk: what lies between holds no selected index.
            edges = np.append(axes[number].start_of(chunks_chosen[starts]), box[number, 1])
        edges = np.clip(edges, box[number, 0], box[number, 1])
        edges[0], edges[-1] = box[number]
        bounds.append(np.stack([edges[:-1], edges[1:]], axis=-1))
    counts = [_count_between(b, s) for b, s in zip(bounds, selections, strict=True)]
    index = np.indices([len(b) for b in bounds]).reshape(len(bounds), -1)
    cut_boxes = np.stack([b[i] for b, i in zip(bounds, index, strict=True)], axis=1)
    cut_rows = np.prod([c[i] for c, i in zip(counts, index, strict=True)], axis=0, dtype=np.int64)
    return cut_boxes[cut_rows > 0], cut_rows[cut_rows > 0], pieces
