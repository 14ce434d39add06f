"""Writes flatbuffers tables one at a time, back to front.

Rules of this file
------------------
1. Children are written before parents, as in every flatbuffers builder. A handle is the distance of
   an object from the end of the file, which objects written later do not change.
2. The layout of a table is computed once for each set of present fields, so that one call packs a
   table. This is several times faster than the flatbuffers builder.
3. Numbers equal to the default, 0, are omitted, as by other writers; fields given as None are
   absent.
4. Objects are aligned as the format's verifiers require.

Specification: flatbuffers internals (https://flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.tables.byte_ranges import copy_ranges, joined
from icechunk_format.encoding.tables.schema import INLINE, TableSchema
from icechunk_format.errors import InvalidInputError

FILE_IDENTIFIER = b"Ichk"
_LENGTH = struct.Struct("<I")
_BULK_COUNT = 32  # shorter vectors are faster without NumPy
_MAX_ALIGNMENT = 8


class _Layout(NamedTuple):
    """Memory layout of a table with a given set of fields."""

    pack: struct.Struct
    alignment: int
    size: int
    # Fields in the order of packing: name, whether it is an offset, position in the table.
    order: tuple[tuple[str, bool, int], ...]
    vtable: bytes


class TableWriter:
    """Builds one flatbuffer; handles are valid only in the writer that returned them."""

    __slots__ = ("_layouts", "_parts", "_used", "_vtables")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._used = 0
        self._vtables: dict[bytes, int] = {}
        self._layouts: dict[tuple[int, tuple[str, ...]], _Layout] = {}

    def _push(self, content: bytes, alignment: int) -> int:
        """Prepend bytes so that their first byte is aligned; return their handle."""
        padding = -(self._used + len(content)) % alignment
        if padding:
            self._parts.append(bytes(padding))
        self._parts.append(content)
        self._used += padding + len(content)
        return self._used

    def block(self, content: bytes, *, alignment: int = 4) -> int:
        """Write bytes that contain finished objects; return the handle of their start."""
        return self._push(content, alignment)

    def reserve(self, size: int) -> int:
        """Reserve the end of the file for bytes of the caller; return the handle of its start.

        Call this method first; the size is a multiple of 8.
        """
        self._used = size
        return size

    def handle_of(self, size: int, *, alignment: int = 4) -> int:
        """Return the handle of a block of this size if it is written next."""
        return self._used + -(self._used + size) % alignment + size

    def string(self, value: str) -> int:
        """Write a string."""
        encoded = utf8(value)
        return self._push(struct.pack("<I", len(encoded)) + encoded + b"\0", 4)

    def string_list(self, values: Sequence[str]) -> NDArray[np.int64]:
        """Write consecutive strings and return their handles, without a vector."""
        try:
            encoded = list(map(str.encode, values))
        except UnicodeEncodeError:
            encoded = list(map(utf8, values))
        content, heads = pack_blobs(encoded)
        first = self._push(content.tobytes(), 4)
        handles: NDArray[np.int64] = first - heads
        return handles

    def blob(self, value: bytes) -> int:
        """Write a vector of bytes."""
        return self._push(struct.pack("<I", len(value)) + value, 4)

    def records(self, content: bytes, *, count: int, alignment: int = 1) -> int:
        """Write a vector of numbers or structs from the bytes of its items.

        The alignment is that of the first item, not of the length before it.
        """
        padding = -(self._used + len(content)) % max(alignment, 4)
        body = struct.pack("<I", count) + content + bytes(padding)
        return self._push(body, 4)

    def offsets(self, handles: Sequence[int] | NDArray[np.int64]) -> int:
        """Write a vector of tables or strings."""
        count = len(handles)
        padding = -self._used % 4
        # Item i is (count - i) * 4 bytes before the existing part of the file.
        end = self._used + padding
        if count >= _BULK_COUNT:
            at = end + 4 * np.arange(count, 0, -1, dtype=np.int64)
            cells = (at - np.asarray(handles, dtype=np.int64)).astype("<u4").tobytes()
            return self._push(_LENGTH.pack(count) + cells + bytes(padding), 4)
        values = [end + (count - i) * 4 - handle for i, handle in enumerate(handles)]
        return self._push(struct.pack(f"<{count + 1}I", count, *values) + bytes(padding), 4)

    def table(self, schema: TableSchema, **fields: int | bytes | None) -> int:
        """Write a table; offset fields are given as handles, ids as their bytes."""
        present = tuple(
            name
            for name, value in fields.items()
            if value is not None and (isinstance(value, bytes) or _is_written(schema, name, value))
        )
        layout = self._layouts.get((id(schema), present))
        if layout is None:
            layout = self._layouts[id(schema), present] = _lay_out(schema, present)
        padding = -(self._used + layout.size) % layout.alignment
        start = self._used + padding + layout.size
        values = [
            start - position - fields[name] if is_offset else fields[name]  # type: ignore[operator]
            for name, is_offset, position in layout.order
        ]
        vtable = self._vtables.get(layout.vtable)
        # A new vtable directly precedes its first table.
        distance = len(layout.vtable) if vtable is None else vtable - start
        try:
            packed = layout.pack.pack(distance, *values)
        except struct.error as error:
            raise InvalidInputError(
                f"a value of {schema.name} does not fit its field: {error}; the fields are "
                + ", ".join(f"{name}={fields[name]!r}" for name in present),
                found=error.args[0],
                allowed={name: schema.fields[name].kind for name in present},
            ) from error
        self._push(packed, layout.alignment)
        if vtable is None:
            self._vtables[layout.vtable] = self._push(layout.vtable, 2)
        return start

    def finish(self, root: int) -> bytes:
        """Return the file with its identifier, without the bytes reserved at its end.

        The writer must not be used afterwards.
        """
        head = 4 + len(FILE_IDENTIFIER)
        padding = -(self._used + head) % _MAX_ALIGNMENT
        total = self._used + padding + head
        self._parts.append(bytes(padding))
        self._parts.append(struct.pack("<I", total - root) + FILE_IDENTIFIER)
        return b"".join(reversed(self._parts))


def pack_blobs(encoded: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the result of `pack_ranges` for bytes objects."""
    return pack_ranges(*joined(encoded))


def pack_ranges(
    source: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copy byte ranges into a block of vectors; return the block and each vector's offset."""
    # At least one zero byte ends a string.
    sizes = (lengths + (4 + 1 + 3)) & ~3
    heads = np.cumsum(sizes) - sizes
    content = np.zeros(int(sizes.sum()), dtype=np.uint8)
    content.view("<u4")[heads >> 2] = lengths
    copy_ranges(source, starts, content, heads + 4, lengths)
    return content, heads


def utf8(value: str) -> bytes:
    """Return a string in UTF-8, or raise InvalidInputError."""
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"the string {value!r} contains a lone surrogate, which UTF-8 cannot encode; remove it",
            found=value,
            allowed="a string in UTF-8",
        ) from error


def _is_written(schema: TableSchema, name: str, value: int) -> bool:
    return value != 0 or schema.fields[name].kind == "offset"


def _lay_out(schema: TableSchema, present: tuple[str, ...]) -> _Layout:
    """Place fields after the vtable offset, widest first; a number's alignment is its size."""
    specs = schema.fields
    ordered = sorted(present, key=lambda name: -specs[name].alignment)
    cursor, alignment, codes = 4, 4, ["<i"]
    positions: dict[str, int] = {}
    for name in ordered:
        spec = specs[name]
        padding = -cursor % spec.alignment
        codes.append(f"{padding}x" + INLINE[spec.kind].format.removeprefix("<"))
        positions[name] = cursor + padding
        cursor += padding + spec.size
        alignment = max(alignment, spec.alignment)
    slots = [0] * (1 + max((specs[name].slot for name in present), default=-1))
    for name, position in positions.items():
        slots[specs[name].slot] = position
    return _Layout(
        pack=struct.Struct("".join(codes)),
        alignment=alignment,
        size=cursor,
        order=tuple((n, specs[n].kind == "offset", positions[n]) for n in ordered),
        vtable=struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), cursor, *slots),
    )
