"""A scan gives every selected cell exactly once, and reads no more than it needs.

Values are those of the arrays, whatever the chunks, shards, manifests, selections and tasks.
"""

import pickle
import threading
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_datasets import ArrayToWrite, write_dataset

from icechunk_format.dataset import scan
from icechunk_format.dataset.scan import run_task
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.objects import metadata_cache
from icechunk_format.storage.location import open_storage


def rows_of(plan):
    batches = [b for task in plan.tasks for b in run_task(plan.context, task)]
    assert all(batch.schema.equals(plan.arrow_schema) for batch in batches)
    return pa.Table.from_batches(batches, schema=plan.arrow_schema)


def numbers(*shape):
    return np.arange(1, int(np.prod(shape)) + 1, dtype="i4").reshape(shape)


@st.composite
def stored_arrays(draw, dims, sizes):
    chunks = tuple(draw(st.integers(1, n)) for n in sizes)
    shards = None
    if draw(st.booleans()):
        shards = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    outer = shards or chunks
    grid = [range(-(-n // c)) for n, c in zip(sizes, outer, strict=True)]
    places = list(np.ndindex(*[len(g) for g in grid]))
    missing = frozenset(draw(st.lists(st.sampled_from(places), max_size=len(places))))
    values = numbers(*sizes) + draw(st.integers(0, 5)) * 1000
    for place in missing:
        box = tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, outer, strict=True))
        values[box] = -7
    order = draw(st.permutations(range(len(dims))))
    array = ArrayToWrite(
        values=np.ascontiguousarray(values.transpose(order)),
        chunks=tuple(chunks[i] for i in order),
        shards=tuple(shards[i] for i in order) if shards else None,
        dims=tuple(dims[i] for i in order),
        fill_value=-7,
        missing=frozenset(tuple(place[i] for i in order) for place in missing),
        manifest_chunks=draw(st.sampled_from([None, 1, 2])),
    )
    return values, array


@st.composite
def cases(draw):
    ndim = draw(st.integers(1, 3))
    dims = ["z", "y", "x"][:ndim]
    sizes = [draw(st.integers(1, 6)) for _ in dims]
    a, b = draw(stored_arrays(dims, sizes)), draw(stored_arrays(dims, sizes))
    picked = []
    for size in sizes:
        kind = draw(st.sampled_from(["whole", "span", "step"]))
        start = draw(st.integers(0, size - 1))
        if kind == "whole":
            picked.append(slice(None))
        elif kind == "span":
            picked.append(slice(start, draw(st.integers(start, size))))
        else:
            picked.append(slice(start, None, draw(st.integers(1, 3))))
    return dims, sizes, a, b, picked


def isel_text(dims, picked):
    parts = []
    for dim, chosen in zip(dims, picked, strict=True):
        if chosen != slice(None):
            step = "" if chosen.step is None else f":{chosen.step}"
            parts.append(f"{dim}={chosen.start}:{'' if chosen.stop is None else chosen.stop}{step}")
    return "; ".join(parts) or None


@settings(deadline=None, max_examples=60)
@given(cases(), st.sampled_from([1, 5, None]), st.sampled_from([1, 200, 1 << 26]))
def test_every_selected_cell_comes_exactly_once(case, rows_per_partition, read_ahead_bytes):
    dims, sizes, (a, array_a), (b, array_b), picked = case
    first = array_a.dims
    dataset = write_dataset("cells", {"a": array_a, "b": array_b})
    plan = dataset.plan(
        dataset.table(),
        isel=isel_text(dims, picked),
        rows_per_partition=rows_per_partition,
        read_ahead_bytes=read_ahead_bytes,
    )
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
@given(cases(), st.sampled_from([2, None]))
def test_skipping_missing_chunks_leaves_exactly_the_stored_cells(case, rows_per_partition):
    dims, sizes, (a, array_a), (b, array_b), picked = case
    dataset = write_dataset("skipped", {"a": array_a, "b": array_b})
    plan = dataset.plan(
        dataset.table(),
        isel=isel_text(dims, picked),
        rows_per_partition=rows_per_partition,
        missing_chunks="skip",
        columns=["b", "a"],
    )
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


@settings(deadline=None, max_examples=40)
@given(cases(), st.sampled_from([2, None]), st.sampled_from([64, 1 << 26]), st.booleans())
def test_summaries_add_up_to_the_cells(case, rows_per_partition, read_ahead_bytes, with_block):
    dims, _sizes, (a, array_a), (_, array_b), picked = case
    dataset = write_dataset("summary", {"a": array_a, "b": array_b})
    block = f"{array_a.dims[0]}=4" if with_block else None
    plan = dataset.plan(
        dataset.table("summary", block=block),
        isel=isel_text(dims, picked),
        where="a > 2",
        rows_per_partition=rows_per_partition,
        read_ahead_bytes=read_ahead_bytes,
    )
    found = rows_of(plan).to_pydict()
    kept = a[tuple(picked)]
    kept = kept[kept > 2]
    assert sum(found["a_count"]) == kept.size
    assert sum(s for s in found["a_sum"] if s is not None) == kept.sum()
    corners = list(zip(*(found[f"{dim}_first"] for dim in dims), strict=True))
    assert len(set(corners)) == len(corners)
    if kept.size:
        assert min(found["a_min"]) == kept.min()
        assert max(found["a_max"]) == kept.max()
        mean = kept.mean()
        spread = sum(
            m2 + count * (m - mean) ** 2
            for m2, count, m in zip(found["a_m2"], found["a_count"], found["a_mean"], strict=True)
        )
        assert spread == pytest.approx(((kept - mean) ** 2).sum(), rel=1e-9, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(cases(), st.sampled_from([1, None]), st.booleans())
def test_chunks_hold_the_array_and_no_chunk_comes_twice(case, rows_per_partition, skip):
    dims, sizes, (a, array_a), _, picked = case
    dataset = write_dataset("chunks", {"a": array_a})
    plan = dataset.plan(
        dataset.table("chunks"),
        isel=isel_text(dims, picked),
        rows_per_partition=rows_per_partition,
        missing_chunks="skip" if skip else "fill",
    )
    order = [dims.index(dim) for dim in array_a.dims]
    values = a.transpose(order)
    times = np.zeros(values.shape, dtype=int)
    for row in rows_of(plan).to_pylist():
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
        source = fields["chunk_source"]
        return original(**{**fields, "chunk_source": CountingSource(location=source.location)})

    monkeypatch.setattr("icechunk_format.dataset.dataset.ScanContext", context)
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

    monkeypatch.setattr("icechunk_format.dataset.chunk_lookup.load_manifests", refuse)
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
    rows = [b.num_rows for t in plan.tasks for b in run_task(again, pickle.loads(pickle.dumps(t)))]
    assert sum(rows) == 20


def test_no_task_is_no_rows():
    dataset = weather()
    plan = dataset.plan(dataset.table(), isel="time=2:2")
    assert plan.tasks == []
    assert list(run_task(plan.context, None)) == []


def test_batches_have_about_65536_rows():
    values = numbers(3, 400, 301)
    dataset = write_dataset(
        "batches", {"a": ArrayToWrite(values=values, chunks=(2, 400, 301), dims=None)}
    )
    plan = dataset.plan(dataset.table())
    batches = [b for task in plan.tasks for b in run_task(plan.context, task)]
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
    batches = list(run_task(plan.context, task))
    assert [b.num_rows for b in batches] == [100]


def test_a_damaged_chunk_names_array_and_place():
    dataset = weather("damaged")
    storage = open_storage(dataset._location)
    refs = rows_of(dataset.plan(dataset.table("refs"), isel="time=3"))
    row = next(r for r in refs.to_pylist() if r["array"] == "/t")
    storage.put(f"chunks/{row['chunk_id']}", b"\0" * row["length"])
    plan = dataset.plan(dataset.table())
    with pytest.raises(FormatError, match=r"/t at \[3, 0\]"):
        rows_of(plan)


def test_a_missing_object_is_an_error_and_stops_the_threads():
    dataset = weather("gone")
    storage = open_storage(dataset._location)
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
    rows = run_task(plan.context, plan.tasks[0])
    next(rows)
    rows.close()
    wait_until_no_reading_thread()
    assert len(counted.fetched) < 100


def wait_until_no_reading_thread():
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if not any(t.name.startswith("icechunk-") for t in threading.enumerate()):
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
    with pytest.raises(InvalidInputError, match="at least 1"):
        dataset.plan(table, rows_per_partition=0)
