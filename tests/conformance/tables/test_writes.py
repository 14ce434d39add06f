"""What is written as rows is what xarray reads, and what was read goes back as it was.

Repositories are written with our own writer and opened with the reference library and xarray; or
written by xarray, read as a table, and written again without any option.
"""

import json
import warnings

import icechunk
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from helpers.builder import reference_repository

from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.tables.writing.in_process import write_table

pytestmark = [
    pytest.mark.core,
    pytest.mark.filterwarnings(
        "ignore::UserWarning", "ignore::FutureWarning", "ignore::RuntimeWarning"
    ),
]


def write_with_xarray(path, dataset, *, group=None, encoding=None):
    repository = reference_repository(path)
    session = repository.writable_session("main")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(session.store, group=group, consolidated=False, encoding=encoding)
    session.commit("by xarray")


def open_with_xarray(path, group=None, **options):
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group, consolidated=False, chunks=None, **options)


def read_table(path, *, group=None, plan=None, **options):
    repository = Repository.open(str(path))
    dataset = open_dataset(repository, repository.resolve(branch="main"), group)
    table = dataset.table(**options)
    planned = dataset.plan(table, **(plan or {}))
    batches = [b for task in planned.tasks for b in run_scan(planned.context, task)]
    plain = pa.Table.from_batches(batches, schema=planned.arrow_schema)
    return pa.Table.from_arrays(plain.columns, schema=table.arrow_schema)


def documents(path, group="/"):
    repository = Repository.open(str(path))
    snapshot = repository.snapshot(repository.resolve(branch="main"))
    return {
        node.path: json.loads(node.user_data) for node in snapshot.nodes if node.array is not None
    }


def weather(times=7, lats=6, lons=5, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(280, 10, size=(times, lats, lons)).astype("float32")
    values[1, 2, :3] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values, {"units": "K", "long_name": "temperature"}),
            "rain": (("time", "lat", "lon"), rng.integers(0, 9, size=values.shape, dtype="i2")),
        },
        coords={
            "time": pd.date_range("2024-01-01", periods=times, freq="6h"),
            "lat": np.linspace(60, 40, lats),
            "lon": np.linspace(0, 20, lons, dtype="float32"),
        },
    )


ENCODINGS = {
    "plain": {},
    "chunked": {"t2m": {"chunks": (2, 3, 5)}, "rain": {"chunks": (4, 6, 2)}},
    "sharded": {
        "t2m": {"chunks": (1, 2, 5), "shards": (4, 6, 5)},
        "rain": {"chunks": (3, 3, 3), "shards": (6, 6, 6)},
    },
    "packed": {
        "t2m": {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768},
        "time": {"units": "hours since 1900-01-01", "dtype": "int32"},
    },
    "float times": {"time": {"units": "days since 2000-01-01 12:00:00", "dtype": "float64"}},
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_was_read_goes_back_as_it_was(tmp_path, name):
    write_with_xarray(tmp_path / "a", weather(), encoding=ENCODINGS[name])
    table = read_table(tmp_path / "a")
    shuffled = table.take(np.random.default_rng(1).permutation(table.num_rows))
    result = write_table(str(tmp_path / "b"), shuffled, WriteOptions())
    assert result.rows == table.num_rows
    ours, theirs = documents(tmp_path / "b"), documents(tmp_path / "a")
    assert ours == theirs
    again, before = open_with_xarray(tmp_path / "b"), open_with_xarray(tmp_path / "a")
    xr.testing.assert_identical(again, before)
    raw = {"decode_cf": False}
    xr.testing.assert_identical(
        open_with_xarray(tmp_path / "b", **raw), open_with_xarray(tmp_path / "a", **raw)
    )


EVERY_TYPE = {
    "bool": np.array([True, False, True, False, True, True]),
    "int8": np.arange(-3, 3, dtype="i1"),
    "int64": np.array([-(2**63), 0, 1, 2, 3, 2**63 - 1]),
    "uint8": np.array([0, 1, 2, 3, 254, 255], dtype="u1"),
    "uint16": np.array([0, 1, 2, 3, 4, 65535], dtype="u2"),
    "uint32": np.array([0, 1, 2, 3, 4, 2**32 - 1], dtype="u4"),
    "uint64": np.array([0, 1, 2, 3, 4, 2**64 - 1], dtype="u8"),
    "float16": np.array([0, 1, 2, np.nan, -1.5, np.inf], dtype="f2"),
    "float64": np.array([0, -0.0, 1e300, np.nan, 5e-324, np.inf]),
    "complex64": np.array([0, 1j, 2 + 3j, 4, 5, 6], dtype="c8"),
    "text": np.array(["a", "", "ä日", "d", "e", "f"], dtype=object),
    "fixed text": np.array(["a", "", "ä日", "d", "e", "f"]),
    "times": pd.to_datetime(
        ["2020-01-01", None, "2020-01-03T12:34:56.789", "1900-02-28", "2100-01-01", "1990-10-01"],
        format="ISO8601",
    ),
    "timedelta": np.array([1, -2, 3, 4, 5, 6], dtype="m8[h]"),
}


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_every_type_that_xarray_writes_goes_back_as_it_was(tmp_path, name):
    dataset = xr.Dataset(
        {"v": (("station",), EVERY_TYPE[name])}, coords={"station": np.arange(6)[::-1]}
    )
    write_with_xarray(tmp_path / "a", dataset)
    table = read_table(tmp_path / "a")
    write_table(str(tmp_path / "b"), table, WriteOptions())
    assert documents(tmp_path / "b") == documents(tmp_path / "a")
    xr.testing.assert_identical(open_with_xarray(tmp_path / "b"), open_with_xarray(tmp_path / "a"))


def test_packed_values_with_missing_ones_and_times_of_climate_models(tmp_path):
    times = xr.date_range("2000-02-28", periods=4, freq="D", calendar="360_day", use_cftime=True)
    dataset = xr.Dataset(
        {
            "x": (("time",), np.array([1.0, np.nan, 3.0, 250.0]), {"units": "m"}),
            "n": (("time",), np.array([1.0, np.nan, 3.0, 4.0])),
        },
        coords={"time": times},
    )
    encoding = {
        "x": {"dtype": "uint8", "scale_factor": 2.0, "_FillValue": 255},
        "n": {"dtype": "int32", "_FillValue": -9},
        "time": {"units": "hours since 1999-01-01", "calendar": "360_day", "dtype": "int64"},
    }
    write_with_xarray(tmp_path / "a", dataset, encoding=encoding)
    table = read_table(tmp_path / "a")
    assert table.column("n").null_count == 1
    write_table(str(tmp_path / "b"), table, WriteOptions())
    assert documents(tmp_path / "b") == documents(tmp_path / "a")
    raw = {"decode_cf": False}
    xr.testing.assert_identical(
        open_with_xarray(tmp_path / "b", **raw), open_with_xarray(tmp_path / "a", **raw)
    )


def test_stored_numbers_go_back_without_being_packed_again(tmp_path):
    encoding = {"t2m": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}}
    write_with_xarray(tmp_path / "a", weather(), encoding=encoding)
    table = read_table(tmp_path / "a", decode_cf=False)
    write_table(str(tmp_path / "b"), table, WriteOptions())
    assert documents(tmp_path / "b") == documents(tmp_path / "a")
    xr.testing.assert_identical(open_with_xarray(tmp_path / "b"), open_with_xarray(tmp_path / "a"))


def test_variables_on_fewer_dimensions_and_scalars_come_back_whole(tmp_path):
    dataset = weather()
    dataset["orography"] = (("lat", "lon"), np.arange(30.0).reshape(6, 5))
    dataset["level"] = ((), np.float32(2.0))
    write_with_xarray(tmp_path / "a", dataset)
    table = read_table(tmp_path / "a", variables=["t2m", "rain", "orography", "level"])
    write_table(str(tmp_path / "b"), table, WriteOptions())
    assert documents(tmp_path / "b") == documents(tmp_path / "a")
    xr.testing.assert_identical(open_with_xarray(tmp_path / "b"), open_with_xarray(tmp_path / "a"))


def test_appending_days_is_what_xarray_would_have_concatenated(tmp_path):
    path = str(tmp_path / "a")
    whole = weather(times=12)
    write_with_xarray(path, whole.isel(time=slice(0, 3)), encoding={"t2m": {"chunks": (2, 6, 5)}})
    write_with_xarray(tmp_path / "rest", whole.isel(time=slice(3, None)))
    rest = read_table(tmp_path / "rest")
    for start in (0, 5):
        days = rest.slice(start * 30, 150)
        write_table(path, days, WriteOptions(mode="append"))
    xr.testing.assert_equal(open_with_xarray(path), whole)
    assert documents(path)["/t2m"]["chunk_grid"]["configuration"]["chunk_shape"] == [2, 6, 5]


def test_rows_without_any_metadata_become_what_xarray_would_write(tmp_path):
    times = pd.date_range("2024-01-01", periods=3, freq="D")
    frame = pd.DataFrame(
        {
            "time": np.repeat(times, 2),
            "x": np.tile([10.0, 20.0], 3),
            "t": np.arange(6, dtype="f4"),
            "n": np.arange(6),
            "s": list("abcdef"),
            "b": [True, False] * 3,
        }
    )
    table = pa.Table.from_pandas(frame, preserve_index=False)
    write_table(str(tmp_path / "a"), table, WriteOptions(dims=("time", "x")))
    found = open_with_xarray(tmp_path / "a")
    expected = xr.Dataset.from_dataframe(frame.set_index(["time", "x"]))
    xr.testing.assert_equal(found, expected.assign(t=expected.t.astype("f4")))
    by_xarray = tmp_path / "b"
    write_with_xarray(by_xarray, expected.drop_vars("time"))
    ours, theirs = documents(tmp_path / "a"), documents(by_xarray)
    for name in ("/t", "/n", "/b", "/s"):
        assert ours[name] == theirs[name]


def test_coordinates_that_were_asked_for_stay_coordinates(tmp_path):
    dataset = weather()
    dataset = dataset.assign_coords(
        height=(("lat", "lon"), np.arange(30, dtype="f4").reshape(6, 5)),
        valid=(("time",), dataset.time.values + np.timedelta64(3, "h")),
    )
    write_with_xarray(tmp_path / "a", dataset)
    table = read_table(tmp_path / "a", coords=["height", "valid"])
    write_table(str(tmp_path / "b"), table, WriteOptions())
    assert documents(tmp_path / "b") == documents(tmp_path / "a")
    xr.testing.assert_identical(open_with_xarray(tmp_path / "b"), open_with_xarray(tmp_path / "a"))


def test_chunks_of_unequal_sizes_are_patched_and_extended(tmp_path):
    import zarr

    repository = reference_repository(tmp_path / "a")
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = root.create_array(
            "t", shape=(6, 4), chunks=[[1, 2, 3], [4]], dtype="f8", dimension_names=["n", "x"]
        )
        array[:] = np.arange(24.0).reshape(6, 4)
    session.commit("unequal chunks")
    path = str(tmp_path / "a")
    table = read_table(path)
    new = table.slice(4, 8).set_column(2, table.field("t"), pa.array(-np.arange(8.0)))
    moved = new.set_column(0, table.field("n"), pa.array([2] * 4 + [7] * 4))
    write_table(path, moved, WriteOptions(mode="append"))
    expected = np.full((8, 4), 0.0)
    expected[:6] = np.arange(24.0).reshape(6, 4)
    expected[2], expected[6], expected[7] = -np.arange(4.0), np.nan, -np.arange(4.0, 8)
    session = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    with zarr.config.set({"array.rectilinear_chunks": True}):
        found = zarr.open_array(session.readonly_session("main").store, path="t", mode="r")[:]
    np.testing.assert_array_equal(found, expected)
