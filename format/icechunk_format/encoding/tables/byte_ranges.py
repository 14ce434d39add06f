"""Indexes runs and copies byte ranges of different lengths, without a loop per run or range.

Locations, checksums and inline chunks of a manifest are pairs of columns (start, length) over
shared bytes. Ranges are grouped by length, and NumPy copies each group in one call.

Rules of this file
------------------
1. Bounds are not checked here, but when ranges are read from a file.
2. Work and memory grow with the copied bytes, not with the size of their buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


def ragged_rows(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of ``counts`` consecutive items from each start, one run after another."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    rows = np.arange(total, dtype=np.int64)
    rows += np.repeat(starts - (ends - counts), counts)
    return rows


def starts_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the start of each run, given the number of items of each."""
    return np.cumsum(counts) - counts


def byte_windows(data: NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """View ``data`` as its overlapping windows of ``size`` bytes; indexing copies windows.

    The dtype is ``V<size>`` and the shape (len(data) - size + 1,). The caller ensures that ``0 <
    size <= len(data)`` and that ``data`` is contiguous.
    """
    return np.ndarray((data.size - size + 1,), dtype=f"V{size}", buffer=data.data, strides=(1,))


class ByteRanges(NamedTuple):
    """Byte strings as ranges of a buffer: starts and lengths of shape (n,)."""

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


def joined(parts: Sequence[bytes]) -> ByteRanges:
    """Join byte strings."""
    lengths = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    content = np.frombuffer(b"".join(parts), dtype=np.uint8)
    return ByteRanges(content, starts_of(lengths), lengths)


def length_groups(lengths: NDArray[np.int64]) -> Sequence[tuple[int, NDArray[np.intp] | slice]]:
    """Group rows by length, so that one gather copies all ranges of a length."""
    if not lengths.size:
        return []
    first = int(lengths[0])
    if (lengths == first).all():
        return [(first, slice(None))] if first else []
    # NumPy sorts 16-bit numbers by radix, several times as fast as wider ones.
    keys = lengths.astype(np.uint16) if int(np.max(lengths)) < 1 << 16 else lengths
    order = np.argsort(keys, kind="stable")
    sorted_lengths = keys[order]
    cuts = np.flatnonzero(np.diff(sorted_lengths)) + 1
    bounds = [0, *cuts.tolist(), len(order)]
    return [
        (int(sorted_lengths[low]), order[low:high])
        for low, high in pairwise(bounds)
        if sorted_lengths[low]
    ]


def copy_ranges(
    source: NDArray[np.uint8],
    source_starts: NDArray[np.int64],
    target: NDArray[np.uint8],
    target_starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> None:
    """Copy byte ranges between buffers; the caller checks the bounds."""
    for length, rows in length_groups(lengths):
        moved = byte_windows(source, length)[source_starts[rows]]
        byte_windows(target, length)[target_starts[rows]] = moved


def is_run_start(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark rows whose range differs from the row before: bool, shape (n,)."""
    is_new = np.ones(starts.shape, dtype=np.bool_)
    is_new[1:] = (starts[1:] != starts[:-1]) | (lengths[1:] != lengths[:-1])
    return is_new


def collect(
    source: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copy ranges to a new buffer, equal neighbours only once.

    Neighbouring chunks are often in one file and repeat its name. Rows count as neighbours if only
    rows of other lengths are between them.
    """
    placed = np.zeros(starts.shape, dtype=np.int64)
    parts: list[NDArray[np.uint8]] = []
    size = 0
    for length, rows in length_groups(lengths):
        at = starts[rows]
        is_moved = np.ones(at.shape, dtype=np.bool_)
        is_moved[1:] = at[1:] != at[:-1]
        # Rows that repeat the range before them need no comparison of bytes.
        content = byte_windows(source, length)[at[is_moved]]
        is_other = _differs_from_previous(content)
        kept = content[is_other].view(np.uint8)
        item_of_row = (np.cumsum(is_other) - 1)[np.cumsum(is_moved) - 1]
        placed[rows] = size + item_of_row * length
        parts.append(kept)
        size += kept.size
    return (np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)), placed


def _differs_from_previous(items: NDArray[np.void]) -> NDArray[np.bool_]:
    """Mark items whose bytes differ from the item before: bool, shape (n,)."""
    length = items.dtype.itemsize
    # Names often differ in their last characters, so words are compared from the end.
    word = np.dtype("<u8") if length >= 8 else np.dtype("u1")
    offsets = [*range(length - word.itemsize, 0, -word.itemsize), 0]
    is_other = np.zeros(len(items), dtype=np.bool_)
    is_other[0] = True
    raw = items.view(np.uint8).data
    for offset in offsets:
        column: NDArray[Any] = np.ndarray(
            items.shape, dtype=word, buffer=raw, offset=offset, strides=(length,)
        )
        is_other[1:] |= column[1:] != column[:-1]
        if is_other.all():
            break
    return is_other
