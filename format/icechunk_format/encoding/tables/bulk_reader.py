"""Reads vectors of a million flatbuffers tables as NumPy columns, without an object per table.

A manifest or a transaction log is a few tables around one huge vector of small tables; NumPy
gathers follow all its offsets together.

Rules of this file
------------------
1. Every offset, length and count is checked, for all rows together, *before* its target is read.
   Only ``FormatError`` is raised, whatever the bytes are.
2. Memory is bounded by the size of the buffer: a vector must fit into it, and tables must not share
   vectors so that the copies exceed it.
3. Alignment is not required, since gathers do not need it.
4. Absent fields become defaults; ``Tables.has`` marks the rows with a field.
5. All steps from a vector to a column are in this file, since each relies on earlier checks.

A column is read in these steps: table position -> its vtable (nearly all tables share a few, so
vtables are numbered once and each row keeps a number) -> offset of the field in the table ->
gather. In most lists all tables share one vtable. Then checking the last table covers all of them,
and small files take few NumPy calls.

Spec: https://flatbuffers.dev/internals. The writing side is `bulk_writer`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, Never

import numpy as np
from numpy.typing import DTypeLike, NDArray

from icechunk_format.encoding.tables.byte_ranges import byte_windows, ragged_rows
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.vtables import SharedVtable, number_vtables
from icechunk_format.errors import FormatError

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_OFFSET_SIZE: Final = 4
_VTABLE_HEADER: Final = 4


class VectorReader:
    """Bounds-checked gathers from one decompressed flatbuffer, which is not copied."""

    __slots__ = ("_where", "data")

    def __init__(
        self, payload: bytes | memoryview, *, object_key: str = "<bytes>", file_type: str = "object"
    ) -> None:
        self.data: NDArray[np.uint8] = np.frombuffer(payload, dtype=np.uint8)
        self._where = {"object_key": object_key, "file_type": file_type}

    def fail(self, problem: str, field: str, **facts: Any) -> Never:
        """Raise the ``FormatError`` of this buffer."""
        raise FormatError(
            f"{problem}; the object is damaged or was not written by this format",
            field=field,
            **self._where,
            **facts,
        )

    def gather(
        self, positions: NDArray[np.int64], size: int, field: str
    ) -> NDArray[np.void] | NDArray[np.uint8]:
        """Copy ``size`` bytes from each position."""
        self.check(positions, size, field)
        if not positions.size:
            return np.empty(0, dtype=f"V{size}")
        return byte_windows(self.data, size)[positions]

    def check(self, positions: NDArray[np.int64], size: int, field: str) -> None:
        """Raise unless ``size`` bytes from every position are inside the buffer."""
        if positions.size and not (
            int(np.min(positions)) >= 0 and int(np.max(positions)) + size <= self.data.size
        ):
            self.fail(f"an offset points outside the {self.data.size} bytes", field)

    def check_ranges(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], size: int, field: str
    ) -> None:
        """Raise unless ``lengths`` elements of ``size`` bytes from every start are inside."""
        if not starts.size:
            return
        # Lengths are below 2**32 and sizes are small, so 64 bits do not overflow.
        if int(np.min(starts)) < 0:
            self.fail(f"a vector exceeds the {self.data.size} bytes of the object", field)
        self.check_end(int(np.max(starts + lengths * size)), field)

    def check_end(self, end: int, field: str) -> None:
        """Raise if a position is after the end of the buffer."""
        if end > self.data.size:
            self.fail(f"a vector exceeds the {self.data.size} bytes of the object", field)

    def numbers(
        self, positions: NDArray[np.int64], dtype: DTypeLike, field: str
    ) -> NDArray[np.int64]:
        """Read one little-endian number per position as int64 (so not for uint64)."""
        kind = np.dtype(dtype)
        return self.gather(positions, kind.itemsize, field).view(kind).astype(np.int64)

    def offsets(self, positions: NDArray[np.int64], field: str) -> NDArray[np.int64]:
        """Read one offset per position, none of them 0."""
        found = self.numbers(positions, "<u4", field)
        if found.size and not found.all():
            self.fail("an offset points to itself", field)
        return found

    def number(self, position: int, kind: struct.Struct, field: str) -> int:
        """Read one number, or raise if it is not inside the buffer."""
        if not 0 <= position <= self.data.size - kind.size:
            self.fail(f"an offset points outside the {self.data.size} bytes", field)
        found: int = kind.unpack_from(self.data.data, position)[0]
        return found

    def root(self, schema: TableSchema, field: str) -> Tables:
        """Return the root table as one row."""
        at = self.number(0, _U32, field)
        return Tables(self, np.array([at], dtype=np.int64), schema, field)

    def tables_between(self, start: int, count: int, schema: TableSchema, field: str) -> Tables:
        """Return the tables that ``count`` 32-bit offsets from ``start`` point to."""
        if not 0 <= start <= self.data.size - count * _OFFSET_SIZE:
            self.fail(f"a vector of {count} tables exceeds the object", field, count=count)
        offsets = self.data[start : start + count * _OFFSET_SIZE].view("<u4")
        end = start + count * _OFFSET_SIZE
        positions = np.arange(start, end, _OFFSET_SIZE, dtype=np.int64)
        positions += offsets
        return Tables(self, positions, schema, field)

    def tables_of(self, spans: Ranges, schema: TableSchema, field: str) -> Tables:
        """Return the tables of several vectors of offsets, in order."""
        cells = spans.cells(_OFFSET_SIZE)
        return Tables(self, cells + self.offsets(cells, field), schema, field)

    def struct_rows(self, start: int, count: int, size: int, field: str) -> NDArray[np.uint8]:
        """Copy ``count`` consecutive structs of ``size`` bytes: uint8, shape (count, size)."""
        if not 0 <= start <= self.data.size - count * size:
            self.fail(f"a vector of {count} structs exceeds the object", field, count=count)
        return self.data[start : start + count * size].reshape(count, size).copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """The position and the number of elements of a vector or string per row; 0 if absent."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def take(self, rows: NDArray[np.intp]) -> Ranges:
        """Return the ranges of some rows."""
        return Ranges(starts=self.starts[rows], lengths=self.lengths[rows])

    def cells(self, step: int) -> NDArray[np.int64]:
        """Return the positions of the elements of all rows; an element has ``step`` bytes."""
        within = ragged_rows(np.zeros_like(self.lengths), self.lengths)
        return np.repeat(self.starts, self.lengths) + step * within


class Tables:
    """Rows of tables of one type, read by column; their vtables are checked when it is made.

    ``positions`` are the starts of the tables, and ``field`` the prefix of field names in messages.
    """

    def __init__(
        self, reader: VectorReader, positions: NDArray[np.int64], schema: TableSchema, field: str
    ) -> None:
        self.reader = reader
        self.positions = positions
        self._fields = schema.fields
        self._field = field
        self._slots: dict[int, NDArray[np.int64]] = {}
        if len(positions) == 1:
            last = int(positions[0])
            self._shared = self._read_shared(last - reader.number(last, _I32, field), last)
            return
        vtables = positions - reader.numbers(positions, "<i4", field)
        self._vtables, self._codes = number_vtables(vtables)
        if self._codes is None and positions.size:
            self._shared = self._read_shared(int(self._vtables[0]), int(np.max(positions)))
            return
        self._shared = None
        sizes = reader.gather(self._vtables, _VTABLE_HEADER, f"{field} vtable").view("<u2")
        sizes = sizes.reshape(-1, 2).astype(np.int64)
        self._vtable_sizes, self._table_sizes = sizes[:, 0], sizes[:, 1]
        is_odd = (self._vtable_sizes < _VTABLE_HEADER) | (self._vtable_sizes & 1 != 0)
        if (is_odd | (self._table_sizes < _OFFSET_SIZE)).any():
            reader.fail("a vtable has an impossible size", field)
        reader.check_ranges(self._vtables, self._vtable_sizes, 1, f"{field} vtable")
        reader.check_ranges(positions, self._spread(self._table_sizes), 1, field)

    def _read_shared(self, at: int, last: int) -> SharedVtable | None:
        """Check the shared vtable, and that all tables are inside the buffer.

        Tables cannot start before the buffer, since their unsigned offsets have been read.
        """
        reader, field = self.reader, self._field
        size = reader.number(at, _U16, f"{field} vtable")
        table_size = reader.number(at + _U16.size, _U16, f"{field} vtable")
        if size < _VTABLE_HEADER or size & 1 or table_size < _OFFSET_SIZE:
            reader.fail("a vtable has an impossible size", field)
        reader.check_end(at + size, f"{field} vtable")
        reader.check_end(last + table_size, field)
        return SharedVtable(at, size, table_size, last)

    def __len__(self) -> int:
        return len(self.positions)

    def _spread(self, per_vtable: NDArray[Any]) -> NDArray[Any]:
        """Expand one value per vtable to one per row."""
        if self._codes is not None:
            return per_vtable[self._codes]
        return np.empty(0, dtype=per_vtable.dtype)

    def _offsets(self, slot: int, size: int, name: str) -> NDArray[np.int64]:
        """Return the offset of a field in its table for each vtable; 0 if the vtable lacks it.

        The first ``size`` bytes of the field must be inside the buffer.
        """
        field = f"{self._field}.{name}"
        offsets = self._slots.get(slot)
        if offsets is None:
            entry = _VTABLE_HEADER + 2 * slot
            offsets = np.zeros(self._vtables.shape, dtype=np.int64)
            known = np.flatnonzero(self._vtable_sizes >= entry + 2)
            if known.size:
                offsets[known] = self.reader.numbers(self._vtables[known] + entry, "<u2", field)
            self._slots[slot] = offsets
        if ((offsets != 0) & (offsets < _OFFSET_SIZE)).any():
            self._fail_over_vtable(field)
        beyond = offsets + size > self._table_sizes
        if beyond.any():
            # Older builders let tables of several sizes share a vtable, so its table size does not
            # bound these fields; they are checked against the file.
            rows = self._spread(beyond)
            at = self.positions[rows] + self._spread(offsets)[rows]
            self.reader.check_ranges(at, np.ones_like(at), size, field)
        return offsets

    def _shared_offset(self, shared: SharedVtable, slot: int, size: int, name: str) -> int:
        """Return the offset of a field, as ``_offsets`` does, for a list with one vtable."""
        entry = _VTABLE_HEADER + 2 * slot
        if shared.size < entry + 2:
            return 0
        offset: int = _U16.unpack_from(self.reader.data.data, shared.at + entry)[0]
        if 0 < offset < _OFFSET_SIZE:
            self._fail_over_vtable(f"{self._field}.{name}")
        if offset and offset + size > shared.table_size:
            self.reader.check_end(shared.last + offset + size, f"{self._field}.{name}")
        return offset

    def _fail_over_vtable(self, field: str) -> Never:
        self.reader.fail("the field overlaps the first offset of its table", field)

    def has(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the rows that have a field."""
        slot = self._fields[name].slot
        if self._shared is not None:
            is_there = self._shared_offset(self._shared, slot, 1, name) != 0
            return np.full(len(self), is_there, dtype=np.bool_)
        return self._spread(self._offsets(slot, 1, name) != 0)

    def has_all(self, name: str) -> bool:
        """Return True if every row has a field."""
        slot = self._fields[name].slot
        if self._shared is not None:
            return self._shared_offset(self._shared, slot, 1, name) != 0
        return bool(self._spread(self._offsets(slot, 1, name) != 0).all())

    def _cells(self, name: str) -> tuple[NDArray[np.intp] | None, NDArray[Any] | None]:
        """Copy a field: the rows that have it (None for all), and their bytes (None if none)."""
        slot, size = self._fields[name].slot, self._fields[name].size
        if self._shared is not None:
            offset = self._shared_offset(self._shared, slot, size, name)
            if not offset:
                return None, None
            # The field of the last table is inside the buffer, so those of the others are.
            data = self.reader.data
            shape = (data.size - offset - size + 1,)
            windows: NDArray[Any] = np.ndarray(shape, f"V{size}", data.data, offset, (1,))
            return None, windows[self.positions]
        rows, at = self._present(name)
        if not at.size:
            return None, None
        return rows, self.reader.gather(at, size, f"{self._field}.{name}")

    def _present(self, name: str) -> tuple[NDArray[np.intp] | None, NDArray[np.int64]]:
        """Return the rows that have a field (None for all), and the field's positions."""
        slot, size = self._fields[name].slot, self._fields[name].size
        if self._shared is not None:
            offset = self._shared_offset(self._shared, slot, size, name)
            if offset:
                return None, self.positions + offset
            return np.empty(0, dtype=np.intp), self.positions[:0]
        offsets = self._offsets(slot, size, name)
        if len(self) and (offsets != 0).all():
            return None, self.positions + self._spread(offsets)
        rows = np.flatnonzero(self._spread(offsets))
        return rows, self.positions[rows] + self._spread(offsets)[rows]

    def require(self, *names: str) -> None:
        """Raise unless every row has the required fields."""
        for name in names:
            if not self.has_all(name):
                self.reader.fail(
                    "a required field is absent", f"{self._field}.{name}", missing=name
                )

    def column(self, name: str, default: int = 0) -> NDArray[Any]:
        """Read a number, shape (n,), or an id, uint8 of shape (n, size), per row.

        Rows without the field have ``default``, or an id of zeros.
        """
        kind = self._fields[name].dtype
        rows, cells = self._cells(name)
        if cells is not None:
            cells = cells.view(kind.base).reshape(-1, *kind.shape)
            if rows is None:
                return cells
        filled = np.zeros(len(self), dtype=kind)
        if default:
            filled[:] = default
        if cells is not None:
            filled[rows] = cells
        return filled

    def _heads(
        self, name: str
    ) -> tuple[NDArray[np.intp] | None, NDArray[np.int64], NDArray[np.int64]]:
        """Follow the offset of a vector field; return rows, first element and element count."""
        field = f"{self._field}.{name}"
        rows, at = self._present(name)
        if len(at) == 1:
            one = int(at[0])
            offset = self.reader.number(one, _U32, field)
            if not offset:
                self.reader.fail("an offset points to itself", field)
            one += offset
            count = self.reader.number(one, _U32, field)
            ends = np.array([one + _OFFSET_SIZE, count], dtype=np.int64)
            return rows, ends[:1], ends[1:]
        heads = at + self.reader.offsets(at, field)
        counts = self.reader.numbers(heads, "<u4", field)
        heads += _OFFSET_SIZE
        return rows, heads, counts

    def targets(self, name: str) -> NDArray[np.int64]:
        """Return the unchecked starts of the required tables of a field: int64."""
        self.require(name)
        _, at = self._present(name)
        return at + self.reader.offsets(at, f"{self._field}.{name}")

    def ranges(self, name: str, element_size: int = 1) -> Ranges:
        """Locate a vector or string per row; every range is inside the buffer."""
        rows, starts, lengths = self._heads(name)
        self.reader.check_ranges(starts, lengths, element_size, f"{self._field}.{name}")
        if rows is None:
            return Ranges(starts=starts, lengths=lengths)
        found = np.zeros((2, len(self)), dtype=np.int64)
        found[:, rows] = starts, lengths
        return Ranges(starts=found[0], lengths=found[1])

    def coordinates(self, name: str) -> NDArray[np.uint32]:
        """Read a required vector of uint32 per row, the same number of elements in each."""
        field = f"{self._field}.{name}"
        self.require(name)
        _, starts, lengths = self._heads(name)
        count = int(lengths[0]) if lengths.size else 0
        if lengths.size and (lengths != count).any():
            odd = int(lengths[lengths != count][0])
            problem = f"vectors of {count} and of {odd} elements in one list"
            self.reader.fail(problem, field, found=(count, odd))
        if (size := len(self) * count * _U32.size) > self.reader.data.size:
            problem = "the vectors exceed the bytes of the object"
            self.reader.fail(problem, field, found=size, allowed=self.reader.data.size)
        if not count:
            return np.empty((len(self), 0), dtype=np.uint32)
        packed = self.reader.gather(starts, count * _U32.size, field)
        return packed.view("<u4").reshape(len(self), count)

    def table_vectors(self, name: str, schema: TableSchema) -> list[Tables]:
        """Return the required vector of tables of each row, for short lists of rows."""
        self.require(name)
        found = self.ranges(name, _OFFSET_SIZE)
        if int(found.lengths.sum()) * _OFFSET_SIZE > self.reader.data.size:
            self.reader.fail("the vectors of tables exceed the object", name)
        return [
            self.reader.tables_between(start, count, schema, name)
            for start, count in zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
        ]
