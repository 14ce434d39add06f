"""Types of ids (12 or 8 raw bytes), and their Crockford base 32 strings, which form object keys.

Rules of this file
------------------
1. Equality, order and hash follow the raw bytes, the order of ids in the lists of the format.
2. Each kind of id is its own type, so that a manifest id is never used as a snapshot id.
3. Strings are upper case and unpadded; zero bits fill the last character. ``parse`` accepts the
   input of users, ``parse_exact`` only the canonical form in names of objects.
4. Many ids are NumPy columns of bytes. `rows_of_ids` compares ids as byte strings, so a column is
   searched without preparation. `SortedIds` and `IdSet` are for millions of ids: they keep an
   integer of the first eight bytes and one of the last four, which NumPy compares ten times faster.
   An `IdSet` takes 12 bytes for each distinct id, and at most about 80 while ids are merged in.

Specification: "Common Types".
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.frozen_values import frozen_values
from icechunk_format.errors import InvalidInputError

ALPHABET = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RFC_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_TO_CROCKFORD = bytes.maketrans(_RFC_ALPHABET, ALPHABET)
# Crockford reads O as 0 and I, L as 1.
_MISREAD = str.maketrans("OIL", "011")

_DIGIT_BITS = 5
_DIGIT_WEIGHTS = np.array([16, 8, 4, 2, 1], dtype=np.uint8)
_DIGITS = np.frombuffer(ALPHABET, dtype=np.uint8)
_NO_DIGIT = 255
_DIGIT_VALUES = np.full(256, _NO_DIGIT, dtype=np.uint8)
_DIGIT_VALUES[_DIGITS] = np.arange(len(ALPHABET), dtype=np.uint8)


@dataclass(frozen=True, slots=True, order=True, repr=False)
class ObjectId:
    """Base of all ids; use one of the subclasses.

    Parameters
    ----------
    raw
        Exactly ``SIZE`` bytes.

    Raises
    ------
    InvalidInputError
        ``raw`` has another length.
    """

    SIZE: ClassVar[int] = 12

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != self.SIZE:
            raise InvalidInputError(
                f"a {type(self).__name__} has {self.SIZE} bytes, found {len(self.raw)}",
                found=len(self.raw),
                allowed=self.SIZE,
            )

    def __hash__(self) -> int:
        return hash(self.raw)

    def __str__(self) -> str:
        return base64.b32encode(self.raw).rstrip(b"=").translate(_TO_CROCKFORD).decode("ascii")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Callable[[bytes], Self], tuple[bytes]]:
        # Many ids are pickled between driver and executors: the type and its bytes suffice.
        return (type(self), (self.raw,))

    @classmethod
    def many(cls, raw: bytes) -> list[Self]:
        """Split concatenated bytes, a multiple of ``SIZE``, into ids."""
        parts = np.frombuffer(raw, dtype=f"V{cls.SIZE}").tolist()
        return frozen_values(cls, len(parts), raw=parts)

    @classmethod
    def rows(cls, ids: Iterable[ObjectId]) -> NDArray[np.uint8]:
        """Return the bytes of ids, shape (n, ``SIZE``)."""
        joined = b"".join([one.raw for one in ids])
        return np.frombuffer(joined, dtype=np.uint8).reshape(-1, cls.SIZE)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id in upper or lower case, with O for 0, and I or L for 1.

        Raises
        ------
        InvalidInputError
            The string has another length or other characters, or stray bits in its last one.

        Examples
        --------
        >>> SnapshotId.parse("1cechnkrep0f1rstcmt0")
        SnapshotId('1CECHNKREP0F1RSTCMT0')
        """
        found = cls.parse_exact(text.upper().translate(_MISREAD)) if text.isascii() else None
        if found is None:
            wanted = f"{string_length(cls.SIZE)} characters of Crockford base 32"
            raise InvalidInputError(
                f"{text!r} is not a {cls.__name__}: {wanted} (0-9 and A-Z without I, L, O, U) "
                "are expected",
                found=text,
                allowed=wanted,
            )
        return found

    @classmethod
    def parse_exact(cls, text: str) -> Self | None:
        """Read an object's name; None unless it is the canonical form of an id.

        Other names are not Icechunk's objects. Reading them as the id that they resemble would let
        garbage collection delete or keep the wrong object.
        """
        raw, is_id = decode_many([text], cls.SIZE)
        return cls(raw.tobytes()) if is_id[0] else None


class SnapshotId(ObjectId):
    """Id of a snapshot and of its transaction log."""

    __slots__ = ()


class ManifestId(ObjectId):
    """Id of a chunk manifest."""

    __slots__ = ()


class ChunkId(ObjectId):
    """Id of a chunk object."""

    __slots__ = ()


class NodeId(ObjectId):
    """Id of an array or group; it survives updates and moves of the node."""

    __slots__ = ()

    SIZE: ClassVar[int] = 8


def string_length(size: int) -> int:
    """Return the number of characters of an id of ``size`` bytes as a string."""
    return -(-size * 8 // _DIGIT_BITS)


def encode_many(raw: NDArray[np.uint8]) -> list[str]:
    """Return the strings of ids, uint8 of shape (n, 12) or (n, 8)."""
    n, size = raw.shape
    if n == 0:
        return []
    length = string_length(size)
    bits = np.zeros((n, length * _DIGIT_BITS), dtype=np.uint8)
    bits[:, : size * 8] = np.unpackbits(np.ascontiguousarray(raw, dtype=np.uint8), axis=1)
    digits = bits.reshape(n, length, _DIGIT_BITS) @ _DIGIT_WEIGHTS
    strings: list[str] = _DIGITS[digits].view(f"S{length}").ravel().astype(f"U{length}").tolist()
    return strings


def decode_many(
    names: Sequence[str], size: int = ObjectId.SIZE
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read names of objects like ``parse_exact``, as columns.

    Returns the ids, uint8 of shape (n, size), zeros for other names; and a mask of the names that
    are ids.
    """
    length = string_length(size)
    raw = np.zeros((len(names), size), dtype=np.uint8)
    is_id = np.fromiter(
        (len(name) == length and name.isascii() for name in names), dtype=bool, count=len(names)
    )
    string = "".join(name for name, fits in zip(names, is_id.tolist(), strict=True) if fits)
    characters = np.frombuffer(string.encode("ascii"), dtype=np.uint8)
    digits = _DIGIT_VALUES[characters].reshape(-1, length)
    bits = np.unpackbits(digits[:, :, np.newaxis], axis=2)[:, :, 8 - _DIGIT_BITS :]
    bits = bits.reshape(len(digits), length * _DIGIT_BITS)
    exact = (digits != _NO_DIGIT).all(axis=1) & ~bits[:, size * 8 :].any(axis=1)
    rows = np.flatnonzero(is_id)
    is_id[rows] = exact
    raw[rows[exact]] = np.packbits(bits[exact, : size * 8], axis=1)
    return raw, is_id


# Id of the first snapshot in repositories that 2.x created. In older ones it is random, so the root
# is found by its missing parent, not by this constant.
INITIAL_SNAPSHOT_ID = SnapshotId.parse("1CECHNKREP0F1RSTCMT0")


# -- ids in columns -------------------------------------------------------------------------------

# New ids are merged once they outnumber both this and the ids of the set, so that each id is sorted
# only a few times, whatever the number of calls.
_LEAST_PENDING: Final = 1 << 18


def id_keys(ids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """View ids, uint8 of shape (n, 12), as byte strings, which NumPy sorts and compares.

    NumPy hides trailing zero bytes of such strings, but all have one length, so order and equality
    are correct.
    """
    keys: NDArray[np.bytes_] = np.ascontiguousarray(ids).view(f"S{ObjectId.SIZE}").reshape(-1)
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
    rows = np.ascontiguousarray(ids).reshape(-1, ObjectId.SIZE)
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
        return cls(np.frombuffer(joined, dtype=np.uint8).reshape(-1, ObjectId.SIZE))

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
        raw = np.empty((len(self._ids), ObjectId.SIZE), dtype=np.uint8)
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
