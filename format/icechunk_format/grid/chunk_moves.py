"""Plans which chunks of an array keep their bytes when its elements get new indices.

A stored chunk is used again, at its old or new coordinates, if a chunk after the change has exactly
its elements and the same stored size. Chunks after the change are of three kinds:

1. *kept*: the same chunk, at the same coordinates;
2. *moved*: the bytes of a chunk at other coordinates, so that only its reference is stored again;
3. *written*: elements of several chunks, of a part of one, or fresh ones.

A chunk before the change that no other one uses is deleted, unless one is written in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.index_maps import IndexMap


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkMoves:
    """The moves of the chunks of an array."""

    sources: tuple[NDArray[np.int64], ...]
    """``int64 (count,)`` along each axis: the chunk before the change that has the elements of each
    chunk after it; -1 if no chunk has exactly these."""

    @classmethod
    def of(
        cls, old: Sequence[ChunkAxis], new: Sequence[ChunkAxis], maps: Sequence[IndexMap]
    ) -> Self:
        """Plan the chunks of an array, given its axes before and after, and a map for each."""
        return cls(sources=tuple(map(chunk_sources, old, new, maps)))

    @property
    def still(self) -> tuple[int, ...]:
        """The number of chunks along each axis that are kept, up to the first that is not."""
        differs = (each != np.arange(len(each)) for each in self.sources)
        return tuple(int(np.argmax(np.append(each, True))) for each in differs)

    def rows_taken(self, axis: int, low: Sequence[int], high: Sequence[int]) -> NDArray[np.bool_]:
        """Return a mask of the rows of a box of which no chunk is written.

        A row has one chunk along ``axis``; ``low`` and ``high`` are the first chunks of the box,
        and those after its last.
        """
        taken = [each[a:b] >= 0 for each, a, b in zip(self.sources, low, high, strict=True)]
        others = (bool(each.all()) for number, each in enumerate(taken) if number != axis)
        return taken[axis] & all(others)

    def source_box(self, box: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the box of all sources of a box of chunks, ``int64 (ndim, 2)``; not of none."""
        held = [each[a:b] for each, (a, b) in zip(self.sources, box.tolist(), strict=True)]
        found = (each[each >= 0] for each in held)
        return np.array([(np.min(each), np.max(each) + 1) for each in found], np.int64)

    def placed(self, coords: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return a mask of the chunks before the change that are used again, and their new indices.

        ``coords`` are integers of shape (n, ndim); the indices are valid where the mask is True.
        """
        targets = np.full(coords.shape, -1, np.int64)
        for axis, sources in enumerate(self.sources):
            new = np.flatnonzero(sources >= 0)
            order = np.argsort(sources[new], kind="stable")
            new = new[order]
            if len(new):
                at = np.minimum(np.searchsorted(sources[new], coords[:, axis]), len(new) - 1)
                targets[:, axis] = np.where(sources[new[at]] == coords[:, axis], new[at], -1)
        return (targets >= 0).all(axis=1), targets


def spread(old: ChunkAxis, new: ChunkAxis, indices: IndexMap, chunk: int) -> NDArray[np.int64]:
    """Return the chunks of ``new`` that receive elements of a chunk of ``old``, ascending."""
    found = indices.of(np.arange(*old.bounds(chunk)))
    return np.unique(new.chunk_of(found[found >= 0]))


def chunk_sources(old: ChunkAxis, new: ChunkAxis, indices: IndexMap) -> NDArray[np.int64]:
    """Return the chunk of ``old`` with exactly the elements of each chunk of ``new``, or -1."""
    chunks = np.arange(new.count, dtype=np.int64)
    if not len(chunks) or not old.count:
        return np.full(len(chunks), -1, np.int64)
    back = indices.inverse
    low, high = new.start_of(chunks), new.start_of(chunks + 1)
    first, is_together = back.of(low), back.run_ends(low) >= high
    found = old.chunk_of(np.maximum(first, 0))
    is_same = is_together & (first == old.start_of(found))
    is_same &= first + high - low == old.start_of(found + 1)
    is_same &= old.full_sizes(found) == new.full_sizes(chunks)
    return np.where(is_same, found, -1)
