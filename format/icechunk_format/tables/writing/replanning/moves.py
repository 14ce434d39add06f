"""Plans which chunks of tasks are used again after other writers have committed. No I/O.

If another writer extends a dimension, the labels of this write get new indices. A stored chunk is
reused, at its old or new coordinates, if its elements stay together and a write planned on the
newest snapshot would store the same bytes. Other chunks are merged cell by cell (``merge``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.chunk_moves import ChunkMoves, spread
from icechunk_format.grid.index_maps import IndexMap


@dataclass(frozen=True, kw_only=True, eq=False)
class DimMoves:
    """The moves of the elements of one dimension to the new plan."""

    rows: IndexMap
    """The labels of the write, from the first plan."""
    was: IndexMap
    """The elements of the base, to the first plan."""
    base: IndexMap
    """The elements of the base, on which the write was first planned."""
    tip: IndexMap
    """The elements of the newest snapshot."""

    @classmethod
    def of(cls, *, rows: IndexMap, was: IndexMap, theirs: IndexMap, tip: IndexMap) -> DimMoves:
        """Return the moves, given ``theirs`` of the base to the newest snapshot."""
        return cls(rows=rows, was=was, base=theirs.then(tip), tip=tip)

    @cached_property
    def still(self) -> int:
        """Number of leading indices that are the same in all snapshots."""
        ends = (each.still for each in (self.base, self.tip) if each.still < each.before)
        return min(ends, default=self.tip.after)

    @cached_property
    def kept(self) -> IndexMap:
        """The elements of the first plan that have an index in the new one."""
        return self.was.inverse.then(self.base).overlaid(self.rows)

    def without(self, *, base: bool, tip: bool) -> DimMoves:
        """Return the moves for an array that does not exist in ``base`` or ``tip``."""
        gone = IndexMap.resized(0, self.tip.after)
        return DimMoves(
            rows=self.rows,
            was=IndexMap.resized(0, self.rows.before) if base else self.was,
            base=gone if base else self.base,
            tip=gone if tip else self.tip,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AxisMoves:
    """The moves along one axis of an array, from its chunks in the first plan to the new one."""

    old: ChunkAxis
    new: ChunkAxis
    along: DimMoves

    def segments(self, target: int) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Return each old chunk with rows of a new one, and their old and new indices."""
        new = np.arange(*self.new.bounds(target))
        old = self.along.rows.inverse.of(new)
        new, old = new[old >= 0], old[old >= 0]
        sources = self.old.chunk_of(old)
        return [
            (source, old[sources == source], new[sources == source])
            for source in np.unique(sources).tolist()
        ]

    def is_covered(self, targets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the new chunks with a row of the write at each index."""
        low, high = self.new.start_of(targets), self.new.start_of(targets + 1)
        return np.asarray(_elements(self.along.rows, low, high) == high - low, np.bool_)

    def is_fresh(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of chunks without elements of the base and of the newest snapshot."""
        old = self.old.start_of(sources), self.old.start_of(sources + 1)
        new = self.new.start_of(targets), self.new.start_of(targets + 1)
        found = _elements(self.along.was, *old) + _elements(self.along.tip, *new)
        return np.asarray(found == 0, np.bool_)


def _elements(
    indices: IndexMap, low: NDArray[np.int64], high: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of elements with a new index in each range."""
    back = indices.inverse
    return back.kept_before(high) - back.kept_before(low)


def chunk_moves(
    axes: Sequence[AxisMoves],
    coords: NDArray[Any],
    touched: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
    *,
    has_all_rows: bool,
    is_same_array: bool,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return a mask of the stored chunks that can be reused, and their new coordinates.

    ``coords`` are the old coordinates, integers of shape (n, ndim); the new ones, ``int64``, are
    valid where the mask is True. ``touched`` returns a mask of new chunks that other writers may
    have written. ``has_all_rows`` is True if every combination of labels has a row, and
    ``is_same_array`` if the array exists in the base.
    """
    moves = ChunkMoves.of(
        [each.old for each in axes],
        [each.new for each in axes],
        [each.along.kept for each in axes],
    )
    is_moved, targets = moves.placed(coords)
    sources, moved_to = coords[is_moved].astype(np.int64), targets[is_moved]
    is_covered, is_same = (np.ones(len(moved_to), np.bool_) for _ in range(2))
    is_fresh = np.zeros(len(moved_to), np.bool_)
    for axis, each in enumerate(axes):
        source, target = sources[:, axis], moved_to[:, axis]
        is_covered &= each.is_covered(target)
        is_fresh |= each.is_fresh(source, target)
        is_same &= (source == target) & (each.old.start_of(source) == each.new.start_of(target))
    # Other chunks get elements of the newest snapshot, or are laid over those of other writers.
    is_reused = is_covered & (is_fresh | has_all_rows) | (is_same & is_same_array)
    is_moved[is_moved] = is_reused & (is_fresh | ~touched(moved_to))
    return is_moved, targets


def targets_of(axes: Sequence[AxisMoves], source: Sequence[int]) -> NDArray[np.int64]:
    """Return the new chunks that receive the rows of an old chunk."""
    pairs = zip(axes, source, strict=True)
    return grid_of([spread(each.old, each.new, each.along.rows, at) for each, at in pairs])


def grid_of(along: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return all chunks with one of the given indices along each axis, ``(n, ndim)``."""
    chunks = list(product(*(targets.tolist() for targets in along)))
    return np.array(chunks, np.int64).reshape(len(chunks), len(along))
