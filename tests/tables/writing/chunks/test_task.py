"""Rows that are chunks, or references to chunks, become arrays, and their values are checked."""

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.raised import raises

from icechunk_format.encoding.config.config import VirtualChunkContainer
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import storing
from icechunk_format.groups.changing.containers import add_containers
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.options import NO_ACCESS, VirtualAccess
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.tables.writing.chunks import task as write_layout_rows
from icechunk_format.tables.writing.chunks.plan import plan_layout_write
from icechunk_format.tables.writing.chunks.task import (
    number_rows,
    write_layout_batches,
    write_layout_table,
)
from icechunk_format.tables.writing.commit import finish_write
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.tables.writing.prepare import prepare_write


@pytest.fixture
def place():
    return new_place()


def dataset_at(place):
    repository = Repository.open(place)
    return open_dataset(
        repository,
        repository.resolve(branch="main"),
        access=VirtualAccess(("memory://layouts-data/",)),
    )


def rows_of(place, layout, **options):
    dataset = dataset_at(place)
    table = dataset.table(layout, **options)
    plan = dataset.plan(table, missing_chunks="skip" if layout == "chunks" else "fill")
    batches = [b for task in plan.tasks for b in run_scan(plan.context, task)]
    return pa.Table.from_batches(batches, schema=plan.arrow_schema)


def write_cells(place, shape, *, dtype=np.float32, **options):
    dims = ("time", "x")
    time, x = np.meshgrid(*map(np.arange, shape), indexing="ij")
    cells = np.arange(time.size, dtype=dtype)
    table = pa.table({"time": time.ravel(), "x": x.ravel(), "t": cells})
    write_table(place, table, WriteOptions(dims=dims, **options))
    return cells.reshape(shape)


T = {"t": {"shape": [7, 5], "chunks": [2, 3], "dtype": "float32", "dims": ["time", "x"]}}
SHARDED = {"t": {**T["t"], "shards": [4, 6]}}


@pytest.mark.parametrize("decoded", [True, False])
@pytest.mark.parametrize("encoding", [T, SHARDED])
def test_chunks_go_back_as_they_were_read(place, decoded, encoding):
    shards = {"time": 4, "x": 6} if encoding is SHARDED else None
    expected = write_cells(place, (7, 5), chunks={"time": 2, "x": 3}, shards=shards)
    rows = rows_of(place, "chunks", variables=["t"], decoded=decoded)
    assert rows.num_rows == 8
    rows = rows.take(np.random.default_rng(0).permutation(rows.num_rows))
    copy = f"{place}-copy"
    options = WriteOptions(layout="chunks", encoding=encoding, decoded=decoded)
    result = write_table(copy, rows, options)
    np.testing.assert_array_equal(dataset_at(copy).read("t"), expected)
    assert result.rows == 8
    assert result.chunks == (8 if encoding is T else 2)


@pytest.mark.parametrize("batch_bytes", [1, 300, 5_000])
def test_more_rows_than_are_stored_at_once(place, monkeypatch, batch_bytes):
    expected = write_cells(place, (40, 30), chunks={"time": 2, "x": 3}, shards={"time": 4, "x": 6})
    rows = rows_of(place, "chunks", variables=["t"])
    assert rows.nbytes > 5_000
    monkeypatch.setattr(write_layout_rows, "_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(storing, "_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(write_layout_rows, "_ROWS_PER_BATCH", 7)
    rows = rows.take(np.random.default_rng(0).permutation(rows.num_rows))
    copy = f"{place}-copy"
    encoding = {"t": {**SHARDED["t"], "shape": [40, 30]}}
    write_table(copy, rows, WriteOptions(layout="chunks", encoding=encoding, rows_per_unit=9))
    np.testing.assert_array_equal(dataset_at(copy).read("t"), expected)


def test_some_inner_chunks_are_laid_over_their_shard(place):
    expected = write_cells(
        place, (7, 5), chunks={"time": 2, "x": 3}, shards={"time": 4, "x": 6}
    ).copy()
    rows = rows_of(place, "chunks", variables=["t"])
    one = rows.slice(3, 1)
    [start], [shape] = one.column("start").to_pylist(), one.column("shape").to_pylist()
    data = np.full(shape, -1, "<f4").tobytes()
    changed = one.set_column(5, "data", pa.array([data], pa.binary()))
    write_table(place, changed, WriteOptions(mode="append", layout="chunks"))
    expected[tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))] = -1
    np.testing.assert_array_equal(dataset_at(place).read("t"), expected)


def test_an_array_grows_when_its_new_shape_is_given(place):
    expected = write_cells(place, (4, 3), chunks={"time": 2, "x": 3})
    rows = rows_of(place, "chunks", variables=["t"]).slice(0, 1)
    moved = rows.set_column(1, "chunk", pa.array([[2, 0]])).select(["array", "chunk", "data"])
    with raises(InvalidInputError, variable="t", chunk=(2, 0)):
        write_table(place, moved, WriteOptions(mode="append", layout="chunks"))
    shapes = {"t": {"shape": [6, 3]}, "time": {"shape": [6]}}
    grown = WriteOptions(mode="append", layout="chunks", encoding={"t": shapes["t"]})
    with raises(InvalidInputError, found="time is 4 in /time and 6 in /t"):
        write_table(place, moved, grown)
    labels = rows_of(place, "chunks", variables=["time"]).select(["array", "chunk", "data"])
    labels = labels.set_column(2, "data", pa.array([np.arange(6).tobytes()], pa.binary()))
    both = pa.concat_tables([moved, labels])
    write_table(place, both, WriteOptions(mode="append", layout="chunks", encoding=shapes))
    found = dataset_at(place).read("t")
    np.testing.assert_array_equal(found, np.concatenate([expected, expected[:2]]))
    np.testing.assert_array_equal(dataset_at(place).read("time"), np.arange(6))


def virtual_rows(count, *, prefix="memory://layouts-data/"):
    at = np.arange(count)
    return pa.table(
        {
            "array": ["/t"] * count,
            "chunk": pa.array([[int(i), 0] for i in at]),
            "kind": ["virtual"] * count,
            "location": [f"{prefix}{i % 3}.nc" for i in at],
            "offset": at * 8,
            "length": np.full(count, 8),
            "etag": [f'"{i}"' if i % 2 else None for i in at],
            "last_modified": pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", "UTC")),
        }
    )


COLUMN = {
    "t": {
        "shape": [10, 1],
        "chunks": [1, 1],
        "dtype": "f8",
        "dims": ["n", "x"],
        "compressors": None,
    }
}


def test_virtual_references_come_back_as_rows(place):
    rows = virtual_rows(10)
    write_table(place, rows, WriteOptions(layout="refs", encoding=COLUMN))
    found = rows_of(place, "refs")
    for name in ("array", "chunk", "kind", "location", "offset", "length", "etag"):
        assert found.column(name).to_pylist() == rows.column(name).to_pylist()
    assert found.column("last_modified").to_pylist() == rows.column("last_modified").to_pylist()


@pytest.mark.parametrize("batch_bytes", [1, 300])
def test_more_references_than_are_stored_at_once(place, monkeypatch, batch_bytes):
    monkeypatch.setattr(write_layout_rows, "_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(storing, "_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(write_layout_rows, "_ROWS_PER_BATCH", 3)
    rows = virtual_rows(10)
    options = WriteOptions(layout="refs", encoding=COLUMN, rows_per_unit=4)
    write_table(place, rows.take(np.random.default_rng(0).permutation(10)), options)
    found = rows_of(place, "refs").to_pylist()
    found.sort(key=lambda row: row["chunk"])
    for row, expected in zip(found, rows.to_pylist(), strict=True):
        assert row.items() >= expected.items()


def test_inline_references_hold_their_data(place):
    data = [np.array([float(i)]).tobytes() for i in range(3)]
    rows = pa.table(
        {
            "array": ["t"] * 3,
            "chunk": pa.array([[5, 0], [0, 0], [9, 0]]),
            "kind": ["inline"] * 3,
            "data": pa.array(data, pa.binary()),
        }
    )
    write_table(place, rows, WriteOptions(layout="refs", encoding=COLUMN))
    values = dataset_at(place).read("t")[:, 0]
    assert values[[5, 0, 9]].tolist() == [0.0, 1.0, 2.0]
    assert rows_of(place, "refs").column("kind").to_pylist() == ["inline"] * 3


def test_more_references_join_those_that_are_there(place):
    rows = virtual_rows(10)
    write_table(place, rows.slice(0, 4), WriteOptions(layout="refs", encoding=COLUMN))
    moved = rows.slice(3, 7).set_column(3, "location", [["memory://layouts-data/new.nc"] * 7])
    write_table(place, moved, WriteOptions(mode="append", layout="refs"))
    found = rows_of(place, "refs").column("location").to_pylist()
    assert found == rows.column("location").to_pylist()[:3] + ["memory://layouts-data/new.nc"] * 7


def test_tasks_write_units_that_do_not_overlap(place):
    shape = {"t": {"shape": [400, 3000], "chunks": [1, 1], "dtype": "i2"}}
    at = np.stack(np.meshgrid(np.arange(400), np.arange(3000), indexing="ij"), -1).reshape(-1, 2)
    offsets = pa.array(np.arange(len(at) + 1, dtype=np.int32) * 2)
    rows = pa.table(
        {
            "array": pa.array(["t"]).take(pa.array(np.zeros(len(at), int))),
            "chunk": pa.ListArray.from_arrays(offsets, pa.array(at.ravel())),
            "kind": pa.array(["virtual"]).take(pa.array(np.zeros(len(at), int))),
            "location": pa.array(["s3://b/a.nc"]).take(pa.array(np.zeros(len(at), int))),
            "offset": np.arange(len(at)) * 2,
            "length": np.full(len(at), 2),
        }
    )
    prepared = prepare_write(place, rows.schema, WriteOptions(layout="refs", encoding=shape))
    plan = plan_layout_write(prepared)
    numbered = number_rows(plan.array_table, rows)
    [part] = plan.parts
    units = numbered.column("_unit").to_numpy()
    assert set(units) == set(range(part.units))
    context = pickle.loads(pickle.dumps(part))
    receipts = []
    for unit in range(part.units):
        task = numbered.filter(pa.array(units == unit)).to_batches(50_000)
        receipts.append(pickle.loads(pickle.dumps(write_layout_batches(context, task))))
    assert all(len(pickle.dumps(receipt)) < 2_000 for receipt in receipts)
    result = finish_write(plan, receipts)
    assert (result.chunks, result.manifests) == (1_200_000, part.units)
    assert len(dataset_at(place).variables["t"].array.manifests) == part.units


# -- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("array", "u", "names the array 'u'"),
        ("array", None, "must name an array"),
        ("chunk", [0], "not a list of 2 numbers"),
        ("chunk", [0, -1], "there is no chunk \\[0, -1\\]"),
        ("kind", "native", "copied with layout=chunks"),
        ("location", "data/file.nc", "an absolute URL is needed"),
        ("location", None, "has no 'location'"),
        ("length", None, "has no 'length'"),
        ("chunk", [1, 0], "coordinates repeat"),
    ],
)
def test_bad_references_are_refused(place, column, value, match):
    rows = virtual_rows(2)
    position = rows.column_names.index(column)
    bad = pa.array([value, rows.column(column)[1].as_py()], rows.schema.field(column).type)
    rows = rows.set_column(position, column, bad)
    with pytest.raises(InvalidInputError, match=match):
        write_table(place, rows, WriteOptions(layout="refs", encoding=COLUMN))


CONTAINERS = (
    VirtualChunkContainer(name="archive", url_prefix="s3://archive/", store_kind="s3"),
    VirtualChunkContainer(name=None, url_prefix="file:///data/", store_kind="local_file_system"),
    VirtualChunkContainer(name="useless", url_prefix="s3://no-slash", store_kind="s3"),
)


def written_at(place, location, containers):
    """Write one reference into a repository with containers, and return its location."""
    rows = virtual_rows(2).slice(0, 1).set_column(3, "location", [[location]])
    prepared = prepare_write(place, rows.schema, WriteOptions(layout="refs", encoding=COLUMN))
    source = replace(prepared.destination.chunk_source, containers=containers)
    destination = replace(prepared.destination, chunk_source=source)
    plan = plan_layout_write(replace(prepared, destination=destination))
    finish_write(plan, [write_layout_table(plan, rows)])
    return rows_of(place, "refs").column("location").to_pylist()[0]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("S3://archive/A b/c%20d.nc", "s3://archive/A b/c%20d.nc"),
        ("FILE:///data/a.nc", "file:///data/a.nc"),
        ("vcc://archive/a.nc", "vcc://archive/a.nc"),
    ],
)
def test_locations_are_stored_as_the_reference_library_stores_them(place, given, stored):
    assert written_at(place, given, CONTAINERS) == stored


@pytest.mark.parametrize(
    "location",
    [
        "s3://Archive/a.nc",
        "s3://other/a.nc",
        "s3://no-slash/a.nc",
        "vcc://nowhere/a.nc",
        "file:///etc/passwd",
    ],
)
def test_locations_outside_of_the_containers_are_refused(place, location):
    with raises(
        InvalidInputError, variable="t", containers=("s3://archive/ (archive)", "file:///data/")
    ):
        written_at(place, location, CONTAINERS)
    assert not Repository.exists(place)


def test_without_containers_locations_may_lie_anywhere_but_in_one(place):
    assert written_at(place, "HTTPS://example.org/a.nc", ()) == "https://example.org/a.nc"
    with raises(InvalidInputError, location="vcc://archive/a.nc", containers=()):
        written_at(f"{place}-named", "vcc://archive/a.nc", ())


@pytest.mark.parametrize(
    "location", ["s3://archive/../b", "s3://a/%2e%2e/b", "https://user@host/a", "s3:///a", "a.nc"]
)
def test_locations_that_no_reader_would_fetch_are_refused(place, location):
    with raises(InvalidInputError, location=..., allowed="an absolute URL"):
        written_at(place, location, ())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"data": b"short"}, "has 5 bytes of data"),
        ({"data": None}, "are NULL"),
        ({"dtype": "<f8"}, "stores '<f4'"),
        ({"chunk": [0, 1]}, "more than one row has the chunk"),
    ],
)
def test_bad_chunks_are_refused(place, change, match):
    write_cells(place, (2, 6), chunks={"time": 2, "x": 3})
    rows = rows_of(place, "chunks", variables=["t"])
    listed = rows.to_pylist()
    listed[0].update(change)
    bad = pa.Table.from_pylist(listed, schema=rows.schema)
    with pytest.raises(InvalidInputError, match=match):
        write_table(place, bad, WriteOptions(mode="append", layout="chunks"))


def test_stored_bytes_that_no_reader_could_decode_are_refused(place):
    write_cells(place, (2, 6), chunks={"time": 2, "x": 3})
    rows = rows_of(place, "chunks", variables=["t"])
    options = WriteOptions(mode="append", layout="chunks", decoded=False)
    with raises(InvalidInputError, variable="t", chunk=(0, 0), problem=...):
        write_table(place, rows, options)


def test_arrays_that_nobody_describes_cannot_be_written(place):
    with pytest.raises(InvalidInputError, match="describe each with"):
        write_table(place, virtual_rows(2), WriteOptions(layout="refs"))
    assert not Repository.exists(place)
    for missing in ("shape", "dtype"):
        said = {k: v for k, v in COLUMN["t"].items() if k != missing}
        with raises(InvalidInputError, variable="t", key=missing):
            write_table(place, virtual_rows(2), WriteOptions(layout="refs", encoding={"t": said}))


def test_columns_of_another_layout_are_refused(place):
    table = pa.table({"array": ["t"], "chunk": [[0, 0]], "kind": ["virtual"], "t2m": [1.0]})
    with raises(InvalidInputError, column="t2m", allowed=...):
        write_table(place, table, WriteOptions(layout="refs", encoding=COLUMN))
    with raises(InvalidInputError, column="data", needed=("array", "chunk", "data")):
        write_table(
            place, table.select(["array", "chunk"]), WriteOptions(layout="chunks", encoding=COLUMN)
        )


# -- containers -----------------------------------------------------------------------------


def containers_after(place, *locations, access=NO_ACCESS):
    """Write references to locations, and return the containers of the repository."""
    rows = virtual_rows(len(locations)).set_column(3, "location", [list(locations)])
    rows = rows.drop_columns(["etag", "last_modified"])
    options = WriteOptions(mode="overwrite", layout="refs", encoding=COLUMN)
    write_table(place, rows, options, access)
    found = Repository.open(place).config.virtual_chunk_containers
    return {c.url_prefix: (c.store_kind, dict(c.store_options)) for c in found}


def test_a_write_of_references_adds_the_containers_that_it_needs(place):
    found = containers_after(
        place,
        "s3://one/a/b.nc",
        "S3://one/c.nc",
        "https://example.org/x/y.nc",
        "file:///data/2024/01/a.nc",
        "file:///data/2024/02/b.nc",
    )
    assert sorted(found) == ["file:///data/2024/", "https://example.org/", "s3://one/"]
    assert found["file:///data/2024/"] == ("local_file_system", {"path": "/data/2024/"})
    assert found["s3://one/"][0] == "s3"


def test_containers_hold_settings_and_no_credentials(place):
    given = {
        "region": "eu-central-1",
        "endpoint_url": "https://ceph.example.org",
        "key": "AKIA",
        "secret": "hush",
        "force_path_style": "true",
    }
    found = containers_after(place, "s3://one/a.nc", access=VirtualAccess(("s3://one",), given))
    kind, options = found["s3://one/"]
    assert kind == "s3_compatible"
    assert options["region"] == "eu-central-1"
    assert options["endpoint_url"] == "https://ceph.example.org"
    assert options["force_path_style"] is True
    assert "hush" not in str(found)
    assert "AKIA" not in str(found)


def test_beside_other_containers_a_place_has_to_be_authorized(place):
    containers_after(place, "s3://one/a.nc")
    with raises(InvalidInputError, location="s3://two/deep/a.nc", containers=("s3://one/",)):
        containers_after(place, "s3://two/deep/a.nc")
    found = containers_after(place, "s3://two/deep/a.nc", access=VirtualAccess(("s3://two/deep",)))
    assert sorted(found) == ["s3://one/", "s3://two/deep/"]
    found = containers_after(place, "s3://one/b.nc", "s3://two/deep/c.nc")
    assert sorted(found) == ["s3://one/", "s3://two/deep/"]


def test_tasks_that_saw_parts_of_a_folder_need_one_container(place):
    containers_after(place, "s3://one/a.nc")
    repository = Repository.open(place)
    add_containers(
        repository,
        ["file:///data/b/", "file:///data/a/x/", "s3://one/deep/"],
        authorized=(),
        virtual_options={},
    )
    found = Repository.open(place).config.virtual_chunk_containers
    assert [c.url_prefix for c in found] == ["file:///data/", "s3://one/"]
