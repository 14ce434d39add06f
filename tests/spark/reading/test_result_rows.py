"""Results of `sample` and `zonal` as datasets: with times and keys, as xarray has them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from helpers.raised import raises
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import InvalidInputError

xr = pytest.importorskip("xarray")
pandas = pytest.importorskip("pandas")

TIMES = [dt.datetime(2024, 7, 1, hour) for hour in (0, 6, 12)]
LEVELS, LATITUDES, LONGITUDES = [1000, 850], [60.0, 50.0, 40.0, 30.0], [0.0, 10.0, 20.0]


@pytest.fixture(scope="module")
def grid():
    shape = (3, 2, 4, 3)
    t2m = xr.DataArray(
        np.arange(np.prod(shape), dtype="f8").reshape(shape),
        coords={
            "time": np.array(TIMES, "datetime64[ns]"),
            "level": LEVELS,
            "latitude": LATITUDES,
            "longitude": LONGITUDES,
        },
        dims=("time", "level", "latitude", "longitude"),
        attrs={"units": "K"},
    )
    return t2m.to_dataset(name="t2m").assign(
        height=(("latitude", "longitude"), t2m.values[0, 0] + 0.5)
    )


def as_read(dims):
    return {"time": F.col("time").cast("timestamp_ntz")} if "time" in dims else {}


@pytest.fixture(scope="module")
def path(spark, grid, tmp_path_factory):
    """Write a grid whose levels and latitudes descend."""
    path = str(tmp_path_factory.mktemp("grid") / "repository")
    for name, dims in (("t2m", grid["t2m"].dims), ("height", grid["height"].dims)):
        rows = grid[name].to_dataframe().reset_index()
        icechunk_spark.write(
            spark.createDataFrame(rows).withColumns(as_read(dims)),
            path,
            mode="append",
            merge_schema=True,
            dims=list(dims),
            order={dim: "descending" for dim in ("level", "latitude") if dim in dims},
            encoding={name: {"attributes": {"units": "K" if name == "t2m" else "m"}}},
        )
    return path


CITIES = pandas.DataFrame(
    {
        "city": ["Oslo", "Nice", "far away", "Bergen"],
        "lat": [60.0, 41.0, -40.0, 59.0],
        "lon": [11.0, 9.0, 0.0, 4.0],
    }
)
ON = {"latitude": "lat", "longitude": "lon"}


def test_kept_labels_are_arrays(spark, path):
    found = icechunk_spark.sample(CITIES, path, on=ON, keep=["level", "time"])
    assert found.columns == ["city", "lat", "lon", "level", "time", "height", "t2m"]
    kinds = [field.dataType.simpleString() for field in found.schema if field.name != "height"][3:]
    assert kinds == ["array<bigint>", "array<timestamp_ntz>", "array<array<double>>"]
    row = found.where("city = 'far away'").first()
    assert (row.level, row.time, row.t2m) == (LEVELS, TIMES, None)
    some = icechunk_spark.sample(
        CITIES, path, on=ON, keep=["time"], isel={"time": [0, 2], "level": 0}, variables=["t2m"]
    )
    assert some.first().time == [TIMES[0], TIMES[2]]


def test_points_become_a_dimension_beside_kept_ones(spark, path, grid):
    found = icechunk_spark.sample(CITIES, path, on=ON, keep=["time", "level"])
    dataset = icechunk_spark.to_xarray(found)
    inside = [0, 1, 3]
    expected = grid.sel(
        latitude=xr.DataArray(CITIES["lat"], dims="point"),
        longitude=xr.DataArray(CITIES["lon"], dims="point"),
        method="nearest",
    ).transpose("point", "time", "level")
    assert dataset["t2m"].dims == ("point", "time", "level")
    assert dataset["height"].dims == ("point",)
    assert set(dataset.coords) == {"city", "lat", "lon", "time", "level"}
    assert dataset["city"].dims == ("point",)
    assert dataset["level"].values.tolist() == LEVELS
    assert (dataset["time"].values == grid["time"].values).all()
    assert (dataset["t2m"].attrs, dataset["height"].attrs) == ({"units": "K"}, {"units": "m"})
    by_city = dataset.swap_dims(point="city").sel(city=CITIES["city"].tolist())
    for name in ("t2m", "height"):
        np.testing.assert_array_equal(by_city[name][inside], expected[name][inside])
        assert by_city[name][2].isnull().all()


def test_a_key_becomes_the_dimension_if_it_is_named_or_alone(spark, path):
    found = icechunk_spark.sample(CITIES, path, on=ON, keep=["time"], isel={"level": 1})
    named = icechunk_spark.to_xarray(found, dims=["city"])
    assert named["t2m"].dims == ("city", "time")
    assert named["lat"].dims == ("city",)
    assert named["city"].values.tolist() == sorted(CITIES["city"])
    alone = icechunk_spark.to_xarray(found.select("city", "time", "t2m"))
    np.testing.assert_array_equal(alone["t2m"], named["t2m"])
    without_labels = icechunk_spark.to_xarray(found.select("city", "t2m"))
    assert dict(without_labels.sizes) == {"city": 4, "time": 3}
    np.testing.assert_array_equal(without_labels["t2m"], named["t2m"])
    with raises(InvalidInputError, allowed=11):
        icechunk_spark.to_xarray(found, max_cells=11)


def test_the_cells_of_another_grid_keep_their_dimensions(spark, path, grid):
    coarse = icechunk_spark.read(spark, path, variables=["height"], isel={"longitude": [0, 2]})
    points = coarse.selectExpr("latitude", "longitude", "height AS above")
    found = icechunk_spark.sample(
        points, path, on={"latitude": "latitude", "longitude": "longitude"}, variables=["height"]
    )
    dataset = icechunk_spark.to_xarray(found)
    expected = grid["height"].isel(longitude=[0, 2])
    assert dataset["height"].dims == ("latitude", "longitude")
    np.testing.assert_array_equal(dataset["height"], expected)
    np.testing.assert_array_equal(dataset["above"], expected)


def test_a_column_with_the_name_of_a_kept_dimension_is_refused(path):
    points = CITIES.rename(columns={"city": "time"})
    with pytest.raises(InvalidInputError, match="kept dimension 'time': rename the column"):
        icechunk_spark.sample(points, path, on=ON, keep=["time"], variables=["t2m"], isel="level=0")


WKT = [
    "POLYGON ((-5 45, 25 45, 25 65, -5 65, -5 45))",
    "POLYGON ((-5 25, 25 25, 25 45, -5 45, -5 25))",
    None,
]
ZONES = pandas.DataFrame({"name": ["north", "south", "none"], "code": [7, 3, 5], "geometry": WKT})


def mean(grid, name):
    rows = slice(60, 50) if name == "north" else slice(40, 30)
    return grid["t2m"].sel(latitude=rows).mean(["latitude", "longitude"])


def test_zones_become_a_dimension_with_their_keys(spark, path, grid):
    pytest.importorskip("exactextract")
    found = icechunk_spark.zonal(
        ZONES, path, variables=["t2m"], statistics=["mean", "count", "max"]
    )
    dataset = icechunk_spark.to_xarray(found)
    assert dataset["t2m_mean"].dims == ("zone", "time", "level")
    assert dataset["name"].dims == dataset["code"].dims == ("zone",)
    assert dataset["level"].values.tolist() == LEVELS
    assert (dataset["time"].values == grid["time"].values).all()
    assert dataset["t2m_mean"].attrs == dataset["t2m_max"].attrs == {"units": "K"}
    assert dataset["t2m_count"].attrs == {}
    by_name = dataset.swap_dims(zone="name")
    for name in ("north", "south"):
        np.testing.assert_allclose(by_name["t2m_mean"].sel(name=name), mean(grid, name))
    assert by_name["t2m_mean"].sel(name="none").isnull().all()
    named = icechunk_spark.to_xarray(found, dims=["code", "time", "level"])
    assert named["name"].dims == ("code",)
    np.testing.assert_allclose(named["t2m_mean"].sel(code=7), mean(grid, "north"))


def test_results_that_are_aggregated_again_keep_their_keys(spark, path, grid):
    pytest.importorskip("exactextract")
    zones = ZONES.drop(columns="code")
    found = icechunk_spark.zonal(zones, path, variables=["t2m"])
    alone = icechunk_spark.to_xarray(found.groupBy("name", "level").max("t2m_mean"))
    assert alone["max(t2m_mean)"].dims == ("name", "level")
    expected = mean(grid, "south").max("time")
    np.testing.assert_allclose(alone["max(t2m_mean)"].sel(name="south"), expected)


@pytest.mark.parametrize("kind", ["wkt", "wkb", "bytearray", "shapely", "geopandas"])
def test_zones_of_pandas(spark, path, grid, kind):
    shapely = pytest.importorskip("shapely")
    shapes = np.array([wkt and shapely.from_wkt(wkt) for wkt in WKT], object)
    held = {
        "wkt": lambda: ZONES["geometry"],
        "wkb": lambda: shapely.to_wkb(shapes),
        "bytearray": lambda: [shape and bytearray(shape.wkb) for shape in shapes],
        "shapely": lambda: shapes,
        "geopandas": lambda: pytest.importorskip("geopandas").GeoSeries(shapes),
    }[kind]()
    zones = pandas.DataFrame({"name": ZONES["name"], "outline": held})
    if kind == "geopandas":
        zones = pytest.importorskip("geopandas").GeoDataFrame(zones, geometry="outline")
    found = icechunk_spark.zonal(
        zones, path, geometry="outline", variables=["t2m"], isel={"time": 0, "level": 0}
    )
    rows = {row.name: row.t2m_mean for row in found.collect()}
    north, south = (float(mean(grid, name)[0, 0]) for name in ("north", "south"))
    assert rows == {"north": pytest.approx(north), "south": pytest.approx(south), "none": None}


def test_zones_of_pandas_that_are_refused(spark, path):
    with pytest.raises(InvalidInputError, match="is not a column of the zones, which have name"):
        icechunk_spark.zonal(ZONES, path, geometry="shape")
    mixed = ZONES.assign(geometry=["POINT (0 0)", b"", 3])
    with pytest.raises(InvalidInputError, match="values of type bytes and int and str; zones are"):
        icechunk_spark.zonal(mixed, path)
