"""Types of ids (12 or 8 raw bytes), and their Crockford base 32 strings, which form object keys.

Rules of this file
------------------
1. Equality, order and hash follow the raw bytes, the order of ids in the lists of the format.
2. Each kind of id is its own type, so that a manifest id is never used as a snapshot id.
3. Strings are upper case and unpadded; zero bits fill the last character. ``parse`` accepts the
   input of users, ``parse_exact`` only the canonical form in names of objects.

Specification: "Common Types".
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.spec.frozen_values import frozen_values

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
    def text_length(cls) -> int:
        """Return the number of characters of the id as a string."""
        return -(-cls.SIZE * 8 // _DIGIT_BITS)

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
            raise InvalidInputError(
                f"{text!r} is not a {cls.__name__}: {cls.text_length()} characters of Crockford "
                "base 32 (0-9 and A-Z without I, L, O, U) are expected",
                found=text,
                allowed=f"{cls.text_length()} characters of Crockford base 32",
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


def encode_many(raw: NDArray[np.uint8]) -> list[str]:
    """Return the strings of ids, uint8 of shape (n, 12) or (n, 8)."""
    n, size = raw.shape
    if n == 0:
        return []
    length = -(-size * 8 // _DIGIT_BITS)
    bits = np.zeros((n, length * _DIGIT_BITS), dtype=np.uint8)
    bits[:, : size * 8] = np.unpackbits(np.ascontiguousarray(raw, dtype=np.uint8), axis=1)
    digits = bits.reshape(n, length, _DIGIT_BITS) @ _DIGIT_WEIGHTS
    texts: list[str] = _DIGITS[digits].view(f"S{length}").ravel().astype(f"U{length}").tolist()
    return texts


def decode_many(
    names: Sequence[str], size: int = ObjectId.SIZE
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read names of objects like ``parse_exact``, as columns.

    Returns the ids, uint8 of shape (n, size), zeros for other names; and a mask of the names that
    are ids.
    """
    length = -(-size * 8 // _DIGIT_BITS)
    raw = np.zeros((len(names), size), dtype=np.uint8)
    is_id = np.fromiter(
        (len(name) == length and name.isascii() for name in names), dtype=bool, count=len(names)
    )
    text = "".join(name for name, fits in zip(names, is_id.tolist(), strict=True) if fits)
    characters = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
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
