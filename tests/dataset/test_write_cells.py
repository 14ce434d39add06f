"""Rows become cells: what a write changes, what it leaves, and what it refuses.

Everything is written to memory, as a distributed write would, and read back with our own reader.
"""

import itertools
import json
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_format.dataset.dataset import open_dataset
from icechunk_format.dataset.scan import run_task
from icechunk_format.dataset.write_commit import finish_write
from icechunk_format.dataset.write_options import WriteOptions
from icechunk_format.dataset.write_plan import plan_write
from icechunk_format.dataset.write_prepare import prepare_write
from icechunk_format.dataset.write_table import placed_batches, write_part, write_table
from icechunk_format.dataset.write_task import write_batches
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from icechunk_format.repository.repository import Repository
from icechunk_format.storage.location import Location, open_storage

_numbers = itertools.count()


@pytest.fixture
def place():
    return f"memory://writes-{next(_numbers)}"


def grid(times, xs, *, offset=0.0, **columns):
    """Rows of a full grid: t = 100 * time + x."""
    time, x = np.meshgrid(np.asarray(times, int), np.asarray(xs, float), indexing="ij")
    data = {
        "time": pa.array(time.ravel()),
        "x": pa.array(x.ravel()),
        "t": pa.array((time * 100 + x + offset).ravel().astype("f8")),
    }
    return pa.table({**data, **columns})


def dataset_at(place, **choice):
    repository = Repository.open(place)
    return open_dataset(repository, repository.resolve(**(choice or {"branch": "main"})))


def values(place, name="t"):
    return dataset_at(place).read(name)


def rows_of(place, **options):
    dataset = dataset_at(place)
    table = dataset.table(**options)
    plan = dataset.plan(table)
    batches = [b for task in plan.tasks for b in run_task(plan.context, task)]
    plain = pa.Table.from_batches(batches, schema=plan.arrow_schema)
    return pa.Table.from_arrays(plain.columns, schema=table.arrow_schema)


DIMS = WriteOptions(dims=("time", "x"))
APPEND = WriteOptions(mode="append", dims=("time", "x"))


def test_rows_in_any_order_fill_the_grid(place):
    table = grid(range(6), [1, 2, 3])
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    result = write_table(place, shuffled, WriteOptions(dims=("time", "x"), chunks={"time": 4}))
    expected = np.arange(6)[:, None] * 100 + np.array([1, 2, 3])
    np.testing.assert_array_equal(values(place), expected)
    np.testing.assert_array_equal(values(place, "time"), np.arange(6))
    np.testing.assert_array_equal(values(place, "x"), [1, 2, 3])
    assert (result.rows, result.chunks) == (18, 2)


def test_one_commit_for_everything(place):
    write_table(place, grid(range(3), [1, 2]), DIMS)
    history = list(Repository.open(place).ancestry(branch="main"))
    assert [info.message for info in history] == [
        "errorifexists 6 rows to /",
        "Repository initialized",
    ]


def test_append_overwrites_cells_and_extends_at_the_end(place):
    write_table(place, grid(range(4), [1, 2]), WriteOptions(dims=("time", "x"), chunks={"time": 3}))
    write_table(place, grid([3, 5, 4], [2, 7], offset=0.5), WriteOptions(mode="append"))
    np.testing.assert_array_equal(values(place, "time"), [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(values(place, "x"), [1, 2, 7])
    expected = np.array(
        [
            [1, 2, np.nan],
            [101, 102, np.nan],
            [201, 202, np.nan],
            [301, 302.5, 307.5],
            [np.nan, 402.5, 407.5],
            [np.nan, 502.5, 507.5],
        ]
    )
    np.testing.assert_array_equal(values(place), expected)


def test_arrays_that_no_column_names_grow_with_their_dimension(place):
    both = grid(range(2), [1, 2])
    both = both.append_column("other", pa.array([1.5, 2.5, 3.5, 4.5]))
    write_table(place, both, DIMS)
    write_table(place, grid([2], [1, 2]), WriteOptions(mode="append"))
    assert values(place, "t").shape == values(place, "other").shape == (3, 2)
    np.testing.assert_array_equal(
        values(place, "other"), [[1.5, 2.5], [3.5, 4.5], [np.nan, np.nan]]
    )
    assert rows_of(place).num_rows == 6


def test_a_new_variable_joins_the_group(place):
    write_table(place, grid(range(2), [1, 2]), DIMS)
    more = grid([1], [1, 2]).rename_columns(["time", "x", "u"])
    write_table(place, more, APPEND)
    np.testing.assert_array_equal(values(place, "u"), [[np.nan, np.nan], [101, 102]])
    np.testing.assert_array_equal(values(place, "t"), [[1, 2], [101, 102]])


def test_overwrite_leaves_exactly_the_arrays_of_the_dataframe(place):
    write_table(place, grid(range(4), [1, 2]), DIMS)
    before = Repository.open(place).resolve(branch="main")
    new = grid([9], [5]).rename_columns(["time", "x", "u"])
    write_table(place, new, WriteOptions(mode="overwrite", dims=("time", "x")))
    assert sorted(dataset_at(place).variables) == ["time", "u", "x"]
    assert values(place, "u").tolist() == [[905.0]]
    old = open_dataset(Repository.open(place), before)
    assert old.read("t").shape == (4, 2)


def test_overwriting_a_table_with_what_was_read_of_it_changes_nothing(place):
    descending = grid(range(2), [3, 2, 1])
    order = WriteOptions(dims=("time", "x"), encoding={"x": {"order": "descending"}})
    write_table(place, descending, order)
    assert values(place, "x").tolist() == [3, 2, 1]
    before = values(place)
    write_table(place, rows_of(place), WriteOptions(mode="overwrite"))
    assert values(place, "x").tolist() == [3, 2, 1]
    np.testing.assert_array_equal(values(place), before)


def test_labels_in_no_order_keep_it(place):
    table = pa.table({"station": ["b", "c", "a"], "v": [1, 2, 3]})
    asked = {"station": {"order": ["b", "c", "a"]}}
    write_table(place, table, WriteOptions(dims=("station",), encoding=asked))
    other = f"{place}-copy"
    write_table(other, rows_of(place), WriteOptions())
    assert values(other, "station").tolist() == ["b", "c", "a"]
    assert values(other, "v").tolist() == [1, 2, 3]


def test_new_labels_of_a_descending_dimension_go_down(place):
    asked = WriteOptions(dims=("time", "x"), encoding={"x": {"order": "descending"}})
    write_table(place, grid([0], [60, 50]), asked)
    write_table(place, grid([0], [40, 30]), APPEND)
    assert values(place, "x").tolist() == [60, 50, 40, 30]


def test_dimensions_without_labels_take_indices(place):
    described = json.dumps({"role": "dimension", "dimensions": ["i"], "shape": [3]})
    field = pa.field("i", pa.int64(), metadata={b"icechunk": described.encode()})
    schema = pa.schema([field, pa.field("v", pa.float32())])
    write_table(place, pa.table([[2, 0], [2.5, 0.5]], schema=schema), WriteOptions())
    assert list(dataset_at(place).variables) == ["v"]
    np.testing.assert_array_equal(values(place, "v"), np.array([0.5, np.nan, 2.5], "f4"))
    write_table(
        place, pa.table({"i": [4], "v": pa.array([4.5], pa.float32())}), WriteOptions(mode="append")
    )
    np.testing.assert_array_equal(values(place, "v")[[2, 4]], [2.5, 4.5])
    with pytest.raises(InvalidInputError, match="indices from 0; found -1"):
        write_table(
            place,
            pa.table({"i": [-1], "v": pa.array([4.5], pa.float32())}),
            WriteOptions(mode="append"),
        )


def test_chunks_without_a_row_are_not_stored(place):
    diagonal = pa.table({"time": [0, 1, 2], "x": [0, 1, 2], "t": [1.0, 2.0, 3.0]})
    options = WriteOptions(dims=("time", "x"), chunks={"time": 1, "x": 1})
    result = write_table(place, diagonal, options)
    assert result.chunks == 3
    expected = np.full((3, 3), np.nan)
    np.fill_diagonal(expected, [1, 2, 3])
    np.testing.assert_array_equal(values(place), expected)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_sequence_of_appends_is_a_dictionary_of_cells(data):
    place = f"memory://writes-{next(_numbers)}"
    chunks = {d: data.draw(st.integers(1, 5)) for d in ("time", "x")}
    shards = data.draw(st.sampled_from([None, 2, 3]))
    options = WriteOptions(
        mode="append",
        dims=("time", "x"),
        chunks=chunks,
        shards=None if shards is None else {d: n * shards for d, n in chunks.items()},
        rows_per_unit=data.draw(st.sampled_from([1, 4, 1000])),
        min_density=0,
    )
    cells = {}
    label = st.integers(0, 12)
    for number in range(data.draw(st.integers(1, 3))):
        keys = data.draw(st.lists(st.tuples(label, label), min_size=1, max_size=20, unique=True))
        new = {key: number * 1000.0 + i for i, key in enumerate(keys)}
        nothing = data.draw(st.sampled_from(keys))
        new[nothing] = None
        cells.update(new)
        table = pa.table(
            {
                "time": pa.array([k[0] for k in keys]),
                "x": pa.array([k[1] for k in keys]),
                "t": pa.array([new[k] for k in keys], pa.float64()),
            }
        )
        write_table(place, table, options)
        if number == 0:
            options = WriteOptions(mode="append", min_density=0, rows_per_unit=3)
    found = {(r["time"], r["x"]): r["t"] for r in rows_of(place).to_pylist()}
    assert {k: v for k, v in found.items() if v is not None} == {
        k: v for k, v in cells.items() if v is not None
    }
    assert set(cells) <= set(found)


def test_receipts_of_many_tasks_make_manifests_that_do_not_overlap(place):
    table = grid(range(20), range(6))
    options = WriteOptions(dims=("time", "x"), chunks={"time": 2, "x": 3}, rows_per_unit=10)
    prepared = prepare_write(place, table.schema, options)
    coordinates = {d: pa.array(sorted(set(table.column(d).to_pylist()))) for d in prepared.dims}
    plan = plan_write(prepared, coordinates, table.num_rows)
    [part] = plan.parts
    whole = pa.Table.from_batches(placed_batches(plan, part, table))
    assert whole.schema.equals(part.input_schema)
    units = whole.column("_cell").to_numpy() // part.cells_per_unit
    assert set(units) == set(range(part.units))
    assert part.units > 5
    context = pickle.loads(pickle.dumps(part.context))
    receipts = [
        pickle.loads(
            pickle.dumps(
                write_batches(context, whole.filter(pa.array(units == unit)).to_batches(7))
            )
        )
        for unit in range(part.units)
    ]
    result = finish_write(pickle.loads(pickle.dumps(plan)), receipts)
    assert result.manifests == part.units
    assert result.chunks == 20
    node = dataset_at(place).variables["t"].array
    assert len(node.manifests) == part.units
    np.testing.assert_array_equal(values(place), np.arange(20)[:, None] * 100 + np.arange(6))


def test_two_tasks_that_wrote_one_chunk_are_refused(place):
    table = grid(range(2), [1, 2])
    prepared = prepare_write(place, table.schema, DIMS)
    plan = plan_write(prepared, {"time": pa.array([0, 1]), "x": pa.array([1.0, 2.0])}, 4)
    [part] = plan.parts
    receipts = [write_part(plan, part, table) for _ in range(2)]
    with pytest.raises(InvalidInputError, match="1 chunks were written twice"):
        finish_write(plan, receipts)
    assert not Repository.exists(place)
    # What the tasks stored is no obstacle to another attempt.
    finish_write(plan, receipts[:1])
    assert values(place).shape == (2, 2)


def test_fewer_rows_than_the_plan_was_made_for_are_refused(place):
    table = grid(range(2), [1, 2])
    plan = plan_write(
        prepare_write(place, table.schema, DIMS),
        {"time": pa.array([0, 1]), "x": pa.array([1.0, 2.0])},
        4,
    )
    [part] = plan.parts
    with pytest.raises(InvalidInputError, match=r"had 4 rows .* and 3 when they were written"):
        finish_write(plan, [write_part(plan, part, table.slice(1))])
    assert not Repository.exists(place)


def test_a_place_with_other_things_is_refused_before_anything_is_stored(place):
    storage = open_storage(Location(place))
    storage.put("chunks/0123456789ABCDEF0000", b"of a failed write")
    storage.put("table.parquet", b"of somebody else")
    with pytest.raises(AlreadyExistsError, match=r"table\.parquet is there"):
        prepare_write(place, grid(range(2), [1, 2]).schema, DIMS)
    storage.delete_many(["table.parquet"])
    write_table(place, grid(range(2), [1, 2]), DIMS)
    assert values(place).shape == (2, 2)


def test_a_branch_of_no_repository_is_refused_before_anything_is_stored(place):
    options = WriteOptions(dims=("time", "x"), branch="audit")
    with pytest.raises(NotFoundError, match="no branch 'audit'"):
        prepare_write(place, grid(range(2), [1, 2]).schema, options)
    made = write_table(place, grid(range(2), [1, 2]), replace(options, create_branch=True))
    assert Repository.open(place).branches()["audit"] == made.snapshot_id


# -- modes ----------------------------------------------------------------------------------


def test_existing_arrays_are_refused_by_default_and_left_alone_by_ignore(place):
    write_table(place, grid(range(2), [1, 2]), DIMS)
    with pytest.raises(AlreadyExistsError, match="choose mode append"):
        write_table(place, grid(range(2), [1, 2]), DIMS)
    result = write_table(place, grid([7], [1, 2]), WriteOptions(mode="ignore", dims=("time", "x")))
    assert result.is_skipped
    assert values(place).shape == (2, 2)


def test_a_version_of_a_writer_is_committed_once(place):
    def write(version, offset):
        options = WriteOptions(
            mode="append", dims=("time", "x"), txn_app_id="stream", txn_version=version
        )
        return write_table(place, grid(range(2), [1, 2], offset=offset), options)

    assert not write(3, 0.0).is_skipped
    again = write(3, 0.5)
    assert again.is_skipped
    assert "committed version 3" in again.reason
    assert write(2, 0.5).is_skipped
    assert values(place)[0, 0] == 1.0
    assert not write(4, 0.5).is_skipped
    assert values(place)[0, 0] == 1.5


def test_writing_to_a_branch_leaves_main_alone(place):
    write_table(place, grid(range(2), [1, 2]), DIMS)
    audit = {"mode": "append", "branch": "audit"}
    with pytest.raises(NotFoundError, match="audit"):
        write_table(place, grid([2], [1, 2]), WriteOptions(**audit))
    write_table(place, grid([2], [1, 2]), WriteOptions(**audit, create_branch=True))
    assert values(place).shape == (2, 2)
    assert dataset_at(place, branch="audit").read("t").shape == (3, 2)


def test_concurrent_writes_rebase_or_conflict_and_never_mix(place):
    write_table(place, grid(range(4), [1, 2]), WriteOptions(dims=("time", "x"), chunks={"time": 2}))

    def planned(times, offset, **options):
        table = grid(times, [1, 2], offset=offset)
        prepared = prepare_write(place, table.schema, WriteOptions(mode="append", **options))
        coordinates = {"time": pa.array(times), "x": pa.array([1.0, 2.0])}
        plan = plan_write(prepared, coordinates, table.num_rows)
        return plan, [write_part(plan, part, table) for part in plan.parts]

    first, second = planned([0], 0.1), planned([1], 0.2)
    apart, winner = planned([3], 0.3), planned([1], 0.4, resolve="ours")
    finish_write(*first)
    with pytest.raises(ConflictError):
        finish_write(*second)
    assert finish_write(*apart).commit.rebased == 1
    assert values(place)[:, 0].tolist() == [1.1, 101, 201, 301.3]
    finish_write(*winner)
    assert values(place)[1, 0] == 101.4
    strict = planned([2], 0.5, on_conflict="fail")
    write_table(place, grid([0], [1, 2]), WriteOptions(mode="append"))
    with pytest.raises(ConflictError):
        finish_write(*strict)


def test_spec_version_1_can_be_written(place):
    write_table(place, grid(range(2), [1, 2]), WriteOptions(dims=("time", "x"), spec_version=1))
    write_table(place, grid([2], [1, 2]), WriteOptions(mode="append"))
    assert Repository.open(place).spec_version == 1
    assert values(place).shape == (3, 2)


def test_groups_are_made_as_needed(place):
    write_table(place, grid(range(2), [1]), WriteOptions(dims=("time", "x"), group="/a/b"))
    write_table(place, grid(range(2), [1]), WriteOptions(dims=("time", "x"), group="c"))
    repository = Repository.open(place)
    dataset = open_dataset(repository, repository.resolve(branch="main"), "a/b")
    assert dataset.read("t").shape == (2, 1)
    with pytest.raises(InvalidInputError, match="is an array, and nothing"):
        write_table(place, grid([0], [1]), WriteOptions(dims=("time", "x"), group="a/b/t"))


def test_no_rows_append_nothing_and_create_empty_arrays(place):
    empty = grid([], [])
    write_table(place, empty, DIMS)
    assert values(place).shape == (0, 0)
    assert write_table(place, empty, APPEND).is_skipped
    write_table(place, grid(range(2), [1]), APPEND)
    assert values(place).tolist() == [[1.0], [101.0]]


# -- refusals -------------------------------------------------------------------------------


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
    ("column", "match"),
    [
        (pa.array([None, 1.0, 2.0, 3.0]), "'x' is NULL"),
        (pa.array([np.nan, 1.0, 2.0, 3.0]), "'x' is NaN"),
    ],
)
def test_rows_without_a_place_are_refused(place, column, match):
    table = pa.table({"time": [0, 1, 2, 3], "x": column, "t": [1.0] * 4})
    refused(place, table, DIMS, match)


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
    last = refused(place, grid([0], [1]), WriteOptions(), "which columns are dimensions")
    assert "dims=time,x" in last
    refused(place, grid([0], [1]), WriteOptions(dims=("time", "y")), "did you mean 'x'")
    refused(place, grid([0], [1]), WriteOptions(dims=("time", "x", "t")), "no values to write")


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
    with pytest.raises(InvalidInputError, match="did you mean 'scale_factor'"):
        WriteOptions(encoding={"t": {"scalefactor": 1}})
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
    with pytest.raises(InvalidInputError, match="not there when the write was planned"):
        write_batches(part.context, [batch])


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
    with pytest.raises(UnsupportedError, match=r"only read \(gribberish\)"):
        prepare_write(place, grid(range(2), [1, 2]).schema, options)
