"""Counts and lists the chunks in boxes of a chunk grid, and finds overlapping boxes.

Rules of this file
------------------
1. Boxes are integers of shape (k, ndim, 2), start and end (exclusive) per axis. The only box of a
   scalar array has no axes and one chunk.
2. A write may have ten thousand boxes, so overlaps are found without comparing all pairs: on the
   axis that leaves the fewest pairs, each box is compared with those that start before it ends.
   Pairs are compared in blocks, which bounds the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

BoxT = TypeVar("BoxT", bound=np.integer[Any])

# Pairs of boxes per comparison, which bounds its memory.
_PAIRS_AT_ONCE: Final = 1 << 20
MAX_COORD: Final = 2**32 - 1


def bounds_of(coords: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the tight range of coordinates per axis, end exclusive; zeros without coordinates."""
    if not len(coords):
        return np.zeros((coords.shape[1], 2), dtype=np.uint32)
    # The end of the last possible coordinate does not fit into 32 bits; no grid reaches it.
    return np.stack([coords.min(axis=0), coords.max(axis=0) + np.uint32(1)], axis=1)


def box_volumes(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the number of coordinates in each box; float64, since a grid may have 2**64."""
    sizes = boxes[:, :, 1].astype(np.float64) - boxes[:, :, 0]
    found: NDArray[np.float64] = sizes.prod(axis=1)
    return found


def inside_box(coords: NDArray[Any], box: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the coordinates, shape (m, ndim), inside a box, shape (ndim, 2)."""
    found = np.ones(len(coords), dtype=np.bool_)
    for axis, (low, high) in enumerate(box.tolist()):
        column = coords[:, axis]
        found &= (column >= low) & (column < high)
    return found


def box_of_grid(num_chunks: Iterable[int]) -> NDArray[np.int64]:
    """Return the box, shape (ndim, 2), of all coordinates of a chunk grid."""
    return np.array([(0, count) for count in num_chunks], dtype=np.int64).reshape(-1, 2)


def beyond(
    still: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield disjoint boxes, none empty, of a grid outside of a smaller one at its start.

    Each comes as an axis along which it begins after the smaller grid, its first chunks, and those
    after its last.
    """
    for axis, first in enumerate(still):
        low = [0] * axis + [first] + [0] * (len(counts) - axis - 1)
        high = [*map(min, still[:axis], counts[:axis]), *counts[axis:]]
        if all(a < b for a, b in zip(low, high, strict=True)):
            yield axis, low, high


def box_around(boxes: NDArray[BoxT]) -> NDArray[BoxT]:
    """Return the smallest box, shape (ndim, 2), around one or more boxes."""
    return np.stack([boxes[:, :, 0].min(axis=0), boxes[:, :, 1].max(axis=0)], axis=1)


def meeting(boxes: NDArray[Any], box: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the boxes that share a coordinate with one box, shape (ndim, 2)."""
    found: NDArray[np.bool_] = (boxes[:, :, 0] < box[:, 1]) & (boxes[:, :, 1] > box[:, 0])
    return found.all(axis=1)


def boxes_meet(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Return True if two boxes, shape (ndim, 2), share a coordinate."""
    return bool(((left[:, 0] < right[:, 1]) & (left[:, 1] > right[:, 0])).all())


def coords_of_boxes(boxes: NDArray[Any]) -> NDArray[np.uint32]:
    """Return every coordinate of boxes, shape (k, ndim, 2), box by box, sorted within each."""
    sizes = boxes[:, :, 1].astype(np.int64) - boxes[:, :, 0]
    count, ndim = sizes.shape
    if count == 1 and ndim:
        grid = np.indices(sizes[0].tolist(), dtype=np.uint32).reshape(ndim, -1)
        grid += boxes[0, :, :1].astype(np.uint32)
        return grid.T
    volumes = sizes.prod(axis=1)
    found = np.empty((ndim, int(volumes.sum())), dtype=np.uint32)
    number = np.repeat(np.arange(count), volumes)
    index = np.arange(len(number)) - np.repeat(np.cumsum(volumes) - volumes, volumes)
    for axis in reversed(range(ndim)):
        index, along = np.divmod(index, sizes[number, axis])
        found[axis] = boxes[number, axis, 0] + along
    return found.T


def overlapping_pairs(boxes: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield blocks of pairs, int64 (p, 2): indices of two boxes that share a coordinate.

    ``boxes`` are integers, shape (n, ndim, 2), none empty. No block is empty, and no pair repeats.
    """
    n = len(boxes)
    if n < 2:
        return
    sweeps = [_sweep(boxes[:, axis]) for axis in range(boxes.shape[1])]
    if sweeps:
        # Take the axis that leaves the fewest pairs to compare.
        order, after = min(sweeps, key=lambda sweep: int(sweep[1].sum()))
    else:
        order, after = np.arange(n), n - 1 - np.arange(n)
    ends = np.cumsum(after)
    begin = 0
    while begin < n:
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _PAIRS_AT_ONCE, side="right")))
        counts = after[begin:end]
        first = np.repeat(np.arange(begin, end), counts)
        offset = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
        left, right = order[first], order[first + 1 + offset]
        meets = np.ones(len(left), dtype=np.bool_)
        for axis in range(boxes.shape[1]):
            starts, stops = boxes[:, axis, 0], boxes[:, axis, 1]
            meets &= (starts[left] < stops[right]) & (starts[right] < stops[left])
        if meets.any():
            yield np.stack([left[meets], right[meets]], axis=1).astype(np.int64)
        begin = end


def first_overlap(boxes: NDArray[Any]) -> tuple[int, int] | None:
    """Return the indices of two boxes, shape (n, ndim, 2), that share a coordinate, or None.

    Empty boxes share nothing; boxes without axes are all the same coordinate.
    """
    rows = np.flatnonzero((boxes[:, :, 0] < boxes[:, :, 1]).all(axis=1))
    for pairs in overlapping_pairs(boxes[rows]):
        first, second = sorted(rows[pairs[0]].tolist())
        return first, second
    return None


def _sweep(ranges: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order ranges by start; count for each range the later ones that begin before its end."""
    order = np.argsort(ranges[:, 0], kind="stable")
    starts, stops = ranges[order, 0], ranges[order, 1]
    upto = np.searchsorted(starts, stops, side="left")
    return order, np.maximum(upto - np.arange(len(order)) - 1, 0)


def joined_groups(
    boxes: NDArray[np.uint32], is_fixed: NDArray[np.bool_]
) -> list[NDArray[np.int64]]:
    """Join boxes, uint32 (n, ndim, 2), until no group with a movable box overlaps another box.

    Returns the int64 indices of the boxes of each group, ascending. ``is_fixed`` marks boxes that
    are not moved and may overlap one another. A movable box without overlaps is a separate group;
    fixed boxes without a movable one are omitted.
    """
    group_of = np.arange(len(boxes), dtype=np.int64)
    bounds = boxes
    fixed = is_fixed
    while True:
        pairs = [
            block[~(fixed[block[:, 0]] & fixed[block[:, 1]])] for block in overlapping_pairs(bounds)
        ]
        links = np.concatenate(pairs) if pairs else np.empty((0, 2), dtype=np.int64)
        if not len(links):
            break
        label = _connected(len(bounds), links)
        count = int(np.max(label)) + 1
        starts = np.full((count, boxes.shape[1]), MAX_COORD, dtype=np.uint32)
        stops = np.zeros((count, boxes.shape[1]), dtype=np.uint32)
        np.minimum.at(starts, label, bounds[:, :, 0])
        np.maximum.at(stops, label, bounds[:, :, 1])
        bounds = np.stack([starts, stops], axis=2)
        still_fixed = np.ones(count, dtype=np.bool_)
        np.logical_and.at(still_fixed, label, fixed)
        fixed = still_fixed
        group_of = label[group_of]
    members = np.argsort(group_of, kind="stable")
    edges = np.flatnonzero(np.diff(group_of[members])) + 1
    groups = np.split(members, edges) if len(members) else []
    return [group for group in groups if not fixed[group_of[group[0]]]]


def _connected(n: int, links: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the connected component of each of n items."""
    label = np.arange(n, dtype=np.int64)
    while True:
        least = np.minimum(label[links[:, 0]], label[links[:, 1]])
        before = label.copy()
        np.minimum.at(label, links[:, 0], least)
        np.minimum.at(label, links[:, 1], least)
        label = label[label]
        if (label == before).all():
            break
    found: NDArray[np.int64] = np.unique(label, return_inverse=True)[1]
    return found
