"""Blocks are what xarray would give of the whole group."""

from __future__ import annotations

import datetime

import cftime
import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.blocks import Source, days, mapped, opened
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")


def shifted(ds):
    is_cftime = ds["time"].dtype.hasobject
    hour = datetime.timedelta(hours=1) if is_cftime else np.timedelta64(1, "h")
    return ds["time"].values + hour


@pytest.mark.parametrize("first", ["2260-01-01", "1580-01-01", "2000-01-01"])
def test_the_group_decides_the_type_of_times(tmp_path, first):
    dataset = days(0, 6).drop_vars("time")
    times = xr.date_range(first, periods=6, freq="YS", calendar="standard", use_cftime=True)
    dataset = dataset.assign_coords(time=times)
    dataset["time"].attrs["bounds"] = "time_bounds"
    dataset["time_bounds"] = ("time", "side"), np.stack([times, times], axis=1)
    source = Source(tmp_path / "source", dataset, chunks=(2, 6, 4))
    whole, seen = opened(source.path), set()

    def later(ds):
        seen.add((ds["time"].dtype, ds["time_bounds"].dtype))
        return ds[["t2m", "time_bounds"]].assign(after=("time", shifted(ds)))

    encoding = {"after": {"units": "hours since 2000-01-01"}}
    mapped(source, later, tmp_path / "to", blocks={"time": 2}, encoding=encoding)
    assert seen == {(whole["time"].dtype, whole["time_bounds"].dtype)}
    assert whole["time"].dtype == (object if first != "2000-01-01" else np.dtype("M8[ns]"))
    after = opened(tmp_path / "to")["after"].values
    assert list(map(str, after)) == list(map(str, shifted(whole)))
    if first == "2260-01-01":
        limit = cftime.DatetimeGregorian(2262, 6, 1)
        mapped(
            source,
            lambda ds: ds[["t2m"]].where(ds["time"] > limit),
            tmp_path / "w",
            blocks={"time": 2},
        )


@pytest.mark.parametrize("size", [2, 4])
def test_arrays_of_blocks_can_be_changed(tmp_path, size):
    source = Source(tmp_path / "source", days(0, 4), chunks=(2, 6, 4))

    def clipped(ds):
        for variable in ds.data_vars.values():
            variable.values[variable.values > 1] = 1
        return ds

    mapped(source, clipped, tmp_path / "to", blocks={"time": size})
    xr.testing.assert_equal(opened(tmp_path / "to"), clipped(opened(source.path)))


def test_attributes_are_checked_with_the_first_block(tmp_path):
    source, calls = Source(tmp_path / "source", days(0, 4)), []

    def odd(ds):
        calls.append(1)
        return ds.assign_attrs(made=datetime.date(2024, 1, 1))

    with raises(InvalidInputError, attribute="made"):
        mapped(source, odd, tmp_path / "to")
    assert len(calls) == 1
