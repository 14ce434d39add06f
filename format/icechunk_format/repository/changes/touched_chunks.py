"""Lists the changed chunks of an array in order, a bounded number of them at a time.

The transaction log of a commit lists every changed chunk, sorted. Tasks return the chunks that they
wrote as boxes and bits (``CoordSet``), and coordinates of several tasks interleave if tasks divide
the array along several axes. So the chunk grid is cut into regions, each small enough to generate
and sort its coordinates in memory.

Rules of this file
------------------
1. Pure: coordinates are generated only when a caller requests them.
2. A region has one index on the leading axes, a range on the next, and the full range on the rest,
   so that regions are in the order of coordinates. No region has more than ``_ROWS_AT_ONCE``
   coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.boxes import bounds_of, box_around, boxes_meet, meeting
from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.grid.coordinates import CoordinateOrder, is_sorted, sorting_rows

_ROWS_AT_ONCE: Final = 1 << 17
# Indices are marked in a mask instead of sorted if there are at most this many per row.
_SPARSE: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class TouchedChunks:
    """Distinct chunk coordinates of one array; make it with ``of``.

    The sets in ``sources`` share no coordinate.
    """

    sources: tuple[CoordSet, ...]
    ndim: int
    count: int

    @classmethod
    def of(cls, sets: Sequence[CoordSet], points: NDArray[np.uint32]) -> TouchedChunks:
        """Join sets and points.

        Parameters
        ----------
        sets
            Sets that share no coordinate with one another.
        points
            uint32, shape (n, ndim), sorted and distinct: further coordinates, which may also be in
            the sets.
        """
        ndim = points.shape[1]
        points = points[~in_any(sets, points)]
        none = _as_set(points[:0])
        boxes = [none.boxes, *(s.boxes for s in sets if s.bits is None)]
        sources = [CoordSet(boxes=np.concatenate(boxes), points=none.points)]
        sources += [s for s in sets if s.bits is not None or len(s.points)]
        sources.append(_as_set(points))
        return cls(
            sources=tuple(source for source in sources if source.count),
            ndim=ndim,
            count=sum(source.count for source in sources),
        )

    def joined(self, points: NDArray[np.uint32]) -> TouchedChunks:
        """Add coordinates: uint32, shape (n, ndim), sorted and distinct."""
        order = CoordinateOrder(points)
        is_known = np.zeros(len(points), dtype=np.bool_)
        for block in self.blocks():
            rows = order.find(block)
            is_known[rows[rows >= 0]] = True
        if is_known.all():
            return self
        return TouchedChunks(
            sources=(*self.sources, _as_set(points[~is_known])),
            ndim=self.ndim,
            count=self.count + int((~is_known).sum()),
        )

    def coords(self) -> NDArray[np.uint32]:
        """Return all coordinates, sorted: uint32, shape (n, ndim)."""
        return np.concatenate([np.empty((0, self.ndim), dtype=np.uint32), *self.blocks()])

    def blocks(self) -> Iterator[NDArray[np.uint32]]:
        """Yield every coordinate, sorted: uint32, shape (n, ndim), n <= ``_ROWS_AT_ONCE``."""
        if not self.sources:
            return
        around = np.stack([source.bounds() for source in self.sources])
        for region in self._regions():
            near = [self.sources[i] for i in np.flatnonzero(meeting(around, region)).tolist()]
            coords = _in_order([source.within(region) for source in near])
            if len(coords):
                yield coords

    def _regions(self) -> Iterator[NDArray[np.int64]]:
        ranges = np.stack([source.bounds() for source in self.sources]).astype(np.int64)
        boxes = np.concatenate([source.boxes for source in self.sources]).astype(np.int64)
        points = [source.points for source in self.sources if len(source.points)]
        return _regions(boxes, points, box_around(ranges), 0)


def _as_set(points: NDArray[np.uint32]) -> CoordSet:
    return CoordSet(boxes=np.empty((0, points.shape[1], 2), dtype=np.uint32), points=points)


def in_any(sets: Sequence[CoordSet], coords: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return a mask of the coordinates, shape (n, ndim), that are in one of the sets."""
    found = np.zeros(len(coords), dtype=np.bool_)
    if len(coords):
        box = bounds_of(coords)
        for one in sets:
            if boxes_meet(one.bounds(), box):
                found |= one.contains(coords)
    return found


def _regions(
    boxes: NDArray[np.int64],
    points: Sequence[NDArray[np.uint32]],
    region: NDArray[np.int64],
    axis: int,
) -> Iterator[NDArray[np.int64]]:
    """Cut a region along an axis into parts of bounded size, in the order of coordinates.

    Parameters
    ----------
    boxes
        int64, shape (k, ndim, 2): boxes that contain all chunks of the region except the points.
    points
        Arrays of uint32, shape (n, ndim), sorted: further chunks of the region.
    region
        int64, shape (ndim, 2).
    axis
        The region has one index on every axis before this one.
    """
    if axis == len(region):
        yield region
        return
    edges, filled, load = _filling(boxes, points, axis)
    done = at = 0
    while done < filled[-1]:
        interval = int(np.searchsorted(filled, done, side="right")) - 1
        at = max(at, int(edges[interval]))
        goal = done + _ROWS_AT_ONCE
        last = int(np.searchsorted(filled, goal, side="right")) - 1
        end, done_there = int(edges[last]), int(filled[last])
        if last < len(load):
            more = (goal - done_there) // int(load[last])
            end += more
            done_there += more * int(load[last])
        if end > at:
            yield _limited(region, axis, at, end)
            at, done = end, done_there
            continue
        # One index on this axis has too many coordinates, so the next axis is cut there.
        is_here = (boxes[:, axis, 0] <= at) & (at < boxes[:, axis, 1])
        rows = [slice(*np.searchsorted(p[:, axis], [at, at + 1]).tolist()) for p in points]
        here = [p[r] for p, r in zip(points, rows, strict=True) if r.start < r.stop]
        yield from _regions(boxes[is_here], here, _limited(region, axis, at, at + 1), axis + 1)
        at, done = at + 1, done + int(load[interval])


def _filling(
    boxes: NDArray[np.int64], points: Sequence[NDArray[np.uint32]], axis: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the distribution of coordinates along an axis.

    Returns edges of intervals with equal numbers of coordinates at each index, shape (m,); the
    coordinates before each edge, shape (m,); and those per index in each interval, shape (m - 1,).
    """
    single = [np.empty(0, dtype=np.int64), *(p[:, axis].astype(np.int64) for p in points)]
    indices, counts = np.unique(np.concatenate(single), return_counts=True)
    sizes = (boxes[:, :, 1] - boxes[:, :, 0])[:, axis + 1 :].prod(axis=1)
    low, high = boxes[:, axis, 0], boxes[:, axis, 1]
    edges = np.unique(np.concatenate([low, high, indices, indices + 1]))
    change = np.zeros(len(edges), dtype=np.int64)
    for at, by in ((low, sizes), (high, -sizes), (indices, counts), (indices + 1, -counts)):
        np.add.at(change, np.searchsorted(edges, at), by)
    load = np.cumsum(change)[:-1]
    filled = np.concatenate([[0], np.cumsum(load * np.diff(edges))])
    return edges, filled, load


def _limited(region: NDArray[np.int64], axis: int, start: int, stop: int) -> NDArray[np.int64]:
    part = region.copy()
    part[axis] = start, stop
    return part


def _in_order(parts: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """Return the distinct coordinates of one region in order."""
    coords = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if is_sorted(coords):
        return coords
    low = coords.min(axis=0).astype(np.int64)
    sizes = coords.max(axis=0) - low + 1
    volume = sizes.prod(dtype=np.float64)
    if volume > _SPARSE * len(coords):
        return coords[sorting_rows(coords)]
    is_there = np.zeros(int(volume), dtype=np.bool_)
    is_there[np.ravel_multi_index(tuple((coords - low).T), tuple(sizes))] = True
    left = np.array(np.unravel_index(np.flatnonzero(is_there), tuple(sizes))) + low[:, None]
    return left.astype(np.uint32).T
