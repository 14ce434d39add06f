"""Written rows change their cells and no others.

Everything is written to memory, as a distributed write would, and read back with our own reader.
"""

import json

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import APPEND, DIMS, dataset_at, grid, rows_of, values
from helpers.raised import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import storing
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.tables.writing import in_process as write_table_module
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.tables.writing.replanning import rivals


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
        "Create t (time=3, x=2): 6 rows",
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
    with raises(InvalidInputError, dim="i", found=-1):
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


def test_more_rows_than_batches_and_more_chunks_than_requests_hold(place, monkeypatch):
    monkeypatch.setattr(storing, "_BATCH_BYTES", 1 << 16)
    monkeypatch.setattr(storing, "_BATCH_CHUNKS", 100)
    table = grid(range(500), range(600))
    options = WriteOptions(
        dims=("time", "x"), chunks={"time": 7, "x": 11}, rows_per_unit=70_000, mode="append"
    )
    write_table(place, table.take(np.random.default_rng(0).permutation(300_000)), options)
    expected = np.arange(500)[:, None] * 100.0 + np.arange(600)
    np.testing.assert_array_equal(values(place), expected)
    write_table(place, grid(range(250, 750), range(600), offset=0.5), APPEND)
    expected = np.arange(750)[:, None] * 100.0 + np.arange(600)
    expected[250:] += 0.5
    np.testing.assert_array_equal(values(place), expected)


@pytest.mark.parametrize("first", [[3, 4], [4, 3]])
def test_labels_between_others_are_inserted_in_order(place, first):
    order = "descending" if first == [4, 3] else "ascending"
    options = WriteOptions(dims=("time", "x"), encoding={"time": {"order": order}})
    write_table(place, grid(first, [1, 2]), options)
    write_table(place, grid([1] if order == "ascending" else [9], [1, 2]), APPEND)
    times = [1, 3, 4] if order == "ascending" else [9, 4, 3]
    assert values(place, "time").tolist() == times
    expected = np.array(times)[:, None] * 100.0 + [1, 2]
    np.testing.assert_array_equal(values(place), expected)
    unsorted = WriteOptions(mode="append", order={"time": "unsorted"})
    write_table(place, grid([2], [1, 2]), unsorted)
    assert values(place, "time").tolist() == [*times, 2]
    # They are unsorted by now, and stay so.
    write_table(place, grid([0], [1, 2]), APPEND)
    assert values(place, "time").tolist() == [*times, 2, 0]


def test_labels_that_would_move_many_chunks_are_refused(place, monkeypatch):
    monkeypatch.setattr(rivals, "_MOST_MOVED_CHUNKS", 4)
    write_table(
        place, grid(range(0, 20, 2), [1]), WriteOptions(dims=("time", "x"), chunks={"time": 1})
    )
    before = Repository.open(place).resolve()
    with raises(InvalidInputError, dim="time"):
        write_table(place, grid([3], [1]), APPEND)
    assert Repository.open(place).resolve() == before
    write_table(place, grid([15, 17, 20], [1]), APPEND)
    assert values(place, "time").tolist() == [*range(0, 15, 2), 15, 16, 17, 18, 20]
    assert values(place)[:, 0].tolist() == [100 * t + 1 for t in values(place, "time")]


def test_a_variable_that_the_group_does_not_have_is_refused(place):
    write_table(place, grid(range(2), [1, 2]), DIMS)
    more = grid([1], [1, 2]).rename_columns(["time", "x", "tt"])
    strict = WriteOptions(mode="append")
    with pytest.raises(InvalidInputError) as failure:
        write_table(place, more, strict)
    assert failure.value.facts == {"column": "tt", "option": "mergeSchema", "existing": ("t",)}
    encoding = {"tt": {"dtype": "float32"}}
    write_table(place, more, WriteOptions(mode="append", encoding=encoding))
    assert values(place, "tt").dtype == np.float32


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_sequence_of_appends_is_a_dictionary_of_cells(data):
    place = new_place()
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
    with pytest.MonkeyPatch.context() as bounds:
        bounds.setattr(write_table_module, "_ROWS_PER_BATCH", data.draw(st.integers(1, 8)))
        bounds.setattr(storing, "_BATCH_BYTES", data.draw(st.integers(1, 200)))
        bounds.setattr(storing, "_BATCH_CHUNKS", data.draw(st.integers(1, 4)))
        appended(place, options, data)


def appended(place, options, data):
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
