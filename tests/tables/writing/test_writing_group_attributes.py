"""Attributes of a group travel with the rows that were read from it."""

import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import DIMS, dataset_at, grid, rows_of

from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.zarr.new_nodes import build_group_metadata

TITLED = {"title": "Reanalysis", "history": ["made", {"by": "us"}], "version": 3}


def set_attributes(place, attributes, group="/"):
    session = Repository.open(place).writable_session()
    document = build_group_metadata(attributes=attributes, node_path=group)
    session.update_metadata(group, document.to_bytes())
    session.commit("attributes")


@pytest.fixture
def rows(place):
    write_table(place, grid(range(2), [1, 2]), DIMS)
    set_attributes(place, TITLED)
    return rows_of(place)


@pytest.mark.parametrize("group", [None, "/a/b"])
def test_a_copy_needs_no_options(rows, group):
    target = new_place()
    write_table(target, rows, WriteOptions(group=group))
    assert dataset_at(target).attributes == TITLED


def test_one_dimension_is_enough(rows):
    target = new_place()
    plain = rows.schema.field("time").remove_metadata()
    write_table(target, rows.cast(rows.schema.set(0, plain)), WriteOptions())
    assert dataset_at(target).attributes == TITLED


def test_a_group_keeps_the_attributes_that_it_has(place, rows):
    target = new_place()
    write_table(target, grid(range(2), [1, 2]), DIMS)
    write_table(target, rows, WriteOptions(mode="append"))
    assert dataset_at(target).attributes == {}
    write_table(target, rows, WriteOptions(mode="overwrite"))
    assert dataset_at(target).attributes == TITLED
    set_attributes(target, {"title": "Own"})
    write_table(target, rows, WriteOptions(mode="overwrite"))
    assert dataset_at(target).attributes == {"title": "Own"}
