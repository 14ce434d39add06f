"""Documents of arrays are compared by the meaning that they give to stored values."""

import json
from types import SimpleNamespace

import pytest

from icechunk_format.repository.changes import (
    MISSING,
    OF_VALUES,
    PACKING,
    same_aspects,
    same_meaning,
)
from icechunk_format.repository.changes.meaning import STORED

DOCUMENT = {
    "shape": [4],
    "data_type": "int16",
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "attributes": {"units": "K", "title": "t"},
}


def node(document):
    return SimpleNamespace(user_data=json.dumps(document).encode())


def changed(member, value):
    if member in DOCUMENT or member in STORED:
        return {**DOCUMENT, member: value}
    return {**DOCUMENT, "attributes": {**DOCUMENT["attributes"], member: value}}


@pytest.mark.parametrize("member", [*STORED, *OF_VALUES, "dtype", "chunk_grid"])
def test_a_member_that_changes_values_changes_the_meaning(member):
    other = changed(member, {"name": "regular", "changed": True})
    assert not same_meaning(node(DOCUMENT), node(other))
    assert same_aspects(DOCUMENT, other) == (member not in STORED)
    assert same_aspects(DOCUMENT, other, (), OF_VALUES) == (member not in OF_VALUES)


@pytest.mark.parametrize(("member", "value"), [("shape", [6]), ("title", "other")])
def test_length_and_other_attributes_do_not(member, value):
    assert same_meaning(node(DOCUMENT), node(changed(member, value)))


def test_edges_of_chunks_grow_with_the_array_and_change_no_values():
    grids = [{"name": "rectilinear", "configuration": {"chunk_shapes": [n]}} for n in (4, 6)]
    one, other = (node(changed("chunk_grid", grid)) for grid in grids)
    assert same_meaning(one, other)
    assert not same_meaning(one, node(changed("data_type", "int8")))
    assert not same_meaning(one, node({**changed("chunk_grid", grids[1]), "data_type": "int8"}))
    without = {key: value for key, value in DOCUMENT.items() if key != "chunk_grid"}
    assert same_meaning(node(without), node({**without, "shape": [6]}))
    assert not same_meaning(node(without), node(DOCUMENT))


def test_damaged_documents_must_be_equal():
    broken = SimpleNamespace(user_data=b"{")
    assert same_meaning(broken, SimpleNamespace(user_data=b"{"))
    assert not same_meaning(broken, node(DOCUMENT))


def test_members_and_attributes_with_a_meaning():
    assert STORED == ("data_type", "fill_value", "codecs", "storage_transformers")
    names = "units calendar scale_factor add_offset _FillValue missing_value _Unsigned"
    assert tuple(names.split()) == OF_VALUES
    assert PACKING == ("scale_factor", "add_offset", "_Unsigned")
    assert MISSING == ("_FillValue", "missing_value")
    assert same_aspects({}, {})
