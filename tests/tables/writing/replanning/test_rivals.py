"""Labels of writes that finish one after another: they lie in order, and cells stay with them."""

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.grids.rival_writes import (
    assert_as_one_after_another,
    assert_equal_contents,
    begun,
    created,
)
from helpers.grids.written_cells import APPEND, dataset_at, grid, values
from helpers.raised import raises

from icechunk_format.errors import ConflictError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.writing.in_process import write_table

# Jobs append early labels late here, on purpose.


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_days_that_land_in_another_order_lie_in_order(chunk):
    days = [grid([day], [1, 2], offset=day / 10) for day in (6, 4, 5)]
    place = assert_as_one_after_another(grid(range(4), [1, 2]), days, chunks={"time": chunk})
    assert values(place, "time").tolist() == list(range(7))
    assert values(place)[:, 0].tolist() == [1, 101, 201, 301, 401.4, 501.5, 601.6]


def test_days_in_any_order_beside_variables_that_no_job_names():
    first = grid(range(4), [1, 2], u=pa.array(np.arange(8.0)))
    days = [grid([day], [1, 2]) for day in (6, 4)]
    late = grid([5, 7], [1, 2]).rename_columns(["time", "x", "u"])
    place = assert_as_one_after_another(first, [days[0], late, days[1]], chunks={"time": 3})
    assert values(place, "time").tolist() == list(range(8))


def test_variables_along_other_dimensions_keep_to_their_labels():
    together, apart = new_place(), new_place()
    dims = WriteOptions(mode="append", dims=("time", "side"), merge_schema=True)
    bounds = [
        grid(days, [0, 1]).rename_columns(["time", "side", "edge"]) for days in (range(4), [6])
    ]
    days = [grid([day], [1, 2]) for day in (7, 4, 5)]
    for place in (together, apart):
        created(place, grid(range(4), [1, 2]), chunks={"time": 3})
        write_table(place, bounds[0], dims)
    finishes = [begun(together, bounds[1], dims)] + [begun(together, day) for day in days]
    for finish in finishes:
        finish()
    write_table(apart, bounds[1], dims)
    for day in days:
        write_table(apart, day, APPEND)
    assert_equal_contents(together, apart)
    assert values(together, "time").tolist() == list(range(8))


@pytest.mark.parametrize(
    "creation",
    [
        {"chunks": {"time": 1, "x": 1}, "shards": {"time": 2, "x": 2}},
        {
            "encoding": {
                "t": {"dtype": "int16", "scale_factor": 2.0, "_FillValue": -9, "fill_value": -9}
            }
        },
    ],
)
def test_encoded_and_sharded_days_go_in_in_order(creation):
    days = [grid([day], [2, 4]) for day in (7, 4, 5)] + [grid([6], [6, 8])]
    assert_as_one_after_another(grid(range(4), [2, 4]), days, **creation)


def test_texts_and_instants_go_in_in_order():
    def table(days, places):
        rows = [(day, name) for day in days for name in places]
        times = np.array([day for day, _ in rows], "M8[D]").astype("M8[us]")
        words = [f"{day} in {name}" for day, name in rows]
        return pa.table({"time": times, "x": [name for _, name in rows], "word": words})

    first = table(["2024-01-01", "2024-01-02"], ["a", "b"])
    later = [table([day], ["a", "b"]) for day in ("2024-01-05", "2024-01-03")]
    last = table(["2024-01-04"], ["c"])
    encoding = {"word": {"missing_value": "none"}}
    place = assert_as_one_after_another(first, [*later, last], encoding=encoding)
    assert (np.diff(values(place, "time")) > 0).all()


def test_labels_that_are_renamed_meanwhile_are_a_conflict(place):
    created(place, grid(range(4), [1, 2]))
    finish = begun(place, grid([2], [1, 2], offset=0.5))
    session = Repository.open(place).writable_session("main")
    metadata = dataset_at(place).variables["time"].metadata
    labels = metadata.fill_array(metadata.grid.chunk_shape)
    labels[:4] = [0, 1, 12, 3]
    session.set_chunk("/time", [0], metadata.chunk_codecs().encode(labels))
    session.commit("rename a day")
    with raises(
        ConflictError,
        match=r"labels of the dimension 'time' were changed",
        branch="main",
        dim="time",
    ):
        finish()
    assert values(place)[2].tolist() == [201, 202]


def test_labels_that_were_there_keep_their_places():
    place = assert_as_one_after_another(
        grid([3, 1], [1, 2]), [grid([7], [1, 2]), grid([2, 5], [1, 2])], chunks={"time": 1}
    )
    assert values(place, "time").tolist() == [1, 2, 3, 5, 7]


def test_descending_labels_stay_descending():
    encoding = {"x": {"order": "descending"}}
    place = assert_as_one_after_another(
        grid([0], [30, 20]),
        [grid([0], [5]), grid([0], [15, 10])],
        chunks={"x": 1},
        encoding=encoding,
    )
    assert values(place, "x").tolist() == [30, 20, 15, 10, 5]


def test_a_write_planned_before_labels_moved_finds_its_cells_again():
    together, apart = new_place(), new_place()
    for place in (together, apart):
        created(place, grid(range(4), [1, 2]), chunks={"time": 2})
    early = begun(together, grid([4], [1, 2]))
    begun(together, grid([5, 6], [1, 2]))()
    # These two are planned where 5 comes right after 3, which is about to change.
    fix = begun(together, grid([5], [1], offset=0.5))
    more = begun(together, grid([7], [1, 2]))
    for finish in (early, fix, more):
        finish()
    for table in (
        *(grid([n], [1, 2]) for n in (4, 5, 6, 7)),
        grid([5], [1], offset=0.5),
    ):
        write_table(apart, table, APPEND)
    assert_equal_contents(together, apart)
    assert values(together, "time").tolist() == list(range(8))
