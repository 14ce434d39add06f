"""Stores sets of chunk coordinates compactly: as boxes, as one bit per chunk, or one by one.

A task of a distributed write returns the chunks that it wrote. Most tasks write whole blocks of the
chunk grid, which are stored as their corners. A block with gaps (chunks of fill values are omitted)
takes one bit per chunk. Only scattered chunks are listed.

Rules of this file
------------------
1. Sets perform no I/O and can be pickled.
2. Boxes are uint32 of shape (k, ndim, 2), start and end (exclusive) per axis, none empty. Boxes of
   one set do not overlap. The only box of a scalar array has no axes and one chunk.
3. A set consists of boxes, of one box with bits, or of points, whichever takes the least memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import (
    MAX_COORD,
    bounds_of,
    box_around,
    box_volumes,
    boxes_meet,
    coords_of_boxes,
    inside_box,
    overlapping_pairs,
)
from icechunk_format.grid.coordinates import CoordinateOrder, is_sorted, sorting_rows

# Up to this many boxes, a look-up tests each.
_FEW_BOXES: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class CoordSet:
    """Distinct chunk coordinates of one array; make it with ``of`` or ``of_boxes``."""

    boxes: NDArray[np.uint32]
    """All coordinates inside are in the set, unless ``bits`` is given."""
    points: NDArray[np.uint32]
    """uint32, shape (n, ndim), sorted: single coordinates."""
    bits: NDArray[np.uint8] | None = None
    """One bit per coordinate of the only box, in C order, the highest bit of a byte first; set bits
    are the coordinates of the set."""

    @classmethod
    def of(cls, coords: ArrayLike) -> CoordSet:
        """Make a set of coordinates: integers of shape (n, ndim), in any order, with repeats."""
        points = checked_coords(coords)
        if not is_sorted(points):
            points = points[sorting_rows(points)]
        ndim = points.shape[1]
        nothing = np.empty((0, ndim), dtype=np.uint32)
        if len(points):
            box = bounds_of(points)[None]
            volume = float(box_volumes(box)[0])
            if volume == len(points):
                return cls(boxes=box, points=nothing)
            # If the end of the last coordinate does not fit into 32 bits, points are stored.
            if volume < 8 * points.nbytes and (box[0, :, 0] < box[0, :, 1]).all():
                is_set = np.zeros(int(volume), dtype=np.bool_)
                is_set[_indices(points, box[0])] = True
                return cls(boxes=box, points=nothing, bits=np.packbits(is_set))
        return cls(boxes=np.empty((0, ndim, 2), dtype=np.uint32), points=points)

    @classmethod
    def of_boxes(cls, boxes: ArrayLike) -> CoordSet:
        """Make a set of boxes: integers, shape (k, ndim, 2), neither empty nor overlapping."""
        given = np.asarray(boxes)
        if given.ndim != 3 or given.shape[2] != 2 or (given.size and given.dtype.kind not in "iu"):
            raise InvalidInputError(
                "boxes of chunks must be integers of shape (n, dimensions, 2), found "
                f"{given.dtype} of shape {given.shape}",
                found=given.shape,
            )
        if given.size and not (
            int(given.min()) >= 0
            and int(given.max()) <= MAX_COORD
            and (given[:, :, 0] < given[:, :, 1]).all()
        ):
            raise InvalidInputError(
                "a box of chunks is empty or exceeds the 32 bits of a coordinate; every axis needs "
                f"0 <= start < end <= {MAX_COORD}"
            )
        checked = given.astype(np.uint32)
        for _ in overlapping_pairs(checked):
            raise InvalidInputError("boxes of one set of chunks must not overlap")
        return cls(boxes=checked, points=np.empty((0, checked.shape[1]), dtype=np.uint32))

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""
        return int(self.points.shape[1])

    @property
    def count(self) -> int:
        """Number of coordinates."""
        if self.bits is not None:
            return int(np.bitwise_count(self.bits).sum(dtype=np.int64))
        return len(self.points) + int(box_volumes(self.boxes).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about the size of the pickled set."""
        return (
            self.boxes.nbytes + self.points.nbytes + (0 if self.bits is None else self.bits.nbytes)
        )

    def bounds(self) -> NDArray[np.uint32]:
        """Return the tight range per axis, end exclusive: uint32, shape (ndim, 2)."""
        if len(self.boxes):
            return box_around(self.boxes)
        return bounds_of(self.points)

    def coords(self) -> NDArray[np.uint32]:
        """Return every coordinate, sorted: uint32, shape (n, ndim)."""
        if self.bits is not None:
            return self.within(self.boxes[0])
        if not len(self.boxes):
            return self.points
        found = coords_of_boxes(self.boxes)
        return found if is_sorted(found) else found[sorting_rows(found)]

    def within(self, box: NDArray[Any]) -> NDArray[np.uint32]:
        """Return the coordinates inside a box, shape (ndim, 2): uint32, shape (n, ndim).

        They are sorted, or in order of the boxes if the set has several. The cost grows with the
        coordinates in the box's range along the first axis.
        """
        if self.bits is not None:
            return self._marked_within(self.bits, box)
        if not len(self.boxes):
            rows = slice(None)
            if self.ndim:
                rows = slice(*np.searchsorted(self.points[:, 0], box[0]).tolist())
            near = self.points[rows]
            return near[inside_box(near, box)]
        low = np.maximum(self.boxes[:, :, 0], box[:, 0])
        high = np.minimum(self.boxes[:, :, 1], box[:, 1])
        is_met = (low < high).all(axis=1)
        return coords_of_boxes(np.stack([low[is_met], high[is_met]], axis=2))

    def _marked_within(self, bits: NDArray[np.uint8], box: NDArray[Any]) -> NDArray[np.uint32]:
        own = self.boxes[0].astype(np.int64)
        first, last = max(own[0, 0], int(box[0, 0])), min(own[0, 1], int(box[0, 1]))
        sizes = own[:, 1] - own[:, 0]
        row = int(sizes[1:].prod())
        start, stop = (first - own[0, 0]) * row, (max(first, last) - own[0, 0]) * row
        # Unpack whole bytes, then drop the bits before the first row.
        near = np.unpackbits(bits[start // 8 : -(-stop // 8)], count=int(stop - start // 8 * 8))
        indices = np.flatnonzero(near[start % 8 :]) + start
        along = np.array(np.unravel_index(indices, sizes)) + own[:, :1]
        found: NDArray[np.uint32] = along.astype(np.uint32).T
        is_narrow = (box[1:, 0] > own[1:, 0]) | (box[1:, 1] < own[1:, 1])
        return found[inside_box(found, box)] if is_narrow.any() else found

    def contains(self, coords: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the coordinates, shape (m, ndim), that are in the set."""
        if self.bits is not None:
            found = inside_box(coords, self.boxes[0])
            at = _indices(coords[found], self.boxes[0])
            found[found] = self.bits[at >> 3] >> (7 - (at & 7)).astype(np.uint8) & 1 == 1
            return found
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
        left, right = self.bounds(), other.bounds()
        if not (self.count and other.count) or not boxes_meet(left, right):
            return np.empty((0, self.ndim), dtype=np.uint32)
        starts, stops = np.maximum(left[:, 0], right[:, 0]), np.minimum(left[:, 1], right[:, 1])
        shared = np.stack([starts, stops], 1)
        if self._is_box and other._is_box:
            return coords_of_boxes(shared[None])
        few, many = (self, other) if self.count < other.count else (other, self)
        wanted = few.within(shared)
        wanted = wanted[many.contains(wanted)]
        return wanted if is_sorted(wanted) else wanted[sorting_rows(wanted)]

    @property
    def _is_box(self) -> bool:
        return len(self.boxes) == 1 and self.bits is None


def _indices(coords: NDArray[Any], box: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the index of each coordinate among all coordinates of a box around them, in order."""
    low = box[:, 0].astype(np.int64)
    found: NDArray[np.int64] = np.ravel_multi_index(tuple((coords - low).T), tuple(box[:, 1] - low))
    return found


def checked_coords(coords: ArrayLike) -> NDArray[np.uint32]:
    """Return integers of shape (n, ndim) as uint32, or raise InvalidInputError."""
    given = np.asarray(coords)
    if given.ndim != 2 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidInputError(
            f"chunk coordinates must be integers of shape (n, dimensions), found {given.dtype} of "
            f"shape {given.shape}",
            found=given.shape,
        )
    if given.size and not 0 <= int(given.min()) <= int(given.max()) <= MAX_COORD:
        raise InvalidInputError(f"chunk coordinates must be from 0 to {MAX_COORD}")
    return given.astype(np.uint32)
