"""One value of metadata is decoded alone."""

from __future__ import annotations

import pytest
from helpers.raised import raises

from icechunk_format.encoding.values.metadata_items import NO_ITEMS, MetadataItems, checked_values
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
    damaged = MetadataItems(items=(whole.items[0], ("b", b"\xff")))
    assert damaged.get("a") == 1
    for read in (lambda: damaged.get("b"), damaged.decode):
        with raises(FormatError, field="metadata['b']"):
            read()


def test_none_is_no_metadata():
    assert MetadataItems.of(None) == NO_ITEMS
    assert checked_values(None) == {} == checked_values({})


@pytest.mark.parametrize("given", [5, "text", [], [("a", 1)], {"a"}])
def test_metadata_is_a_mapping(given):
    with raises(InvalidInputError, match="must be a mapping", found=given):
        MetadataItems.of(given)
