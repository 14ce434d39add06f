"""The reference reads, extends, expires and collects repositories after deletions."""

import datetime

import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.builder import reference_repository

from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.running import in_process

pytestmark = pytest.mark.core


def dataset(days, start=0):
    rng = np.random.default_rng(start)
    return xr.Dataset(
        {"t2m": (("time", "x"), rng.random((days, 6)).astype("f4"))},
        {
            "time": np.datetime64("2024-07-01", "ns")
            + np.arange(start, start + days) * np.timedelta64(1, "D"),
            "x": np.arange(6),
        },
    )


def delete(path, **selecting):
    return delete_selected(
        DeleteRequest(
            read=ReadRequest(path=str(path), **selecting),
            options=WriteOptions(mode="append"),
        ),
        in_process,
    )


@pytest.mark.parametrize(
    ("where", "gone"),
    [
        ("time = '2024-07-04'", [3]),
        ("time BETWEEN '2024-07-03' AND '2024-07-04'", [2, 3]),
        ("time >= '2024-07-08'", [7, 8, 9]),
        ("time < '2024-07-06'", [0, 1, 2, 3, 4]),
    ],
)
def test_labels(tmp_path, where, gone):
    path = str(tmp_path / "repository")
    repository = reference_repository(path)
    session = repository.writable_session("main")
    data = dataset(10)
    data.to_zarr(session.store, encoding={"t2m": {"chunks": (2, 3)}}, consolidated=False)
    first = session.commit("made")
    delete(path, where=where)
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    expected = data.isel(time=np.delete(np.arange(10), gone))
    xr.testing.assert_identical(opened(repository), expected)
    session = repository.writable_session("main")
    more = dataset(3, 10)
    more.to_zarr(session.store, append_dim="time", consolidated=False)
    session.commit("more")
    expected = xr.concat([expected, more], "time")
    xr.testing.assert_equal(opened(repository), expected)
    old = xr.open_zarr(repository.readonly_session(snapshot_id=first).store, consolidated=False)
    xr.testing.assert_identical(old.load(), data)
    now = datetime.datetime.now(datetime.UTC)
    repository.expire_snapshots(now)
    repository.garbage_collect(now)
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    xr.testing.assert_equal(opened(repository), expected)


def test_cells(tmp_path):
    path = str(tmp_path / "repository")
    repository = reference_repository(path)
    session = repository.writable_session("main")
    data = dataset(10)
    data.to_zarr(session.store, encoding={"t2m": {"chunks": (2, 3)}}, consolidated=False)
    session.commit("made")
    delete(path, where="time <= '2024-07-04' AND x < 4")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    expected = data.where(~((data.time <= np.datetime64("2024-07-04")) & (data.x < 4)))
    xr.testing.assert_equal(opened(repository), expected)


def opened(repository):
    return xr.open_zarr(repository.readonly_session("main").store, consolidated=False).load()
