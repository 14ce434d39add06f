"""Columns read from vectors of tables equal what was written, by the library and by ourselves.

The flatbuffers runtime is the oracle for the layout. Damage, wherever it is, gives FormatError.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import flatbuffers
import numpy as np
from flatbuffers import number_types
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.tables.bulk_reader import Tables, VectorReader
from icechunk_format.encoding.tables.bulk_writer import Assembly, TableLayout
from icechunk_format.encoding.tables.byte_ranges import copy_ranges
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.errors import FormatError, InvalidInputError

# One row of the test table: coordinates, number, text, id.
Row = tuple[tuple[int, ...], int | None, str | None, bytes | None]
ROOT = TableSchema("Root", rows="offset")
ROW = TableSchema("Row", index="offset", number="u64", text="offset", raw="id8")
u32 = st.integers(0, 2**32 - 1)


def rows_of(ndim: int) -> st.SearchStrategy[list[Row]]:
    row = st.tuples(
        st.tuples(*[u32] * ndim),
        st.none() | st.integers(1, 2**64 - 1),
        st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.none() | st.binary(min_size=8, max_size=8),
    )
    return st.lists(row, max_size=12)


def write_with_the_library(rows: list[Row]) -> bytes:
    builder = flatbuffers.Builder(64)
    positions = []
    for coords, number, text, raw in rows:
        name = builder.CreateString(text) if text is not None else None
        builder.StartVector(4, len(coords), 4)
        for value in reversed(coords):
            builder.PrependUint32(value)
        index = builder.EndVector()
        builder.StartObject(4)
        builder.PrependUOffsetTRelativeSlot(0, index, 0)
        if number is not None:
            builder.PrependUint64Slot(1, number, 0)
        if name is not None:
            builder.PrependUOffsetTRelativeSlot(2, name, 0)
        if raw is not None:
            builder.Prep(1, 8)
            for byte in reversed(raw):
                builder.PrependByte(byte)
            builder.PrependStructSlot(3, builder.Offset(), 0)
        positions.append(builder.EndObject())
    builder.StartVector(4, len(positions), 4)
    for position in reversed(positions):
        builder.PrependUOffsetTRelative(position)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"Ichk")
    return bytes(builder.Output())


def read_columns(payload: bytes) -> list[Row]:
    (tables,) = VectorReader(payload).root(ROOT, "root").table_vectors("rows", ROW)
    coords = tables.coordinates("index")
    numbers = tables.column("number")
    texts = tables.ranges("text")
    raws = tables.column("raw")
    has = [tables.has(name).tolist() for name in ROW.fields]
    return [
        (
            tuple(coords[i].tolist()),
            int(numbers[i]) if has[1][i] else None,
            text_at(payload, texts.starts[i], texts.lengths[i]) if has[2][i] else None,
            raws[i].tobytes() if has[3][i] else None,
        )
        for i in range(len(tables))
    ]


def text_at(payload: bytes, start: Any, length: Any) -> str:
    return payload[int(start) : int(start) + int(length)].decode()


@settings(deadline=None)
@given(st.integers(0, 4).flatmap(rows_of))
def test_columns_equal_the_rows_that_the_library_wrote(rows: list[Row]) -> None:
    assert read_columns(write_with_the_library(rows)) == rows


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 3))
def test_any_number_of_different_vtables_is_read(count: int, gap: int) -> None:
    # Each table has its own vtable, more than the ones found by elimination.
    rows = []
    body = bytearray()
    for i in range(count):
        vtable_at = len(body)
        body += struct.pack("<4H", 8, 12 + 4 * gap, 0, 8 + 4 * gap)
        table_at = len(body)
        body += struct.pack("<ii", table_at - vtable_at, 0) + bytes(4 * gap)
        body += struct.pack("<I", i + 7)
        rows.append(table_at)
    reader = VectorReader(bytes(body))
    schema = TableSchema("Other", absent="offset", number="u32")
    tables = Tables(reader, np.array(rows * 2, dtype=np.int64), schema, "rows")
    assert tables.column("number").tolist() == [i + 7 for i in range(count)] * 2
    assert not tables.has("absent").any()


def assemble(rows: list[tuple[tuple[int, ...], int, str, bytes]], ndim: int) -> bytes:
    made = Assembly("the test buffer")
    root = made.root(TableLayout(ROOT))
    at, records = made.table_vector(TableLayout(ROW, embedded=ndim), len(rows))
    root.point("rows", at)
    records.point("index", records.positions + records.layout.offsets["embedded_length"])
    records.rows["embedded_length"] = ndim
    if rows:
        records.rows["embedded"] = np.array([r[0] for r in rows], dtype=np.uint32).reshape(
            len(rows), ndim
        )
        records.rows["number"] = np.array([r[1] for r in rows], dtype=np.uint64)
        records.rows["raw"] = np.frombuffer(b"".join(r[3] for r in rows), np.uint8).reshape(-1, 8)
    texts = [r[2].encode() for r in rows]
    lengths = np.array([len(t) for t in texts], dtype=np.int64)
    records.point(
        "text",
        made.byte_vectors(
            np.frombuffer(b"".join(texts), np.uint8), np.cumsum(lengths) - lengths, lengths
        ),
    )
    return made.finish()


full_rows = st.integers(0, 4).flatmap(
    lambda ndim: st.tuples(
        st.just(ndim),
        st.lists(
            st.tuples(
                st.tuples(*[u32] * ndim),
                st.integers(0, 2**64 - 1),
                st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
                st.binary(min_size=8, max_size=8),
            ),
            max_size=9,
        ),
    )
)


@settings(deadline=None)
@given(full_rows)
def test_assembled_rows_come_back(case: tuple[int, list[Any]]) -> None:
    ndim, rows = case
    assert read_columns(assemble(rows, ndim)) == rows


@settings(deadline=None)
@given(full_rows)
def test_the_library_reads_assembled_rows(case: tuple[int, list[Any]]) -> None:
    ndim, rows = case
    payload = bytearray(assemble(rows, ndim))
    root_at = flatbuffers.encode.Get(flatbuffers.packer.uoffset, payload, 0)
    root = flatbuffers.table.Table(payload, root_at)
    start = root.Vector(root.Offset(4))
    assert root.VectorLen(root.Offset(4)) == len(rows)
    for i, (coords, number, text, raw) in enumerate(rows):
        table = flatbuffers.table.Table(payload, root.Indirect(start + 4 * i))
        index = table.Vector(table.Offset(4))
        assert index % 4 == 0
        assert tuple(struct.unpack_from(f"<{ndim}I", payload, index)) == coords
        number_at = table.Pos + table.Offset(6)
        assert number_at % 8 == 0
        assert table.Get(number_types.Uint64Flags, number_at) == number
        assert table.String(table.Pos + table.Offset(8)).decode() == text
        raw_at = table.Pos + table.Offset(10)
        assert payload[raw_at : raw_at + 8] == raw
    assert payload[4:8] == b"Ichk"


def test_neighbours_with_one_range_share_one_string() -> None:
    text = b"s3://bucket/one-file.nc"
    made = Assembly("the test buffer")
    starts = np.array([0, 0, 0, 5, 0], dtype=np.int64)
    lengths = np.array([23, 23, 23, 6, 23], dtype=np.int64)
    at = made.byte_vectors(np.frombuffer(text, np.uint8), starts, lengths).tolist()
    payload = made.finish()
    assert at[0] == at[1] == at[2] < at[3] < at[4]
    found = [text_at(payload, a + 4, struct.unpack_from("<I", payload, a)[0]) for a in at]
    assert found == [text.decode()] * 3 + ["bucket"] + [text.decode()]
    assert payload.count(b"one-file") == 2


def test_a_buffer_beyond_the_limit_of_readers_is_refused() -> None:
    made = Assembly("manifest 'X'")
    with raises(InvalidInputError, found=3120000024, allowed=2147483647):
        made.records(TableLayout(ROW, embedded=3), 40_000_000)


def test_sharing_cannot_hide_from_the_limit_of_readers() -> None:
    made = Assembly("manifest 'X'")
    text = np.zeros(1_000_000, dtype=np.uint8)
    starts = np.zeros(3000, dtype=np.int64)
    with raises(InvalidInputError, found=3000000016, allowed=2147483647):
        made.byte_vectors(text, starts, starts + text.size)


@given(rows_of(2).filter(bool), st.data())
@settings(deadline=None, max_examples=400)
def test_damage_only_gives_format_errors(rows: list[Row], data: st.DataObject) -> None:
    payload = bytearray(write_with_the_library(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.sampled_from([0, 1, 4, 127, 128, 255]))
    cut = bytes(payload[: len(payload) - data.draw(st.sampled_from([0, 0, 1, 4, 9]))])
    with contextlib.suppress(FormatError, UnicodeDecodeError):
        read_columns(cut)


def tables_over(payload: bytes, positions: list[int], schema: TableSchema = ROW) -> Tables:
    return Tables(VectorReader(payload), np.array(positions, dtype=np.int64), schema, "rows")


def test_a_count_beyond_the_buffer_takes_no_memory() -> None:
    payload = struct.pack("<II4s", 8, 0, b"\xff\xff\xff\xff") + bytes(40)
    with raises(FormatError, field="rows", count=4294967295):
        VectorReader(payload).tables_between(12, 4294967295, ROW, "rows")


def test_one_vector_shared_by_many_tables_is_refused() -> None:
    # vtable at 0, table at 8 with its index at 16: 1000 elements, and 100 tables that share it.
    payload = struct.pack("<4H", 6, 8, 4, 0) + struct.pack("<iI", 8, 4)
    payload += struct.pack("<I", 1000) + bytes(4000)
    assert tables_over(payload, [8]).coordinates("index").shape == (1, 1000)
    with raises(FormatError, field="rows.index", found=400_000, allowed=len(payload)):
        tables_over(payload, [8] * 100).coordinates("index")


def test_lists_that_claim_more_than_there_is_are_refused() -> None:
    reader = VectorReader(bytes(64))
    with raises(FormatError, field="ids", count=9):
        reader.struct_rows(0, 9, 8, "ids")
    with raises(FormatError, field="rows", count=17):
        reader.tables_between(0, 17, ROW, "rows")
    with raises(FormatError, match="a vtable has an impossible size", field="root"):
        reader.root(ROOT, "root")
    # vtable at 0, table at 8 with its list at 16 of 200 offsets, listed three times.
    payload = struct.pack("<4H", 6, 8, 4, 0) + struct.pack("<iI", 8, 4)
    payload += struct.pack("<I", 200) + bytes(800)
    with raises(FormatError, field="rows"):
        tables_over(payload, [8] * 3, ROOT).table_vectors("rows", ROW)


def test_vectors_of_unequal_length_are_named() -> None:
    payload = write_with_the_library([((1, 2), None, None, None)])
    other = write_with_the_library([((1,), None, None, None)])
    both = write_with_the_library([((1, 2), None, None, None), ((1,), None, None, None)])
    assert len(read_columns(payload)) == len(read_columns(other)) == 1
    with raises(FormatError, field="rows.index", found=(2, 1)):
        read_columns(both)


def test_a_missing_required_field_is_named() -> None:
    payload = struct.pack("<2H", 4, 4) + struct.pack("<i", 4)
    with raises(FormatError, field="rows.index", missing="index"):
        tables_over(payload, [4]).coordinates("index")


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=30))
def test_ranges_of_any_lengths_are_copied(parts: list[bytes]) -> None:
    source = np.frombuffer(b"".join(parts), dtype=np.uint8)
    lengths = np.array([len(p) for p in parts], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    target = np.zeros(source.size, dtype=np.uint8)
    reversed_ends = source.size - starts
    copy_ranges(source, starts, target, reversed_ends - lengths, lengths)
    assert target.tobytes() == b"".join(reversed(parts))


def test_ranges_end_inside_the_buffer() -> None:
    starts, lengths = np.array([0, 8]), np.array([3, 2])
    VectorReader(bytes(24)).check_ranges(starts, lengths, 8, "rows")
    for size, first in ((23, 0), (24, -1)):
        with raises(FormatError, field="rows"):
            VectorReader(bytes(size)).check_ranges(
                starts + np.array([first, 0]), lengths, 8, "rows"
            )
    nothing = np.zeros(0, dtype=np.int64)
    VectorReader(b"").check_ranges(nothing, nothing, 8, "rows")


def test_a_vector_may_be_the_start_of_the_buffer() -> None:
    # Its only offset points to a table at 8 whose vtable is at 4.
    payload = struct.pack("<I2Hi", 8, 4, 4, 4)
    assert VectorReader(payload).tables_between(0, 1, ROW, "rows").positions.tolist() == [8]
    for start in (-4, 12):
        with raises(FormatError, field="rows", count=1):
            VectorReader(payload).tables_between(start, 1, ROW, "rows")
