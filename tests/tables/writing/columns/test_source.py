"""Dimensions of a DataFrame are found where field metadata cover only some columns.

Expressions lose field metadata: ``time + interval 1 day AS time`` says nothing about itself, while
the columns beside it still name the dimension ``time``.
"""

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import DIMS, dataset_at, grid, rows_of, values
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.columns.source import SourceColumn, find_dims
from icechunk_format.tables.writing.in_process import write_table

APPEND = WriteOptions(mode="append")


@pytest.fixture
def rows(place):
    """Return rows of t over (time, x) as a read gives them, with field metadata."""
    write_table(place, grid(range(3), [1, 2]), DIMS)
    return rows_of(place)


def computed(table, *names):
    """Return the table as if the columns had been computed: without their metadata."""
    fields = [f.remove_metadata() if f.name in names else f for f in table.schema]
    return table.cast(pa.schema(fields))


def dims_at(place, name="t"):
    return dataset_at(place).variables[name].dims


@pytest.mark.parametrize("names", [["time"], ["x"], ["time", "x"]])
@pytest.mark.parametrize("mode", ["errorifexists", "overwrite"])
def test_a_computed_dimension_stays_one(place, rows, names, mode):
    target = place if mode == "overwrite" else new_place()
    write_table(target, computed(rows, *names), WriteOptions(mode=mode))
    assert dims_at(target) == ("time", "x")
    assert sorted(dataset_at(target).variables) == ["t", "time", "x"]
    assert values(target).tolist() == [[1, 2], [101, 102], [201, 202]]


def test_a_computed_dimension_appends(place, rows):
    later = computed(rows, "time")
    later = later.set_column(0, later.schema.field(0), pa.array([5, 5, 6, 6, 7, 7]))
    write_table(place, later, APPEND)
    assert values(place, "time").tolist() == [0, 1, 2, 5, 6, 7]


def test_columns_in_another_order_make_the_same_axes(rows):
    # As Parquet gives them back that was written with partitionBy("time").
    target = new_place()
    write_table(target, computed(rows.select(["x", "t", "time"]), "time"), WriteOptions())
    assert dims_at(target) == ("time", "x")


def test_computed_values_beside_described_dimensions_are_variables(rows):
    target = new_place()
    two = computed(rows, "t").append_column("u", rows.column("t").cast(pa.float32()))
    write_table(target, two, WriteOptions())
    assert dims_at(target) == dims_at(target, "u") == ("time", "x")


def test_an_aggregate_over_a_dimension_loses_it(rows):
    target = new_place()
    write_table(target, computed(rows.slice(0, 2).drop_columns("time"), "t"), WriteOptions())
    assert dims_at(target) == ("x",)
    target = new_place()
    write_table(target, rows.slice(0, 2).drop_columns("time"), WriteOptions())
    assert dims_at(target) == ("x",)


def test_a_renamed_dimension_stays_one(rows):
    target = new_place()
    write_table(target, rows.rename_columns(["day", "x", "t"]), WriteOptions())
    assert dims_at(target) == ("day", "x")


def renamed_and_computed(rows):
    return computed(rows, "time", "t").rename_columns(["to_date(time)", "x", "avg(t)"])


@pytest.mark.parametrize("is_aggregate", [True, False])
def test_a_dimension_under_a_new_name_has_to_be_named(rows, is_aggregate):
    table = renamed_and_computed(rows)
    if not is_aggregate:
        table = computed(rows, "time").rename_columns(["day", "x", "t"])
    with pytest.raises(InvalidInputError) as caught:
        write_table(new_place(), table, WriteOptions())
    last = str(caught.value).splitlines()[-1]
    assert "'time'" in last
    assert table.schema.names[0] in last
    assert "dims=" in last
    target = new_place()
    write_table(target, table, WriteOptions(dims=(table.schema.names[0], "x")))
    assert dims_at(target, table.schema.names[2]) == (table.schema.names[0], "x")


def test_the_dimensions_of_the_group_come_first(place, rows):
    # Two aggregates without a dimension of their own, which alone could be anything.
    target = new_place()
    by_x = pa.table({"x": [1.0, 2.0], "low": [1.0, 2.0], "high": [201.0, 202.0]})
    write_table(target, by_x, WriteOptions(dims=("x",)))
    fields = [rows.schema.field("x"), *list(by_x.schema)[1:]]
    described = by_x.cast(pa.schema(fields))
    with raises(InvalidInputError, columns=("x", "low", "high"), missing=("time",)):
        write_table(new_place(), described, WriteOptions())
    write_table(target, described, APPEND)
    assert dims_at(target, "low") == ("x",)


def test_an_append_under_another_name_says_which_column_is_none(place, rows):
    table = renamed_and_computed(rows).rename_columns(["to_date(time)", "x", "t"])
    with pytest.raises(InvalidInputError) as caught:
        write_table(place, table, APPEND)
    last = str(caught.value).splitlines()[-1]
    assert "no column 'time'" in last
    assert "'to_date(time)'" in last
    assert "rename" in last


def test_rows_of_one_cell_name_the_dimensions_of_the_write(rows):
    table = renamed_and_computed(rows)
    with pytest.raises(InvalidInputError) as caught:
        write_table(new_place(), table, WriteOptions(dims=("x",)))
    last = str(caught.value).splitlines()[-1]
    assert "dimensions of this write are (x)" in last
    assert "to_date(time)" in last
    assert last.index("dims") < last.index("dropDuplicates")


def test_holes_name_the_dimensions_of_the_write():
    # A level that nobody called a dimension, and which is an integer.
    table = pa.table({"x": [1, 2, 3], "y": [1, 1, 2], "level": [7, 7, 8], "t": np.zeros(3)})
    with pytest.raises(InvalidInputError) as caught:
        write_table(new_place(), table, WriteOptions(dims=("x", "y")))
    last = str(caught.value).splitlines()[-1]
    assert "dimensions of this write are (x, y)" in last
    assert last.index("dims") < last.index("_FillValue")


def test_damaged_metadata_of_a_field_is_ignored(place, rows):
    field = rows.schema.field("t")
    damaged = field.with_metadata(dict.fromkeys(field.metadata, b"{"))
    write_table(place, rows.set_column(2, damaged, rows["t"]), WriteOptions(mode="overwrite"))
    assert dims_at(place) == ("time", "x")


def test_dimensions_come_in_the_order_of_the_array_that_has_most():
    described = {
        "height": {"dimensions": ["x"]},
        "x": {"role": "dimension", "dimensions": ["x"]},
        "time": {"role": "dimension", "dimensions": ["time"]},
        "t": {"dimensions": ["time", "x"]},
    }
    columns = {
        name: SourceColumn(name=name, arrow_type=pa.int64(), described=of_array)
        for name, of_array in described.items()
    }
    assert find_dims(columns, given=None, existing=[]) == ("time", "x")
