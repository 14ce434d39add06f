"""A scan gives every selected cell exactly once, and reads no more than it needs.

Values are those of the arrays, whatever the chunks, shards, manifests, selections and tasks.
"""

import itertools
import pickle
import threading
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from helpers.grids.drawn_arrays import bounded, cases, isel_text, numbers, rows_of, small_bounds
from helpers.grids.synthetic_datasets import ArrayToWrite, write_dataset
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.groups import SnapshotSource
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.location import open_storage
from icechunk_format.tables.reading import run_scan, scan


@settings(deadline=None, max_examples=60)
@given(cases(), st.sampled_from([1, 5, None]), small_bounds())
def test_every_selected_cell_comes_exactly_once(case, rows_per_partition, bounds):
    dims, sizes, (a, array_a), (b, array_b), picked = case
    first = array_a.dims
    dataset = write_dataset("cells", {"a": array_a, "b": array_b})
    plan = dataset.plan(
        dataset.table(),
        isel=isel_text(dims, picked),
        rows_per_partition=rows_per_partition,
        read_ahead_bytes=bounds["read_ahead_bytes"],
    )
    with bounded(bounds):
        found = rows_of(plan).to_pydict()
    # Indices of cells stand in dimension columns, for no dimension has labels here.
    order = [dims.index(dim) for dim in first]
    indices = [i.ravel() for i in np.indices(sizes)]
    keep = np.zeros(sizes, dtype=bool)
    keep[tuple(picked)] = True
    expected = sorted(
        zip(
            *(indices[i][keep.ravel()].tolist() for i in order),
            a[keep].tolist(),
            b[keep].tolist(),
            strict=True,
        )
    )
    assert sorted(zip(*(found[name] for name in [*first, "a", "b"]), strict=True)) == expected
    assert plan.rows == len(expected)
    assert len(plan.tasks) <= max(1, len(expected))


@settings(deadline=None, max_examples=40)
@given(cases(), st.sampled_from([2, None]), small_bounds())
def test_skipping_missing_chunks_leaves_exactly_the_stored_cells(case, rows_per_partition, bounds):
    dims, sizes, (a, array_a), (b, array_b), picked = case
    dataset = write_dataset("skipped", {"a": array_a, "b": array_b})
    plan = dataset.plan(
        dataset.table(),
        isel=isel_text(dims, picked),
        rows_per_partition=rows_per_partition,
        missing_chunks="skip",
        columns=["b", "a"],
        read_ahead_bytes=bounds["read_ahead_bytes"],
    )
    with bounded(bounds):
        found = rows_of(plan).to_pydict()
    # Values are never the fill value where a chunk exists, but an inner chunk that is all fill is
    # not stored; none is here, since stored values are positive.
    stored = (a != -7) | (b != -7)
    keep = np.zeros(sizes, dtype=bool)
    keep[tuple(picked)] = True
    keep &= stored
    assert sorted(zip(found["a"], found["b"], strict=True)) == sorted(
        zip(a[keep].tolist(), b[keep].tolist(), strict=True)
    )


@settings(deadline=None, max_examples=30)
@given(cases(), st.sampled_from([1, None]), st.booleans(), small_bounds())
def test_chunks_hold_the_array_and_no_chunk_comes_twice(case, rows_per_partition, skip, bounds):
    dims, sizes, (a, array_a), _, picked = case
    dataset = write_dataset("chunks", {"a": array_a})
    plan = dataset.plan(
        dataset.table("chunks"),
        isel=isel_text(dims, picked),
        rows_per_partition=rows_per_partition,
        missing_chunks="skip" if skip else "fill",
        read_ahead_bytes=bounds["read_ahead_bytes"],
    )
    with bounded(bounds):
        rows = rows_of(plan).to_pylist()
    order = [dims.index(dim) for dim in array_a.dims]
    values = a.transpose(order)
    times = np.zeros(values.shape, dtype=int)
    for row in rows:
        box = tuple(slice(s, s + n) for s, n in zip(row["start"], row["shape"], strict=True))
        data = np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"])
        np.testing.assert_array_equal(data, values[box])
        times[box] += 1
    keep = np.zeros(sizes, dtype=bool)
    keep[tuple(picked)] = True
    keep = keep.transpose(order)
    if skip:
        keep &= values != -7
    assert times.max() <= 1
    assert (times[keep] == 1).all()


@settings(deadline=None, max_examples=30)
@given(cases(), st.sampled_from([1, None]), small_bounds())
def test_each_reference_comes_once(case, rows_per_partition, bounds):
    dims, _, (_, array_a), (_, array_b), picked = case
    dataset = write_dataset("refs", {"a": array_a, "b": array_b})
    plan = dataset.plan(
        dataset.table("refs"),
        isel=isel_text(dims, picked),
        rows_per_partition=rows_per_partition,
        read_ahead_bytes=bounds["read_ahead_bytes"],
    )
    with bounded(bounds):
        found = sorted((row["array"], *row["chunk"]) for row in rows_of(plan).to_pylist())
    expected = []
    for name, array in {"/a": array_a, "/b": array_b}.items():
        chosen = []
        for dim, size, step in zip(
            array.dims, array.values.shape, array.shards or array.chunks, strict=True
        ):
            positions = np.arange(size)[picked[dims.index(dim)]]
            chosen.append(sorted({int(p) // step for p in positions}))
        expected += [(name, *c) for c in itertools.product(*chosen) if c not in array.missing]
    assert found == sorted(expected)


@pytest.fixture(scope="module")
def large():
    """16 MB and two million cells in 4,000 chunks: read below with 1 MB ahead."""
    values = np.random.default_rng(1).normal(size=(400, 50, 100))
    array = ArrayToWrite(
        values=values, chunks=(5, 10, 10), dims=("t", "y", "x"), manifest_chunks=16
    )
    return values, write_dataset("large", {"v": array})


@pytest.mark.parametrize("rows_per_partition", [300_000, 4_000_000])
def test_cells_of_data_larger_than_the_read_ahead(large, rows_per_partition):
    values, dataset = large
    plan = dataset.plan(
        dataset.table(), rows_per_partition=rows_per_partition, read_ahead_bytes=1 << 20
    )
    found = rows_of(plan)
    assert found.num_rows == values.size
    t, y, x = (found[dim].to_numpy() for dim in ("t", "y", "x"))
    np.testing.assert_array_equal(found["v"].to_numpy(), values[t, y, x])
    assert len(np.unique((t * 50 + y) * 100 + x)) == values.size


@pytest.mark.parametrize("layout", ["chunks", "refs"])
def test_rows_of_chunks_larger_than_the_read_ahead(large, layout):
    values, dataset = large
    found = rows_of(dataset.plan(dataset.table(layout), read_ahead_bytes=1 << 20)).to_pylist()
    assert len({tuple(row["chunk"]) for row in found}) == len(found) == 80 * 5 * 10
    for row in found if layout == "chunks" else ():
        box = tuple(slice(s, s + n) for s, n in zip(row["start"], row["shape"], strict=True))
        assert row["data"] == values[box].tobytes()


def weather(name="weather", **options):
    values = numbers(6, 4).astype("f4")
    return write_dataset(
        name,
        {
            "t": ArrayToWrite(values=values, chunks=(1, 4), dims=("time", "x"), **options),
            "time": ArrayToWrite(
                values=np.arange(6, dtype="i8"),
                chunks=(6,),
                dims=("time",),
                attributes={"units": "hours since 2024-01-01"},
            ),
        },
    )


@pytest.mark.parametrize("layout", ["cells", "summary"])
def test_a_condition_names_a_coordinate_that_no_row_shows(layout):
    t = numbers(4, 3)
    attributes = {"coordinates": "lat height text"}
    dataset = write_dataset(
        "curvilinear",
        {
            "t": ArrayToWrite(values=t, chunks=(2, 3), dims=("y", "x"), attributes=attributes),
            "lat": ArrayToWrite(values=t.T / 10, chunks=(3, 2), dims=("x", "y")),
            "height": ArrayToWrite(values=np.array([0, 2, 0, 2]), chunks=(3,), dims=("y",)),
        },
    )
    table = dataset.table(layout)
    assert not {"lat", "height"} & {column.source for column in table.columns}
    plan = dataset.plan(table, where="lat > 0.35 AND height = 2 AND t < 12")
    found = rows_of(plan)
    if layout == "cells":
        assert sorted(found["t"].to_pylist()) == [4, 5, 6, 10, 11]
    else:
        assert sum(found["t_sum"].to_pylist()) == 4 + 5 + 6 + 10 + 11


class CountingSource(ChunkSource):
    fetched: ClassVar[list] = []

    def fetch(self, refs, rows, ranges=None):
        type(self).fetched.extend(map(tuple, refs.coords[rows].tolist()))
        return super().fetch(refs, rows, ranges)


@pytest.fixture
def counted(monkeypatch):
    CountingSource.fetched = []
    original = scan.ScanContext

    def context(**fields):
        given = fields["source"]
        counting = CountingSource(location=given.chunk_source.location)
        return original(**fields | {"source": SnapshotSource(counting, given.snapshot_id)})

    monkeypatch.setattr("icechunk_format.tables.dataset.ScanContext", context)
    return CountingSource


def test_chunks_outside_of_the_selection_are_not_fetched(counted):
    dataset = weather()
    plan = dataset.plan(dataset.table(), where="time >= TIMESTAMP '2024-01-01 04:00:00'")
    counted.fetched.clear()
    assert rows_of(plan).num_rows == 8
    assert set(counted.fetched) == {(4, 0), (5, 0), (0,)} or set(counted.fetched) == {
        (4, 0),
        (5, 0),
    }


def test_columns_that_are_not_selected_are_not_fetched(counted):
    dataset = weather()
    table = dataset.table()
    counted.fetched.clear()
    plan = dataset.plan(table, columns=["x"])
    assert rows_of(plan).num_rows == 24
    assert counted.fetched == []


def test_planning_opens_no_manifest(monkeypatch):
    dataset = weather(manifest_chunks=1)
    # Describing a table reads the labels of its dimensions; planning reads nothing more.
    table = dataset.table()

    def refuse(*_):
        raise AssertionError("a manifest was opened")

    monkeypatch.setattr("icechunk_format.repository.files.chunk_lookup.load_manifests", refuse)
    plan = dataset.plan(table, rows_per_partition=4, isel="time=1:5")
    assert [task.rows for task in plan.tasks] == [4, 4, 4, 4]
    assert plan.tasks[0].parts == ((0, 1, 2, 0, 4),)


def test_chunks_shared_by_blocks_are_fetched_once(counted):
    dataset = write_dataset(
        "shared",
        {
            # The leading variable has most references, and its chunks decide on the blocks.
            "a": ArrayToWrite(values=numbers(64, 8), chunks=(1, 8), dims=("y", "x")),
            "b": ArrayToWrite(values=numbers(64, 8), chunks=(63, 8), dims=("y", "x")),
        },
    )
    plan = dataset.plan(dataset.table(), read_ahead_bytes=16_000)
    counted.fetched.clear()
    table = rows_of(plan)
    assert table["a"].to_pylist() == table["b"].to_pylist() == numbers(64, 8).ravel().tolist()
    assert len(counted.fetched) == 64 + 2


def test_context_and_tasks_travel_as_small_pickles():
    dataset = weather()
    plan = dataset.plan(dataset.table(), where="t > 3 AND time > TIMESTAMP '2024-01-01'")
    context = pickle.dumps(plan.context)
    assert len(context) < 6_000
    assert len(pickle.dumps(plan.tasks[0])) < 200
    again = pickle.loads(context)
    rows = [b.num_rows for t in plan.tasks for b in run_scan(again, pickle.loads(pickle.dumps(t)))]
    assert sum(rows) == 20


def test_no_task_is_no_rows():
    dataset = weather()
    plan = dataset.plan(dataset.table(), isel="time=2:2")
    assert plan.tasks == []
    assert list(run_scan(plan.context, None)) == []


def test_batches_have_about_65536_rows():
    values = numbers(3, 400, 301)
    dataset = write_dataset(
        "batches", {"a": ArrayToWrite(values=values, chunks=(2, 400, 301), dims=None)}
    )
    plan = dataset.plan(dataset.table())
    batches = [b for task in plan.tasks for b in run_scan(plan.context, task)]
    assert [b.num_rows for b in batches] == [60200] * 6
    table = pa.Table.from_batches(batches)
    assert table.column_names == ["dim_0", "dim_1", "dim_2", "a"]
    np.testing.assert_array_equal(table["a"].to_numpy(), values.ravel())
    for axis, index in enumerate(np.indices(values.shape)):
        np.testing.assert_array_equal(table[f"dim_{axis}"].to_numpy(), index.ravel())


def test_rows_that_a_condition_leaves_come_in_few_batches():
    dataset = write_dataset(
        "thin", {"a": ArrayToWrite(values=numbers(1000, 100), chunks=(10, 100), dims=("y", "x"))}
    )
    plan = dataset.plan(dataset.table(), where="a % 1000 = 0", read_ahead_bytes=100_000)
    [task] = plan.tasks
    batches = list(run_scan(plan.context, task))
    assert [b.num_rows for b in batches] == [100]


def test_a_damaged_chunk_names_array_and_place():
    dataset = weather("damaged")
    storage = open_storage(dataset.source.chunk_source.location)
    refs = rows_of(dataset.plan(dataset.table("refs"), isel="time=3"))
    row = next(r for r in refs.to_pylist() if r["array"] == "/t")
    storage.put(f"chunks/{row['chunk_id']}", b"\0" * row["length"])
    plan = dataset.plan(dataset.table())
    with pytest.raises(FormatError, match=r"/t at \[3, 0\]"):
        rows_of(plan)


def test_a_missing_object_is_an_error_and_stops_the_threads():
    dataset = weather("gone")
    storage = open_storage(dataset.source.chunk_source.location)
    for info in list(storage.list("chunks/")):
        storage.delete_many([info.key])
    metadata_cache().clear()
    plan = dataset.plan(dataset.table(), columns=["t"], read_ahead_bytes=64)
    with pytest.raises(NotFoundError):
        rows_of(plan)
    wait_until_no_reading_thread()


def test_closing_the_generator_stops_the_reading(counted):
    dataset = write_dataset(
        "closed", {"a": ArrayToWrite(values=numbers(300, 10), chunks=(1, 10), dims=("y", "x"))}
    )
    plan = dataset.plan(dataset.table(), read_ahead_bytes=2_000)
    rows = run_scan(plan.context, plan.tasks[0])
    next(rows)
    rows.close()
    wait_until_no_reading_thread()
    assert len(counted.fetched) < 100


def wait_until_no_reading_thread():
    until = time.monotonic() + 5
    while time.monotonic() < until:
        names = [thread.name for thread in threading.enumerate()]
        if not any(name.startswith(("icechunk-fetch", "icechunk-decode")) for name in names):
            return
        time.sleep(0.01)
    raise AssertionError("threads are still reading")


def test_too_many_partitions_are_refused_before_they_are_made():
    values = np.broadcast_to(np.zeros((), dtype="i1"), (1,))
    dataset = write_dataset("many", {"a": ArrayToWrite(values=values, chunks=(1,), dims=("x",))})
    table = dataset.table()
    wide = replace(table, sizes=(10_000_000,))
    with pytest.raises(InvalidInputError, match="rowsPerPartition=1"):
        dataset.plan(wide, rows_per_partition=1)
    with raises(InvalidInputError, option="rowsPerPartition", found=0):
        dataset.plan(table, rows_per_partition=0)
