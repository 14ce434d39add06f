"""Rows, columns and options that cannot be written are refused, with the place of the mistake."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pytest
from helpers.grids.written_cells import APPEND, DIMS, dataset_at, grid, rows_of, values
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.writing.cells.task import write_batches
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.tables.writing.plan import plan_write
from icechunk_format.tables.writing.prepare import prepare_write


def refused(place, table, options, match):
    with pytest.raises(InvalidInputError, match=match) as caught:
        write_table(place, table, options)
    last = str(caught.value).splitlines()[-1]
    assert len(last) > 40
    return last


def test_two_rows_for_one_cell_show_their_coordinates(place):
    table = pa.concat_tables([grid(range(3), [1, 2]), grid([1], [2])])
    last = refused(place, table, DIMS, "more than one row for the cell")
    assert "(time=1, x=2.0) of t" in last


def test_two_equal_rows_in_one_batch_are_two_rows(place):
    table = pa.table({"time": [5, 5, 6, 6], "x": [1, 1, 1, 2], "t": [1.0, 1.0, 2.0, 2.0]})
    assert "(time=5, x=1)" in refused(place, table, DIMS, "more than one row")


@pytest.mark.parametrize(
    ("missing", "found", "kept"),
    [(None, "NULL", "x IS NOT NULL"), (np.nan, "NaN", "NOT isnan(x)")],
)
def test_rows_without_a_label_are_refused(place, missing, found, kept):
    table = pa.table({"time": [0, 1, 2, 3], "x": [missing, 1.0, 2.0, 3.0], "t": [1.0] * 4})
    assert kept in refused(place, table, DIMS, f"'x' is a dimension and must not be {found}")


def test_null_in_integers_needs_a_fill_value(place):
    table = grid(range(2), [1, 2]).append_column("n", pa.array([1, None, 3, 4]))
    refused(place, table, DIMS, "'n' has NULL, and its array of int64 has no missing value")
    filled = WriteOptions(mode="append", dims=("time", "x"), encoding={"n": {"_FillValue": -1}})
    write_table(place, table, filled)
    assert values(place, "n").tolist() == [[1, -1], [3, 4]]
    assert rows_of(place).column("n").to_pylist() == [1, None, 3, 4]


def test_integers_with_empty_cells_need_a_fill_value(place):
    table = pa.table({"time": [0, 1, 1], "x": [0, 0, 1], "n": [1, 2, 3]})
    refused(place, table, DIMS, "3 rows do not cover all 4 cells of 'n'")
    write_table(place, table.slice(1, 2), DIMS)
    gap = pa.table({"time": [2], "x": [0], "n": [5]})
    last = refused(place, gap, APPEND, "no row for the cell")
    assert "(time=2, x=1)" in last
    np.testing.assert_array_equal(values(place, "n"), [[2, 3]])


def test_tracks_are_no_grids(place):
    n = 300
    table = pa.table({"time": np.arange(n), "x": np.arange(n) * 1.0, "t": np.arange(n) * 1.0})
    last = refused(place, table, DIMS, "300 rows cover 0.0033 of the 90000 cells")
    assert "300 time x 300 x" in last
    assert not Repository.exists(place)
    write_table(place, table, WriteOptions(dims=("time", "x"), min_density=0.001))


def test_a_float32_coordinate_that_met_a_float64_is_no_new_row(place):
    xs = [0.1, 0.2, 0.3]
    write_table(place, grid([0], xs), DIMS)
    narrow = [float(np.float32(x)) for x in xs]
    last = refused(place, grid([1], narrow), APPEND, "thousandth")
    assert "the label 0.1" in last
    assert values(place).shape == (1, 3)


def test_a_double_matches_the_float32_that_it_rounds_to(place):
    single = {"x": {"dtype": "float32"}}
    write_table(place, grid([0], [0.1, 0.2]), WriteOptions(dims=("time", "x"), encoding=single))
    write_table(place, grid([1], [0.1, 0.2]), APPEND)
    assert values(place).shape == (2, 2)


def test_dimensions_have_to_be_known(place):
    last = refused(place, grid([0], [1]), WriteOptions(), "dimension columns are not known")
    assert "dims=time,x" in last
    refused(place, grid([0], [1]), WriteOptions(dims=("time", "y")), "no column 'y'")
    refused(place, grid([0], [1]), WriteOptions(dims=("time", "x", "t")), "no values to write")


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["time", "x"], "all columns .time, x. are dimensions of the group.* The group has t$"),
        (["t"], "array /t has the dimensions .time, x., .* add time, x$"),
    ],
)
def test_dimensions_or_values_alone_are_named_after_the_group(place, names, match):
    write_table(place, grid([0], [1, 2]), DIMS)
    refused(place, grid([0], [1, 2]).select(names), WriteOptions(mode="append"), match)


def test_a_single_column_has_no_dimensions(place):
    last = refused(place, grid([0], [1]).select(["t"]), WriteOptions(), "t is the only column")
    assert "dims=" not in last


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (pa.array(["a", "b"]), "'t' is STRING, and array 't' of float64 takes DOUBLE"),
        (pa.array([True, False]), "CAST\\(t AS DOUBLE\\)"),
        (pa.array([1, 2], pa.int64()), "'t' is BIGINT"),
    ],
)
def test_a_column_has_to_fit_its_array(place, column, match):
    write_table(place, grid([0], [1, 2]), DIMS)
    table = pa.table({"time": [0, 0], "x": [1.0, 2.0], "t": column})
    refused(place, table, APPEND, match)


def test_times_that_the_unit_cannot_count_are_not_rounded(place):
    def times(*texts):
        stamps = pa.array(np.array(texts, "M8[us]"))
        return pa.table({"time": stamps, "t": [1.0] * len(texts)})

    hours = {"time": {"units": "hours since 2000-01-01", "dtype": "int32"}}
    write_table(
        place, times("2020-01-01", "2020-01-01T01"), WriteOptions(dims=("time",), encoding=hours)
    )
    last = refused(
        place, times("2020-01-01T02:30"), WriteOptions(mode="append"), "2020-01-01T02:30"
    )
    assert "whole steps of 3600 seconds" in last
    write_table(place, times("2020-01-01T02"), WriteOptions(mode="append"))
    assert values(place, "time").tolist() == [175320, 175321, 175322]


def test_values_that_do_not_fit_when_packed_are_refused(place):
    packed = {"t": {"dtype": "int8", "scale_factor": 0.5, "_FillValue": -128}}
    options = WriteOptions(dims=("time", "x"), encoding=packed)
    last = refused(place, grid([0], [1, 200]), options, "has the value")
    assert "holds -64 to 63.5" in last
    write_table(f"{place}-b", grid([0], [1, 2.24]), options)
    assert values(f"{place}-b").tolist() == [[2, 4]]


def test_encoding_mistakes_name_the_nearest_word(place):
    for key in ("scalefactor", "scale"):
        options = WriteOptions(dims=("time", "x"), encoding={"t": {key: 1}})
        refused(place, grid([0], [1]), options, "did you mean 'scale_factor'")
    options = WriteOptions(dims=("time", "x"), encoding={"tt": {"dtype": "f4"}})
    refused(place, grid([0], [1]), options, "did you mean 't'")
    options = WriteOptions(dims=("time", "x"), chunks={"tim": 4})
    refused(place, grid([0], [1]), options, "did you mean 'time'")
    options = WriteOptions(dims=("time", "x"), encoding={"t": {"dtype": "float33"}})
    refused(place, grid([0], [1]), options, "float33")


def test_an_append_does_not_change_chunks_or_encoding(place):
    write_table(place, grid([0], [1, 2]), WriteOptions(dims=("time", "x"), chunks={"x": 2}))
    refused(place, grid([1], [1, 2]), WriteOptions(mode="append", chunks={"x": 1}), "keeps them")
    other = WriteOptions(mode="append", encoding={"t": {"dtype": "f4"}})
    refused(place, grid([1], [1, 2]), other, "keeps its encoding")


def test_rows_that_changed_since_the_plan_are_refused(place):
    table = grid([0], [1, 2])
    prepared = prepare_write(place, table.schema, DIMS)
    plan = plan_write(prepared, {"time": pa.array([0]), "x": pa.array([1.0, 2.0])}, 2)
    [part] = plan.parts
    batch = pa.RecordBatch.from_arrays(
        [pa.array([None], pa.int64()), [1.0]],
        schema=part.input_schema,
    )
    with raises(InvalidInputError, dims=("time", "x")):
        write_batches(part, [batch])


def test_an_array_that_is_only_read_is_refused_before_any_row_moves(place):
    """GRIB archives are virtual; cells of them cannot be patched."""
    pytest.importorskip("gribberish")
    write_table(place, grid(range(2), [1, 2]), DIMS)
    session = Repository.open(place).writable_session()
    document = json.loads(session.node("/t").user_data)
    document["codecs"] = [{"name": "gribberish", "configuration": {"var": "TMP"}}]
    session.update_metadata("/t", json.dumps(document).encode())
    session.commit("as if from GRIB")
    options = WriteOptions(mode="append", dims=("time", "x"))
    with raises(UnsupportedError, match=r"only read \(gribberish\)", variable="t"):
        prepare_write(place, grid(range(2), [1, 2]).schema, options)


def written_groups(place):
    snapshot = Repository.open(place).snapshot(dataset_at(place, branch="main").snapshot_id)
    return {str(node.path.rpartition("/")[0]) or "/" for node in snapshot.nodes if node.array}


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        (grid([5], [1.0]), {"/other"}),
        (pa.table({"time": [0, 1], "x": [1.0, 1.0], "new": [1.0, 2.0]}), {"/other"}),
        (pa.table({"station": [1, 2], "rain": [1.0, 2.0]}), {"/other", "/"}),
    ],
    ids=["the same columns", "the same dimensions", "nothing in common"],
)
def test_without_a_group_a_table_goes_where_its_columns_are(place, table, wanted):
    write_table(place, grid([0], [1.0]), WriteOptions(dims=("time", "x"), group="other"))
    dims = tuple(name for name in table.column_names if name not in ("t", "new", "rain"))
    write_table(place, table, WriteOptions(mode="append", dims=dims, merge_schema=True))
    assert written_groups(place) == wanted


@pytest.mark.parametrize(
    ("rows", "column", "existing"),
    [
        (grid([1], [1]).append_column("T", pa.array([1.0])), "T", "t"),
        (grid([1], [1]).append_column("X", pa.array([1])), "X", "x"),
        (grid([1], [1]).rename_columns(["TIME", "x", "t"]), "TIME", "time"),
        (grid([1], [1]).append_column("Label", pa.array([1])), "Label", "label"),
    ],
    ids=["variable", "labels", "dimension", "coordinate"],
)
@pytest.mark.parametrize("mode", ["append", "one frame"])
def test_a_name_that_differs_in_case_alone_is_refused(place, rows, column, existing, mode):
    before = grid([0], [1, 2]).append_column("label", pa.array([1, 2]))
    write_table(place, before, APPEND)
    dims = tuple(rows.column_names[:2])
    options = WriteOptions(mode="append", dims=dims)
    if mode == "one frame":
        rows = rows if existing in rows.column_names else rows.append_column(existing, rows[column])
        options = WriteOptions(mode="overwrite", dims=dims)
    with pytest.raises(InvalidInputError, match="in case alone") as caught:
        write_table(place, rows, options)
    assert {caught.value.facts["column"], caught.value.facts["existing"]} == {column, existing}
    assert rows_of(place).num_rows == 2
    replacing = WriteOptions(mode="overwrite", dims=("TIME", "X"))
    write_table(place, before.rename_columns(["TIME", "X", "T", "LABEL"]), replacing)


@pytest.mark.parametrize(("name", "time"), [("T", "time"), ("new", "TIME")])
def test_described_arrays_that_differ_in_case_alone_are_refused(place, name, time):
    write_table(place, grid([0], [1, 2]), APPEND)
    said = {"dims": [time, "x"], "chunks": {time: 1, "x": 2}}
    encoding = {name: {"shape": [1, 2], "dtype": "float64", **said}}
    rows = pa.table({"array": [name], "chunk": [[0, 0]], "data": [bytes(16)]})
    for mode in ("append", "overwrite"):
        with raises(InvalidInputError, column=..., existing=...):
            write_table(place, rows, WriteOptions(mode=mode, layout="chunks", encoding=encoding))


def test_doubles_for_an_array_of_shorter_floats_give_one_warning(place):
    write_table(place, grid([0], [1, 2]).set_column(2, "t", pa.array([1, 2], "float32")), DIMS)
    doubles = grid([1], [1, 2]).set_column(2, "t", pa.array([0.1, 0.2]))
    with pytest.warns(UserWarning, match=r"rounded .*'t' \(float32\)\. Cast them") as caught:
        write_table(place, doubles, APPEND)
    assert len(caught) == 1
    assert rows_of(place).column("t").to_pylist()[2:] == [np.float32(0.1), np.float32(0.2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_table(place, doubles.set_column(2, "t", pa.array([1, 2], "float32")), APPEND)


def test_arrays_that_grow_without_rows_are_named_if_their_new_cells_are_no_missing_values(place):
    first = grid(
        range(2),
        [1, 2],
        flag=pa.array([1, 1, 1, 1], "int8"),
        other=pa.array([1.0, 2.0, 3.0, 4.0]),
        count=pa.array([1, 2, 3, 4]),
        zero=pa.array([1.0, 2.0, 3.0, 4.0]),
    )
    encoding = {"count": {"_FillValue": -1}, "zero": {"fill_value": 0.0}}
    write_table(place, first, WriteOptions(mode="append", dims=("time", "x"), encoding=encoding))
    with pytest.warns(UserWarning, match=r"as missing: 'flag' \(0\), 'zero' \(0\.0\)\. Write"):
        write_table(place, grid([2], [1, 2]), APPEND)
    assert values(place, "flag").tolist() == [[1, 1], [1, 1], [0, 0]]
    assert values(place, "zero").tolist() == [[1, 2], [3, 4], [0, 0]]
    assert values(place, "count").tolist() == [[1, 2], [3, 4], [-1, -1]]
    assert np.isnan(values(place, "other")[2]).all()
    # Neither a correction nor a row with all columns leaves cells of other arrays without a value.
    write_table(place, grid([1], [1, 2]), APPEND)
    last = first.slice(0, 2).set_column(0, "time", pa.array([3, 3]))
    write_table(place, last, APPEND)
