"""Reads flatbuffers tables one at a time, and checks every offset.

Rules of this file
------------------
1. Each table, vector, string and struct is checked to be inside the payload before it is read; each
   failure is a ``FormatError`` with the path of the field, such as ``snapshots[3].message``.
2. The schema fixes the depth, so a cycle of offsets ends. Many parents may share one child, so a
   budget in proportion to the payload bounds the total work, far above what valid files need.
3. The file identifier, and fields that newer writers added at the end of a table, are ignored, as
   in other readers.
4. Unaligned data is accepted.

The accessors of ``Table`` come in pairs: ``string`` requires the field, ``optional_string`` returns
None if it is absent. `bulk_reader` reads long lists of small tables.

Specification: flatbuffers internals (https://flatbuffers.dev/internals), and the ``.fbs`` files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from icechunk_format.encoding.tables.schema import INLINE, TableSchema
from icechunk_format.errors import FormatError

T = TypeVar("T")

_U32 = INLINE["u32"]
_I32 = INLINE["i32"]

# The budget is this much per byte of payload plus a constant; each table visited costs a constant.
_WORK_PER_BYTE = 64
_WORK_FREE = 1 << 20
_TABLE_COST = 64
# Shared strings and blobs above this size are decoded once.
_MEMO_SIZE = 256


class _Payload:
    """The state shared by all tables of a file: bytes, names, remaining budget, known vtables."""

    __slots__ = ("data", "file_type", "memo", "object_key", "vtables", "work")

    def __init__(self, data: bytes, object_key: str, file_type: str) -> None:
        self.data = data
        self.object_key = object_key
        self.file_type = file_type
        self.work = _WORK_PER_BYTE * len(data) + _WORK_FREE
        self.vtables: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.memo: dict[tuple[int, bool], Any] = {}


class Table:
    """One table in a payload; made by ``read_root`` and by the accessors of other tables."""

    __slots__ = ("_offsets", "_parent", "_payload", "_position", "_size", "schema")

    def __init__(
        self,
        payload: _Payload,
        position: int,
        schema: TableSchema,
        parent: tuple[Table, str, int] | None,
    ) -> None:
        self._payload = payload
        self._position = position
        self._parent = parent
        self.schema = schema
        data = payload.data
        payload.work -= _TABLE_COST
        if payload.work < 0:
            raise self.error("", "the file refers to the same bytes too many times")
        if not 0 <= position <= len(data) - 4:
            raise self.error("", f"the table starts at byte {position} of {len(data)}")
        vtable = position - _I32.unpack_from(data, position)[0]
        known = payload.vtables.get(vtable)
        if known is None:
            known = payload.vtables[vtable] = self._read_vtable(vtable)
        self._size, self._offsets = known
        if position + self._size > len(data):
            raise self.error("", f"the table of {self._size} bytes at byte {position} is cut short")

    def _read_vtable(self, vtable: int) -> tuple[int, tuple[int, ...]]:
        data = self._payload.data
        if not 0 <= vtable <= len(data) - 4:
            raise self.error("", f"its vtable would start at byte {vtable} of {len(data)}")
        vtable_size, table_size = struct.unpack_from("<HH", data, vtable)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > len(data):
            raise self.error("", f"its vtable at byte {vtable} has the bad size {vtable_size}")
        if table_size < 4:
            raise self.error("", f"its vtable gives the table {table_size} bytes; 4 is the least")
        offsets = struct.unpack_from(f"<{(vtable_size - 4) // 2}H", data, vtable + 4)
        return table_size, offsets

    # -- messages -----------------------------------------------------------------------------

    def error(self, field: str, problem: str, **facts: Any) -> FormatError:
        """Return the error about a field, with its path from the root: ``nodes[2].path``."""
        parts = [field] if field else []
        table = self
        while table._parent is not None:
            table, via, index = table._parent
            parts.append(f"{via}[{index}]" if index >= 0 else via)
        return FormatError(
            problem,
            object_key=self._payload.object_key,
            file_type=self._payload.file_type,
            field=".".join(reversed(parts)) or self.schema.name,
            **facts,
        )

    # -- positions ----------------------------------------------------------------------------

    @property
    def payload(self) -> bytes:
        """The decompressed flatbuffer."""
        return self._payload.data

    @property
    def object_key(self) -> str:
        """Key of the object, for messages of bulk readers."""
        return self._payload.object_key

    @property
    def file_type(self) -> str:
        """Type of the file in words, for messages of bulk readers."""
        return self._payload.file_type

    def charge(self, field: str, work: int) -> None:
        """Subtract a bulk reader's work from the budget; raise FormatError if it is exceeded."""
        self._payload.work -= work
        if self._payload.work < 0:
            raise self.error(field, "the file refers to the same bytes too many times")

    def has(self, field: str) -> bool:
        """Return True if the field is present."""
        return self._locate(field) is not None

    def _locate(self, field: str) -> int | None:
        spec = self.schema.fields[field]
        if spec.slot >= len(self._offsets):
            return None
        offset = self._offsets[spec.slot]
        if offset == 0:
            return None
        if offset < 4:
            raise self.error(field, "it overlaps the first offset of its table")
        # The vtable's table size is not a bound, since older builders let tables of several sizes
        # share a vtable. The field must be inside the file.
        if self._position + offset + spec.size > len(self._payload.data):
            raise self.error(
                field, f"its {spec.size} bytes do not fit into the file", size=spec.size
            )
        return self._position + offset

    def _follow(self, field: str) -> int | None:
        at = self._locate(field)
        if at is None:
            return None
        data = self._payload.data
        target: int = at + _U32.unpack_from(data, at)[0]
        if target == at or target > len(data) - 4:
            problem = f"it points to byte {target} of {len(data)}"
            raise self.error(field, problem, found=target)
        return target

    def vector(self, field: str, item_size: int) -> tuple[int, int] | None:
        """Return (position of the first item, number of items) of a vector; None if absent."""
        target = self._follow(field)
        if target is None:
            return None
        return self._vector_at(field, target, item_size)

    def _vector_at(self, field: str, target: int, item_size: int) -> tuple[int, int]:
        data = self._payload.data
        count: int = _U32.unpack_from(data, target)[0]
        if count * item_size > len(data) - target - 4:
            raise self.error(
                field,
                f"its {count} items of {item_size} bytes at byte {target} run past the end of "
                f"the {len(data)} bytes",
                count=count,
            )
        return target + 4, count

    def missing(self, field: str) -> FormatError:
        """Return the error about a required field that is absent."""
        return self.error(field, f"it is required in {self.schema.name}, but it is absent")

    def _required(self, field: str, found: T | None) -> T:
        if found is None:
            raise self.missing(field)
        return found

    # -- numbers and structs ------------------------------------------------------------------

    def number(self, field: str) -> int:
        """Read a scalar; 0 if absent."""
        at = self._locate(field)
        if at is None:
            return 0
        kind = self.schema.fields[field].kind
        value: int = INLINE[kind].unpack_from(self._payload.data, at)[0]
        return value

    def optional_raw_id(self, field: str) -> bytes | None:
        """Read an inline id, 12 or 8 bytes by the schema; None if absent."""
        at = self._locate(field)
        if at is None:
            return None
        return self._payload.data[at : at + self.schema.fields[field].size]

    def raw_id(self, field: str) -> bytes:
        """Read an inline id that must be present."""
        return self._required(field, self.optional_raw_id(field))

    # -- strings and bytes --------------------------------------------------------------------

    def _string_at(self, field: str, target: int) -> str:
        start, size = self._vector_at(field, target, 1)
        if size >= _MEMO_SIZE:
            known: str | None = self._payload.memo.get((start, True))
            if known is not None:
                return known
        self.charge(field, size)
        try:
            string = self._payload.data[start : start + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(field, f"its text is not valid UTF-8 ({error.reason})") from error
        if size >= _MEMO_SIZE:
            self._payload.memo[start, True] = string
        return string

    def optional_string(self, field: str) -> str | None:
        """Read a string; None if absent."""
        target = self._follow(field)
        return None if target is None else self._string_at(field, target)

    def string(self, field: str) -> str:
        """Read a string that must be present."""
        return self._required(field, self.optional_string(field))

    def optional_blob(self, field: str) -> bytes | None:
        """Read a vector of bytes; None if absent."""
        span = self.vector(field, 1)
        if span is None:
            return None
        start, size = span
        if size < _MEMO_SIZE:
            return self._payload.data[start : start + size]
        known: bytes | None = self._payload.memo.get((start, False))
        if known is None:
            self.charge(field, size)
            known = self._payload.memo[start, False] = self._payload.data[start : start + size]
        return known

    def blob(self, field: str) -> bytes:
        """Read a vector of bytes that must be present."""
        return self._required(field, self.optional_blob(field))

    # -- vectors ------------------------------------------------------------------------------

    def optional_records(self, field: str, dtype: DTypeLike) -> NDArray[Any] | None:
        """Read a vector of numbers or structs as an array of shape (n,); None if absent."""
        layout = np.dtype(dtype)
        span = self.vector(field, layout.itemsize)
        if span is None:
            return None
        start, count = span
        self.charge(field, count * layout.itemsize)
        return np.frombuffer(self._payload.data, dtype=layout, count=count, offset=start).copy()

    def records(self, field: str, dtype: DTypeLike) -> NDArray[Any]:
        """Read a vector of numbers or structs that must be present."""
        return self._required(field, self.optional_records(field, dtype))

    def _targets(self, field: str) -> list[int] | None:
        """Return the targets of a vector of offsets; at least 4 bytes follow each target."""
        span = self.vector(field, 4)
        if span is None:
            return None
        start, count = span
        self.charge(field, count * 4)
        data = self._payload.data
        targets = []
        for index, offset in enumerate(struct.unpack_from(f"<{count}I", data, start)):
            target = start + 4 * index + offset
            if offset == 0 or target > len(data) - 4:
                problem = f"it points to byte {target} of {len(data)}"
                raise self.error(f"{field}[{index}]", problem, found=target)
            targets.append(target)
        return targets

    def strings(self, field: str) -> list[str]:
        """Read a vector of strings that must be present."""
        targets = self._required(field, self._targets(field))
        return [self._string_at(f"{field}[{i}]", target) for i, target in enumerate(targets)]

    def optional_children(
        self, field: str, schema: TableSchema, rows: Iterable[int] | None = None
    ) -> Iterator[Table] | None:
        """Read the tables of a vector, or some of them, one at a time; None if it is absent."""
        targets = self._targets(field)
        if targets is None:
            return None
        payload, chosen = self._payload, range(len(targets)) if rows is None else rows
        return (Table(payload, targets[i], schema, (self, field, i)) for i in chosen)

    def children(
        self, field: str, schema: TableSchema, rows: Iterable[int] | None = None
    ) -> Iterator[Table]:
        """Read the tables of a vector that must be present, or some of them, one at a time."""
        return self._required(field, self.optional_children(field, schema, rows))

    # -- tables and unions --------------------------------------------------------------------

    def optional_child(self, field: str, schema: TableSchema) -> Table | None:
        """Read a table; None if absent."""
        target = self._follow(field)
        return None if target is None else Table(self._payload, target, schema, (self, field, -1))

    def child(self, field: str, schema: TableSchema) -> Table:
        """Read a table that must be present."""
        return self._required(field, self.optional_child(field, schema))

    def union_kind(self, field: str) -> int:
        """Read the kind of a required union; ``child`` then reads its value."""
        kind = self.number(f"{field}_type")
        if kind == 0 or not self.has(field):
            raise self.error(
                field,
                f"its kind is {kind}, its value is {'present' if self.has(field) else 'absent'}; "
                "a kind above 0 with a value is required",
                found=kind,
            )
        return kind


def read_root(data: bytes, schema: TableSchema, *, object_key: str, file_type: str) -> Table:
    """Return the root table of a decompressed flatbuffer."""
    payload = _Payload(data, object_key, file_type)
    if len(data) < 8:
        raise FormatError(
            f"the flatbuffer has {len(data)} bytes; 8 is the least",
            object_key=object_key,
            file_type=file_type,
            field=schema.name,
        )
    return Table(payload, _U32.unpack_from(data, 0)[0], schema, None)
