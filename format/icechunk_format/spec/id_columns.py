"""Looks up 12-byte ids in NumPy columns, and keeps sets of them.

`rows_of_ids` compares ids as byte strings, so a column is searched without preparation. `SortedIds`
and `IdSet` are for millions of ids. They keep an integer of the first eight bytes and one of the
last four, which NumPy compares ten times faster than byte strings.

Memory of an `IdSet`: 12 bytes for each distinct id, and at most about 80 while ids are merged in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.spec.ids import ObjectId

_SIZE: Final = ObjectId.SIZE
# New ids are merged once they outnumber both this and the ids of the set, so that each id is sorted
# only a few times, whatever the number of calls.
_LEAST_PENDING: Final = 1 << 18


def id_keys(ids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """View ids, uint8 of shape (n, 12), as byte strings, which NumPy sorts and compares.

    NumPy hides trailing zero bytes of such strings, but all have one length, so order and equality
    are correct.
    """
    keys: NDArray[np.bytes_] = np.ascontiguousarray(ids).view(f"S{_SIZE}").reshape(-1)
    return keys


def rows_of_ids(ids: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the row of each wanted id in sorted ids, -1 if it is absent."""
    if not len(ids) or not len(wanted):
        return np.full(len(wanted), -1, dtype=np.int64)
    keys, wanted_keys = id_keys(ids), id_keys(wanted)
    at = np.minimum(np.searchsorted(keys, wanted_keys), len(keys) - 1)
    return np.where(keys[at] == wanted_keys, at, -1)


def id_columns(ids: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Return the first eight and the last four bytes of ids, uint8 of shape (n, 12), as numbers."""
    rows = np.ascontiguousarray(ids, dtype=np.uint8).reshape(-1, _SIZE)
    high = np.ascontiguousarray(rows[:, :8]).view(">u8").ravel().astype(np.uint64)
    low = np.ascontiguousarray(rows[:, 8:]).view(">u4").ravel().astype(np.uint32)
    return high, low


class SortedIds:
    """Ids in ascending order, for looking up many at once.

    ``high`` and ``low`` are the columns of `id_columns` for the ids, sorted; repeats are allowed.
    """

    def __init__(self, high: NDArray[np.uint64], low: NDArray[np.uint32]) -> None:
        self.high = high
        self.low = low

    def __len__(self) -> int:
        return len(self.high)

    def find(self, wanted: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the first row of each wanted id, -1 if it is absent: int64, shape (m,)."""
        high, low = id_columns(wanted)
        found = np.full(len(high), -1, dtype=np.int64)
        if not len(self):
            return found
        last = len(self) - 1
        rows = np.arange(len(high))
        at = np.searchsorted(self.high, high)
        # Ids with equal first halves are adjacent; random ids have distinct ones.
        while len(rows):
            same = (at <= last) & (self.high[np.minimum(at, last)] == high[rows])
            rows, at = rows[same], at[same]
            equal = self.low[at] == low[rows]
            found[rows[equal]] = at[equal]
            rows, at = rows[~equal], at[~equal] + 1
        return found


class IdSet:
    """A growing set of 12-byte ids; ``raw`` are the first ones, uint8 of shape (n, 12)."""

    def __init__(self, raw: NDArray[np.uint8] | None = None) -> None:
        self._ids = SortedIds(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint32))
        self._pending: list[tuple[NDArray[np.uint64], NDArray[np.uint32]]] = []
        self._pending_rows = 0
        if raw is not None:
            self.add(raw)

    @classmethod
    def of(cls, ids: Iterable[ObjectId]) -> IdSet:
        """Return the set of these ids."""
        joined = b"".join(sorted({one.raw for one in ids}))
        return cls(np.frombuffer(joined, dtype=np.uint8).reshape(-1, _SIZE))

    def __len__(self) -> int:
        self._merge()
        return len(self._ids)

    @property
    def approximate_size(self) -> int:
        """Upper bound of the number of ids, which counts repeats that are not merged yet."""
        return len(self._ids) + self._pending_rows

    def add(self, raw: NDArray[np.uint8]) -> None:
        """Add ids: uint8, shape (n, 12)."""
        if len(raw):
            self._pending.append(_distinct(*id_columns(raw)))
            self._pending_rows += len(self._pending[-1][0])
            if self._pending_rows > max(_LEAST_PENDING, len(self._ids)):
                self._merge()

    def contains(self, raw: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return a mask of the ids, uint8 of shape (n, 12), that are in the set."""
        self._merge()
        return self._ids.find(raw) >= 0

    def ids(self) -> NDArray[np.uint8]:
        """Return the ids in ascending order: uint8, shape (n, 12)."""
        self._merge()
        raw = np.empty((len(self._ids), _SIZE), dtype=np.uint8)
        raw[:, :8] = self._ids.high.astype(">u8").view(np.uint8).reshape(-1, 8)
        raw[:, 8:] = self._ids.low.astype(">u4").view(np.uint8).reshape(-1, 4)
        return raw

    def _merge(self) -> None:
        if not self._pending:
            return
        parts = [(self._ids.high, self._ids.low), *self._pending]
        self._pending, self._pending_rows = [], 0
        high = np.concatenate([high for high, _ in parts])
        low = np.concatenate([low for _, low in parts])
        self._ids = SortedIds(*_distinct(high, low))


def _distinct(
    high: NDArray[np.uint64], low: NDArray[np.uint32]
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    order = np.argsort(high)
    high, low = high[order], low[order]
    if len(high) < 2:
        return high, low
    ties = high[1:] == high[:-1]
    if not ties.any():
        return high, low
    # Second halves matter only if first halves are equal.
    tied = np.flatnonzero(np.append(ties, False) | np.insert(ties, 0, False))
    low[tied] = low[tied][np.lexsort((low[tied], high[tied]))]
    is_new = np.append(True, ~ties | (low[1:] != low[:-1]))
    return high[is_new], low[is_new]
