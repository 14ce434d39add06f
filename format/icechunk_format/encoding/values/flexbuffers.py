"""Reads and writes FlexBuffers, the self-describing encoding of JSON in files of spec version 2.

The flatbuffers library does not check its input and writes integer types other than the reference,
so it is not used.

Rules of this file
------------------
1. The decoder raises only ``FormatError``, whatever the bytes are. FlexBuffers lets many values
   share one child, so a small input can describe a huge tree: fixed budgets limit the number of
   values, the bytes of text and the depth.
2. All FlexBuffers types are read. Types without a JSON equivalent become the nearest Python value:
   keys ``str``, blobs ``bytes``.
3. The encoder matches the reference's serializer for JSON: maps with keys sorted by bytes, booleans
   as booleans, non-negative integers unsigned at minimal width, negative ones signed, floats in 32
   bits when that loses nothing, vectors untyped. Equal input, equal bytes.

Spec: "MetadataItem" and "Repo.config"; https://flatbuffers.dev/internals (FlexBuffers).
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final, Never

from icechunk_format.encoding.tables.writer import utf8
from icechunk_format.errors import FormatError, InvalidInputError

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 1_000_000
MAX_STRING_BYTES: Final = 64 * 1024 * 1024

_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING = range(6)
_INDIRECT_INT, _INDIRECT_UINT, _INDIRECT_FLOAT, _MAP, _VECTOR = range(6, 11)
_VECTOR_INT, _VECTOR_UINT, _VECTOR_FLOAT, _VECTOR_KEY, _VECTOR_OLD_STRING = range(11, 16)
_FIXED_FIRST, _FIXED_LAST = 16, 24  # (int, uint, float) x (2, 3, 4) elements
_BLOB, _BOOL, _VECTOR_BOOL = 25, 26, 36

_ELEMENT_OF: Final = {
    _VECTOR_INT: _INT,
    _VECTOR_UINT: _UINT,
    _VECTOR_FLOAT: _FLOAT,
    _VECTOR_KEY: _KEY,
    # The deprecated vector of strings lacks the width of its elements; as in the FlexBuffers
    # library, its elements are read as NUL-terminated keys.
    _VECTOR_OLD_STRING: _KEY,
    _VECTOR_BOOL: _BOOL,
}
_SIGNED: Final = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}
_UNSIGNED: Final = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
_FLOATING: Final = {2: "<e", 4: "<f", 8: "<d"}
_DIRECT: Final = {_INT: _SIGNED, _UINT: _UNSIGNED, _FLOAT: _FLOATING}
_INDIRECT: Final = {_INDIRECT_INT: _SIGNED, _INDIRECT_UINT: _UNSIGNED, _INDIRECT_FLOAT: _FLOATING}


def decode_flexbuffer(
    data: bytes, *, object_key: str = "<bytes>", field: str = "value", file_type: str = "object"
) -> Any:
    """Read one FlexBuffer as JSON values; blobs become ``bytes``."""
    return _FlexReader(bytes(data), object_key, field, file_type).root()


class _FlexReader:
    """Reads one buffer within budgets, since children can be shared."""

    def __init__(self, data: bytes, object_key: str, field: str, file_type: str) -> None:
        self._data = data
        self._where = {"object_key": object_key, "field": field, "file_type": file_type}
        self._values_left = MAX_VALUES
        self._string_bytes_left = MAX_STRING_BYTES

    def root(self) -> Any:
        if len(self._data) < 3:
            self._fail(f"a FlexBuffer has at least 3 bytes, found {len(self._data)}")
        width = self._data[-1]
        if width not in _UNSIGNED:
            self._fail(f"root width {width} is not 1, 2, 4 or 8")
        return self._value(len(self._data) - 2 - width, width, self._data[-2], 0)

    def _fail(self, problem: str, *, allowed: int | None = None) -> Never:
        problem = f"{problem}; the value is damaged or not a FlexBuffer"
        raise FormatError(problem, **self._where, allowed=allowed)

    def _scalar(self, formats: dict[int, str], position: int, width: int) -> Any:
        if width not in formats:
            self._fail(f"a number of width {width} at byte {position} does not exist")
        if position < 0 or position + width > len(self._data):
            self._fail(f"a number at byte {position} is outside the {len(self._data)} bytes")
        return struct.unpack_from(formats[width], self._data, position)[0]

    def _follow(self, position: int, width: int) -> int:
        target: int = position - self._scalar(_UNSIGNED, position, width)
        if target < 0:
            self._fail(f"the offset at byte {position} points before the start")
        return target

    def _spend(self, count: int) -> None:
        self._values_left -= count
        if self._values_left < 0:
            self._fail(f"more than {MAX_VALUES} values", allowed=MAX_VALUES)

    def _value(self, position: int, width: int, packed: int, depth: int) -> Any:
        self._spend(1)
        kind, child_width = packed >> 2, 1 << (packed & 3)
        if kind == _NULL:
            return None
        if kind in _DIRECT:
            return self._scalar(_DIRECT[kind], position, width)
        if kind == _BOOL:
            return self._scalar(_UNSIGNED, position, width) != 0
        target = self._follow(position, width)
        if kind == _KEY:
            return self._key(target)
        if kind == _STRING:
            return self._string(self._sized_bytes(target, child_width))
        if kind == _BLOB:
            return self._sized_bytes(target, child_width)
        if kind in _INDIRECT:
            return self._scalar(_INDIRECT[kind], target, child_width)
        if depth >= MAX_DEPTH:
            self._fail(f"values are nested deeper than {MAX_DEPTH}", allowed=MAX_DEPTH)
        if kind == _MAP:
            return self._map(target, child_width, depth + 1)
        if kind == _VECTOR:
            return self._vector(target, child_width, depth + 1)
        if kind in _ELEMENT_OF:
            count = self._count(target, child_width, child_width)
            return self._typed(target, child_width, _ELEMENT_OF[kind], count)
        if _FIXED_FIRST <= kind <= _FIXED_LAST:
            element = (_INT, _UINT, _FLOAT)[(kind - _FIXED_FIRST) % 3]
            count = 2 + (kind - _FIXED_FIRST) // 3
            return self._typed(target, child_width, element, count)
        self._fail(f"type {kind} at byte {position} is not a FlexBuffers type")

    def _count(self, target: int, width: int, element_bytes: int) -> int:
        count: int = self._scalar(_UNSIGNED, target - width, width)
        if count * element_bytes > len(self._data) - target:
            self._fail(f"{count} elements at byte {target} exceed the buffer")
        return count

    def _sized_bytes(self, target: int, width: int) -> bytes:
        count = self._count(target, width, 1)
        self._string_bytes_left -= count
        if self._string_bytes_left < 0:
            problem = f"strings and blobs of more than {MAX_STRING_BYTES} bytes in all"
            self._fail(problem, allowed=MAX_STRING_BYTES)
        return self._data[target : target + count]

    def _string(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self._fail(f"a string is not UTF-8 ({error.reason} at its byte {error.start})")

    def _key(self, target: int) -> str:
        end = self._data.find(b"\0", target)
        if end < 0:
            self._fail(f"the key at byte {target} has no end")
        self._string_bytes_left -= end - target
        if self._string_bytes_left < 0:
            problem = f"keys and strings of more than {MAX_STRING_BYTES} bytes in all"
            self._fail(problem, allowed=MAX_STRING_BYTES)
        return self._string(self._data[target:end])

    def _typed(self, target: int, width: int, element: int, count: int) -> list[Any]:
        # The elements have no children, so the depth does not matter.
        packed = element << 2
        return [self._value(target + i * width, width, packed, 0) for i in range(count)]

    def _vector(self, target: int, width: int, depth: int) -> list[Any]:
        # One byte of type for each element follows the elements.
        count = self._count(target, width, width + 1)
        types = target + count * width
        return [
            self._value(target + i * width, width, self._data[types + i], depth)
            for i in range(count)
        ]

    def _map(self, target: int, width: int, depth: int) -> dict[str, Any]:
        keys_at = self._follow(target - 3 * width, width)
        keys_width = self._scalar(_UNSIGNED, target - 2 * width, width)
        values = self._vector(target, width, depth)
        count = self._count(keys_at, keys_width, keys_width)
        if count != len(values):
            self._fail(f"a map has {count} keys for {len(values)} values")
        self._spend(count)
        keys = [self._key(self._follow(keys_at + i * keys_width, keys_width)) for i in range(count)]
        return dict(zip(keys, values, strict=True))


def encode_flexbuffer(value: Any) -> bytes:
    """Return a JSON value as one FlexBuffer, or raise InvalidInputError."""
    writer = _FlexWriter()
    slot = writer.store(value, 0)
    width = slot.root_width(len(writer.out))
    writer.align(width)
    writer.out += slot.at(len(writer.out), width)
    writer.out += bytes((slot.packed(width), width))
    return bytes(writer.out)


class _Slot:
    """A value to store in its parent: inline bits, or an offset to a stored object."""

    __slots__ = ("is_offset", "kind", "number", "width")

    def __init__(self, kind: int, number: int | float, width: int, *, is_offset: bool) -> None:
        self.kind = kind
        self.number = number
        self.width = width
        self.is_offset = is_offset

    def fits(self, position: int, width: int) -> bool:
        if self.is_offset:
            return position - self.number < 1 << (8 * width)
        return self.width <= width

    def root_width(self, end: int) -> int:
        # Alignment to the width can move the root, and with it the offset.
        return next(w for w in (1, 2, 4, 8) if self.fits(end + (-end) % w, w))

    def at(self, position: int, width: int) -> bytes:
        if self.is_offset:
            return struct.pack(_UNSIGNED[width], position - int(self.number))
        if self.kind == _FLOAT:
            return struct.pack(_FLOATING[width], self.number)
        return struct.pack((_SIGNED if self.kind == _INT else _UNSIGNED)[width], self.number)

    def packed(self, parent_width: int) -> int:
        width = self.width if self.is_offset else max(self.width, parent_width)
        return self.kind << 2 | (width.bit_length() - 1)


class _FlexWriter:
    def __init__(self) -> None:
        self.out = bytearray()

    def align(self, width: int) -> None:
        self.out += bytes(-len(self.out) % width)

    def store(self, value: Any, depth: int) -> _Slot:
        if depth > MAX_DEPTH:
            raise InvalidInputError(
                f"a metadata value is nested deeper than {MAX_DEPTH}; flatten it",
                allowed=MAX_DEPTH,
            )
        if value is None:
            return _Slot(_NULL, 0, 1, is_offset=False)
        if isinstance(value, bool):
            return _Slot(_BOOL, int(value), 1, is_offset=False)
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            return self._float(value)
        if isinstance(value, str):
            return self._string(utf8(value))
        if isinstance(value, list | tuple):
            return self._vector(_VECTOR, [self.store(item, depth + 1) for item in value], ())
        if isinstance(value, dict):
            return self._map(value, depth)
        raise InvalidInputError(
            f"a metadata value is a {type(value).__name__}; allowed are null, booleans, numbers, "
            "strings, lists and maps with string keys"
        )

    @staticmethod
    def _integer(value: int) -> _Slot:
        if not -(1 << 63) <= value < 1 << 64:
            raise InvalidInputError(f"the integer {value} does not fit 64 bits; use a string")
        if value >= 0:
            return _Slot(_UINT, value, _unsigned_width(value), is_offset=False)
        width = next(w for w in (1, 2, 4, 8) if value >= -(1 << (8 * w - 1)))
        return _Slot(_INT, value, width, is_offset=False)

    @staticmethod
    def _float(value: float) -> _Slot:
        if not math.isfinite(value):
            raise InvalidInputError(
                f"the number {value} has no JSON form; use null or a string instead"
            )
        try:
            is_exact = struct.unpack("<f", struct.pack("<f", value))[0] == value
        except OverflowError:
            is_exact = False
        return _Slot(_FLOAT, value, 4 if is_exact else 8, is_offset=False)

    def _string(self, raw: bytes) -> _Slot:
        width = _unsigned_width(len(raw))
        self.align(width)
        self.out += struct.pack(_UNSIGNED[width], len(raw))
        slot = _Slot(_STRING, len(self.out), width, is_offset=True)
        self.out += raw + b"\0"
        return slot

    def _vector(self, kind: int, slots: list[_Slot], prefix: tuple[_Slot, ...]) -> _Slot:
        # Offsets depend on the width and the width on the offsets: the smallest fitting width is
        # used.
        head = [*prefix, _Slot(_UINT, len(slots), _unsigned_width(len(slots)), is_offset=False)]
        cells = [*head, *slots]
        width = next(w for w in (1, 2, 4, 8) if self._fit(cells, w))
        self.align(width)
        start = len(self.out)
        for cell in cells:
            self.out += cell.at(len(self.out), width)
        target = start + len(head) * width
        if kind != _VECTOR_KEY:
            self.out += bytes(slot.packed(width) for slot in slots)
        return _Slot(kind, target, width, is_offset=True)

    def _fit(self, cells: list[_Slot], width: int) -> bool:
        start = len(self.out) + -len(self.out) % width
        return all(cell.fits(start + i * width, width) for i, cell in enumerate(cells))

    def _map(self, value: dict[Any, Any], depth: int) -> _Slot:
        names: list[tuple[bytes, Any]] = []
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidInputError(
                    f"a metadata map has the key {key!r} of type {type(key).__name__}; "
                    "keys must be strings"
                )
            if "\0" in key:
                raise InvalidInputError(f"the metadata key {key!r} contains a NUL; remove it")
            names.append((utf8(key), item))
        names.sort(key=lambda pair: pair[0])
        keys = []
        for name, _ in names:
            keys.append(_Slot(_KEY, len(self.out), 1, is_offset=True))
            self.out += name + b"\0"
        values = [self.store(item, depth + 1) for _, item in names]
        key_vector = self._vector(_VECTOR_KEY, keys, ())
        key_width = _Slot(_UINT, key_vector.width, 1, is_offset=False)
        return self._vector(_MAP, values, (key_vector, key_width))


def _unsigned_width(value: int) -> int:
    return next(w for w in (1, 2, 4, 8) if value < 1 << (8 * w))
