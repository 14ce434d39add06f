"""A join with rows that are part of the query reads only the rows with their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from spark.queries.test_planning import explained, load, same_rows

import icechunk_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.each_spark

LATITUDES = "(VALUES (20), (15), (NULL)) AS v(x)"
# Queries, and the condition of their read.
REDUCED = {
    f"SELECT w.* FROM w JOIN {LATITUDES} ON latitude = x": "`latitude` IN (20.0D, 15.0D)",
    f"SELECT t2m FROM w WHERE latitude IN (SELECT x FROM {LATITUDES})":
        "`latitude` IN (20.0D, 15.0D)",
    f"SELECT * FROM w RIGHT JOIN {LATITUDES} ON latitude = x": "`latitude` IN (20.0D, 15.0D)",
    f"SELECT * FROM {LATITUDES} LEFT JOIN w ON latitude = x": "`latitude` IN (20.0D, 15.0D)",
    "SELECT t2m FROM w JOIN s USING (latitude)": "`latitude` IN (20.0D, -20.0D)",
    f"SELECT t2m FROM w JOIN s USING (latitude) JOIN {LATITUDES}"
    " ON w.`order` = 'station ' || x div 10":
        "`latitude` IN (20.0D, -20.0D)",
    "SELECT avg(t2m) FROM w JOIN (SELECT DISTINCT x + 1 AS x FROM VALUES (19), (14) AS v(x)) v"
    " ON latitude = x": "`latitude` IN (20.0D, 15.0D)",
    "SELECT y FROM (SELECT latitude + 1 AS y FROM w) JOIN (VALUES (21), (16)) AS v(x) ON y = x":
        "(`latitude` + 1.0D) IN (21.0D, 16.0D)",
    "SELECT * FROM w WHERE time IN (SELECT * FROM VALUES (date'2024-02-28'), (date'2024-02-29'))":
        "`time` IN (TIMESTAMP_NTZ '2024-02-28 00:00:00', TIMESTAMP_NTZ '2024-02-29 00:00:00')",
    "SELECT * FROM w JOIN (VALUES (float(272)), (float('NaN')), (0F)) AS v(x) ON t2m = x":
        "`t2m` IN (CAST('272.0' AS FLOAT), CAST('NaN' AS FLOAT), CAST('0.0' AS FLOAT))",
}  # fmt: skip
WHOLE = (
    f"SELECT * FROM w LEFT JOIN {LATITUDES} ON latitude = x",
    f"SELECT * FROM w FULL JOIN {LATITUDES} ON latitude = x",
    f"SELECT * FROM w LEFT ANTI JOIN {LATITUDES} ON latitude = x",
    "SELECT * FROM w WHERE latitude NOT IN (SELECT * FROM VALUES (20), (15))",
    f"SELECT * FROM w JOIN {LATITUDES} ON latitude = x OR latitude = 0",
    f"SELECT * FROM w JOIN {LATITUDES} ON latitude > x",
    f"SELECT y FROM (SELECT latitude AS y, rand(1) AS r FROM w) JOIN {LATITUDES} ON y = x"
    " WHERE r < 2",
    f"SELECT * FROM (SELECT * FROM w ORDER BY latitude, time, `order` LIMIT 3) JOIN {LATITUDES}"
    " ON latitude = x",
    "SELECT * FROM w WHERE EXISTS (SELECT * FROM VALUES (20) AS v(x) WHERE x > 3)",
)


@pytest.fixture(autouse=True)
def views(spark: SparkSession, cube: str):
    load(spark, cube).createOrReplaceTempView("w")
    stations = pa.table({"latitude": [20.0, -20.0, None], "station": ["a", "b", "c"]})
    spark.createDataFrame(stations).createOrReplaceTempView("s")
    yield
    spark.catalog.dropTempView("s")


@pytest.mark.parametrize("sql", REDUCED)
def test_keys_are_a_condition_of_the_read(spark: SparkSession, sql: str):
    shown = explained(spark.sql(sql))
    assert REDUCED[sql][:100] in shown
    assert same_rows(spark, lambda: spark.sql(sql))


@pytest.mark.parametrize("sql", WHOLE)
def test_joins_that_need_all_rows(spark: SparkSession, sql: str):
    assert " IN (" not in explained(spark.sql(sql)).split("MapInArrow")[1]
    same_rows(spark, lambda: spark.sql(sql))


def test_subqueries_below_or(spark: SparkSession, cube: str):
    icechunk_spark.view(spark, "fresh", cube)
    for table in ("w", "fresh"):
        sql = (
            f"SELECT t2m FROM {table} o WHERE latitude < 15 AND (t2m > 275 OR EXISTS (SELECT 1 FROM"
            f" {table} i WHERE i.t2m = o.t2m AND i.latitude > 0) OR latitude IN (SELECT latitude"
            f" FROM {table} WHERE time < '2024-02-28'))"
        )
        shown = explained(spark.sql(sql))
        for condition in ("`latitude` < 15.0D", "`latitude` > 0.0D", "`time` < "):
            assert f"where='{condition}" in shown
        assert same_rows(spark, lambda sql=sql: spark.sql(sql))


def test_many_values_are_not_keys(spark: SparkSession, monkeypatch):
    values = pa.table({"latitude": [float(n) for n in range(5_001)]})
    joined = spark.table("w").join(spark.createDataFrame(values), "latitude")
    assert " IN (" not in explained(joined)
    assert len(same_rows(spark, lambda: joined.select("*"))) == 5 * 32


def test_labels_that_are_collected_first(spark: SparkSession, cube: str):
    # Spark computes the rows of this DataFrame only when the query runs.
    stations = spark.createDataFrame([("a", 20.0), ("b", -20.0)], "station string, latitude double")
    frame = load(spark, cube)
    assert " IN (" not in explained(frame.join(stations, "latitude"))
    labels = [row.latitude for row in stations.collect()]
    near = frame.where(frame.latitude.isin(labels)).join(stations, "latitude")
    assert "where='`latitude` IN (20.0D, -20.0D)'" in explained(near)
    assert sorted(map(str, near.collect())) == sorted(
        map(str, frame.join(stations, "latitude").collect())
    )
