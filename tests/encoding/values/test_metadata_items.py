"""One value of metadata is decoded alone."""

from __future__ import annotations

import pytest
from helpers.raised import raises

from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.encoding.values.metadata_items import (
    METADATA_ITEM,
    NO_ITEMS,
    MetadataItems,
    checked_values,
    read_items,
    write_items,
)
from icechunk_format.errors import FormatError, InvalidInputError


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_value_is_decoded_alone(spec_version):
    values = {"b": {"deep": [1, None, "x"]}, "a": 2, "c": False}
    items = MetadataItems.of(values, spec_version=spec_version)
    assert {name: items.get(name) for name in values} == values == items.decode()
    assert items.get("d") is None
    assert MetadataItems().get("a") is None


def test_a_damaged_value_raises_only_when_it_is_read():
    whole = MetadataItems.of({"a": 1, "b": "text"})
    damaged = MetadataItems(items=(whole.items[0], ("b", b"\xff")), origin="snapshots/X")
    assert damaged.get("a") == 1
    for read in (lambda: damaged.get("b"), damaged.decode):
        with raises(FormatError, field="metadata['b']", object_key="snapshots/X"):
            read()


def test_none_is_no_metadata():
    assert MetadataItems.of(None) == NO_ITEMS
    assert checked_values(None) == {} == checked_values({})


@pytest.mark.parametrize("given", [5, "text", [], [("a", 1)], {"a"}])
def test_metadata_is_a_mapping(given):
    with raises(InvalidInputError, match="must be a mapping", found=given):
        MetadataItems.of(given)


def test_items_are_translated_to_another_version_alone():
    values = {"b": [1, None], "a": "x"}
    new, old = (MetadataItems.of(values, spec_version=version) for version in (2, 1))
    assert new.in_version(2) is new
    assert (new.in_version(1), old.in_version(2)) == (old, new)
    assert NO_ITEMS.in_version(1) is NO_ITEMS
    assert not hasattr(new, "item")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("values", [{}, {"b": 1, "a": {"x": [2.5]}, "é": None}])
def test_items_are_read_from_a_table_as_they_were_written(values, version):
    schema = TableSchema("Holder", metadata="offset")
    writer = TableWriter()
    items = MetadataItems.of(values, spec_version=2)
    root = writer.table(schema, metadata=write_items(writer, items, spec_version=version))
    table = read_root(writer.finish(root), schema, object_key="k", file_type="t")
    found = read_items(table, spec_version=version)
    assert found == (MetadataItems.of(values, spec_version=version) if values else NO_ITEMS)
    assert found.decode() == values
    assert found.origin == ("k" if values else "<bytes>")
    bare = TableWriter()
    empty = read_root(bare.finish(bare.table(schema)), schema, object_key="k", file_type="t")
    assert read_items(empty, spec_version=version) is NO_ITEMS


def test_of_items_with_one_name_the_first_is_read():
    schema = TableSchema("Holder", metadata="offset")
    writer = TableWriter()
    pairs = [("b", b"1"), ("a", b"2"), ("b", b"3")]
    cells = [
        writer.table(METADATA_ITEM, name=writer.string(name), value=writer.blob(value))
        for name, value in pairs
    ]
    root = writer.table(schema, metadata=writer.offsets(cells))
    table = read_root(writer.finish(root), schema, object_key="k", file_type="t")
    assert read_items(table, spec_version=2).items == (("a", b"2"), ("b", b"1"))


@pytest.mark.parametrize("name", [chr(0xD800), "a" + chr(0xDFFF), 1, None, b"a"])
def test_names_are_strings_in_utf8(name):
    with raises(InvalidInputError, found=name):
        MetadataItems.of({name: 1})
    assert MetadataItems.of({"\ud7ff\ue000": 1}).get("\ud7ff\ue000") == 1
