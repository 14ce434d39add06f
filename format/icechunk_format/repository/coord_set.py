"""Sets of chunk coordinates that stay small however many chunks they mean.

A task of a distributed write tells the driver which chunks it wrote. Most tasks write whole blocks
of the chunk grid, so a block is kept as its corners; only what is no block is kept coordinate by
coordinate.

Rules of this file
------------------
1. Nothing here does input or output, and every value can be pickled.
2. Boxes are uint32 of shape (k, ndim, 2), start and end (exclusive) per axis, none empty. In one
   set they do not overlap. The only box of a scalar array has no axes and one chunk.
3. Comparing n boxes with one another costs n log n and what truly meets on the best axis, never
   n squared: a write of ten thousand tasks must not wait for its driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icechunk_format.errors import InvalidInputError
from icechunk_format.spec.coordinate_order import CoordinateOrder, is_sorted, sorting_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

# Pairs of boxes that are compared at once; bounds the memory of a comparison.
_PAIRS_AT_ONCE: Final = 1 << 20
# Up to so many boxes are tried one by one where coordinates are looked up.
_FEW_BOXES: Final = 16
_MAX_COORD: Final = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class CoordSet:
    """Distinct chunk coordinates of one array; make it with ``of`` or ``of_boxes``.

    Parameters
    ----------
    boxes
        uint32, shape (k, ndim, 2): all coordinates inside of them.
    points
        uint32, shape (n, ndim), sorted: coordinates one by one. A set has boxes or points.
    """

    boxes: NDArray[np.uint32]
    points: NDArray[np.uint32]

    @classmethod
    def of(cls, coords: ArrayLike) -> CoordSet:
        """Make a set of coordinates in any order; a full block becomes a box.

        Parameters
        ----------
        coords
            Integers, shape (n, ndim); repeats count once.

        Raises
        ------
        InvalidInputError
            They have another shape, are no integers, or do not fit into 32 bits.
        """
        points = checked_coords(coords)
        if not is_sorted(points):
            points = points[sorting_rows(points)]
        ndim = points.shape[1]
        if len(points):
            box = bounds_of(points)
            if box_volumes(box[None])[0] == len(points):
                return cls(boxes=box[None], points=np.empty((0, ndim), dtype=np.uint32))
        return cls(boxes=np.empty((0, ndim, 2), dtype=np.uint32), points=points)

    @classmethod
    def of_boxes(cls, boxes: ArrayLike) -> CoordSet:
        """Make a set of boxes.

        Parameters
        ----------
        boxes
            Integers, shape (k, ndim, 2): start and end (exclusive) per axis.

        Raises
        ------
        InvalidInputError
            They have another shape, one is empty or does not fit into 32 bits, or two overlap.
        """
        given = np.asarray(boxes)
        if given.ndim != 3 or given.shape[2] != 2 or (given.size and given.dtype.kind not in "iu"):
            raise InvalidInputError(
                f"boxes of {given.dtype} and shape {given.shape} are no boxes of chunks; integers "
                "of shape (n, dimensions, 2) are needed",
                found=given.shape,
            )
        if given.size and not (
            int(given.min()) >= 0
            and int(given.max()) <= _MAX_COORD
            and (given[:, :, 0] < given[:, :, 1]).all()
        ):
            raise InvalidInputError(
                "a box of chunks is empty or leaves the 32 bits of a coordinate; 0 <= start < end "
                "is needed on every axis"
            )
        checked = given.astype(np.uint32)
        for _ in overlapping_pairs(checked):
            raise InvalidInputError("boxes of one set of chunks overlap; each chunk counts once")
        return cls(boxes=checked, points=np.empty((0, checked.shape[1]), dtype=np.uint32))

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""
        return int(self.points.shape[1])

    @property
    def count(self) -> int:
        """Number of coordinates."""
        return len(self.points) + int(box_volumes(self.boxes).sum())

    def bounds(self) -> NDArray[np.uint32]:
        """Return the tight range per axis, end exclusive: uint32, shape (ndim, 2)."""
        if len(self.boxes):
            return np.stack([self.boxes[:, :, 0].min(axis=0), self.boxes[:, :, 1].max(axis=0)], 1)
        return bounds_of(self.points)

    def coords(self) -> NDArray[np.uint32]:
        """Return every coordinate, sorted: uint32, shape (n, ndim)."""
        if not len(self.boxes):
            return self.points
        parts = [_coords_of_box(box) for box in self.boxes]
        if len(parts) == 1:
            return parts[0]
        joined = np.concatenate(parts)
        return joined if is_sorted(joined) else joined[sorting_rows(joined)]

    def contains(self, coords: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell for each coordinate, shape (m, ndim), whether it is in the set."""
        if len(self.boxes) <= _FEW_BOXES:
            found = np.zeros(len(coords), dtype=np.bool_)
            for box in self.boxes:
                found |= inside_box(coords, box)
            if not len(self.points):
                return found
            return found | (CoordinateOrder(self.points).find(coords) >= 0)
        return CoordinateOrder(self.coords()).find(coords) >= 0

    def intersection(self, other: CoordSet) -> NDArray[np.uint32]:
        """Return the coordinates that two sets share, sorted: uint32, shape (n, ndim)."""
        if not (self.count and other.count) or not boxes_meet(self.bounds(), other.bounds()):
            return np.empty((0, self.ndim), dtype=np.uint32)
        if len(self.boxes) == 1 and len(other.boxes) == 1:
            mine, theirs = self.boxes[0], other.boxes[0]
            shared = np.stack(
                [np.maximum(mine[:, 0], theirs[:, 0]), np.minimum(mine[:, 1], theirs[:, 1])], 1
            )
            return _coords_of_box(shared)
        few, many = (self, other) if self.count < other.count else (other, self)
        wanted = few.coords()
        return wanted[many.contains(wanted)]

    def intersects(self, other: CoordSet) -> bool:
        """Tell whether two sets share a coordinate."""
        return len(self.intersection(other)) > 0

    def covers_box(self, box: NDArray[Any]) -> bool:
        """Tell whether one of the boxes holds a whole other box, shape (ndim, 2)."""
        is_around = (self.boxes[:, :, 0] <= box[:, 0]) & (self.boxes[:, :, 1] >= box[:, 1])
        return bool(is_around.all(axis=1).any())


def checked_coords(coords: ArrayLike) -> NDArray[np.uint32]:
    """Return coordinates as uint32 of shape (n, ndim).

    Raises
    ------
    InvalidInputError
        They have another shape, are no integers, or do not fit into 32 bits.
    """
    given = np.asarray(coords)
    if given.ndim != 2 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidInputError(
            f"chunk coordinates of {given.dtype} and shape {given.shape} were given; integers of "
            "shape (n, dimensions) are needed",
            found=given.shape,
        )
    if given.size and not 0 <= int(given.min()) <= int(given.max()) <= _MAX_COORD:
        raise InvalidInputError(f"chunk coordinates must lie between 0 and {_MAX_COORD}")
    return given.astype(np.uint32)


def bounds_of(coords: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the tight range of coordinates per axis, end exclusive; zeros where there are none."""
    if not len(coords):
        return np.zeros((coords.shape[1], 2), dtype=np.uint32)
    # The end of the last possible coordinate does not fit into 32 bits; no grid reaches it.
    return np.stack([coords.min(axis=0), coords.max(axis=0) + np.uint32(1)], axis=1)


def box_volumes(boxes: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return the number of coordinates in each box; float64, since a grid may have 2**64."""
    sizes = boxes[:, :, 1].astype(np.float64) - boxes[:, :, 0]
    found: NDArray[np.float64] = sizes.prod(axis=1)
    return found


def inside_box(coords: NDArray[Any], box: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell for each coordinate, shape (m, ndim), whether it lies in a box, shape (ndim, 2)."""
    found = np.ones(len(coords), dtype=np.bool_)
    for axis, (low, high) in enumerate(box.tolist()):
        column = coords[:, axis]
        found &= (column >= low) & (column < high)
    return found


def boxes_meet(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Tell whether two boxes, shape (ndim, 2), share a coordinate."""
    return bool(((left[:, 0] < right[:, 1]) & (left[:, 1] > right[:, 0])).all())


def _coords_of_box(box: NDArray[np.uint32]) -> NDArray[np.uint32]:
    sizes = [int(high) - int(low) for low, high in box]
    if not sizes:
        return np.empty((1, 0), dtype=np.uint32)
    grid = np.indices(sizes, dtype=np.uint32).reshape(len(sizes), -1).T
    found: NDArray[np.uint32] = grid + box[:, 0]
    return found


def overlapping_pairs(boxes: NDArray[np.uint32]) -> Iterator[NDArray[np.int64]]:
    """Yield the pairs of boxes that share a coordinate.

    Parameters
    ----------
    boxes
        uint32, shape (n, ndim, 2), none empty.

    Yields
    ------
    NDArray
        int64, shape (p, 2), p > 0: numbers of two boxes, each pair once, in blocks.
    """
    n = len(boxes)
    if n < 2:
        return
    sweeps = [_sweep(boxes[:, axis]) for axis in range(boxes.shape[1])]
    if sweeps:
        # The axis on which the fewest boxes lie beside one another decides who is compared.
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


def _sweep(ranges: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order ranges by start; tell how many of those behind each one begin before it ends."""
    order = np.argsort(ranges[:, 0], kind="stable")
    starts, stops = ranges[order, 0], ranges[order, 1]
    upto = np.searchsorted(starts, stops, side="left")
    return order, np.maximum(upto - np.arange(len(order)) - 1, 0)


def joined_groups(
    boxes: NDArray[np.uint32], is_fixed: NDArray[np.bool_]
) -> list[NDArray[np.int64]]:
    """Join boxes until no group that holds a movable one overlaps anything else.

    Parameters
    ----------
    boxes
        uint32, shape (n, ndim, 2), none empty.
    is_fixed
        bool, shape (n,): boxes that may overlap one another, since nobody touches them.

    Returns
    -------
    list of NDArray
        int64 numbers of boxes, ascending: every group of more than one box, and every movable box
        alone. Fixed boxes that meet nothing are left out.
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
        starts = np.full((count, boxes.shape[1]), _MAX_COORD, dtype=np.uint32)
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
    """Return the number of the connected group that each of n things belongs to."""
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
