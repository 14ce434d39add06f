"""One axis of a chunk grid, as arithmetic on whole arrays of positions.

Plans and reads turn element positions into chunk numbers and back for many boxes at once. A
regular axis needs two divisions for that, so its edges are never listed: an axis of a billion
chunks costs no more than one of three. Only a rectilinear axis keeps its edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkAxis:
    """Where chunks begin and end along one axis.

    Parameters
    ----------
    size
        Elements of the array along the axis.
    step
        Elements of a chunk; at least 1. Of no meaning where ``edges`` is given.
    edges
        For a rectilinear axis: ``int64``, the first element of each chunk, then ``size``.
    """

    size: int
    step: int
    edges: NDArray[np.int64] | None = None

    @property
    def count(self) -> int:
        """Number of chunks; 0 for an axis without elements."""
        if self.edges is not None:
            return len(self.edges) - 1
        return -(-self.size // self.step)

    def chunk_of(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunk numbers that hold the given elements, which must be in the array."""
        if self.edges is not None:
            return np.asarray(np.searchsorted(self.edges, elements, side="right") - 1)
        return elements // self.step

    def start_of(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first element of each chunk; ``count`` gives ``size``."""
        if self.edges is not None:
            return self.edges[chunks]
        return np.minimum(chunks * self.step, self.size)

    def chunk_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the chunks ``[first, last)`` that hold elements ``[start, stop)``."""
        if stop <= start:
            return 0, 0
        ends = self.chunk_of(np.array([start, stop - 1], dtype=np.int64))
        return int(ends[0]), int(ends[1]) + 1

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Return the elements ``[start, stop)`` of one chunk, clipped to the array."""
        ends = self.start_of(np.array([chunk, chunk + 1], dtype=np.int64))
        return int(ends[0]), int(ends[1])


def inner_axes(inner_shape: Sequence[int], shape: Sequence[int]) -> tuple[ChunkAxis, ...]:
    """Return the axes of the inner chunks of a sharded array.

    Every shard holds a whole number of inner chunks, so all of their edges are multiples of the
    inner chunk shape, whatever the grid of the shards.
    """
    return tuple(
        ChunkAxis(size=size, step=step) for size, step in zip(shape, inner_shape, strict=True)
    )
