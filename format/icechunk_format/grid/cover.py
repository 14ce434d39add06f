"""Splits a region into covered boxes and free ones; cuts and joins boxes.

Planning takes the same time for a thousand chunks as for a billion, since it processes the edges of
boxes, not single elements or chunks.

Rules of this file
------------------
1. A box is ``int64 (ndim, 2)``: lower bounds inclusive, upper bounds exclusive. Many boxes are
   ``(n, ndim, 2)``. Zero dimensions are legal: such a box holds one cell.
2. ``cover`` gives boxes that are disjoint and whose union is exactly the region.
3. Nothing is quadratic in the number of extents. The edges of the extents form a coarse grid. A
   large grid is halved along its longest axis, and each half keeps only the extents that overlap
   it; in a small grid, cumulative sums count the extents that cover each cell.

The format forbids overlapping extents of one array (Icechunk spec, ``ManifestRef``), and a reader
takes the first one that holds a coordinate. ``cover`` detects overlaps and then splits along the
coarse grid, so that no cell is returned twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.int64]

# A painted grid takes eight bytes a cell, so this bounds the memory of one step to 16 MB.
_MAX_PAINTED_CELLS = 2_000_000
# Bounds the pickle of a task that has many tiny boxes.
_MOST_BOXES = 4_096


def volumes(boxes: Boxes) -> Boxes:
    """Return the number of cells of each box, ``int64 (n,)``."""
    return np.asarray(np.prod(boxes[:, :, 1] - boxes[:, :, 0], axis=1, dtype=np.int64))


def clip(boxes: Boxes, region: Boxes) -> tuple[Boxes, NDArray[np.int64]]:
    """Return the parts of boxes inside a region that are not empty, and their rows."""
    clipped = np.stack(
        [
            np.maximum(boxes[:, :, 0], region[None, :, 0]),
            np.minimum(boxes[:, :, 1], region[None, :, 1]),
        ],
        axis=-1,
    )
    rows = np.flatnonzero((clipped[:, :, 0] < clipped[:, :, 1]).all(axis=1))
    return clipped[rows], rows


def cover(region: Boxes, extents: Boxes) -> tuple[Boxes, NDArray[np.bool_]]:
    """Cut a region, one box that is not empty, into covered and free boxes.

    ``extents``, ``int64 (n, ndim, 2)``, are in any order and may reach beyond the region. Returns
    disjoint boxes ``int64 (k, ndim, 2)`` whose union is the region, and ``bool (k,)``: True if an
    extent covers the box. Each extent becomes one box, unless extents overlap.
    """
    inside, _ = clip(extents, region)
    if not len(inside):
        return region[None].copy(), np.zeros(1, dtype=bool)
    if region.shape[0] == 0:
        return region[None].copy(), np.ones(1, dtype=bool)
    free_parts: list[Boxes] = []
    pieces: list[Boxes] = []
    overlapping = False
    pending = [(region, inside)]
    while pending:
        box, members = pending.pop()
        edges = [_edges(members[:, axis], box[axis]) for axis in range(len(box))]
        cells = int(np.prod([len(e) - 1 for e in edges], dtype=np.float64))
        longest = int(np.argmax([len(e) for e in edges]))
        if cells > _MAX_PAINTED_CELLS and len(edges[longest]) > 2:
            middle = int(edges[longest][len(edges[longest]) // 2])
            for lower, upper in ((int(box[longest, 0]), middle), (middle, int(box[longest, 1]))):
                half = box.copy()
                half[longest] = (lower, upper)
                kept, _ = clip(members, half)
                if len(kept):
                    pending.append((half, kept))
                else:
                    free_parts.append(half[None])
            continue
        times_covered = paint(members, edges)
        overlapping = overlapping or bool((times_covered > 1).any())
        free_parts.append(_boxes_where(times_covered == 0, edges))
        pieces.append(_boxes_where(times_covered > 0, edges))
    free = merge_adjacent(np.concatenate(free_parts)) if free_parts else inside[:0]
    # Disjoint extents are not cut, so that as few tasks as possible read one manifest.
    covered = np.concatenate(pieces) if overlapping else inside
    flags = np.concatenate([np.ones(len(covered), dtype=bool), np.zeros(len(free), dtype=bool)])
    return np.concatenate([covered, free]), flags


def _edges(bounds: Boxes, limits: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(np.concatenate([bounds.reshape(-1), limits]))


def paint(members: Boxes, edges: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Count the boxes that cover each cell of the grid of edges."""
    ndim = len(edges)
    difference = np.zeros([len(e) for e in edges], dtype=np.int64)
    lower = [np.searchsorted(edges[axis], members[:, axis, 0]) for axis in range(ndim)]
    upper = [np.searchsorted(edges[axis], members[:, axis, 1]) for axis in range(ndim)]
    for corner in range(1 << ndim):
        ups = [bool(corner >> axis & 1) for axis in range(ndim)]
        where = tuple(upper[axis] if ups[axis] else lower[axis] for axis in range(ndim))
        np.add.at(difference, where, -1 if sum(ups) % 2 else 1)
    for axis in range(ndim):
        np.cumsum(difference, axis=axis, out=difference)
    return difference[tuple(slice(0, -1) for _ in range(ndim))]


def _boxes_where(mask: NDArray[np.bool_], edges: list[NDArray[np.int64]]) -> Boxes:
    """Return a few disjoint boxes whose union is the true cells of a grid of edges."""
    ndim = mask.ndim
    padded = np.zeros((*mask.shape[:-1], mask.shape[-1] + 2), dtype=np.int8)
    padded[..., 1:-1] = mask
    steps = np.diff(padded, axis=-1)
    starts, stops = np.nonzero(steps == 1), np.nonzero(steps == -1)
    boxes = np.empty((len(starts[0]), ndim, 2), dtype=np.int64)
    for axis in range(ndim - 1):
        boxes[:, axis, 0] = edges[axis][starts[axis]]
        boxes[:, axis, 1] = edges[axis][starts[axis] + 1]
    boxes[:, -1, 0] = edges[-1][starts[-1]]
    boxes[:, -1, 1] = edges[-1][stops[-1]]
    return merge_adjacent(boxes)


def merge_adjacent(boxes: Boxes, *, first_axis: int = 0) -> Boxes:
    """Join boxes that touch along one axis and agree on all others, beginning with the last axis.

    Boxes are not joined along axes before ``first_axis``.
    """
    for axis in reversed(range(first_axis, boxes.shape[1])):
        if len(boxes) < 2:
            return boxes
        others = [a for a in range(boxes.shape[1]) if a != axis]
        keys = [boxes[:, axis, 0]]
        keys += [boxes[:, other, side] for other in reversed(others) for side in (1, 0)]
        boxes = boxes[np.lexsort(keys)]
        continues = (boxes[1:, axis, 0] == boxes[:-1, axis, 1]) & (
            boxes[1:, others] == boxes[:-1, others]
        ).all(axis=(1, 2))
        firsts = np.flatnonzero(np.concatenate([[True], ~continues]))
        lasts = np.concatenate([firsts[1:], [len(boxes)]]) - 1
        merged = boxes[firsts]
        merged[:, axis, 1] = boxes[lasts, axis, 1]
        boxes = merged
    return boxes


def steps_along(counts: list[int], rows: int, wanted: int) -> list[int]:
    """Return the grid steps along each axis of the pieces that a box is cut into.

    ``counts`` are the grid steps of the box, ``rows`` its selected cells, ``wanted`` the desired
    cells of a piece. The leading axis is cut first. Pieces are not cut along the trailing axes, so
    they are contiguous in C order.
    """
    steps = list(counts)
    left = float(rows)
    for axis, count in enumerate(counts):
        if left <= wanted:
            break
        per_step = left / count
        fitting = max(1, int(wanted // per_step)) if per_step > 0 else count
        pieces = -(-count // fitting)
        steps[axis] = -(-count // pieces)
        left = per_step
        if fitting > 1:
            break
    return steps


def sides_from_last(counts: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the sides of a box of at most ``most`` grid steps, longest along the last axes."""
    sides: list[int] = []
    for count in reversed(counts):
        sides.append(max(1, min(count, most)))
        most //= sides[-1]
    return tuple(reversed(sides))


def join_small(rows: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """Return the group of each box, ``int64 (n,)`` ascending: small neighbours share a task.

    A box of a quarter of ``wanted`` cells or more is not joined; smaller ones are joined up to
    ``wanted`` cells.
    """
    groups = np.empty(len(rows), dtype=np.int64)
    group, filled, members, is_open = -1, 0, 0, False
    small = max(1, wanted // 4)
    for index, count in enumerate(rows.tolist()):
        if is_open and count < small and filled + count <= wanted and members < _MOST_BOXES:
            filled, members = filled + count, members + 1
        else:
            group, filled, members, is_open = group + 1, count, 1, count < small
        groups[index] = group
    return groups
