"""Other engines read two versions of a copy, and agree with xarray on the repository."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from deltalake import DeltaTable
from helpers.builder import reference_repository

from icechunk_format.options.read import ReadRequest
from icechunk_format.workflows.mirroring import (
    DeltaTarget,
    MirrorRequest,
    Selection,
    bring_up_to_date,
)
from icechunk_format.workflows.running import in_process

DIMS = ["time", "lat", "lon"]


def dataset(first: int, days: int) -> xr.Dataset:
    """Return packed temperatures with missing values, counts and texts."""
    random = np.random.default_rng(first)
    t2m = random.normal(280, 10, (days, 7, 9)).round(1)
    t2m[random.random(t2m.shape) < 0.1] = np.nan
    return xr.Dataset(
        {
            "t2m": (DIMS, t2m, {"units": "K"}),
            "count": (DIMS, random.integers(0, 99, t2m.shape).astype("i4")),
        },
        coords={
            "time": pd.date_range("1969-12-30", periods=400, freq="12h")[first : first + days],
            "lat": np.linspace(60, -60, 7),
            "lon": np.arange(9.0),
        },
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copied")
    place, target = str(folder / "repository"), str(folder / "copy")
    repository = reference_repository(place)
    encoding = {
        "t2m": {"chunks": (4, 7, 9), "dtype": "i2", "scale_factor": 0.1, "_FillValue": -9999},
        "time": {"units": "hours since 1970-01-01", "dtype": "i8"},
    }
    request = MirrorRequest(
        read=ReadRequest(path=place),
        target=DeltaTarget.of(target),
        selection=Selection.of({"rowsPerPartition": 4 * 63}),
    )
    versions = []
    for first, days in ((0, 10), (10, 6)):
        session = repository.writable_session("main")
        if first:
            dataset(first, days).to_zarr(session.store, append_dim="time", consolidated=False)
        else:
            dataset(first, days).to_zarr(session.store, encoding=encoding, consolidated=False)
        snapshot = session.commit("days")
        assert bring_up_to_date(request, in_process).snapshot_id == snapshot
        opened = xr.open_zarr(repository.readonly_session(snapshot_id=snapshot).store)
        versions.append(opened.load().to_dataframe().reset_index())
    return target, versions


def assert_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    found = found.sort_values(DIMS, ignore_index=True)
    expected = expected.sort_values(DIMS, ignore_index=True)
    assert len(found) == len(expected)
    for name in [*DIMS, "count"]:
        assert (found[name].to_numpy() == expected[name].to_numpy()).all(), name
    np.testing.assert_allclose(
        found["t2m"].to_numpy("f8", na_value=np.nan), expected["t2m"].to_numpy("f8"), rtol=1e-6
    )


@pytest.mark.parametrize("version", [0, 1])
def test_polars(copied, version):
    target, versions = copied
    assert_same(pl.read_delta(target, version=version).to_pandas(), versions[version])
    # A filter on a dimension prunes files by the statistics of the log.
    late = pl.scan_delta(target, version=version).filter(pl.col("lat") > 50, pl.col("lon") < 2)
    assert late.collect().height == 2 * len(versions[version]) // 63


@pytest.mark.parametrize("version", [0, 1])
def test_duckdb(copied, version):
    target, versions = copied
    files = DeltaTable(target, version=version).file_uris()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'Asia/Kolkata'")
        found = connection.execute("SELECT * FROM read_parquet(?)", [files]).df()
        assert_same(found, versions[version])
        mean = connection.execute(
            "SELECT avg(t2m) FROM read_parquet(?) WHERE time < '1970-01-02' AND lat = 20", [files]
        ).fetchone()
    frame = versions[version]
    chosen = frame[(frame.time < "1970-01-02") & (frame.lat == 20)]
    assert mean[0] == pytest.approx(chosen.t2m.mean(), rel=1e-6)


@pytest.mark.parametrize("version", [0, 1])
def test_the_log_prunes_files_without_losing_a_row(copied, version):
    target, versions = copied
    table = DeltaTable(target, version=version)
    actions = table.get_add_actions(flatten=True)
    assert sum(actions["num_records"].to_pylist()) == len(versions[version])
    frame = versions[version]
    for name in ("time", "lat", "count", "t2m"):
        low = min(actions[f"min.{name}"].to_pylist())
        high = max(actions[f"max.{name}"].to_pylist())
        assert (
            low == pytest.approx(frame[name].min()) if name != "time" else frame.time.min() == low
        )
        assert (
            high == pytest.approx(frame[name].max()) if name != "time" else frame.time.max() == high
        )
    assert sum(actions["null_count.t2m"].to_pylist()) == frame.t2m.isna().sum()
