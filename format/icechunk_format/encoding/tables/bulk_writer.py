"""Writes vectors of a million flatbuffers tables from NumPy columns.

All tables of one kind share a layout, so they form one NumPy structured array, and their offsets
are computed for the whole column. The flatbuffers builder writes one field at a time, which takes
tens of seconds for a million tables.

Rules of this file
------------------
1. The buffer grows front to back and parents come before children, because the format's offsets are
   unsigned and point forward. Only a table's offset to its vtable may point anywhere.
2. Other readers verify alignment: numbers are at multiples of their size from the start of the
   buffer, lengths of vectors at multiples of 4, structs of bytes anywhere.
3. All tables of one kind share one vtable. A field is in all of them or in none; callers split rows
   that differ. Numbers that equal their default may be written.
4. A buffer stays below 2 GiB, the limit of every reader; a larger one raises ``InvalidInputError``.
5. Content too large for memory is made block by block while the buffer is written. Positions depend
   on sizes, never on content.

Spec: https://flatbuffers.dev/internals. The reading side is `bulk_reader`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.tables.byte_ranges import copy_ranges, is_run_start
from icechunk_format.encoding.tables.schema import OFFSET, TableSchema
from icechunk_format.encoding.tables.writer import FILE_IDENTIFIER, TableWriter
from icechunk_format.errors import InvalidInputError

MAX_BUFFER_SIZE: Final = 2**31 - 1
_HEADER_SIZE: Final = 8  # offset of the root, then the identifier
_CELLS_AT_ONCE: Final = 1 << 16
_VECTORS_AT_ONCE: Final = 1 << 12


class TableLayout:
    """Positions of the fields of tables of one kind, optionally followed by one vector.

    Parameters
    ----------
    names
        The fields that all tables have; None for those of the schema except ``extra``, which is
        reserved.
    embedded
        Number of uint32 elements of a vector stored after each table (chunk coordinates), or
        None. It becomes the columns ``embedded_length`` and ``embedded``.

    Attributes
    ----------
    dtype
        Structured dtype of one record: ``vtable``, the fields, the embedded vector, padding.
    offsets
        Byte offset of each column in a record.
    vtable
        Bytes of the shared vtable.
    """

    __slots__ = ("dtype", "offsets", "vtable")

    def __init__(
        self,
        schema: TableSchema,
        names: Iterable[str] | None = None,
        *,
        embedded: int | None = None,
    ) -> None:
        if names is None:
            names = [name for name in schema.fields if name != "extra"]
        fields = {name: schema.fields[name] for name in names}
        columns, offsets = ["vtable"], [0]
        formats: list[np.dtype[Any]] = [np.dtype("<i4")]
        entries = [0] * (1 + max((field.slot for field in fields.values()), default=-1))
        pending, end = dict(fields), 4
        while pending:
            # The field that needs the least padding, the largest of equal ones.
            name = min(pending, key=lambda n: (-end % pending[n].alignment, -pending[n].size))
            field = pending.pop(name)
            start = end + -end % field.alignment
            columns.append(name)
            formats.append(field.dtype)
            offsets.append(start)
            entries[field.slot] = start
            end = start + field.size
        self.vtable = struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), end, *entries)
        if embedded is not None:
            end += -end % 4
            columns += ["embedded_length", "embedded"]
            formats += [OFFSET, np.dtype(("<u4", (embedded,)))]
            offsets += [end, end + 4]
            end += 4 + 4 * embedded
        alignment = max([4, *(field.alignment for field in fields.values())])
        self.dtype = np.dtype(
            {
                "names": columns,
                "formats": formats,
                "offsets": offsets,
                "itemsize": end + -end % alignment,
            }
        )
        self.offsets = dict(zip(columns, offsets, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Tables of one kind with their positions; the caller fills in ``rows``, a structured array."""

    rows: NDArray[Any]
    positions: NDArray[np.int64]
    layout: TableLayout

    def point(self, name: str, targets: NDArray[np.int64] | int) -> None:
        """Set an offset field of every table to a later position in the buffer."""
        self.rows[name] = targets - (self.positions + self.layout.offsets[name])


class Assembly:
    """A flatbuffer under construction, from front to back."""

    __slots__ = ("_extra_apparent", "_head", "_remedy", "_segments", "_size", "_subject")

    def __init__(
        self, subject: str, *, remedy: str = "split it into several", is_part: bool = False
    ) -> None:
        """Start a buffer, without root offset and identifier if it is part of another buffer.

        ``subject`` and ``remedy`` are parts of the message for a buffer that is too large.
        """
        self._subject = subject
        self._remedy = remedy
        self._segments: list[NDArray[np.uint8] | Callable[[], Iterator[memoryview]]] = []
        self._size = 0
        self._extra_apparent = 0
        self._head = np.zeros(0, dtype=np.uint8)
        if not is_part:
            self._head = self.reserve(_HEADER_SIZE)[1]
            self._head[4:] = np.frombuffer(FILE_IDENTIFIER, dtype=np.uint8)

    @property
    def size(self) -> int:
        """Current size of the buffer in bytes."""
        return self._size

    def reserve(self, size: int, alignment: int = 4) -> tuple[int, NDArray[np.uint8]]:
        """Reserve the next ``size`` bytes; return their position, and zeroed bytes to fill in."""
        padding = -self._size % alignment
        self._check_room(padding + size)
        segment = np.zeros(padding + size, dtype=np.uint8)
        self._segments.append(segment)
        self._size += padding + size
        return self._size - size, segment[padding:]

    def _count_shared(self, size: int) -> None:
        # Other readers limit the bytes that they visit, so shared vtables and strings count
        # repeatedly.
        self._check_room(size)
        self._extra_apparent += size

    def _vtable(self, layout: TableLayout, count: int) -> int:
        """Write the vtable of ``count`` tables; return its position."""
        position, raw = self.reserve(len(layout.vtable), 2)
        raw[:] = np.frombuffer(layout.vtable, dtype=np.uint8)
        # Visiting a table reads its vtable twice, the size of that, and the offset to the table.
        self._count_shared(count * (2 * len(layout.vtable) + 2 + 4))
        return position

    def _check_room(self, size: int) -> None:
        total = self._size + self._extra_apparent + size
        if total > MAX_BUFFER_SIZE:
            raise InvalidInputError(
                f"{self._subject} needs at least {total} bytes before compression, but readers "
                f"accept {MAX_BUFFER_SIZE}; {self._remedy}",
                found=total,
                allowed=MAX_BUFFER_SIZE,
            )

    def records(self, layout: TableLayout, count: int) -> Records:
        """Reserve ``count`` tables; their vtable is written, their fields are zero."""
        vtable_at = self._vtable(layout, count)
        start, raw = self.reserve(count * layout.dtype.itemsize, 8)
        rows = raw.view(layout.dtype)
        step = layout.dtype.itemsize
        positions = np.arange(start, start + count * step, step, dtype=np.int64)
        rows["vtable"] = positions - vtable_at
        return Records(rows=rows, positions=positions, layout=layout)

    def root(self, layout: TableLayout) -> Records:
        """Reserve the root table."""
        made = self.records(layout, 1)
        self._head[:4] = np.frombuffer(struct.pack("<I", int(made.positions[0])), dtype=np.uint8)
        return made

    def offset_vector(self, count: int) -> tuple[int, OffsetVector]:
        """Reserve a vector of offsets to tables; return its position and its cells."""
        position, raw = self.reserve(4 + 4 * count)
        cells = raw.view(OFFSET)
        cells[0] = count
        return position, OffsetVector(cells=cells[1:], start=position + 4)

    def table_vector(self, layout: TableLayout, count: int) -> tuple[int, Records]:
        """Reserve a vector of offsets and the tables that they point to; return its position."""
        position, cells = self.offset_vector(count)
        tables = self.records(layout, count)
        cells.point(slice(None), tables.positions)
        return position, tables

    def offset_vectors(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], OffsetVector]:
        """Reserve a vector of offsets per row; return their positions and all cells."""
        heads = np.cumsum(counts + 1) - (counts + 1)
        base, raw = self.reserve(OFFSET.itemsize * (int(counts.sum()) + len(counts)))
        words = raw.view(OFFSET)
        words[heads] = counts
        is_cell = np.ones(len(words), dtype=np.bool_)
        is_cell[heads] = False
        at = np.flatnonzero(is_cell)
        cells = OffsetVector(cells=words, start=base, at=at)
        return base + OFFSET.itemsize * heads, cells

    def struct_vectors(
        self, counts: NDArray[np.int64], rows: NDArray[np.uint8]
    ) -> NDArray[np.int64]:
        """Write a vector of structs per row, aligned to 8; return their positions."""
        size = rows.shape[1]
        # The length directly precedes the structs, after four bytes of padding.
        spans = 8 + counts * size
        starts = np.cumsum(spans) - spans
        base, raw = self.reserve(int(spans.sum()), 8)
        raw.view("<u4")[(starts + 4) >> 2] = counts
        content = np.ascontiguousarray(rows).reshape(-1)
        copy_ranges(content, starts - 8 * np.arange(len(counts)), raw, starts + 8, counts * size)
        positions: NDArray[np.int64] = starts + (base + 4)
        return positions

    def struct_vector(self, rows: NDArray[np.uint8]) -> int:
        """Write a vector of byte structs, uint8 of shape (n, size); return its position."""
        position, raw = self.reserve(4 + rows.size)
        raw[:4] = np.frombuffer(struct.pack("<I", len(rows)), dtype=np.uint8)
        raw[4:] = rows.reshape(-1)
        return position

    def byte_vectors(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Write strings or byte vectors, one per row; equal neighbouring ranges are shared."""
        if not starts.size:
            return np.empty(0, dtype=np.int64)
        is_new = is_run_start(starts, lengths)
        run_starts, run_lengths = starts[is_new], lengths[is_new]
        sizes = (run_lengths + (4 + 1 + 3)) & ~3
        ends: NDArray[np.int64] = np.cumsum(sizes)
        base, raw = self.reserve(int(ends[-1]))
        heads = ends - sizes
        raw.view("<u4")[heads >> 2] = run_lengths
        copy_ranges(data, run_starts, raw, heads + 4, run_lengths)
        run_of_row = np.cumsum(is_new) - 1
        self._count_shared(int(lengths.sum()) - int(run_lengths.sum()))
        placed: NDArray[np.int64] = base + heads
        return placed[run_of_row]

    def streamed_byte_vectors(
        self,
        lengths: NDArray[np.int64],
        copy: Callable[[slice, NDArray[np.uint8], NDArray[np.int64]], None],
    ) -> NDArray[np.int64]:
        """Write byte vectors like ``byte_vectors``; ``copy`` fills a block when it is written."""
        sizes = (lengths + (4 + 1 + 3)) & ~3
        ends: NDArray[np.int64] = np.cumsum(sizes)
        heads = ends - sizes

        def blocks() -> Iterator[memoryview]:
            for begin in range(0, len(heads), _VECTORS_AT_ONCE):
                rows = slice(begin, begin + _VECTORS_AT_ONCE)
                positions = heads[rows] - heads[begin]
                raw = np.zeros(int(ends[rows][-1] - heads[begin]), dtype=np.uint8)
                raw.view("<u4")[positions >> 2] = lengths[rows]
                copy(rows, raw, positions + 4)
                yield memoryview(raw)

        self.reserve(0)
        return heads + self._later(int(sizes.sum()), blocks)

    def streamed_tables(
        self, layout: TableLayout, count: int, blocks: Callable[[], Iterable[NDArray[Any]]]
    ) -> int:
        """Reserve a vector of tables; ``blocks`` makes them when they are written."""
        position, length = self.reserve(4)
        length[:] = np.frombuffer(struct.pack("<I", count), dtype=np.uint8)
        cells_at = self._later(4 * count, lambda: _cells(count, start - cells_at, step))
        step = layout.dtype.itemsize
        vtable_at = self._vtable(layout, count)
        self.reserve(0, 8)
        start = self._later(count * step, lambda: _rows(blocks(), start - vtable_at))
        return position

    def _later(self, size: int, make: Callable[[], Iterator[memoryview]]) -> int:
        self._check_room(size)
        self._segments.append(make)
        self._size += size
        return self._size - size

    def blocks(self) -> Iterator[memoryview]:
        """Yield the buffer from front to back, holding one block at a time."""
        for segment in self._segments:
            if isinstance(segment, np.ndarray):
                yield memoryview(segment)
            else:
                yield from segment()

    def finish(self) -> bytes:
        """Return the whole buffer."""
        return b"".join(self.blocks())


def _cells(count: int, distance: int, step: int) -> Iterator[memoryview]:
    """Yield offsets to tables; the first is ``distance`` away, and tables are ``step`` apart."""
    for begin in range(0, count, _CELLS_AT_ONCE):
        rows = np.arange(begin, min(begin + _CELLS_AT_ONCE, count), dtype=np.int64)
        yield memoryview((distance + rows * (step - OFFSET.itemsize)).astype(OFFSET))


def _rows(blocks: Iterable[NDArray[Any]], distance: int) -> Iterator[memoryview]:
    """Yield tables with the offset to their vtable filled in."""
    for rows in blocks:
        ends = distance + len(rows) * rows.dtype.itemsize
        rows["vtable"] = np.arange(distance, ends, rows.dtype.itemsize)
        distance = ends
        yield memoryview(rows.view(np.uint8))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetVector:
    """The cells of one or many vectors of tables.

    ``cells`` are the 32-bit words from position ``start``; ``at`` are the indices of those that are
    offsets, None for all.
    """

    cells: NDArray[np.uint32]
    start: int
    at: NDArray[np.intp] | None = None

    def point(self, rows: NDArray[np.intp] | slice, targets: NDArray[np.int64]) -> None:
        """Set the cells of these rows to point to the tables at ``targets``."""
        at = np.arange(len(self.cells), dtype=np.intp) if self.at is None else self.at
        chosen = at[rows]
        self.cells[chosen] = targets - (self.start + OFFSET.itemsize * chosen)


# -- rows in the file of a TableWriter ----------------------------------------------------------


def write_rows(
    writer: TableWriter,
    rows: NDArray[Any],
    layout: TableLayout,
    **targets: Sequence[int] | NDArray[np.int64],
) -> NDArray[np.int64]:
    """Write tables of one layout whose named fields point to handles; return their handles."""
    vtable = writer.block(layout.vtable, alignment=2)
    row_handles = row_handles_of(writer, rows)
    point_rows(rows, row_handles, layout, vtable=vtable, **targets)
    writer.block(rows.tobytes(), alignment=8)
    return row_handles


def row_handles_of(writer: TableWriter, rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return the handles of the rows that are written next."""
    first, step = writer.handle_of(rows.nbytes, alignment=8), rows.dtype.itemsize
    return first - step * np.arange(len(rows), dtype=np.int64)


def point_rows(
    rows: NDArray[Any],
    row_handles: NDArray[np.int64],
    layout: TableLayout,
    *,
    vtable: int,
    **targets: Sequence[int] | NDArray[np.int64],
) -> None:
    """Set the offsets in tables, located by their handles, to the vtable and to ``targets``."""
    rows["vtable"] = vtable - row_handles
    for name, handles in targets.items():
        at = row_handles - layout.offsets[name]
        rows[name] = at - np.asarray(handles, dtype=np.int64)
