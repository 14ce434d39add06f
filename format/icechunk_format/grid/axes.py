"""Finds the chunk of an element and the elements of a chunk, along one axis of a chunk grid.

Arguments are not checked: elements and chunks must exist. Chunks are clipped to the array, except
in ``full_size``, which returns their stored size.

`RegularAxis` has equal chunks and computes their bounds, at the same cost for any number of chunks.
`RunAxis` has unequal chunks, stored as runs of equal ones, so its memory grows with the runs and
not with the chunks. Reads and writes also use axes for blocks, inner chunks or single elements.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import UnsupportedError

_MAX_EDGES: Final = 2**27


@dataclass(frozen=True, slots=True)
class RegularAxis:
    """Chunks of ``step`` elements along an axis of ``size`` elements."""

    size: int
    step: int

    @property
    def count(self) -> int:
        """Number of chunks with elements; 0 for an axis of size 0."""
        return -(-self.size // self.step)

    @property
    def edges(self) -> None:
        """None, since the edges of equal chunks are not stored."""
        return None

    def chunk_of(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunks of elements."""
        return elements // self.step

    def start_of(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first element of each chunk; ``count`` gives ``size``."""
        return np.minimum(chunks * self.step, self.size)

    def chunk_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the chunks ``[first, last)`` that hold elements ``[start, stop)``."""
        return (start // self.step, (stop - 1) // self.step + 1) if start < stop else (0, 0)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Return the elements ``[start, stop)`` of one chunk."""
        return chunk * self.step, min((chunk + 1) * self.step, self.size)

    def full_size(self, chunk: int) -> int:
        """Return the stored size of a chunk, in elements."""
        return self.step

    def full_sizes(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored size of each chunk."""
        return np.full(len(chunks), self.step, np.int64)

    @property
    def largest(self) -> int:
        """Elements of the array in the largest chunk; at least 1."""
        return max(1, min(self.step, self.size))

    def distinct_sizes(self) -> set[int]:
        """Return the distinct stored sizes of chunks."""
        return {self.step}

    def to_json(self) -> int:
        """Return the entry of the axis in a ``chunk_grid``."""
        return self.step

    def resized(self, size: int) -> RegularAxis:
        """Return the axis with another number of elements; chunks keep their positions."""
        return RegularAxis(size, self.step)


class RunAxis:
    """Chunks of given sizes along an axis; the methods are those of ``RegularAxis``.

    ``runs`` are pairs: the elements of a chunk, and the number of consecutive chunks of that size.
    """

    __slots__ = ("_chunk_starts", "_edges", "_element_starts", "_sizes", "count", "runs", "size")

    step: Final = 1

    def __init__(self, size: int, runs: Sequence[tuple[int, int]]) -> None:
        self.size = size
        self.runs = tuple(runs)
        self._sizes = [length for length, _ in runs]
        self._chunk_starts, self._element_starts = [0], [0]
        for length, count in runs:
            self._chunk_starts.append(self._chunk_starts[-1] + count)
            self._element_starts.append(self._element_starts[-1] + length * count)
        self._edges: NDArray[np.int64] | None = None
        self.count = 0
        if size:
            run = bisect.bisect_right(self._element_starts, size - 1, hi=len(runs)) - 1
            behind = size - 1 - self._element_starts[run]
            self.count = self._chunk_starts[run] + behind // self._sizes[run] + 1

    @classmethod
    def of_edges(cls, edges: NDArray[np.int64]) -> RunAxis:
        """Return the axis whose chunks begin at these elements; the last edge is its size."""
        lengths = np.diff(edges)
        first = np.flatnonzero(np.diff(lengths, prepend=-1))
        counts = np.diff(first, append=len(lengths))
        return cls(int(edges[-1]), list(zip(lengths[first].tolist(), counts.tolist(), strict=True)))

    @property
    def edges(self) -> NDArray[np.int64]:
        """The first element of each chunk, then ``size``; see ``listed_edges``."""
        if self._edges is None:
            self._edges = listed_edges(self)
        return self._edges

    def _columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        return (
            np.array(self._chunk_starts[:-1], dtype=np.int64),
            np.array(self._element_starts[:-1], dtype=np.int64),
            np.array(self._sizes, dtype=np.int64),
        )

    def chunk_of(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunks of elements."""
        chunk_starts, element_starts, sizes = self._columns()
        run = np.searchsorted(element_starts, elements, side="right") - 1
        return chunk_starts[run] + (elements - element_starts[run]) // sizes[run]

    def start_of(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first element of each chunk; ``count`` gives ``size``."""
        chunk_starts, element_starts, sizes = self._columns()
        if not len(sizes):
            return np.zeros_like(chunks)
        run = np.searchsorted(chunk_starts, chunks, side="right") - 1
        starts = element_starts[run] + (chunks - chunk_starts[run]) * sizes[run]
        return np.minimum(starts, self.size)

    def chunk_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the chunks ``[first, last)`` that hold elements ``[start, stop)``."""
        if start >= stop:
            return 0, 0
        first, last = self.chunk_of(np.array([start, stop - 1], dtype=np.int64)).tolist()
        return first, last + 1

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Return the elements ``[start, stop)`` of one chunk."""
        start, stop = self.start_of(np.array([chunk, chunk + 1], dtype=np.int64)).tolist()
        return start, stop

    def full_size(self, chunk: int) -> int:
        """Return the stored size of a chunk, in elements."""
        return self._sizes[bisect.bisect_right(self._chunk_starts, chunk, hi=len(self.runs)) - 1]

    def full_sizes(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored size of each chunk."""
        chunk_starts, _, sizes = self._columns()
        found: NDArray[np.int64] = sizes[np.searchsorted(chunk_starts, chunks, side="right") - 1]
        return found

    @property
    def largest(self) -> int:
        """Elements of the array in the largest chunk; at least 1."""
        return max(1, int(np.diff(self.edges).max(initial=1)))

    def distinct_sizes(self) -> set[int]:
        """Return the distinct stored sizes of chunks."""
        return set(self._sizes)

    def to_json(self) -> list[Any]:
        """Return the entry of the axis in a ``chunk_grid``."""
        return [[length, count] if count > 1 else length for length, count in self.runs]

    def resized(self, size: int) -> RunAxis:
        """Return the axis with another number of elements; chunks keep their positions."""
        runs, missing = self.runs, size - self._element_starts[-1]
        if missing > 0:
            length, count = runs[-1]
            runs = (*runs[:-1], (length, count + 1)) if length == missing else (*runs, (missing, 1))
        return RunAxis(size, runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunAxis) and (self.size, self.runs) == (other.size, other.runs)

    def __hash__(self) -> int:
        return hash((self.size, self.runs))

    def __reduce__(self) -> tuple[Any, ...]:
        return (RunAxis, (self.size, self.runs))


ChunkAxis = RegularAxis | RunAxis


def chunk_ranges(axis: ChunkAxis, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the chunks ``[first, last)`` of ranges of elements; both are ``int64 (n, 2)``.

    An empty range has the chunks ``[0, 0)``.
    """
    is_full = (bounds[:, 1] > bounds[:, 0])[:, None]
    ends = np.where(is_full, bounds - np.array([0, 1]), 0)
    return np.where(is_full, axis.chunk_of(ends) + np.array([0, 1]), 0)


def listed_edges(axis: ChunkAxis) -> NDArray[np.int64]:
    """Return the first element of each chunk, then the size of the axis: int64, ``count + 1``.

    Raises UnsupportedError if there are more than 2**27 chunks.
    """
    if axis.count >= _MAX_EDGES:
        raise UnsupportedError(
            f"an axis has {axis.count} chunks; at most {_MAX_EDGES} can be listed. Select a range "
            "of the axis first",
            num_chunks=axis.count,
        )
    return axis.start_of(np.arange(axis.count + 1, dtype=np.int64))
