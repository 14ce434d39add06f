"""Overwrites of rows that were read at a snapshot fail once the branch has moved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import APPEND, grid, rows_of
from pyspark.sql.types import StructType

from icechunk_format.errors import ConflictError
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.tables.writing.in_process import write_table
from icechunk_spark.source import IcechunkDataSource
from icechunk_spark.writing import unplanned

pytestmark = pytest.mark.each_spark
ROWS = grid([0, 1], [0, 1])


@pytest.fixture
def place():
    place = new_place()
    write_table(place, ROWS, APPEND)
    return place


def rival(place):
    write_table(place, grid([7], [0, 1]), APPEND)


def rival_elsewhere(place):
    write_table(place, ROWS, replace(APPEND, group="elsewhere"))


def overwrite(place, schema: StructType, *, in_between=lambda place: None, **options):
    """Overwrite as Spark does, with rows of a DataFrame that has a schema."""
    writer = IcechunkDataSource({"path": place, **options}).writer(schema, True)
    receipt = writer.write(iter(ROWS.slice(0, 2).to_batches()))
    in_between(place)
    writer.commit([receipt])


def read(place, **options) -> StructType:
    return IcechunkDataSource({"path": place, **options}).schema()


def test_at_the_tip_it_lands(place):
    overwrite(place, read(place))
    assert rows_of(place).num_rows == 2


@pytest.mark.parametrize("column", ["time", "x", "t"])
def test_one_column_is_enough(place, column):
    schema = read(place)
    for field in schema.fields:
        field.metadata = field.metadata if field.name == column else {}
    rival(place)
    with pytest.raises(ConflictError) as caught:
        overwrite(place, schema, dims="time,x")
    assert caught.value.facts.keys() == {"branch", "base", "tip"}
    assert rows_of(place).num_rows == 6


@pytest.mark.parametrize("rival", [rival, rival_elsewhere])
@pytest.mark.parametrize("moment", ["before the commit", "within the commit"])
def test_a_commit_while_rows_are_computed(place, monkeypatch, moment, rival):
    write = unplanned.write_prepared_table

    def late(prepared, table):
        rival(place)
        return write(prepared, table)

    if moment == "within the commit":
        monkeypatch.setattr(unplanned, "write_prepared_table", late)
    with pytest.raises(ConflictError):
        overwrite(
            place,
            read(place),
            in_between=rival if "before" in moment else lambda place: None,
        )
    assert rows_of(place).num_rows == 4 + 2 * (rival is not rival_elsewhere)
    assert not list(open_storage(Location(place)).list("staging/"))


def test_versions_that_were_chosen_are_written_back(place):
    by_tip = read(place)
    snapshot = by_tip["t"].metadata["icechunk"]["base"]["snapshot"]
    chosen = read(place, snapshot=snapshot)
    rival(place)
    overwrite(place, chosen)
    assert rows_of(place).num_rows == 2


def test_rows_for_another_place_branch_or_group_are_free(place):
    schema = read(place)
    rival(place)
    overwrite(place, schema, group="/copy")
    overwrite(place, schema, branch="copy", createBranch="true")
    elsewhere = new_place()
    overwrite(elsewhere, schema)
    assert rows_of(elsewhere).num_rows == rows_of(place, group="/copy").num_rows == 2
    writer = unplanned.UnplannedWriter(parse_write_options({"path": place}), schema)
    writer.check_base()
