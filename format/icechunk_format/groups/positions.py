"""Defines the selected positions of a dimension as an exact set.

Every way to select (``isel``, ``sel``, a condition on a coordinate) gives a ``DimSelection``, so
that plans can intersect selections and cut them at chunk edges.

Rules of this file
------------------
1. A selection is a set: positions are ascending and distinct in any order or step of the option.
2. Selections are normalized, so that equal sets compare equal: positions without a gap are a span,
   and the empty selection is the span from 0 to 0.
3. Selections are picklable; the size of a span does not depend on the length of the dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.axes import ChunkAxis

MOST_COMPARED: Final = 1 << 28
"""Most positions of a dimension without labels that are listed or compared with a condition."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DimSelection:
    """A set of positions along one dimension.

    Attributes
    ----------
    size
        Length of the dimension.
    start, stop
        The half-open range that holds every position; both 0 when nothing is selected.
    indices
        Sorted, distinct ``int64`` positions; None if the whole range is selected.
    """

    size: int
    start: int
    stop: int
    indices: NDArray[np.int64] | None = None

    @classmethod
    def whole(cls, size: int) -> Self:
        """Select every position."""
        return cls(size=size, start=0, stop=size)

    @classmethod
    def empty(cls, size: int) -> Self:
        """Select nothing."""
        return cls(size=size, start=0, stop=0)

    @classmethod
    def span(cls, size: int, start: int, stop: int) -> Self:
        """Select the half-open range from ``start`` to ``stop``, clipped to the dimension."""
        start, stop = max(start, 0), min(stop, size)
        return cls(size=size, start=start, stop=stop) if start < stop else cls.empty(size)

    @classmethod
    def of_indices(cls, size: int, indices: NDArray[Any]) -> Self:
        """Select positions within the dimension, given in any order, with or without repeats."""
        positions = np.asarray(indices, dtype=np.int64)
        if not (positions[1:] > positions[:-1]).all():
            positions = np.unique(positions)
        return cls._of_sorted(size, positions)

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Self:
        """Select the positions at which a mask of the dimension is True."""
        return cls._of_sorted(len(mask), np.flatnonzero(mask).astype(np.int64, copy=False))

    @classmethod
    def of_pieces(cls, pieces: Sequence[DimSelection]) -> Self:
        """Join selections of consecutive parts of a dimension."""
        size = sum(piece.size for piece in pieces)
        starts = accumulate((piece.size for piece in pieces), initial=0)
        found = [
            (first, piece) for first, piece in zip(starts, pieces, strict=False) if piece.count
        ]
        if not found:
            return cls.empty(size)
        start, stop = found[0][0] + found[0][1].start, found[-1][0] + found[-1][1].stop
        if sum(piece.count for _, piece in found) == stop - start:
            return cls(size=size, start=start, stop=stop)
        positions = np.concatenate([first + piece.positions() for first, piece in found])
        return cls._of_sorted(size, positions)

    @classmethod
    def _of_sorted(cls, size: int, positions: NDArray[np.int64]) -> Self:
        if not positions.size:
            return cls.empty(size)
        start, stop = int(positions[0]), int(positions[-1]) + 1
        assert 0 <= start < stop <= size, "a position outside of the dimension"
        if stop - start == positions.size:
            return cls(size=size, start=start, stop=stop)
        positions.flags.writeable = False
        return cls(size=size, start=start, stop=stop, indices=positions)

    @property
    def count(self) -> int:
        """The number of selected positions."""
        return self.stop - self.start if self.indices is None else len(self.indices)

    @property
    def is_whole(self) -> bool:
        """True if every position is selected."""
        return self.count == self.size

    def positions(self) -> NDArray[np.int64]:
        """Return the selected positions, ascending."""
        if self.indices is not None:
            return self.indices
        return np.arange(self.start, self.stop, dtype=np.int64)

    def at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return selected positions by their number, in the order of ``numbers``."""
        return self.start + numbers if self.indices is None else self.indices[numbers]

    def runs(self) -> NDArray[np.int64]:
        """Return the runs of selected positions without a gap, ``int64 (k, 2)``."""
        if self.indices is None:
            run = [(self.start, self.stop)] if self.count else []
            return np.array(run, dtype=np.int64).reshape(-1, 2)
        return runs_of(self.indices)

    def rank(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many selected positions precede each position; its index if it is selected."""
        if self.indices is None:
            return np.clip(positions, self.start, self.stop) - self.start
        return np.searchsorted(self.indices, positions)

    def has(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the positions that are selected."""
        if self.indices is None:
            return np.asarray((positions >= self.start) & (positions < self.stop), np.bool_)
        return np.isin(positions, self.indices)

    def chunks(self, axis: ChunkAxis) -> NDArray[np.int64]:
        """Return the chunks of an axis that hold selected positions, ascending."""
        if self.indices is None:
            return np.arange(*axis.chunk_range(self.start, self.stop), dtype=np.int64)
        return np.unique(axis.chunk_of(self.indices))

    def count_chunks(self, axis: ChunkAxis) -> int:
        """Return the number of chunks of an axis that hold selected positions."""
        if self.indices is None:
            first, last = axis.chunk_range(self.start, self.stop)
            return last - first
        return len(self.chunks(axis))

    def within(self, start: int, stop: int) -> DimSelection:
        """Return the selected positions in ``[start, stop)``."""
        return self.intersect(DimSelection.span(self.size, start, stop))

    def of_first(self, size: int) -> DimSelection:
        """Return the selection of the first ``size`` positions as a dimension of that length."""
        return replace(self.within(0, size), size=size)

    def intersect(self, other: DimSelection) -> DimSelection:
        """Return the positions that are in both selections of a dimension."""
        assert self.size == other.size, "selections of two dimensions"
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        if start >= stop:
            return DimSelection.empty(self.size)
        if self.indices is None and other.indices is None:
            return DimSelection(size=self.size, start=start, stop=stop)
        if self.indices is None:
            return other._cut(start, stop)
        if other.indices is None:
            return self._cut(start, stop)
        common = np.intersect1d(self.indices, other.indices, assume_unique=True)
        return DimSelection._of_sorted(self.size, common)

    def _cut(self, lo: int, hi: int) -> DimSelection:
        assert self.indices is not None
        first, last = np.searchsorted(self.indices, [lo, hi])
        return DimSelection._of_sorted(self.size, self.indices[first:last])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DimSelection):
            return NotImplemented
        if (self.size, self.start, self.stop) != (other.size, other.start, other.stop):
            return False
        if self.indices is None or other.indices is None:
            return self.indices is other.indices
        return np.array_equal(self.indices, other.indices)

    def __hash__(self) -> int:
        return hash((self.size, self.start, self.stop, self.count))


def runs_of(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the runs of ascending, distinct positions, ``int64 (k, 2)``."""
    if not len(positions):
        return np.empty((0, 2), dtype=np.int64)
    breaks = np.flatnonzero(np.diff(positions) != 1)
    starts = positions[np.concatenate([[0], breaks + 1])]
    stops = positions[np.concatenate([breaks, [len(positions) - 1]])] + 1
    return np.stack([starts, stops], axis=1).astype(np.int64)
