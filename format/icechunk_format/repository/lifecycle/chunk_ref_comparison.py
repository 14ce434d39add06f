"""Compares the chunk references of two snapshots, column by column.

Two references are equal if their kind, object, range, inline bytes, location and recorded state of
the object (entity tag, time) are equal. Compression of locations is ignored.

Spec: "ChunkRef".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.coordinates import joined_coords
from icechunk_format.spec.manifest.texts import RefTexts
from icechunk_format.spec.tables.byte_ranges import byte_windows, length_groups

if TYPE_CHECKING:
    from icechunk_format.spec.manifest.chunk_refs import ChunkRefs

_BYTES_AT_ONCE: Final = 1 << 25


def changed_coords(old: ChunkRefs, new: ChunkRefs) -> NDArray[np.uint32]:
    """Return the coordinates at which references of one array differ: uint32 (n, ndim), sorted."""
    rows = new.find(old.coords)
    in_both = rows >= 0
    is_kept = np.zeros(len(new), dtype=np.bool_)
    is_kept[rows[in_both]] = True
    shared = old.take(in_both)
    is_other = ~same_references(shared, new.take(rows[in_both]))
    parts = [old.coords[~in_both], shared.coords[is_other], new.coords[~is_kept]]
    return joined_coords(parts, old.ndim)


def same_references(left: ChunkRefs, right: ChunkRefs) -> NDArray[np.bool_]:
    """Return a mask of the rows in which two lists are equal, apart from coordinates."""
    same: NDArray[np.bool_] = left.kind == right.kind
    for name in ("offset", "length", "last_modified"):
        same &= getattr(left, name) == getattr(right, name)
    same &= (left.chunk_id == right.chunk_id).all(axis=1)
    if left.texts is None and right.texts is None:
        return same
    sides = [
        RefTexts.none(len(side)) if side.texts is None else side.texts.plain()
        for side in (left, right)
    ]
    texts = [(side.buffer, side.starts, side.lengths.astype(np.int64)) for side in sides]
    etags = [(side.buffer, *side.etag_ranges()) for side in sides]
    same &= (etags[0][1] < 0) == (etags[1][1] < 0)
    return same & _same_bytes(*texts) & _same_bytes(*etags)


_Ranges = tuple["NDArray[np.uint8]", "NDArray[np.int64]", "NDArray[np.int64]"]


def _same_bytes(left: _Ranges, right: _Ranges) -> NDArray[np.bool_]:
    """Return a mask of the rows in which two ranges have the same bytes."""
    same: NDArray[np.bool_] = left[2] == right[2]
    rows = np.flatnonzero(same & (left[2] > 0))
    for length, group in length_groups(left[2][rows]):
        chosen = rows[group]
        step = max(1, _BYTES_AT_ONCE // length)
        for begin in range(0, len(chosen), step):
            some = chosen[begin : begin + step]
            mine = byte_windows(left[0], length)[left[1][some]]
            theirs = byte_windows(right[0], length)[right[1][some]]
            same[some] = mine == theirs
    return same
