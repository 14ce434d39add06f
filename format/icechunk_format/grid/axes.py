"""Finds the chunk of an element and the first element of a chunk, along one axis of a chunk grid.

Arguments are not checked: callers ask only for chunks and elements that exist.

- `RegularAxis` and `RunAxis` are what metadata says. An axis of unequal chunks is kept as runs of
  equal ones, so it takes memory for the runs and not for the chunks.
- `ChunkAxis` is where reads and writes cut. Its edges need not be those of a grid: they may be the
  edges of blocks, of inner chunks, or every element. Starts are clipped to the array.

Equal chunks take a division, so their edges are never listed: an axis of a billion chunks costs no
more than one of three.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RegularAxis:
    """Chunks of one size along an axis."""

    extent: int
    size: int

    @property
    def num_chunks(self) -> int:
        """How many chunks hold elements of the array."""
        return -(-self.extent // self.size)

    def start(self, i: int) -> int:
        """Return the first element of a chunk."""
        return i * self.size

    def full_size(self, i: int) -> int:
        """Return how many elements a chunk is stored with."""
        return self.size

    def chunk_of(self, element: int) -> int:
        """Return the chunk of an element."""
        return element // self.size

    def starts(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first elements of chunks."""
        return chunks * np.int64(self.size)

    def full_sizes(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many elements chunks are stored with."""
        return np.full(chunks.shape, self.size, dtype=np.int64)

    def chunks_of(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunks of elements."""
        return elements // np.int64(self.size)

    def distinct_sizes(self) -> set[int]:
        """Return every size that a chunk is stored with."""
        return {self.size}

    def to_json(self) -> int:
        """Return the entry of the axis in a ``chunk_grid``."""
        return self.size

    def resized(self, extent: int) -> RegularAxis:
        """Return the axis with another extent; chunks stay where they are."""
        return RegularAxis(extent, self.size)


class RunAxis:
    """Chunks of given sizes along an axis, kept as runs of equal ones."""

    __slots__ = ("_chunk_starts", "_element_starts", "_sizes", "extent", "num_chunks", "runs")

    def __init__(self, extent: int, runs: tuple[tuple[int, int], ...]) -> None:
        self.extent = extent
        self.runs = runs
        self._sizes = [size for size, _ in runs]
        self._chunk_starts = [0]
        self._element_starts = [0]
        for size, count in runs:
            self._chunk_starts.append(self._chunk_starts[-1] + count)
            self._element_starts.append(self._element_starts[-1] + size * count)
        self.num_chunks = self.chunk_of(extent - 1) + 1 if extent else 0

    @property
    def covered(self) -> int:
        """How many elements the chunks cover, inside the array or beyond."""
        return self._element_starts[-1]

    def _run_of_chunk(self, i: int) -> int:
        return bisect.bisect_right(self._chunk_starts, i, hi=len(self.runs)) - 1

    def start(self, i: int) -> int:
        """Return the first element of a chunk."""
        run = self._run_of_chunk(i)
        return self._element_starts[run] + (i - self._chunk_starts[run]) * self._sizes[run]

    def full_size(self, i: int) -> int:
        """Return how many elements a chunk is stored with."""
        return self._sizes[self._run_of_chunk(i)]

    def chunk_of(self, element: int) -> int:
        """Return the chunk of an element."""
        run = bisect.bisect_right(self._element_starts, element, hi=len(self.runs)) - 1
        return self._chunk_starts[run] + (element - self._element_starts[run]) // self._sizes[run]

    def _columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        return (
            np.array(self._chunk_starts[:-1], dtype=np.int64),
            np.array(self._element_starts[:-1], dtype=np.int64),
            np.array(self._sizes, dtype=np.int64),
        )

    def starts(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first elements of chunks."""
        chunk_starts, element_starts, sizes = self._columns()
        run = np.searchsorted(chunk_starts, chunks, side="right") - 1
        return element_starts[run] + (chunks - chunk_starts[run]) * sizes[run]

    def full_sizes(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many elements chunks are stored with."""
        chunk_starts, _, sizes = self._columns()
        return sizes[np.searchsorted(chunk_starts, chunks, side="right") - 1]

    def chunks_of(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunks of elements."""
        chunk_starts, element_starts, sizes = self._columns()
        run = np.searchsorted(element_starts, elements, side="right") - 1
        return chunk_starts[run] + (elements - element_starts[run]) // sizes[run]

    def distinct_sizes(self) -> set[int]:
        """Return every size that a chunk is stored with."""
        return set(self._sizes)

    def to_json(self) -> list[Any]:
        """Return the entry of the axis in a ``chunk_grid``."""
        return [[size, count] if count > 1 else size for size, count in self.runs]

    def resized(self, extent: int) -> RunAxis:
        """Return the axis with another extent; chunks stay where they are."""
        runs = self.runs
        if extent > self.covered:
            size, count = runs[-1]
            missing = extent - self.covered
            runs = (*runs[:-1], (size, count + 1)) if size == missing else (*runs, (missing, 1))
        return RunAxis(extent, runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunAxis) and (self.extent, self.runs) == (
            other.extent,
            other.runs,
        )

    def __hash__(self) -> int:
        return hash((self.extent, self.runs))


Axis = RegularAxis | RunAxis


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
