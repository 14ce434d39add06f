"""Weighted statistics are those of xarray; areas are those of cells on a sphere."""

import logging

import numpy as np
import pytest
import xarray as xr
from helpers.blocks import opened
from helpers.raised import raises
from helpers.reducing import reduced
from helpers.reference.xarray_datasets import store_dataset

from icechunk_format.errors import InvalidInputError

pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]


def globe(latitudes, longitudes, times=4, *, missing=False, bounds=None):
    rng = np.random.default_rng(1)
    values = rng.random((times, len(latitudes), len(longitudes)))
    if missing:
        values[rng.random(values.shape) < 0.3] = np.nan
    dataset = xr.Dataset(
        {"t": (("time", "latitude", "longitude"), values)},
        coords={
            "time": np.arange(times),
            "latitude": ("latitude", latitudes, {"units": "degrees_north"}),
            "longitude": ("longitude", longitudes, {"units": "degrees_east"}),
            "area_of_cells": (("latitude", "longitude"), rng.random(values.shape[1:])),
        },
    )
    if bounds is not None:
        dataset["latitude"].attrs["bounds"] = "latitude_bnds"
        dataset = dataset.assign_coords(latitude_bnds=(("latitude", "bnds"), bounds))
    return dataset


def stored(tmp_path, dataset, chunks=(2, 3, 5)):
    return store_dataset(dataset, tmp_path / "source", {"t": {"chunks": chunks}})


def areas(edges):
    return np.abs(np.diff(np.sin(np.radians(edges))))


@pytest.mark.parametrize("cores", [None, 2])
@pytest.mark.parametrize("order", [1, -1])
def test_areas_end_at_the_poles(tmp_path, order, cores):
    latitudes = np.linspace(-90, 90, 7)[::order]
    path = stored(tmp_path, globe(latitudes, np.arange(0, 360, 30.0), missing=True))
    edges = np.clip(np.linspace(-105, 105, 8), -90, 90)[::order]
    weights = xr.DataArray(areas(edges), dims="latitude")
    source = opened(path)[["t"]].drop_vars("area_of_cells")
    for statistic in ("mean", "sum", "std", "var"):
        found = reduced(
            path, {"t": statistic}, ("latitude", "longitude"), weights="area", cores=cores
        )
        expected = getattr(source.weighted(weights), statistic)(("latitude", "longitude"))
        if statistic == "sum":
            expected = expected * np.radians(30)
        xr.testing.assert_allclose(found, expected)
    # The whole sphere.
    ones = store_dataset(globe(latitudes, np.arange(-180, 180, 30.0)) * 0 + 1, tmp_path / "ones")
    found = reduced(ones, {"t": "sum"}, ("latitude", "longitude"), weights="area", cores=cores)
    np.testing.assert_allclose(found["t"], 4 * np.pi)


def test_bounds_and_a_repeated_longitude(tmp_path):
    bounds = np.array([[-90, -20], [-20, 10], [10, 90.0]])
    path = stored(tmp_path, globe([-60.0, 0, 60], np.arange(0, 361, 60.0), bounds=bounds))
    found = reduced(path, {"t": "mean"}, ("latitude", "longitude"), weights="area")
    weights = xr.DataArray(areas([-90, -20, 10, 90]), dims="latitude")
    source = opened(path)["t"].isel(longitude=slice(0, 6))
    expected = source.weighted(weights).mean(("latitude", "longitude"))
    np.testing.assert_allclose(found["t"], expected)


@pytest.mark.parametrize("cores", [None, 2])
def test_weighted_sums_of_integers_are_fractions(tmp_path, cores):
    source = globe([-45.0, 0, 45], np.arange(0, 360, 60.0))
    source["t"] = (source["t"] * 9).astype("int16")
    path = stored(tmp_path, source)
    over = ("time", "latitude", "longitude")
    weighted = opened(path)["t"].weighted(source["area_of_cells"])
    for statistic in ("mean", "sum", "std", "var"):
        found = reduced(path, {"t": statistic}, over, weights="area_of_cells", cores=cores)
        np.testing.assert_allclose(found["t"], getattr(weighted, statistic)(over))


def test_weights_by_name_and_by_labels(tmp_path):
    path = stored(tmp_path, globe([-45.0, 0, 45], np.arange(0, 360, 60.0)))
    source = opened(path)["t"]
    over = ("latitude", "longitude")
    found = reduced(path, {"t": "mean"}, over, weights="area_of_cells", cores=2)
    expected = source.weighted(source["area_of_cells"]).mean(over)
    np.testing.assert_allclose(found["t"], expected)
    # Labels in another order, of which one is not used.
    given = xr.DataArray([9, 3, 1, 2], dims="latitude", coords={"latitude": [5, 45, 0, -45]})
    found = reduced(path, {"t": ["mean", "max"]}, "latitude", weights=given)
    expected = source.weighted(given.sel(latitude=source["latitude"])).mean("latitude")
    np.testing.assert_allclose(found["t_mean"], expected)
    np.testing.assert_array_equal(found["t_max"], source.max("latitude"))
    with raises(InvalidInputError, option="weights", dimension="latitude"):
        reduced(path, {"t": "mean"}, "latitude", weights=given.isel(latitude=slice(1, 3)))
    with raises(InvalidInputError, option="weights", variable="aera"):
        reduced(path, {"t": "mean"}, "latitude", weights="aera")
    with raises(InvalidInputError, option="statistics"):
        reduced(path, {"t": "median"}, "latitude", weights="area")


def test_areas_need_latitudes(tmp_path):
    source = globe([-45.0, 0, 45], np.arange(0, 360, 60.0))
    plain = stored(tmp_path, source.rename(latitude="y", longitude="x").drop_vars(["y", "x"]))
    with raises(InvalidInputError, option="weights"):
        reduced(plain, {"t": "mean"}, ("y", "x"), weights="area")


def test_a_mean_over_latitudes_without_weights_is_logged(tmp_path, caplog):
    path = stored(tmp_path, globe([-45.0, 0, 45], np.arange(0, 360, 60.0)))
    with caplog.at_level(logging.WARNING, "icechunk_format"):
        reduced(path, {"t": "mean"}, "time")
        reduced(path, {"t": "max"}, "latitude")
        reduced(path, {"t": "mean"}, "latitude", weights="area")
        assert not caplog.records
        reduced(path, {"t": "mean"}, ("latitude", "longitude"))
    assert len(caplog.records) == 1
    assert "weights='area'" in caplog.text
