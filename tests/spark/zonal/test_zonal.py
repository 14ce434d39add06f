"""``icechunk_spark.zonal``: forms of zones, keys, options and errors, through Spark."""

from __future__ import annotations

import sys
from decimal import Decimal

import numpy as np
import pytest
import shapely
from helpers.grids.zonal_results import expected, fractions_of
from helpers.raised import raises
from helpers.spark.repositories import ELEVATION, T2M, T2M_V1, TIMES
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import InvalidInputError, NotFoundError, UnsupportedError

pytestmark = [pytest.mark.needs_reference, pytest.mark.each_spark]

LAT_EDGES, LON_EDGES = np.linspace(62.5, 32.5, 7), np.linspace(-1.0, 19.0, 11)
POLYGONS = {
    "west": shapely.box(1, 36, 9, 52),
    "east": shapely.Polygon(
        [(8, 40), (18, 44), (12, 58), (8, 40)], [[(10, 44), (11, 45), (11, 44)]]
    ),
    "out": shapely.box(100, 0, 101, 1),
}


@pytest.fixture
def zones(spark):
    rows = [
        (name, number, Decimal(number) / 4, bytearray(shape.wkb))
        for number, (name, shape) in enumerate(POLYGONS.items())
    ]
    return spark.createDataFrame(rows, "name string, id int, `a.b` decimal(5,2), geometry binary")


def wanted(values, name):
    return expected(values, fractions_of(POLYGONS[name], LAT_EDGES, LON_EDGES))


def test_a_row_for_each_zone_and_step_with_the_keys_of_the_zone(zones, weather):
    names = ["count", "mean", "min", "std"]
    found = icechunk_spark.zonal(zones, weather.path, variables=["t2m"], statistics=names)
    assert [f"{f.name} {f.dataType.simpleString()}" for f in found.schema] == [
        "name string",
        "id int",
        "a.b decimal(5,2)",
        "time timestamp_ntz",
        "t2m_count double",
        "t2m_mean double",
        "t2m_min float",
        "t2m_std double",
    ]
    rows = found.orderBy("id", "time").collect()
    assert len(rows) == 3 * len(TIMES)
    for place, row in enumerate(rows):
        number, step = divmod(place, len(TIMES))
        name = list(POLYGONS)[number]
        assert (row.name, row.id, row["a.b"]) == (name, number, Decimal(number) / 4)
        assert row.time == TIMES[step].item()
        for statistic, value in wanted(T2M[step], name).items():
            if statistic in names:
                ours = row[f"t2m_{statistic}"]
                assert ours == value or ours == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_quantiles_of_values_from_all_tasks(spark, weather):
    whole = shapely.box(LON_EDGES[0], LAT_EDGES[-1], LON_EDGES[-1], LAT_EDGES[0])
    zones = spark.createDataFrame([("all", whole.wkt)], "name string, geometry string")
    asked = "median,quantile(q=0.9),max"
    found = icechunk_spark.zonal(zones, weather.path, variables=["t2m"], statistics=asked)
    assert found.columns == ["name", "time", "t2m_median", "t2m_quantile_90", "t2m_max"]
    for row, values in zip(found.orderBy("time").collect(), T2M, strict=True):
        wanted = np.nanquantile(values.astype("f8"), [0.5, 0.9, 1.0])
        np.testing.assert_allclose(row[2:], wanted, rtol=1e-6)


def test_every_form_of_zones_gives_the_same(spark, zones, weather):
    geopandas = pytest.importorskip("geopandas")
    frame = geopandas.GeoDataFrame(
        {"name": list(POLYGONS)}, geometry=list(POLYGONS.values()), crs="EPSG:4326"
    )
    texts = [(name, shape.wkt) for name, shape in POLYGONS.items()]
    forms = {
        "wkb": zones.select("name", "geometry"),
        "wkt": spark.createDataFrame(texts, "name string, geometry string"),
        "geopandas": frame,
        "moved": frame.to_crs(3857),
    }
    if spark.version >= "4.2":  # 4.1 has geometries behind a switch
        forms["geometry"] = zones.selectExpr("name", "st_geomfromwkb(geometry) AS geometry")
    for form, given in forms.items():
        found = icechunk_spark.zonal(given, weather.path, variables="elevation", tag="v1")
        means = {row.name: row.elevation_mean for row in found.collect()}
        assert means.keys() == POLYGONS.keys(), form
        assert means["out"] is None
        # A slanted edge is straight in one of the two reference systems alone.
        tolerance = 0.02 if form == "moved" else 1e-6
        for name in ("west", "east"):
            mean = wanted(ELEVATION.astype("f8"), name)["mean"]
            assert means[name] == pytest.approx(mean, rel=tolerance)


def test_versions_and_selections_are_those_of_reading(zones, weather):
    found = icechunk_spark.zonal(
        zones.where("name = 'west'").drop("a.b"),
        weather.path,
        variables=["t2m"],
        statistics="sum,max",
        tag="v1",
        sel={"time": slice("2024-07-01", "2024-07-01")},
    )
    rows = found.orderBy("time").collect()
    assert [row.t2m_max for row in rows] == [wanted(T2M_V1[i], "west")["max"] for i in range(4)]
    none = icechunk_spark.zonal(zones, weather.path, variables=["t2m"], isel={"time": slice(0, 0)})
    assert none.count() == 0


def test_the_result_is_lazy_pinned_and_used_twice(zones, weather):
    found = icechunk_spark.zonal(zones, weather.path, variables=["elevation"], statistics=["count"])
    twice = found.join(found.select("id", F.col("elevation_count").alias("again")), "id")
    rows = twice.collect()
    assert len(rows) == found.count() > 0
    assert all(row.elevation_count == row.again for row in rows)


def test_a_zone_that_cannot_be_used_is_named_in_one_line(spark, weather, last_line):
    bowtie = "POLYGON ((0 45, 5 50, 5 45, 0 50, 0 45))"
    zones = spark.createDataFrame([("Ruritania", bowtie)], "name string, geometry string")
    line = last_line(icechunk_spark.zonal(zones, weather.path, variables="elevation").collect)
    assert "zone name='Ruritania' is invalid: Self-intersection" in line
    assert "on_invalid='null'" in line
    given = icechunk_spark.zonal(zones, weather.path, variables="elevation", on_invalid="null")
    assert given.first().elevation_mean is None


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"geometry": "shape"}, InvalidInputError, "geometry='shape' is no column of the zones"),
        ({"geometry": "id"}, InvalidInputError, "geometry='id' is int; zones are polygons as WKB"),
        ({"statistics": ["mode"]}, InvalidInputError, "'mode' is not known"),
        ({"coverage": "half"}, InvalidInputError, "coverage must be .*fraction.*center.*touched"),
        ({"variables": ["rain"]}, NotFoundError, "no array 'rain'"),
        ({"variables": "salinity", "group": "ocean"}, InvalidInputError, "has no coordinates that"),
        ({"layout": "cells"}, InvalidInputError, "'layout' does not apply to zonal"),
        ({"brunch": "main"}, InvalidInputError, "did you mean 'branch'"),
        ({"tag": "v9"}, NotFoundError, "v9"),
    ],
)
def test_mistakes_are_told_by_the_call(zones, weather, asked, error, told):
    with pytest.raises(error, match=told):
        icechunk_spark.zonal(zones, weather.path, **{"variables": ["t2m"], **asked})


def test_a_key_with_the_name_of_a_dimension_is_refused(zones, weather):
    renamed = zones.withColumnRenamed("name", "Time")
    with raises(InvalidInputError, column="time"):
        icechunk_spark.zonal(renamed, weather.path, variables=["t2m"])


def test_what_is_no_table_of_zones_is_refused(weather):
    with raises(InvalidInputError, option="zones"):
        icechunk_spark.zonal([1], weather.path)


def test_a_missing_package_says_what_to_install(zones, weather, monkeypatch):
    monkeypatch.setitem(sys.modules, "exactextract", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'icechunk-spark\[geo\]'"):
        icechunk_spark.zonal(zones, weather.path, variables=["t2m"])


OVER_CONNECT = """
import json, sys
from pyspark.sql import SparkSession
import icechunk_spark
spark = SparkSession.builder.remote("local[2]").getOrCreate()
zones = spark.createDataFrame([("west", sys.argv[2])], "name string, geometry string")
found = icechunk_spark.zonal(zones, sys.argv[1], variables=["elevation"], statistics=["mean"])
print("ANSWER " + json.dumps([row.asDict() for row in found.collect()]))
"""


def test_over_connect(weather):
    pytest.importorskip("grpc")
    from helpers.spark.connect_client import answer_over_connect

    [row] = answer_over_connect(OVER_CONNECT, weather.path, POLYGONS["west"].wkt)
    mean = wanted(ELEVATION.astype("f8"), "west")["mean"]
    assert row == {"name": "west", "elevation_mean": pytest.approx(mean, rel=1e-6)}
