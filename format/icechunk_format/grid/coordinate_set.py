"""Stores sets of chunk coordinates compactly: as boxes, as one bit per chunk, or one by one.

A task of a distributed write tells the driver which chunks it wrote. Most tasks write whole blocks
of the chunk grid, and a block is stored as its corners. A block with gaps (chunks that hold nothing
but the fill value are not stored) takes a bit per chunk. Only scattered chunks are listed.

Rules of this file
------------------
1. Nothing here does input or output, and every value can be pickled.
2. Boxes are uint32 of shape (k, ndim, 2), start and end (exclusive) per axis, none empty. In one
   set they do not overlap. The only box of a scalar array has no axes and one chunk.
3. A set has boxes, or one box with bits, or points, whichever takes the least memory.
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
    box_volumes,
    boxes_meet,
    coords_of_boxes,
    inside_box,
    overlapping_pairs,
)
from icechunk_format.grid.coordinates import CoordinateOrder, is_sorted, sorting_rows

# Up to so many boxes are tried one by one where coordinates are looked up.
_FEW_BOXES: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class CoordSet:
    """Distinct chunk coordinates of one array; make it with ``of`` or ``of_boxes``.

    Parameters
    ----------
    boxes
        uint32, shape (k, ndim, 2): all coordinates inside of them, unless there are ``bits``.
    points
        uint32, shape (n, ndim), sorted: coordinates one by one.
    bits
        None, or uint8: one bit for each coordinate of the only box in order, the first one highest
        in the first byte; only coordinates with a one are meant.
    """

    boxes: NDArray[np.uint32]
    points: NDArray[np.uint32]
    bits: NDArray[np.uint8] | None = None

    @classmethod
    def of(cls, coords: ArrayLike) -> CoordSet:
        """Make a set of coordinates in any order, in the smallest form.

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
        nothing = np.empty((0, ndim), dtype=np.uint32)
        if len(points):
            box = bounds_of(points)[None]
            volume = float(box_volumes(box)[0])
            if volume == len(points):
                return cls(boxes=box, points=nothing)
            # The end behind the last possible coordinate is no 32-bit number: no bits then.
            if volume < 8 * points.nbytes and (box[0, :, 0] < box[0, :, 1]).all():
                is_set = np.zeros(int(volume), dtype=np.bool_)
                is_set[_places(points, box[0])] = True
                return cls(boxes=box, points=nothing, bits=np.packbits(is_set))
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
            and int(given.max()) <= MAX_COORD
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
        if self.bits is not None:
            return int(np.bitwise_count(self.bits).sum(dtype=np.int64))
        return len(self.points) + int(box_volumes(self.boxes).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about the size of the set when it is pickled."""
        return (
            self.boxes.nbytes + self.points.nbytes + (0 if self.bits is None else self.bits.nbytes)
        )

    def bounds(self) -> NDArray[np.uint32]:
        """Return the tight range per axis, end exclusive: uint32, shape (ndim, 2)."""
        if len(self.boxes):
            return np.stack([self.boxes[:, :, 0].min(axis=0), self.boxes[:, :, 1].max(axis=0)], 1)
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

        Those of several boxes come box by box, all others sorted. Costs what lies between the
        limits of the first axis.
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
        # Whole bytes first, then without the bits of the rows before.
        near = np.unpackbits(bits[start // 8 : -(-stop // 8)], count=int(stop - start // 8 * 8))
        places = np.flatnonzero(near[start % 8 :]) + start
        along = np.array(np.unravel_index(places, sizes)) + own[:, :1]
        found: NDArray[np.uint32] = along.astype(np.uint32).T
        is_narrow = (box[1:, 0] > own[1:, 0]) | (box[1:, 1] < own[1:, 1])
        return found[inside_box(found, box)] if is_narrow.any() else found

    def contains(self, coords: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell for each coordinate, shape (m, ndim), whether it is in the set."""
        if self.bits is not None:
            found = inside_box(coords, self.boxes[0])
            places = _places(coords[found], self.boxes[0])
            found[found] = self.bits[places >> 3] >> (7 - (places & 7)).astype(np.uint8) & 1 == 1
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
        mine, theirs = self.bounds(), other.bounds()
        if not (self.count and other.count) or not boxes_meet(mine, theirs):
            return np.empty((0, self.ndim), dtype=np.uint32)
        shared = np.stack(
            [np.maximum(mine[:, 0], theirs[:, 0]), np.minimum(mine[:, 1], theirs[:, 1])], 1
        )
        if self._is_box and other._is_box:
            return coords_of_boxes(shared[None])
        few, many = (self, other) if self.count < other.count else (other, self)
        wanted = few.within(shared)
        wanted = wanted[many.contains(wanted)]
        return wanted if is_sorted(wanted) else wanted[sorting_rows(wanted)]

    @property
    def _is_box(self) -> bool:
        return len(self.boxes) == 1 and self.bits is None


def _places(coords: NDArray[Any], box: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the place of each coordinate in the order of all coordinates of a box around them."""
    low = box[:, 0].astype(np.int64)
    places: NDArray[np.int64] = np.ravel_multi_index(
        tuple((coords - low).T), tuple(box[:, 1] - low)
    )
    return places


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
    if given.size and not 0 <= int(given.min()) <= int(given.max()) <= MAX_COORD:
        raise InvalidInputError(f"chunk coordinates must lie between 0 and {MAX_COORD}")
    return given.astype(np.uint32)
