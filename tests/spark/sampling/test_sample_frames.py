"""Points in frames of pandas and GeoPandas."""

import pytest

import icechunk_spark
from icechunk_format.errors import InvalidInputError

pandas = pytest.importorskip("pandas")


@pytest.fixture
def grid(spark, tmp_path):
    path = str(tmp_path / "grid")
    rows = spark.range(12).selectExpr("10D * (id div 4) AS y", "1D * (id % 4) AS x", "1D * id AS t")
    icechunk_spark.write(rows, path, dims=["y", "x"])
    return path


def test_pandas(spark, grid):
    points = pandas.DataFrame({"name": ["a", "b"], "north": [10.2, 0.0], "east": [1.1, 3.0]})
    found = icechunk_spark.sample(points, grid, on={"y": "north", "x": "east"})
    assert {row["name"]: row["t"] for row in found.collect()} == {"a": 5.0, "b": 3.0}


def test_geopandas(spark, grid):
    geopandas = pytest.importorskip("geopandas")
    shapes = geopandas.points_from_xy([1.1, 3.0], [10.2, 0.0])
    points = geopandas.GeoDataFrame({"name": ["a", "b"]}, geometry=shapes)
    found = icechunk_spark.sample(points, grid, on={"y": "y", "x": "x"})
    assert {row["name"]: row["t"] for row in found.collect()} == {"a": 5.0, "b": 3.0}


def test_other_types(grid):
    with pytest.raises(InvalidInputError):
        icechunk_spark.sample([(1, 2)], grid, on={"y": "y", "x": "x"})
