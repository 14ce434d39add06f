"""Gathers values of one array at many points, each chunk decoded once.

Rules of this file
------------------
1. Points are sorted by chunk. Chunks are prefetched in groups within a budget of bytes, decoded one
   after another, and released after their values are taken.
2. Chunks that the next call may need are kept within the same budget.
3. Only chunks with a point are fetched. A missing chunk holds the fill value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.groups import AxisPick, DimSelection, pick, product_coords, read_ahead

if TYPE_CHECKING:
    from icechunk_format.groups import ArrayReader, DecodedChunks

_MOST_CHUNKS_IN_A_GROUP: Final = 64


class Gather:
    """Gathers values of one array; `kept` keeps decoded chunks between calls."""

    def __init__(self, reader: ArrayReader, kept: DecodedChunks, max_bytes: int) -> None:
        self._reader = reader
        self._kept = kept
        self._max_bytes = max_bytes
        cells = [a.step if a.edges is None else int(np.diff(a.edges).max()) for a in reader.axes]
        self._chunk_bytes = int(np.prod(cells, dtype=np.float64)) * reader.item_bytes

    def take(
        self,
        count: int,
        positions: Mapping[int, NDArray[np.int64]],
        selections: Mapping[int, DimSelection],
        *,
        with_stored: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Gather the values at points.

        Parameters
        ----------
        positions
            ``int64 (count,)`` positions, by axis that points choose on.
        selections
            The positions to take at each point, by other axis.

        Returns
        -------
        tuple
            Stored values ``(count, *selected)``, the selected axes in array order; and ``bool`` of
            the same shape, True if the chunk of a value exists (None unless requested).
        """
        reader = self._reader
        pointed, selected = sorted(positions), sorted(selections)
        picks = [pick(reader.axes[axis], selections[axis]) for axis in selected]
        shape = (count, *(p.length for p in picks))
        values = reader.metadata.fill_array(shape)
        stored = np.zeros(shape, dtype=bool) if with_stored else None
        if not values.size:
            return values, stored
        chunks = [reader.axes[axis].chunk_of(positions[axis]) for axis in pointed]
        rows, firsts = _by_chunk(count, chunks, [reader.axes[axis].count for axis in pointed])
        leads = rows[firsts[:-1]]
        corners = np.stack([c[leads] for c in chunks], axis=1) if chunks else np.empty((1, 0), int)
        combined = product_coords(picks)
        coords = np.empty((len(corners) * len(combined), len(reader.axes)), dtype=np.int64)
        coords[:, pointed] = np.repeat(corners, len(combined), axis=0)
        coords[:, selected] = np.tile(combined, (len(corners), 1))
        numbers = [len(p.chunks) for p in picks]
        starts = [reader.axes[axis].start_of(c) for axis, c in zip(pointed, corners.T, strict=True)]
        for number, chunk in self._chunks(coords):
            if chunk is None:
                continue
            corner, combination = divmod(number, len(combined))
            own = rows[firsts[corner] : firsts[corner + 1]]
            inner: tuple[Any, ...] = tuple(
                positions[axis][own] - begin[corner]
                for axis, begin in zip(pointed, starts, strict=True)
            )
            index = np.unravel_index(combination, numbers) if numbers else ()
            targets: tuple[Any, ...] = tuple(
                p.targets[int(i)] for p, i in zip(picks, index, strict=True)
            )
            taken = chunk.transpose([*pointed, *selected])[inner]
            values[(own, *targets)] = _within(taken, picks, index, is_pointed=bool(pointed))
            if stored is not None:
                stored[(own, *targets)] = True
        return values, stored

    def _chunks(self, coords: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[Any] | None]]:
        """Yield number and decoded values of each chunk; None for a missing chunk."""
        path = self._reader.path
        wanted = []
        for number, key in enumerate(map(bytes, coords)):
            is_here, chunk = self._kept.find((path, key))
            if is_here:
                yield number, chunk
            else:
                wanted.append(number)
        size = max(1, min(_MOST_CHUNKS_IN_A_GROUP, self._max_bytes // 8 // self._chunk_bytes))
        groups = (np.array(wanted[i : i + size]) for i in range(0, len(wanted), size))
        read = read_ahead(
            groups,
            fetch=lambda group: self._reader.payloads(coords[group]),
            decode=lambda group, fetched: self._decoded(coords, group, *fetched),
            cost=lambda group: 2 * len(group) * self._chunk_bytes,
            max_bytes=self._max_bytes,
        )
        for group in read:
            for number, chunk in group:
                self._kept.keep((path, coords[number].tobytes()), chunk)
                yield number, chunk

    def _decoded(
        self,
        coords: NDArray[np.int64],
        group: NDArray[np.int64],
        found: NDArray[np.int64],
        payloads: list[bytes],
    ) -> list[tuple[int, NDArray[Any] | None]]:
        chunks: dict[int, NDArray[Any] | None] = dict.fromkeys(group.tolist())
        for number, payload in zip(group[found].tolist(), payloads, strict=True):
            chunks[number] = self._reader.decode_chunk(coords[number], payload)
        return list(chunks.items())


def chunk_numbers(chunks: Sequence[NDArray[np.int64]], counts: Sequence[int]) -> NDArray[np.int64]:
    """Return a number for each point that identifies its chunk."""
    number = np.zeros(len(chunks[0]), dtype=np.int64)
    largest = 1
    for chunk, count in zip(chunks, counts, strict=True):
        if largest * count >= 2**63:
            number = np.unique(number, return_inverse=True)[1].astype(np.int64)
            largest = len(number)
        number = number * count + chunk
        largest *= count
    return number


def _by_chunk(
    count: int, chunks: Sequence[NDArray[np.int64]], counts: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of the points by chunk, and the offset of each chunk in it."""
    if not chunks:
        return np.arange(count), np.array([0, count])
    numbers = chunk_numbers(chunks, counts)
    low = np.min(numbers)
    if np.max(numbers) - low < 2**16:
        # NumPy uses a radix sort for 16-bit integers, which is several times faster.
        numbers = (numbers - low).astype(np.uint16)
    rows = np.argsort(numbers, kind="stable")
    ordered = numbers[rows]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return rows, np.concatenate([[0], edges, [count]])


def _within(
    taken: NDArray[Any], picks: Sequence[AxisPick], index: Sequence[Any], *, is_pointed: bool
) -> NDArray[Any]:
    """Take the selected elements along the selected axes of a chunk."""
    for axis, (p, number) in enumerate(zip(picks, index, strict=True), start=int(is_pointed)):
        source = p.sources[int(number)]
        taken = taken[(slice(None),) * axis + (source,)]
    return taken
