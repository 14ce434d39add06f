"""Sorts chunk coordinates, and finds the rows of coordinates and of boxes among sorted ones.

Chunk refs of an array are sorted by coordinate, so a lookup is a binary search and a box is a few
runs of rows. Most arrays allow something faster than comparing tuples, so there are three layouts:

=======  ==================================================  ==================================
layout   when                                                 how a coordinate is found
=======  ==================================================  ==================================
dense    every coordinate of the bounding box has a row       arithmetic
keyed    the bounding box has fewer than 2**63 coordinates    search in one int64 key per row
wide     the rest                                             search in the columns, axis by axis
=======  ==================================================  ==================================

Rules of this file
------------------
1. Coordinates are uint32 of shape (n, ndim), column-major so that an axis is contiguous. A scalar
   array has ndim 0 and at most one row.
2. Selecting a box costs the returned rows and binary searches. If the range of the box on the
   first axis has fewer rows than searches are needed, these rows are scanned instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import inside_box

_MAX_KEY: Final = 2**63
# A binary search over a million rows costs about this many comparisons of a scan.
_SEARCH_COST: Final = 8


def is_sorted(coords: NDArray[np.uint32]) -> bool:
    """Return True if rows ascend strictly: sorted and without duplicates."""
    if len(coords) < 2:
        return True
    is_tied = np.ones(len(coords) - 1, dtype=np.bool_)
    for axis in range(coords.shape[1]):
        before, after = coords[:-1, axis], coords[1:, axis]
        if ((after < before) & is_tied).any():
            return False
        is_tied &= after == before
    return not is_tied.any()


def sorting_rows(coords: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Return the rows in ascending order of coordinate, the first row of each coordinate only."""
    if coords.shape[1] == 0:
        return np.arange(min(len(coords), 1))
    order = np.lexsort(coords.T[::-1])
    if len(order) > 1:
        ordered = coords[order]
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        order = order[is_first]
    return order


def joined_coords(parts: Iterable[NDArray[np.uint32]], ndim: int) -> NDArray[np.uint32]:
    """Return the coordinates of all parts, each once, sorted; shape (n, ndim)."""
    full = [part for part in parts if len(part)]
    if not full:
        return np.empty((0, ndim), dtype=np.uint32)
    joined = full[0] if len(full) == 1 else np.concatenate(full)
    return joined if is_sorted(joined) else joined[sorting_rows(joined)]


def without(coords: NDArray[np.uint32], parts: Iterable[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """Return the coordinates, shape (n, ndim), that are in none of some parts."""
    return coords[CoordinateOrder(joined_coords(parts, coords.shape[1])).find(coords) < 0]


class CoordinateOrder:
    """Finds rows among ``coords``: uint32, shape (n, ndim), strictly ascending."""

    __slots__ = ("_columns", "_is_dense", "_keys", "_low", "_shape", "_strides")

    def __init__(self, coords: NDArray[np.uint32]) -> None:
        self._columns = coords
        n, ndim = coords.shape
        self._low: list[int] = coords.min(axis=0).tolist() if n else [0] * ndim
        high: list[int] = coords.max(axis=0).tolist() if n else [-1] * ndim
        self._shape = [h - low + 1 for low, h in zip(self._low, high, strict=True)]
        self._strides = [math.prod(self._shape[axis + 1 :]) for axis in range(ndim)]
        size = math.prod(self._shape)
        # n distinct coordinates fill a box of size n.
        self._is_dense = n == size
        self._keys: NDArray[np.int64] | None = None
        if not self._is_dense and size < _MAX_KEY:
            self._keys = self._to_keys(coords)

    @property
    def nbytes(self) -> int:
        """Memory taken in addition to the coordinates."""
        return 0 if self._keys is None else self._keys.nbytes

    def bounds(self) -> list[tuple[int, int]]:
        """Return the tight range of every axis, end exclusive; empty without rows."""
        return [(low, low + size) for low, size in zip(self._low, self._shape, strict=True)]

    def _to_keys(self, coords: NDArray[Any]) -> NDArray[np.int64]:
        keys = np.zeros(len(coords), dtype=np.int64)
        for axis, (low, stride) in enumerate(zip(self._low, self._strides, strict=True)):
            keys += (coords[:, axis].astype(np.int64) - low) * stride
        return keys

    def find(self, wanted: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the row, int64, of each coordinate of shape (m, ndim), -1 if it is absent."""
        n, ndim = self._columns.shape
        if wanted.ndim != 2 or wanted.shape[1] != ndim:
            raise InvalidInputError(
                f"chunk coordinates must have shape (any, {ndim}), found {wanted.shape}"
            )
        found = np.full(len(wanted), -1, dtype=np.int64)
        if not n:
            return found
        rows = np.flatnonzero(inside_box(wanted, np.array(self.bounds())))
        inside = wanted[rows]
        if self._is_dense:
            found[rows] = self._to_keys(inside)
        elif self._keys is not None:
            keys = self._to_keys(inside)
            at = np.minimum(np.searchsorted(self._keys, keys), n - 1)
            found[rows] = np.where(self._keys[at] == keys, at, -1)
        else:
            at = self._search_columns(inside)
            is_hit = (self._columns[np.minimum(at, n - 1)] == inside).all(axis=1) & (at < n)
            found[rows] = np.where(is_hit, at, -1)
        return found

    def _search_columns(self, wanted: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the first row not below each coordinate, by one vectorized binary search."""
        low = np.zeros(len(wanted), dtype=np.int64)
        high = np.full(len(wanted), len(self._columns), dtype=np.int64)
        while (is_open := low < high).any():
            middle = np.minimum((low + high) // 2, len(self._columns) - 1)
            is_below = np.zeros(len(wanted), dtype=np.bool_)
            is_tied = np.ones(len(wanted), dtype=np.bool_)
            for axis in range(wanted.shape[1]):
                here, there = self._columns[middle, axis], wanted[:, axis]
                is_below |= is_tied & (here < there)
                is_tied &= here == there
            low = np.where(is_open & is_below, middle + 1, low)
            high = np.where(is_open & ~is_below, middle, high)
        return low

    def select_box(self, lo: Sequence[int], hi: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows whose coordinates are in [lo, hi) on every axis, ascending."""
        n, ndim = self._columns.shape
        if len(lo) != ndim or len(hi) != ndim:
            raise InvalidInputError(
                f"a box of chunks must have {ndim} dimensions, found {len(lo)} and {len(hi)}"
            )
        box = [
            (max(int(low), first), min(int(high), last))
            for low, high, (first, last) in zip(lo, hi, self.bounds(), strict=True)
        ]
        if not n or any(low >= high for low, high in box):
            return np.empty(0, dtype=np.int64)
        relative = [(low - f, high - f) for (low, high), f in zip(box, self._low, strict=True)]
        if self._is_dense:
            return _keys_of(relative, self._strides)
        if self._keys is not None:
            return self._select_keyed(self._keys, box, relative)
        first = np.searchsorted(self._columns[:, 0], box[0])
        return self._scan(int(first[0]), int(first[1]), box)

    def _select_keyed(
        self, keys: NDArray[np.int64], box: list[tuple[int, int]], relative: list[tuple[int, int]]
    ) -> NDArray[np.int64]:
        # Axes that the box covers completely need no search. Each combination of coordinates on
        # the axes before the last restricted one is one run of rows.
        last = max(
            (a for a, (low, high) in enumerate(relative) if (low, high) != (0, self._shape[a])),
            default=-1,
        )
        if last < 0:
            return np.arange(len(keys))
        lowest = sum(r[0] * s for r, s in zip(relative, self._strides, strict=True))
        highest = sum((r[1] - 1) * s for r, s in zip(relative, self._strides, strict=True))
        begin = int(np.searchsorted(keys, lowest))
        end = int(np.searchsorted(keys, highest, side="right"))
        runs = math.prod(high - low for low, high in relative[:last])
        if runs * _SEARCH_COST > end - begin:
            return self._scan(begin, end, box)
        low, high = relative[last]
        stride = self._strides[last]
        prefixes = _keys_of(relative[:last], self._strides[:last])
        first = np.searchsorted(keys, prefixes + low * stride)
        count = np.searchsorted(keys, prefixes + high * stride) - first
        rows = np.repeat(first - (np.cumsum(count) - count), count)
        return rows + np.arange(len(rows))

    def _scan(self, begin: int, end: int, box: list[tuple[int, int]]) -> NDArray[np.int64]:
        """Return the rows from ``begin`` to ``end`` inside the box."""
        return np.flatnonzero(inside_box(self._columns[begin:end], np.array(box))) + begin


def _keys_of(box: list[tuple[int, int]], strides: list[int]) -> NDArray[np.int64]:
    """Return the keys of all coordinates of a box, ascending."""
    keys = np.zeros(1, dtype=np.int64)
    for (low, high), stride in zip(box, strides, strict=True):
        keys = (keys[:, None] + np.arange(low, high, dtype=np.int64) * stride).reshape(-1)
    return keys
