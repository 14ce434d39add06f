"""Computes the new coordinates of stored chunks after other writers have committed. No I/O.

If another writer extends a dimension, the labels of this write get new indices. Along each
dimension the change is a list of *segments*: runs of indices from one old chunk to one new chunk. A
chunk of an array is a product of segments.

A stored chunk is reused, at its old or new coordinates, if a write planned on the newest snapshot
would store the same bytes. Other chunks are merged cell by cell (``merge``).
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


@dataclass(frozen=True, kw_only=True, eq=False)
class NewIndices:
    """The index in the new plan of each index of a dimension in older snapshots."""

    was: NDArray[np.int64]
    """``int64``: by index in the first plan of the write."""
    base: NDArray[np.int64]
    """``int64``: by index in the base, on which the write was first planned."""
    tip: NDArray[np.int64]
    """``int64``: by index in the newest snapshot."""
    size: int
    """Elements of the dimension in the new plan."""

    @cached_property
    def still(self) -> int:
        """Number of leading indices that are the same in all snapshots."""
        found = self.size
        for indices in (self.base, self.tip):
            has_moved = indices != np.arange(len(indices))
            if has_moved.any():
                found = min(found, int(np.argmax(has_moved)))
        return found

    @cached_property
    def tip_before(self) -> NDArray[np.int64]:
        """Number of elements of the newest snapshot before each index: ``int64 (size + 1,)``."""
        is_there = np.zeros(self.size, np.int64)
        is_there[self.tip] = 1
        return np.concatenate([[0], np.cumsum(is_there)])

    def without(self, *, base: bool, tip: bool) -> NewIndices:
        """Return the indices for an array that does not exist in ``base`` or ``tip``."""
        nothing = np.empty(0, np.int64)
        return NewIndices(
            was=nothing if base else self.was,
            base=nothing if base else self.base,
            tip=nothing if tip else self.tip,
            size=self.size,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AxisMoves:
    """Moves of the indices of one dimension of an array; one item for each segment.

    Parameters
    ----------
    sources, targets
        ``int64 (k,)``: the old chunks, ascending, and the new chunks.
    edges
        ``int64 (k + 1,)``: segment ``i`` has the rows ``edges[i]:edges[i + 1]`` of ``old`` and
        ``new``.
    old, new
        ``int64 (n,)``: old and new indices.
    is_whole
        True if the segment is the only one of its source and its target, all its indices move by
        the same distance, and both chunks have the same size.
    is_covered
        True if the segment fills its target up to the edge of the array.
    is_same
        True if source and target are the same chunk with the same edges, in which no index of other
        writers has moved.
    is_fresh
        True if the old chunk has no element of the base, and the new chunk none of the newest
        snapshot.
    """

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    edges: NDArray[np.int64]
    old: NDArray[np.int64]
    new: NDArray[np.int64]
    is_whole: NDArray[np.bool_]
    is_covered: NDArray[np.bool_]
    is_same: NDArray[np.bool_]
    is_fresh: NDArray[np.bool_]

    def from_source(self, chunk: int) -> range:
        """Return the segments of an old chunk."""
        return range(*np.searchsorted(self.sources, [chunk, chunk + 1]).tolist())

    def into_target(self, chunk: int) -> list[int]:
        """Return the segments of a new chunk."""
        return [int(number) for number in np.flatnonzero(self.targets == chunk)]

    def indices(self, segment: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the old and the new indices of a segment."""
        rows = slice(int(self.edges[segment]), int(self.edges[segment + 1]))
        return self.old[rows], self.new[rows]


def axis_moves(
    axes: tuple[ChunkAxis, ChunkAxis],
    indices: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    along: NewIndices,
) -> AxisMoves:
    """Return the moves along one axis of an array, from its chunks in the first and new plan.

    ``indices`` are those of all labels of the write in both plans, ``int64 (n,)`` each; ``along``
    are those of the snapshots.
    """
    before, now = axes
    pairs = np.unique(np.stack(indices, axis=1), axis=0)
    sources, targets = before.chunk_of(pairs[:, 0]), now.chunk_of(pairs[:, 1])
    order = np.lexsort((pairs[:, 1], targets, sources))
    pairs, sources, targets = pairs[order], sources[order], targets[order]
    starts = np.flatnonzero(np.diff(sources, prepend=-1) | np.diff(targets, prepend=-1))
    edges = np.append(starts, len(pairs)).astype(np.int64)
    source, target = sources[starts], targets[starts]
    low, end = before.start_of(source), before.start_of(source + 1)
    new_low, new_end = now.start_of(target), now.start_of(target + 1)
    of_base = np.searchsorted(np.sort(along.was), [low, end])
    distance = pairs[:, 1] - pairs[:, 0]
    is_whole = (
        _is_single(source)
        & _is_single(target)
        & (before.full_sizes(source) == now.full_sizes(target))
        & np.logical_and.reduceat(distance == np.repeat(new_low - low, np.diff(edges)), starts)
    )
    return AxisMoves(
        sources=source,
        targets=target,
        edges=edges,
        old=pairs[:, 0],
        new=pairs[:, 1],
        is_whole=np.asarray(is_whole, np.bool_),
        is_covered=np.diff(edges) == new_end - new_low,
        is_same=(source == target) & (low == new_low) & (end == new_end) & (end <= along.still),
        is_fresh=(of_base[0] == of_base[1])
        & (along.tip_before[new_end] == along.tip_before[new_low]),
    )


def _is_single(chunks: NDArray[np.int64]) -> NDArray[np.bool_]:
    _, inverse, counts = np.unique(chunks, return_inverse=True, return_counts=True)
    single: NDArray[np.bool_] = counts[inverse.reshape(-1)] == 1
    return single


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
    n = len(coords)
    targets = np.zeros((n, len(axes)), np.int64)
    is_whole, is_covered, is_same = (np.ones(n, np.bool_) for _ in range(3))
    is_fresh = np.zeros(n, np.bool_)
    for axis, moves in enumerate(axes):
        at = np.searchsorted(moves.sources, coords[:, axis])
        targets[:, axis] = moves.targets[at]
        is_whole &= moves.is_whole[at]
        is_covered &= moves.is_covered[at]
        is_same &= moves.is_same[at]
        is_fresh |= moves.is_fresh[at]
    is_moved = is_covered & (is_fresh | has_all_rows)
    if is_same_array:
        is_moved |= is_same
    is_moved &= is_whole
    is_moved &= is_fresh | ~touched(targets)
    return is_moved, targets


def targets_of(axes: Sequence[AxisMoves], source: Sequence[int]) -> NDArray[np.int64]:
    """Return the new chunks that receive the cells of an old chunk."""
    pairs = zip(axes, source, strict=True)
    return grid_of([np.unique(moves.targets[moves.from_source(at)]) for moves, at in pairs])


def grid_of(along: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return all chunks with one of the given indices along each axis, ``(n, ndim)``."""
    chunks = list(product(*(targets.tolist() for targets in along)))
    return np.array(chunks, np.int64).reshape(len(chunks), len(along))
