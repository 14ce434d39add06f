"""Vectors of flatbuffers tables read in bulk: columns out of a million tables, no object per table.

A manifest or a transaction log is a few tables around one huge vector of small tables. This module
follows the offsets of all of them at once with NumPy gathers.

Rules of this file
------------------
1. Every offset, length and count is checked, for all rows at once, *before* the bytes it points to
   are touched. Whatever the bytes are, only ``FormatError`` comes out.
2. Memory is bounded by the size of the buffer: a vector may not claim more elements than the
   buffer has bytes for, nor may many tables share one vector to multiply its content.
3. Alignment is not demanded. Readers elsewhere demand it, gathers do not need it.
4. Absent fields become defaults; ``Tables.has`` tells which rows have a field.

How a column is read: table position -> its vtable (nearly all tables share a few, so vtables are
numbered once and each row keeps a number) -> offset of the field in the table -> gather.

Spec: https://flatbuffers.dev/internals. The writing side is ``vector_assembly``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Never

import numpy as np

from icechunk_format.errors import FormatError
from icechunk_format.spec.byte_ranges import byte_windows

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_OFFSET_SIZE: Final = 4
_VTABLE_HEADER: Final = 4
# Tables of one list nearly always share a handful of vtables. Finding those by elimination costs
# one comparison per vtable and row; beyond this many, sorting is cheaper.
_MAX_ELIMINATED_VTABLES: Final = 24


class VectorReader:
    """Bounds-checked gathers from one decompressed flatbuffer.

    Parameters
    ----------
    payload
        The flatbuffer. It is not copied, and is kept alive by the reader only.
    object_key, file_type
        What the bytes are, for error texts.
    """

    __slots__ = ("_where", "data")

    def __init__(
        self, payload: bytes | memoryview, *, object_key: str = "<bytes>", file_type: str = "object"
    ) -> None:
        self.data: NDArray[np.uint8] = np.frombuffer(payload, dtype=np.uint8)
        self._where = {"object_key": object_key, "file_type": file_type}

    def fail(self, problem: str, field: str) -> Never:
        """Raise the ``FormatError`` of this buffer."""
        raise FormatError(
            f"{problem}; the object is damaged or was not written by this format",
            field=field,
            **self._where,
        )

    def gather(
        self, positions: NDArray[np.int64], size: int, field: str
    ) -> NDArray[np.void] | NDArray[np.uint8]:
        """Copy ``size`` bytes from each position.

        Parameters
        ----------
        positions
            int64, shape (n,): byte offsets in the buffer, unchecked.
        size
            Bytes to copy per row, above zero.

        Returns
        -------
        NDArray
            Shape (n,), dtype ``V<size>``; ``.view`` it as what it is.

        Raises
        ------
        FormatError
            Some row does not lie inside the buffer.
        """
        self.check(positions, size, field)
        if not positions.size:
            return np.empty(0, dtype=f"V{size}")
        return byte_windows(self.data, size)[positions]

    def check(self, positions: NDArray[np.int64], size: int, field: str) -> None:
        """Raise unless ``size`` bytes from every position lie inside the buffer."""
        if positions.size and not (
            int(np.min(positions)) >= 0 and int(np.max(positions)) + size <= self.data.size
        ):
            self.fail(f"an offset points outside the {self.data.size} bytes", field)

    def check_ranges(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], size: int, field: str
    ) -> None:
        """Raise unless ``lengths`` elements of ``size`` bytes from every start lie inside."""
        if not starts.size:
            return
        # Lengths are below 2**32 and sizes are small, so nothing here can overflow 64 bits.
        if int(np.min(starts)) < 0 or int(np.max(starts + lengths * size)) > self.data.size:
            self.fail(f"a vector claims more than the {self.data.size} bytes there are", field)

    def numbers(
        self, positions: NDArray[np.int64], dtype: DTypeLike, field: str
    ) -> NDArray[np.int64]:
        """Read one little-endian number per position; widened to int64 (so not for uint64)."""
        kind = np.dtype(dtype)
        return self.gather(positions, kind.itemsize, field).view(kind).astype(np.int64)

    def root(self, field: str = "root") -> Tables:
        """Return the root table as one row."""
        at = np.zeros(1, dtype=np.int64)
        return self.tables(at + self.numbers(at, "<u4", field), field)

    def tables(self, positions: NDArray[np.int64], field: str) -> Tables:
        """Return the tables at these positions as rows, with their vtables checked."""
        return Tables(self, positions, field)

    def table_vector(self, position: int, field: str) -> Tables:
        """Return the vector of tables whose 32-bit length lies at ``position``."""
        at = np.array([position], dtype=np.int64)
        count = int(self.numbers(at, "<u4", field)[0])
        return self.tables_between(position + _OFFSET_SIZE, count, field)

    def tables_between(self, start: int, count: int, field: str) -> Tables:
        """Return the tables that ``count`` 32-bit offsets from ``start`` on point to."""
        if not 0 <= start <= self.data.size - count * _OFFSET_SIZE:
            self.fail(f"a vector claims {count} tables, more than there are bytes for", field)
        offsets = self.data[start : start + count * _OFFSET_SIZE].view("<u4")
        positions = np.arange(count, dtype=np.int64)
        positions *= _OFFSET_SIZE
        positions += start
        positions += offsets
        return self.tables(positions, field)

    def struct_rows(self, start: int, count: int, size: int, field: str) -> NDArray[np.uint8]:
        """Copy ``count`` consecutive structs of ``size`` bytes: uint8, shape (count, size)."""
        if not 0 <= start <= self.data.size - count * size:
            self.fail(f"a vector claims {count} structs, more than there are bytes for", field)
        return self.data[start : start + count * size].reshape(count, size).copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """One vector or string per row: where its elements start, and how many there are.

    Parameters
    ----------
    starts
        int64, shape (n,): byte position of the first element; 0 where absent.
    lengths
        int64, shape (n,): number of elements; 0 where absent.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class Tables:
    """Rows of tables of one type, read by column.

    Parameters
    ----------
    reader
        The buffer.
    positions
        int64, shape (n,): where each table starts.
    field
        Name of the list, the prefix of field names in error texts.
    """

    __slots__ = (
        "_codes",
        "_field",
        "_slots",
        "_table_sizes",
        "_vtable_sizes",
        "_vtables",
        "positions",
        "r",
    )

    def __init__(self, reader: VectorReader, positions: NDArray[np.int64], field: str) -> None:
        self.r = reader
        self.positions = positions
        self._field = field
        self._slots: dict[int, NDArray[np.int64]] = {}
        vtables = positions - reader.numbers(positions, "<i4", field)
        self._vtables, self._codes = _number_vtables(vtables)
        sizes = reader.gather(self._vtables, _VTABLE_HEADER, f"{field} vtable").view("<u2")
        sizes = sizes.reshape(-1, 2).astype(np.int64)
        self._vtable_sizes, self._table_sizes = sizes[:, 0], sizes[:, 1]
        if (self._vtable_sizes < _VTABLE_HEADER).any() or (self._vtable_sizes & 1).any():
            reader.fail("a vtable has an impossible size", field)
        reader.check_ranges(self._vtables, self._vtable_sizes, 1, f"{field} vtable")
        reader.check_ranges(positions, self._spread(self._table_sizes), 1, field)

    def __len__(self) -> int:
        return len(self.positions)

    def _spread(self, per_vtable: NDArray[Any]) -> NDArray[Any]:
        """Turn one value per vtable into one per row."""
        if self._codes is not None:
            return per_vtable[self._codes]
        if not len(self):
            return np.empty(0, dtype=per_vtable.dtype)
        return np.broadcast_to(per_vtable[:1], self.positions.shape)

    def _offsets(self, slot: int, size: int, name: str) -> NDArray[np.int64]:
        """Offset of a field in its table for each vtable; 0 where the vtable lacks it."""
        field = f"{self._field}.{name}"
        offsets = self._slots.get(slot)
        if offsets is None:
            entry = _VTABLE_HEADER + 2 * slot
            offsets = np.zeros(self._vtables.shape, dtype=np.int64)
            known = np.flatnonzero(self._vtable_sizes >= entry + 2)
            if known.size:
                offsets[known] = self.r.numbers(self._vtables[known] + entry, "<u2", field)
            self._slots[slot] = offsets
        if ((offsets != 0) & (offsets < _OFFSET_SIZE)).any():
            self.r.fail("the field lies over the offset that its table starts with", field)
        beyond = offsets + size > self._table_sizes
        if beyond.any():
            # Older builders let tables of several sizes share a vtable, and others read what they
            # wrote. Such fields must lie in the file, as all others do by the size of their table.
            rows = self._spread(beyond)
            at = self.positions[rows] + self._spread(offsets)[rows]
            self.r.check_ranges(at, np.ones_like(at), size, field)
        return offsets

    def has(self, slot: int, name: str) -> NDArray[np.bool_]:
        """Tell which rows have a field: bool, shape (n,)."""
        return self._spread(self._offsets(slot, 1, name) != 0)

    def _present(
        self, slot: int, size: int, name: str
    ) -> tuple[NDArray[np.intp] | None, NDArray[np.int64]]:
        """Return the rows that have a field (None for all) and where the field lies in those."""
        offsets = self._offsets(slot, size, name)
        if len(self) and (offsets != 0).all():
            return None, self.positions + self._spread(offsets)
        rows = np.flatnonzero(self._spread(offsets))
        return rows, self.positions[rows] + self._spread(offsets)[rows]

    def require(self, slot: int, name: str) -> None:
        """Raise unless every row has a field that the format requires."""
        if not self.has(slot, name).all():
            self.r.fail("a required field is absent", f"{self._field}.{name}")

    def scalars(self, slot: int, name: str, dtype: DTypeLike, default: int = 0) -> NDArray[Any]:
        """Read a number per row: ``dtype``, shape (n,), ``default`` where absent."""
        kind = np.dtype(dtype)
        rows, at = self._present(slot, kind.itemsize, name)
        found = self.r.gather(at, kind.itemsize, f"{self._field}.{name}").view(kind)
        return _fill(found, rows, np.full(len(self), default, dtype=kind))

    def structs(self, slot: int, name: str, size: int) -> NDArray[np.uint8]:
        """Read a struct per row: uint8, shape (n, size), zeros where absent."""
        rows, at = self._present(slot, size, name)
        found = self.r.gather(at, size, f"{self._field}.{name}").view(np.uint8).reshape(-1, size)
        return _fill(found, rows, np.zeros((len(self), size), dtype=np.uint8))

    def _heads(
        self, slot: int, name: str
    ) -> tuple[NDArray[np.intp] | None, NDArray[np.int64], NDArray[np.int64]]:
        """Follow the offset of a vector field; return rows, first element and element count."""
        field = f"{self._field}.{name}"
        rows, at = self._present(slot, _OFFSET_SIZE, name)
        heads = at + self.r.numbers(at, "<u4", field)
        counts = self.r.numbers(heads, "<u4", field)
        heads += _OFFSET_SIZE
        return rows, heads, counts

    def ranges(self, slot: int, name: str, element_size: int = 1) -> Ranges:
        """Locate a vector or string per row; every range is inside the buffer."""
        rows, starts, lengths = self._heads(slot, name)
        self.r.check_ranges(starts, lengths, element_size, f"{self._field}.{name}")
        return Ranges(
            starts=_fill(starts, rows, np.zeros(len(self), dtype=np.int64)),
            lengths=_fill(lengths, rows, np.zeros(len(self), dtype=np.int64)),
        )

    def matrix(self, slot: int, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """Read a required vector per row, the same number of elements in each.

        Returns
        -------
        NDArray
            ``dtype``, shape (n, k). A dtype with a shape, such as ``("<u4", 2)`` for a struct of
            two numbers, gives (n, k, 2). With no rows, k is 0.

        Raises
        ------
        FormatError
            A row lacks the field, rows differ in length, or rows share their elements to claim
            more than the buffer holds.
        """
        field = f"{self._field}.{name}"
        kind = np.dtype(dtype)
        self.require(slot, name)
        _, starts, lengths = self._heads(slot, name)
        count = int(lengths[0]) if lengths.size else 0
        if lengths.size and (lengths != count).any():
            odd = int(lengths[lengths != count][0])
            self.r.fail(f"vectors of {count} and of {odd} elements in one list", field)
        if len(self) * count * kind.itemsize > self.r.data.size:
            self.r.fail("the vectors claim more bytes than the object has", field)
        if not count:
            return np.empty((len(self), 0, *kind.shape), dtype=kind.base)
        packed = self.r.gather(starts, count * kind.itemsize, field)
        return packed.view(kind.base).reshape(len(self), count, *kind.shape)

    def table_vectors(self, slot: int, name: str) -> list[Tables]:
        """Return a required vector of tables per row; for short lists of rows."""
        self.require(slot, name)
        found = self.ranges(slot, name, _OFFSET_SIZE)
        if int(found.lengths.sum()) * _OFFSET_SIZE > self.r.data.size:
            self.r.fail("the vectors claim more tables than there are bytes for", name)
        return [
            self.r.tables_between(start, count, name)
            for start, count in zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
        ]


def _fill(
    found: NDArray[Any], rows: NDArray[np.intp] | None, defaults: NDArray[Any]
) -> NDArray[Any]:
    if rows is None:
        return found
    defaults[rows] = found
    return defaults


def _number_vtables(
    vtables: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.intp] | None]:
    """Return the distinct vtables and, per row, the number of its own (None when all agree)."""
    if not vtables.size:
        return vtables, None
    first = vtables[0]
    is_left = vtables != first
    if not is_left.any():
        return vtables[:1], None
    distinct = [first]
    codes = np.zeros(vtables.shape, dtype=np.intp)
    while len(distinct) < _MAX_ELIMINATED_VTABLES:
        at = int(is_left.argmax())
        if not is_left[at]:
            return np.array(distinct, dtype=np.int64), codes
        is_same = vtables == vtables[at]
        codes[is_same] = len(distinct)
        distinct.append(vtables[at])
        is_left &= ~is_same
    found, inverse = np.unique(vtables, return_inverse=True)
    return found, inverse.reshape(-1)
