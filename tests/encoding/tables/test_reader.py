"""Tables are read and written as the flatbuffers runtime does it, and damage is named.

The runtime's builder and reader are the oracle for the layout, the ``.fbs`` files for the slots.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from flatbuffers import number_types
from flatbuffers.table import Table as RuntimeTable
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding import transaction_log
from icechunk_format.encoding.manifest import decode as manifest
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import lists, stored_snapshots
from icechunk_format.encoding.repo_info import updates as repo_updates
from icechunk_format.encoding.snapshot import decode_nodes, manifest_lists
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.tables.reader import Table, read_root
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.encoding.values import metadata_items
from icechunk_format.errors import FormatError, InvalidInputError

LEAF = TableSchema("Leaf", name="offset", id="id8")
TREE = TableSchema(
    "Tree",
    small="u8",
    text="offset",
    big="u64",
    id="id12",
    leaves="offset",
    signed="i32",
    names="offset",
    kind_type="u8",
    kind="offset",
    numbers="offset",
    flag="bool",
    blob="offset",
    short="u16",
)
ID = bytes(range(12))


def root_of(data: bytes, schema: TableSchema = TREE) -> Table:
    return read_root(data, schema, object_key="objects/X", file_type="test file")


def field_of(caught: pytest.ExceptionInfo[FormatError]) -> Any:
    assert caught.value.facts["object_key"] == "objects/X"
    assert caught.value.facts["file_type"] == "test file"
    return caught.value.facts["field"]


def written(**fields: int | bytes | None) -> bytes:
    """Write a tree without children."""
    writer = TableWriter()
    return writer.finish(writer.table(TREE, **fields))


def test_the_runtime_reads_what_is_written() -> None:
    writer = TableWriter()
    leaf = writer.table(LEAF, name=writer.string("leaf"), id=ID[:8])
    root = writer.table(
        TREE,
        small=3,
        text=writer.string("grün"),
        big=2**63,
        id=ID,
        leaves=writer.offsets([leaf]),
        signed=-1,
        numbers=writer.records(struct.pack("<2Q", 5, 6), count=2, alignment=8),
    )
    data = writer.finish(root)
    assert data[4:8] == b"Ichk"
    assert len(data) % 8 == 0
    table = RuntimeTable(bytearray(data), struct.unpack_from("<I", data)[0])

    def at(slot: int) -> int:
        offset = table.Offset(4 + 2 * slot)
        assert offset
        return int(table.Pos + offset)

    assert table.Get(number_types.Uint8Flags, at(0)) == 3
    assert table.String(at(1)) == "grün".encode()
    assert table.Get(number_types.Uint64Flags, at(2)) == 2**63
    assert at(2) % 8 == 0
    assert bytes(table.Bytes[at(3) : at(3) + 12]) == ID
    assert table.Get(number_types.Int32Flags, at(5)) == -1
    vector = table.Vector(at(9) - table.Pos)
    assert vector % 8 == 0
    assert struct.unpack_from("<2Q", data, vector) == (5, 6)
    leaves = table.Vector(at(4) - table.Pos)
    child = RuntimeTable(table.Bytes, table.Indirect(leaves))
    assert child.String(child.Pos + child.Offset(4)) == b"leaf"


def test_what_the_runtime_wrote_is_read() -> None:
    builder = flatbuffers.Builder(0)
    text = builder.CreateString("grün")
    leaf_name = builder.CreateString("leaf")
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, leaf_name, 0)
    leaf = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(leaf)
    leaves = builder.EndVector()
    numbers = builder.CreateNumpyVector(np.array([5, 6], dtype="<u2"))
    builder.StartObject(13)
    builder.PrependUint8Slot(0, 3, 0)
    builder.PrependUOffsetTRelativeSlot(1, text, 0)
    builder.PrependUint64Slot(2, 2**63, 7)
    builder.PrependUOffsetTRelativeSlot(4, leaves, 0)
    builder.PrependInt32Slot(5, -1, 0)
    builder.PrependUOffsetTRelativeSlot(9, numbers, 0)
    builder.PrependBoolSlot(10, True, False)
    builder.Finish(builder.EndObject())
    root = root_of(bytes(builder.Output()))
    assert root.number("small") == 3
    assert root.string("text") == "grün"
    assert root.number("big") == 2**63
    assert root.optional_raw_id("id") is None
    assert [leaf.string("name") for leaf in root.children("leaves", LEAF)] == ["leaf"]
    assert root.number("signed") == -1
    assert root.records("numbers", "<u2").tolist() == [5, 6]
    assert root.number("flag") == 1
    assert not root.has("names")


@given(
    small=st.integers(0, 255),
    signed=st.integers(-(2**31), 2**31 - 1),
    big=st.integers(0, 2**64 - 1),
    short=st.integers(0, 2**16 - 1),
    flag=st.booleans(),
    raw=st.none() | st.binary(min_size=12, max_size=12),
    text=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    blob=st.none() | st.binary(max_size=600),
    names=st.none() | st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=40),
    leaves=st.lists(st.binary(min_size=8, max_size=8), max_size=40),
)
@settings(deadline=None)
def test_tables_round_trip(
    small: int,
    signed: int,
    big: int,
    short: int,
    flag: bool,
    raw: bytes | None,
    text: str | None,
    blob: bytes | None,
    names: list[str] | None,
    leaves: list[bytes],
) -> None:
    writer = TableWriter()
    data = writer.finish(
        writer.table(
            TREE,
            small=small,
            signed=signed,
            big=big,
            short=short,
            flag=flag,
            id=raw,
            text=None if text is None else writer.string(text),
            blob=None if blob is None else writer.blob(blob),
            names=None if names is None else writer.offsets([writer.string(n) for n in names]),
            leaves=writer.offsets([writer.table(LEAF, id=leaf) for leaf in leaves]),
        )
    )
    root = root_of(data)
    assert [root.number(n) for n in ("small", "signed", "big", "short", "flag")] == [
        small,
        signed,
        big,
        short,
        flag,
    ]
    assert root.optional_raw_id("id") == raw
    assert root.optional_string("text") == text
    assert root.optional_blob("blob") == blob
    assert (root.strings("names") if root.has("names") else None) == names
    assert [leaf.raw_id("id") for leaf in root.children("leaves", LEAF)] == leaves


def test_defaults_are_not_stored() -> None:
    root = root_of(written(small=0, big=0))
    assert not root.has("small")
    assert not root.has("big")
    assert root.number("small") == root.number("big") == 0
    assert root_of(written(big=7)).number("big") == 7


@pytest.mark.parametrize(
    ("accessor", "field", "extra"),
    [
        ("raw_id", "id", ()),
        ("string", "text", ()),
        ("blob", "blob", ()),
        ("strings", "names", ()),
        ("records", "numbers", ("<u2",)),
        ("children", "leaves", (LEAF,)),
        ("child", "kind", (LEAF,)),
        ("union_kind", "kind", ()),
    ],
)
def test_required_fields_that_are_absent_are_named(
    accessor: str, field: str, extra: tuple[Any, ...]
) -> None:
    with pytest.raises(FormatError) as caught:
        getattr(root_of(written()), accessor)(field, *extra)
    assert field_of(caught) == field


def test_a_union_needs_both_its_number_and_its_value() -> None:
    writer = TableWriter()
    value = writer.table(LEAF)
    data = writer.finish(writer.table(TREE, kind=value))
    with raises(FormatError, match="its kind is 0, its value is present", field="kind", found=0):
        root_of(data).union_kind("kind")
    with raises(FormatError, field="kind", found=2):
        root_of(written(kind_type=2)).union_kind("kind")


def test_the_path_of_a_nested_field_is_named() -> None:
    writer = TableWriter()
    leaves = [writer.table(LEAF, name=writer.string("a")), writer.table(LEAF)]
    data = writer.finish(writer.table(TREE, leaves=writer.offsets(leaves)))
    with pytest.raises(FormatError) as caught:
        [leaf.string("name") for leaf in root_of(data).children("leaves", LEAF)]
    assert field_of(caught) == "leaves[1].name"


def test_text_that_is_not_utf8_is_named() -> None:
    writer = TableWriter()
    data = writer.finish(writer.table(TREE, text=writer.blob(b"\xff\xfe")))
    with raises(FormatError, object_key="objects/X", field="text"):
        root_of(data).string("text")


@pytest.mark.parametrize("count", [2, 100])
def test_offsets_out_of_the_file_are_named(count: int) -> None:
    writer = TableWriter()
    leaves = writer.offsets([writer.table(LEAF)] * count)
    data = bytearray(writer.finish(writer.table(TREE, leaves=leaves)))
    start = len(data)
    root = root_of(bytes(data))
    start, found = root.vector("leaves", 4) or (0, 0)
    assert found == count
    struct.pack_into("<I", data, start + 4, 2**32 - 1)
    with raises(FormatError, field="leaves[1]", found=start + 4 + 2**32 - 1):
        list(root_of(bytes(data)).children("leaves", LEAF))
    struct.pack_into("<I", data, start - 4, 2**30)
    with raises(FormatError, field="leaves", count=2**30):
        root_of(bytes(data)).children("leaves", LEAF)


def table_bytes(*, vtable_size: int = 6, table_size: int = 8, offset: int = 4) -> bytes:
    """Make a file whose vtable lies at 8 and whose root table lies at 16."""
    data = bytearray(32)
    struct.pack_into("<I", data, 0, 16)
    struct.pack_into("<HHH", data, 8, vtable_size, table_size, offset)
    struct.pack_into("<iI", data, 16, 8, 5)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(7),
        struct.pack("<II", 2**31, 0),
        struct.pack("<Iii", 8, 0, -(2**31)),
        struct.pack("<Iii", 8, 0, 2**31 - 1),
        table_bytes(vtable_size=2),
        table_bytes(vtable_size=7),
        table_bytes(vtable_size=1000),
        table_bytes(table_size=3),
        table_bytes(table_size=17),
    ],
)
def test_roots_and_vtables_out_of_bounds_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        root_of(data)
    assert field_of(caught) == "Tree"


def test_a_field_over_the_start_of_its_table_is_refused() -> None:
    root = root_of(table_bytes(offset=3), TableSchema("Narrow", first="u8"))
    for read in (root.number, root.has):
        with pytest.raises(FormatError) as caught:
            read("first")
        assert field_of(caught) == "first"


def test_a_field_beyond_the_file_is_refused() -> None:
    schema = TableSchema("Wide", first="u64")
    assert root_of(table_bytes(offset=8), schema).number("first") == 0
    with raises(FormatError, field="first", size=8):
        root_of(table_bytes(offset=12), schema).number("first")


def test_tables_of_several_sizes_may_share_a_vtable() -> None:
    narrow = TableSchema("Narrow", first="u32")
    assert root_of(table_bytes(table_size=4), narrow).number("first") == 5


def test_sharing_is_bounded() -> None:
    """Parents that share children multiply; a small file must not describe a huge tree."""
    writer = TableWriter()
    leaves = writer.offsets([writer.table(LEAF)] * 20_000)
    branches = writer.offsets([writer.table(TREE, leaves=leaves)] * 20_000)
    data = writer.finish(writer.table(TREE, leaves=branches))
    root = root_of(data)
    with raises(FormatError, field="leaves[8].leaves[3930]"):
        [list(branch.children("leaves", LEAF)) for branch in root.children("leaves", TREE)]


def test_a_large_shared_text_is_decoded_once() -> None:
    writer = TableWriter()
    text = writer.string("long " * 100_000)
    leaves = writer.offsets([writer.table(LEAF, name=text) for _ in range(2000)])
    root = root_of(writer.finish(writer.table(TREE, leaves=leaves)))
    assert len({id(leaf.string("name")) for leaf in root.children("leaves", LEAF)}) == 1


def test_a_large_shared_blob_is_copied_once() -> None:
    writer = TableWriter()
    blob = writer.blob(b"long " * 100_000)
    leaves = writer.offsets([writer.table(TREE, blob=blob) for _ in range(2000)])
    root = root_of(writer.finish(writer.table(TREE, leaves=leaves)))
    assert len({id(leaf.blob("blob")) for leaf in root.children("leaves", TREE)}) == 1


def test_values_that_do_not_fit_are_refused() -> None:
    with raises(InvalidInputError, allowed={"small": "u8"}):
        written(small=256)
    with raises(InvalidInputError, found="\ud800", allowed="a string in UTF-8"):
        TableWriter().string("\ud800")


SCHEMA_DIRECTORY = Path(__file__).parents[3] / "format" / "schema"
_TABLE = re.compile(r"^table (\w+) ?\{(.*?)\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?[\w:]+\]?)")
UNIONS = {"NodeData", "UpdateType"}
NUMBERS = {
    "uint8": "u8",
    "RepoAvailability": "u8",
    "NodeType": "u8",
    "bool": "bool",
    "uint16": "u16",
    "uint32": "u32",
    "int32": "i32",
    "uint64": "u64",
    "ObjectId8": "id8",
    "ObjectId12": "id12",
}


def declared_tables() -> dict[str, dict[str, str]]:
    """Read the tables of the ``.fbs`` files as name to field to kind."""
    found = {}
    for file in SCHEMA_DIRECTORY.glob("*.fbs"):
        text = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
        for name, body in _TABLE.findall(text):
            fields: dict[str, str] = {}
            for field, kind in _FIELD.findall(body):
                if kind in UNIONS:
                    fields[f"{field}_type"] = "u8"
                fields[field] = NUMBERS.get(kind, "offset")
            found[name] = fields
    return found


def python_schemas() -> list[TableSchema]:
    modules = (
        *(metadata_items, repo_info, repo_updates, lists, stored_snapshots),
        *(snapshot, decode_nodes, manifest_lists, manifest, transaction_log),
    )
    schemas = [v for m in modules for v in vars(m).values() if isinstance(v, TableSchema)]
    return [*dict.fromkeys(schemas), *repo_updates._SCHEMAS.values()]


@pytest.mark.parametrize("schema", python_schemas(), ids=lambda schema: schema.name)
def test_declarations_agree_with_the_schema_files(schema: TableSchema) -> None:
    declared = declared_tables()[schema.name]
    assert {name: spec.kind for name, spec in schema.fields.items()} == declared
    assert [spec.slot for spec in schema.fields.values()] == list(range(len(declared)))
    assert list(schema.fields) == list(declared)


POINTER = TableSchema("Pointer", first="offset")


def pointing(offset: int, *words: int) -> Table:
    """Return a table of 32 bytes whose field, at 20, holds an offset; two words follow it."""
    data = bytearray(table_bytes())
    struct.pack_into(f"<I{len(words)}I", data, 20, offset, *words)
    return root_of(bytes(data), POINTER)


def test_vectors_end_inside_the_file() -> None:
    assert pointing(8, 0, 0).vector("first", 100) == (32, 0)
    assert pointing(4, 1, 0).vector("first", 4) == (28, 1)
    for words, size in (((1, 0), 5), ((2, 0), 4), ((5, 0), 1)):
        with raises(FormatError, field="first", count=words[0]):
            pointing(4, *words).vector("first", size)
    assert pointing(4, 4, 0).optional_blob("first") == bytes(4)


@pytest.mark.parametrize("offset", [0, 9, 10, 13, 2**32 - 1])
def test_offsets_point_to_a_word_inside_the_file(offset: int) -> None:
    with raises(FormatError, field="first", found=20 + offset):
        pointing(offset, 0, 0).vector("first", 1)


@pytest.mark.parametrize(("offset", "is_inside"), [(0, False), (1, True), (4, False), (5, False)])
def test_items_point_to_a_word_inside_the_file(offset: int, is_inside: bool) -> None:
    data = bytearray(table_bytes())
    struct.pack_into("<3I", data, 20, 4, 1, offset)
    root = root_of(bytes(data) if offset != 1 else bytes(data) + bytes(1), POINTER)
    if is_inside:
        assert root.strings("first") == [""]
    else:
        with raises(FormatError, field="first[0]", found=28 + offset):
            root.strings("first")


def test_a_union_has_the_number_of_its_kind() -> None:
    writer = TableWriter()
    data = writer.finish(writer.table(TREE, kind_type=3, kind=writer.table(LEAF)))
    assert root_of(data).union_kind("kind") == 3


def test_a_table_knows_its_object() -> None:
    root = root_of(written(small=1))
    assert (root.object_key, root.file_type) == ("objects/X", "test file")
    with raises(FormatError, object_key="objects/X", file_type="test file", field="small"):
        root.charge("small", 2**62)


def test_the_budget_of_a_file_is_spent() -> None:
    root = root_of(written(small=1))
    left = root._payload.work
    root.charge("small", left)
    with raises(FormatError, field="small"):
        root.charge("small", 1)
