"""Aggregates that tasks reduce have the rows and types of Spark's own."""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from spark.queries.conftest import set_quick

import icechunk_spark
from icechunk_format.tables import aggregates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.each_spark

ROWS = """
SELECT timestamp_ntz'2024-02-27 18:00:00' + make_dt_interval(0, 6 * t) AS time,
       20 - 5.0D * y AS latitude,
       'station ' || x AS `order`,
       IF((t + y + x) % 7 = 0, float('NaN'),
          IF((t + x) % 5 = 0, -0.0F, float(270 + t - y + x))) AS t2m,
       IF(y = 0, double('NaN'),
          IF(y = 1, NULL, IF(t = 3, double('Infinity'), t / 3D - x))) AS `a,b`,
       IF((t * y + x) % 4 = 0, NULL, t * 10 + y - x) AS `snow ``depth```,
       IF((t * y + x) % 4 = 0, NULL, smallint(32767 - t)) AS `count(1)`,
       IF(t = 0 AND y > 2, 9223372036854775807L, t * y - x) AS `icechunk:1`,
       cast(IF(t = 1, 18446744073709551615BD, t * y) AS DECIMAL(20, 0)) AS `null`,
       (t + y) % 3 = 0 AS sunny,
       timestamp'2024-03-31 01:30:00 UTC' + make_dt_interval(t, y) AS seen,
       'kind ' || (t % 2) AS kind
FROM range(8) AS a(t), range(9) AS b(y), range(4) AS c(x)
"""
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")


@pytest.fixture(scope="session")
def grid(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a table of 288 cells in 24 chunks."""
    path = str(tmp_path_factory.mktemp("aggregates") / "grid")
    options = {
        "dims": "time,latitude,order",
        "chunks": "time=2,latitude=3,order=2",
        "encoding": '{"snow `depth`": {"_FillValue": -999}, "count(1)": {"_FillValue": -999},'
        ' "a,b": {"_FillValue": -999.0}, "t2m": {"_FillValue": -999.0}}',
    }
    spark.sql(ROWS).write.format("icechunk").options(**options).save(path)
    return path


@pytest.fixture(autouse=True)
def few_cells(spark: SparkSession, monkeypatch):
    set_quick(spark)
    monkeypatch.setattr(aggregates, "_FEWEST_CELLS_OF_A_ROW", 0)


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    frame = spark.read.format("icechunk").options(**options).load(path)
    rows = spark.createDataFrame(frame.toArrow(), frame.schema)
    rows.createOrReplaceTempView("rows_of_g")
    frame.createOrReplaceTempView("g")
    return frame


def explained(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


def key(row: tuple[Any, ...]) -> list[str]:
    return [f"{one:.6e}" if isinstance(one, float) else str(one) for one in row]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


def of_rows(sql: str) -> str:
    """Return the query of the rows in memory."""
    return sql.replace("FROM g", "FROM rows_of_g AS g").replace("of_mode", "rows_of_mode")


def compare(spark: SparkSession, sql: str) -> bool:
    """Assert that a query has the result of the same rows in memory; return if tasks aggregate."""
    found: list[Any] = []
    pushed = False
    for text in (sql, of_rows(sql)):
        try:
            frame = spark.sql(text)
            pushed = pushed or "aggregate=" in explained(frame)
            rows = sorted((tuple(row) for row in frame.collect()), key=key)
            found.append((frame.dtypes, rows))
        except Exception as error:
            found.append(str(error).split("\n")[0].split("]")[0])
    if isinstance(found[0], str) or isinstance(found[1], str):
        assert found[0] == found[1], sql
        return pushed
    (types, rows), (other_types, other_rows) = found
    assert types == other_types, sql
    assert len(rows) == len(other_rows), sql
    for row, other in zip(rows, other_rows, strict=True):
        assert all(map(alike, row, other)), (sql, row, other)
    return pushed


REDUCED = (
    "SELECT avg(t2m) FROM g",
    "SELECT count(t2m), sum(t2m), min(t2m), max(t2m) FROM g WHERE NOT isnan(t2m)",
    "SELECT latitude, avg(t2m), min(t2m), max(t2m), count(*) FROM g GROUP BY latitude",
    "SELECT latitude, min(`a,b`), max(`a,b`), sum(`a,b`), avg(`a,b`) FROM g GROUP BY 1",
    "SELECT time, `order`, sum(`snow ``depth```), avg(`snow ``depth```), count(`snow ``depth```)"
    " FROM g GROUP BY ALL",
    "SELECT year(time), avg(t2m) FROM g GROUP BY year(time)",
    "SELECT date_trunc('day', time) AS day, sum(t2m) AS s FROM g GROUP BY 1",
    "SELECT floor(latitude / 10), stddev(t2m), var_pop(`count(1)`) FROM g"
    " WHERE NOT isnan(t2m) GROUP BY 1",
    "SELECT CASE WHEN latitude <= 0 THEN 'south' WHEN latitude > 10 THEN 'north' ELSE 'else' END c,"
    " max(`snow ``depth```) FROM g GROUP BY 1",
    "SELECT day(time), hour(time), avg(t2m) FROM g WHERE latitude > 0 GROUP BY 1, 2",
    "SELECT avg(t2m) FROM g WHERE latitude BETWEEN -5 AND 10 AND time < '2024-02-28'",
    "SELECT avg(t2m), min(latitude), max(time) FROM g WHERE t2m > 272",
    "SELECT time, count(*) FROM g WHERE t2m > 272 GROUP BY time",
    "SELECT count(DISTINCT time) FROM g WHERE t2m > 272",
    "SELECT DISTINCT latitude FROM g",
    "SELECT count(*) FROM (SELECT DISTINCT latitude, `order` FROM g)",
    "SELECT latitude, count_if(t2m > 272) FROM g GROUP BY latitude",
    "SELECT latitude, count(*) FILTER (WHERE t2m > 272),"
    " avg(t2m) FILTER (WHERE time < '2024-02-28') FROM g GROUP BY latitude",
    "SELECT sum(CASE WHEN t2m > 272 THEN 1 ELSE 0 END) FROM g",
    "SELECT sum(`count(1)`), avg(`count(1)`), min(`count(1)`), max(`count(1)`) FROM g",
    "SELECT sum(`icechunk:1`) FROM g WHERE latitude > 10",
    "SELECT time, sum(`icechunk:1`), avg(`icechunk:1`) FROM g GROUP BY time",
    "SELECT sum(`null`), min(`null`), max(`null`) FROM g",
    "SELECT min(seen), max(seen), count(seen), min(sunny), max(sunny), count(kind) FROM g",
    "SELECT latitude, avg(t2m) + 1 AS a, sum(`snow ``depth```) / count(*) FROM g GROUP BY latitude"
    " HAVING count(*) > 1 ORDER BY a LIMIT 4",
    "SELECT avg(t2m), sum(`snow ``depth```), min(t2m), stddev(t2m), count(t2m) FROM g"
    " WHERE latitude = 3",
    "SELECT latitude, avg(t2m) FROM g WHERE latitude = 3 GROUP BY latitude",
    "SELECT a.m, b.m FROM (SELECT latitude, avg(t2m) m FROM g GROUP BY 1) a JOIN"
    " (SELECT latitude, max(t2m) m FROM g GROUP BY 1) b USING (latitude)",
    "SELECT latitude - (SELECT avg(`count(1)`) FROM g) FROM g GROUP BY latitude",
    "SELECT avg(t) FROM (SELECT t2m AS t, latitude AS `t2m` FROM g) WHERE `t2m` > 0",
    "SELECT -latitude * 0 AS zero, count(*) FROM g GROUP BY 1",
    "SELECT avg(t2m * 2), sum(t2m * 1.5F), avg(-t2m), avg(t2m / 10) FROM g WHERE NOT isnan(t2m)",
    "SELECT latitude, avg(t2m - 273.15) AS c, max((t2m - 273.15D) * 1.8D + 32) AS f,"
    " min(2 - t2m), max(abs(t2m)), count(t2m * 3), stddev(t2m + 1) FROM g GROUP BY 1",
    "SELECT avg(`snow ``depth``` / 3), sum(`snow ``depth``` * 2.5D), min(`count(1)` * 0.1D),"
    " max(cast(`icechunk:1` AS DOUBLE) + 1e300D) FROM g",
    "SELECT time, max(`a,b` * -1), min(`a,b` - 1.5D), sum(`a,b` / -0.25D) FROM g GROUP BY 1",
    "SELECT time, max(`a,b` * double('Infinity')), min(-`a,b`), max(1.0D - `a,b`) FROM g"
    " GROUP BY time",
    "SELECT max(t2m * 1e38F), min(t2m * -1e38F) FROM g WHERE NOT isnan(t2m)",
    "SELECT avg(t2m * 2) FILTER (WHERE t2m > 272), var_pop(0.1F * t2m) FROM g WHERE NOT isnan(t2m)",
    "SELECT sum(cast(`icechunk:1` AS DOUBLE)), sum(cast(`count(1)` AS DOUBLE)),"
    " avg(cast(t2m AS DOUBLE)) FROM g WHERE latitude = 20",
)
KEPT = (
    "SELECT avg(latitude) FROM g",
    "SELECT avg(t2m * t2m), sum(t2m + `a,b`) FROM g",
    "SELECT sum(10 / (t2m + 1000)) FROM g WHERE NOT isnan(t2m)",
    "SELECT sum(`icechunk:1` - 2) FROM g WHERE time < '2024-02-29'",
    "SELECT max(cast(t2m AS INT)) FROM g WHERE NOT isnan(t2m)",
    "SELECT avg(t2m % 7), avg(latitude * 2), avg(sqrt(`count(1)`)) FROM g",
    "SELECT sum(`null` * 2) FROM g",
    "SELECT avg(t2m / latitude), avg(1 / t2m) FROM g WHERE latitude > 0 AND t2m > 0",
    "SELECT t2m, count(*) FROM g GROUP BY t2m",
    "SELECT latitude, first(kind) IS NULL FROM g GROUP BY latitude",
    "SELECT max(kind) FROM g",
    "SELECT avg(`null`) FROM g",
    "SELECT count(DISTINCT t2m) FROM g",
    "SELECT latitude, `order`, avg(t2m) FROM g GROUP BY ROLLUP (latitude, `order`)",
    "SELECT avg(t2m) FROM g WHERE `icechunk:1` % 3 = 1",
    "SELECT avg(t2m) FILTER (WHERE 1 / latitude > 0) FROM g WHERE latitude <> 0",
    "SELECT percentile(t2m, 0.5) FROM g WHERE NOT isnan(t2m)",
    "SELECT corr(latitude, `count(1)`) FROM g",
)


@pytest.mark.parametrize("ansi", ["true", pytest.param("false", marks=pytest.mark.nightly)])
def test_aggregates_that_tasks_reduce(spark: SparkSession, grid: str, ansi: str):
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    load(spark, grid)
    kept = [sql for sql in REDUCED if not compare(spark, sql)]
    assert not kept


def test_tasks_return_a_row_for_each_label(spark: SparkSession, grid: str):
    by_latitude = load(spark, grid).groupBy("latitude").avg("t2m")
    assert "aggregate=" in explained(by_latitude)
    assert "by=latitude" in explained(by_latitude)
    assert len(by_latitude.collect()) == 9
    found = icechunk_spark.last_read_metrics(by_latitude)
    assert found is not None
    assert 0 < found.rows < 288
    assert found.chunks_decoded >= 24


def test_aggregates_that_only_spark_computes(spark: SparkSession, grid: str):
    load(spark, grid)
    reduced = [sql for sql in KEPT if compare(spark, sql)]
    assert reduced == []


def reduced(spark: SparkSession, frame: DataFrame) -> bool:
    """Assert the same rows with and without the rule; return whether tasks aggregate."""
    pushed = explained(frame.select("*"))
    found = []
    for setting in ("true", "false"):
        spark.conf.set("icechunk.pushdown", setting)
        found.append(sorted(map(str, frame.select("*").collect())))
    spark.conf.set("icechunk.pushdown", "true")
    assert found[0] == found[1]
    return "aggregate=" in pushed


STRINGS = ("${env:HOME}", "${spark.app.name}", "it's", "back\\slash\\'", "a\nb\t'", "x\\")


@pytest.mark.parametrize("escaped", ["true", "false"])
def test_strings_of_a_query_are_not_parsed_again(spark: SparkSession, grid: str, escaped: str):
    frame = load(spark, grid)
    is_north = F.col("latitude") > 0
    name = "spark.sql.parser.escapedStringLiterals"
    spark.conf.set(name, escaped)
    try:
        named = [
            F.when(is_north, F.lit(text)).otherwise(F.concat("order", F.lit(text))).alias(f"g{n}")
            for n, text in enumerate(STRINGS)
        ]
        counts = [F.count_if(F.col("kind") != F.lit(text)) for text in STRINGS]
        grouped = frame.groupBy(*named).agg(
            F.max("`snow ``depth```"), *map(F.lit, STRINGS), *counts
        )
        assert reduced(spark, grouped)
        assert STRINGS in {tuple(row)[: len(STRINGS)] for row in grouped.collect()}
        others = [F.col("kind") != F.lit(text) for text in STRINGS]
        assert not reduced(spark, frame.where(functools.reduce(operator.and_, others)))
    finally:
        spark.conf.unset(name)


def test_names_of_dimensions_are_not_parsed_again(spark: SparkSession, tmp_path):
    path = str(tmp_path / "names")
    rows = spark.range(6).select(F.col("id").alias("${env:HOME}"), (F.col("id") * 2).alias("v"))
    rows.write.format("icechunk").options(dims="${env:HOME}").save(path)
    frame = spark.read.format("icechunk").load(path)
    assert not reduced(spark, frame.groupBy(frame.columns[0]).sum("v"))
    assert reduced(spark, frame.groupBy().sum("v"))


def test_the_default_type_of_timestamps_changes_no_result(spark: SparkSession, grid: str):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    load(spark, grid, timestampType="utc")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        for sql in (
            "SELECT time > timestamp_ltz'2024-02-28 00:00:00' AS x, count(*) FROM g GROUP BY 1",
            "SELECT cast(time AS TIMESTAMP_LTZ) AS x, max(t2m) FROM g GROUP BY 1",
            "SELECT latitude, count_if(seen > timestamp_ltz'2024-04-02 00:00:00') FROM g"
            " GROUP BY 1",
            "SELECT CASE WHEN latitude > 0 THEN timestamp'2024-04-05' END AS x, count(*) FROM g"
            " GROUP BY 1",
        ):
            assert compare(spark, sql), sql
    finally:
        spark.conf.unset("spark.sql.timestampType")


MODES = (
    "SELECT cast(`order` AS INT) AS x, count(*) AS n FROM g GROUP BY 1",
    "SELECT cast(latitude * 1e9 AS INT) AS x, count(*) AS n FROM g GROUP BY 1",
    "SELECT 100 / latitude AS x, max(t2m) AS n FROM g GROUP BY 1",
    "SELECT latitude AS x, sum(`icechunk:1`) AS n FROM g WHERE time < '2024-02-28' GROUP BY 1",
    "SELECT latitude AS x, count(*) AS n FROM g GROUP BY 1 HAVING sum(`icechunk:1`) > 0",
)


@pytest.mark.parametrize("sql", MODES)
def test_a_view_keeps_the_mode_of_its_creation(spark: SparkSession, grid: str, sql: str):
    load(spark, grid)
    for mode, later in (("true", "false"), ("false", "true")):
        spark.conf.set("spark.sql.ansi.enabled", mode)
        for text in (create := f"CREATE OR REPLACE TEMP VIEW of_mode AS {sql}", of_rows(create)):
            spark.sql(text)
        frame = spark.sql(sql)
        spark.conf.set("spark.sql.ansi.enabled", later)
        assert not compare(spark, "SELECT * FROM of_mode")
        if later == "true":
            assert not reduced(spark, frame)
        else:
            assert "aggregate=" not in explained(frame.select("*"))
