"""Results come back as datasets: dimensions, attributes and values, or an error that helps."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.builder import reference_repository
from helpers.raised import raises

import icechunk_spark
from icechunk_format.errors import InvalidInputError

pytest.importorskip("xarray")


@pytest.fixture(scope="module")
def grid(spark, tmp_path_factory):
    """Three days on a grid whose latitudes descend."""
    path = str(tmp_path_factory.mktemp("grid") / "repository")
    frame = spark.range(3 * 4 * 5).selectExpr(
        "timestamp_ntz '2024-07-01' + make_dt_interval(cast(id div 20 as int)) AS time",
        "60 - 10D * (id div 5 % 4) AS latitude",
        "10D * (id % 5) AS longitude",
        "cast(id AS double) AS t2m",
    )
    icechunk_spark.write(
        frame,
        path,
        dims="time,latitude,longitude",
        order={"latitude": "descending"},
        encoding={"t2m": {"attributes": {"units": "K"}}},
    )
    return icechunk_spark.read(spark, path)


def test_a_whole_table_comes_back_as_it_was(grid):
    dataset = icechunk_spark.to_xarray(grid)
    assert dict(dataset.sizes) == {"time": 3, "latitude": 4, "longitude": 5}
    np.testing.assert_array_equal(dataset.t2m.values.ravel(), np.arange(60.0))
    assert dataset.t2m.attrs["units"] == "K"
    assert dataset.latitude.values.tolist() == [60, 50, 40, 30]


def test_groups_keep_their_dimensions(grid):
    means = grid.groupBy("latitude").avg("t2m")
    dataset = icechunk_spark.to_xarray(means)
    assert list(dataset.sizes) == ["latitude"]
    expected = [np.arange(60.0).reshape(3, 4, 5)[:, row].mean() for row in range(4)]
    np.testing.assert_allclose(dataset["avg(t2m)"].values, expected)
    named = icechunk_spark.to_xarray(
        grid.selectExpr("year(time) AS year", "latitude", "t2m").groupBy("year", "latitude").max(),
        dims=["year", "latitude"],
    )
    assert dict(named.sizes) == {"year": 1, "latitude": 4}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["t2m"], {}, "name the dimension columns with dims"),
        (["t2m"], {"dims": ["x"]}, r"dims=\['x'\] must name columns of the DataFrame"),
        (["latitude", "t2m"], {}, "two rows have the labels"),
        (["time", "latitude", "longitude", "t2m"], {"max_cells": 59}, "more than max_cells=59"),
        (["nullif(latitude, 60) AS y", "t2m"], {"dims": ["y"]}, "15 NULL labels"),
        (["id", "id AS other", "t2m"], {"dims": ["id", "other"], "max_cells": 60}, "3600 cells"),
    ],
)
def test_what_cannot_be_a_grid_is_refused(grid, columns, options, message):
    frame = grid.selectExpr("*", "monotonically_increasing_id() AS id").selectExpr(*columns)
    with pytest.raises(InvalidInputError, match=message):
        icechunk_spark.to_xarray(frame, **options)


def test_labels_of_one_dimension_are_sorted_as_those_of_two(spark):
    frame = spark.createDataFrame([(3, 1.0), (1, 2.0), (2, 3.0)], "x int, v double").coalesce(1)
    one = icechunk_spark.to_xarray(frame, dims=["x"])
    two = icechunk_spark.to_xarray(frame.selectExpr("x", "0 AS y", "v"), dims=["x", "y"])
    assert one.x.values.tolist() == two.x.values.tolist() == [1, 2, 3]
    assert one.v.values.tolist() == two.v.values[:, 0].tolist() == [2.0, 3.0, 1.0]


def test_dates_are_times(spark):
    frame = spark.sql("SELECT date'2024-07-01' AS day, date'2023-01-01' AS since")
    dataset = icechunk_spark.to_xarray(frame, dims=["day"])
    assert dataset.day.values == np.datetime64("2024-07-01")
    assert dataset.since.values == np.datetime64("2023-01-01")


def test_two_rows_of_one_place_are_named_by_plain_labels(spark):
    frame = spark.createDataFrame([(3, "a", 1.0), (3, "a", 2.0)], "x int, s string, v double")
    with raises(InvalidInputError, found=(3, "a")):
        icechunk_spark.to_xarray(frame, dims=["x", "s"])


def test_whole_numbers_are_not_rounded_beside_missing_values(spark):
    large = 2**53 + 1
    frame = spark.createDataFrame([(0, 0, large), (1, 1, 5)], "x int, y int, v long")
    with raises(InvalidInputError, column="v"):
        icechunk_spark.to_xarray(frame, dims=["x", "y"])
    with pytest.raises(InvalidInputError):
        icechunk_spark.to_xarray(frame.selectExpr("x", "nullif(v, 5L) AS v"), dims=["x"])
    whole = icechunk_spark.to_xarray(frame.select("x", "v"), dims=["x"])
    assert whole.v.values.tolist() == [large, 5]
    exact = frame.selectExpr("x", "y", "cast(v AS decimal(20, 0)) AS v")
    assert icechunk_spark.to_xarray(exact, dims=["x", "y"]).v.values[0, 0] == large
    small = icechunk_spark.to_xarray(frame.where("v = 5").selectExpr("x", "y", "v"), dims=["x"])
    assert small.v.values.tolist() == [5]


@pytest.mark.needs_reference
def test_times_of_other_calendars_are_those_of_xarray(spark, tmp_path):
    import xarray as xr

    pytest.importorskip("cftime")
    times = xr.date_range(
        "2001-02-29T12:00:00.250", periods=3, freq="30D", calendar="360_day", use_cftime=True
    )
    data = np.arange(6.0).reshape(3, 2)
    dataset = xr.Dataset({"v": (("time", "x"), data)}, {"time": times, "x": [0.0, 1.0]})
    dataset["time"].encoding = {"units": "seconds since 2000-01-01", "calendar": "360_day"}
    path = str(tmp_path / "repository")
    session = reference_repository(path).writable_session("main")
    dataset.to_zarr(session.store, consolidated=False)
    session.commit("dataset")
    expected = dataset.indexes["time"]
    read = icechunk_spark.to_xarray(icechunk_spark.read(spark, path))
    assert read.indexes["time"].equals(expected)
    assert read["time"].dt.calendar == "360_day"
    assert read.sel(time=slice("2001-03", "2001-12")).sizes["time"] == 2
    points = spark.createDataFrame([(0.0,), (1.0,)], "x double")
    sampled = icechunk_spark.to_xarray(
        icechunk_spark.sample(points, path, on={"x": "x"}, keep=["time"])
    )
    assert sampled.indexes["time"].equals(expected)
    np.testing.assert_array_equal(sampled["v"], data.T)
