"""One value of metadata is decoded alone."""

from __future__ import annotations

import pytest
from helpers.raised import raises

from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import FormatError


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
