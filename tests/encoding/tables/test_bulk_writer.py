"""Vectors of many rows are where their positions say, aligned, whether made at once or streamed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.encoding.tables import bulk_writer
from icechunk_format.encoding.tables.bulk_reader import Tables, VectorReader
from icechunk_format.encoding.tables.bulk_writer import Assembly, TableLayout, write_rows
from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter, pack_blobs
from icechunk_format.errors import FormatError

ROOT = TableSchema("Root", rows="offset")
LEAF = TableSchema("Leaf", number="u64", text="offset")


def u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


@pytest.mark.parametrize("before", [0, 1, 4, 7])
@pytest.mark.parametrize("counts", [[2, 0, 3], [1], [0], [0, 1], []])
def test_vectors_of_structs_have_their_length_before_them(before: int, counts: list[int]) -> None:
    made = Assembly("the test buffer", is_part=True)
    made.reserve(before, 1)
    rows = np.arange(1, 1 + 16 * sum(counts), dtype=np.uint8).reshape(-1, 16)
    found = made.struct_vectors(np.array(counts, np.int64), rows).tolist()
    data, first = made.finish(), 0
    assert len(found) == len(counts)
    for at, count in zip(found, counts, strict=True):
        assert u32(data, at) == count
        assert (at + 4) % 8 == 0
        assert data[at + 4 : at + 4 + 16 * count] == rows[first : first + count].tobytes()
        first += count


@pytest.mark.parametrize("counts", [[2, 0, 3], [1], [0], [0, 1], []])
def test_vectors_of_offsets_point_to_tables(counts: list[int]) -> None:
    made = Assembly("the test buffer")
    made.reserve(4)
    found, cells = made.offset_vectors(np.array(counts, np.int64))
    total = sum(counts)
    tables = made.records(TableLayout(LEAF, ["number"]), total)
    tables.rows["number"] = 100 + np.arange(total)
    cells.point(slice(None), tables.positions)
    data, number = made.finish(), 100
    reader = VectorReader(data)
    for at, count in zip(found.tolist(), counts, strict=True):
        assert u32(data, at) == count
        if count:
            read = reader.tables_between(at + 4, count, LEAF, "rows")
            assert read.column("number").tolist() == list(range(number, number + count))
        number += count


@pytest.mark.parametrize("at_once", [1, 2, 3, 1 << 12])
@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_streamed_texts_are_those_at_once(
    at_once: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_writer, "_VECTORS_AT_ONCE", at_once)
    texts = [b"abcdefgh"[: 3 * n % 8] for n in range(size)]
    lengths = np.array([len(text) for text in texts], np.int64)

    def copy(rows: slice, target: Any, positions: Any) -> None:
        for text, at in zip(texts[rows], positions.tolist(), strict=True):
            target[at : at + len(text)] = np.frombuffer(text, np.uint8)

    made = Assembly("the test buffer")
    made.reserve(3, 1)
    found = made.streamed_byte_vectors(lengths, copy).tolist()
    after = made.reserve(4)[0]
    data = made.finish()
    assert len(data) == made.size == after + 4
    for at, text in zip(found, texts, strict=True):
        assert at % 4 == 0
        assert u32(data, at) == len(text)
        assert data[at + 4 : at + 5 + len(text)] == text + b"\0"
        assert at + 5 + len(text) <= after


@pytest.mark.parametrize("at_once", [1, 2, 1 << 12])
@pytest.mark.parametrize("blocks", [[], [1], [2, 3], [4, 1, 1]])
def test_streamed_tables_are_read(
    at_once: int, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_writer, "_CELLS_AT_ONCE", at_once)
    layout = TableLayout(LEAF, ["number"])

    def made_when_written() -> Any:
        first = 10
        for count in blocks:
            rows = np.zeros(count, layout.dtype)
            rows["number"] = first + np.arange(count)
            first += count
            yield rows

    made = Assembly("the test buffer")
    at = made.streamed_tables(layout, sum(blocks), made_when_written)
    data = made.finish()
    assert len(data) == made.size
    assert u32(data, at) == sum(blocks)
    read = VectorReader(data).tables_between(at + 4, sum(blocks), LEAF, "rows")
    assert read.column("number").tolist() == list(range(10, 10 + sum(blocks)))
    assert (read.positions % 8 == 0).all()


@pytest.mark.parametrize("count", [1, 2, 20])
def test_rows_in_the_file_of_a_writer(count: int) -> None:
    writer = TableWriter()
    texts = writer.string_list([f"text {n}" * n for n in range(count)])
    rows = np.zeros(count, TableLayout(LEAF).dtype)
    rows["number"] = 2**63 + np.arange(count, dtype=np.uint64)
    found = write_rows(writer, rows, TableLayout(LEAF), text=texts)
    data = writer.finish(writer.table(ROOT, rows=writer.offsets(found)))
    root = read_root(data, ROOT, object_key="k", file_type="t")
    leaves = list(root.children("rows", LEAF))
    assert [leaf.string("text") for leaf in leaves] == [f"text {n}" * n for n in range(count)]
    assert [leaf.number("number") for leaf in leaves] == [2**63 + n for n in range(count)]
    (tables,) = VectorReader(data).root(ROOT, "root").table_vectors("rows", LEAF)
    assert (tables.positions % 8 == 0).all()


def test_texts_in_one_block_have_a_length_a_nul_and_padding() -> None:
    content, heads = pack_blobs([b"", b"abc", b"abcd"])
    assert heads.tolist() == [0, 8, 16]
    expected = struct.pack("<I4xI3sxI4s4x", 0, 3, b"abc", 4, b"abcd")
    assert content.tobytes() == expected


def test_a_text_in_a_file_ends_with_a_nul() -> None:
    writer = TableWriter()
    writer.string("abc")
    assert b"\3\0\0\0abc\0" in writer.finish(writer.table(ROOT))
    one, two = TableWriter(), TableWriter()
    for writer in (one, two):
        writer.blob(b"abc")
    assert one.handle_of(6) == two.block(b"abcdef")
    assert one.handle_of(6, alignment=8) == one.block(b"abcdef", alignment=8)


def test_structs_are_copied_up_to_the_end() -> None:
    reader = VectorReader(bytes(range(24)))
    found = reader.struct_rows(8, 2, 8, "ids")
    assert found.tolist() == [list(range(8, 16)), list(range(16, 24))]
    found[0] = 0
    assert reader.data[8] == 8
    assert reader.struct_rows(0, 3, 8, "ids").shape == (3, 8)
    assert reader.struct_rows(24, 0, 8, "ids").shape == (0, 8)


def test_a_field_of_a_table_that_shares_a_vtable_is_looked_for_in_the_table() -> None:
    # Two vtables whose table size is too small, and a table of each at the end of the file.
    schema = TableSchema("One", number="u64")
    body = struct.pack("<3HH3HH", 6, 4, 8, 0, 6, 4, 8, 0)
    positions = []
    for vtable in (0, 8):
        positions.append(len(body))
        body += struct.pack("<iIQ", len(body) - vtable, 0, 7 + vtable)
    tables = Tables(VectorReader(body), np.array(positions, np.int64), schema, "rows")
    assert tables.column("number").tolist() == [7, 15]
    assert tables.has("number").all()
    # Whether the field is there is not known if the file ends before it.
    cut = Tables(VectorReader(body[:-8]), np.array(positions, np.int64), schema, "rows")
    with raises(FormatError, field="rows.number"):
        cut.has("number")
