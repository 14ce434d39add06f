"""A query reads only what it needs, and its rows are those of a query that reads all."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pyspark
import pytest

import icechunk_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.core, pytest.mark.each_spark]

CONDITIONS = (
    "latitude > 10",
    "latitude = 20",
    "latitude = 3",
    "latitude BETWEEN -5 AND 5 AND latitude <> 0",
    "latitude IN (20, -20)",
    "latitude IN (20, 15, 10, 5, 4, 3, 2, 1, 0.5, 0.25, -1, -2)",
    "NOT latitude < 10",
    "latitude <=> 20.0D",
    "latitude > 10 OR latitude < -10",
    "latitude * 2 > 20",
    "time = timestamp_ntz'2024-02-28 00:00:00'",
    "time >= '2024-02-29'",
    "time >= date'2024-02-28' AND time < date'2024-02-29'",
    "year(time) = 2025",
    "month(time) = 2 AND day(time) = 27",
    "`order` = 'station 1'",
    "`order` LIKE 'station%' AND latitude = 20",
    "startswith(`order`, 'station 3')",
    "latitude > 10 AND t2m > 272",
    "latitude > 10 AND rand(3) >= 0",
    "(latitude > 10 AND t2m > 272) OR (latitude > 10 AND t2m < 3)",
)


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("icechunk").options(**options).load(path)


def same_rows(spark: SparkSession, make) -> list:
    """Run a query with and without the rule; return its rows, which have to be equal."""
    spark.conf.set("icechunk.pushdown", "true")
    pushed = sorted(map(str, make().collect()))
    spark.conf.set("icechunk.pushdown", "false")
    assert pushed == sorted(map(str, make().collect()))
    spark.conf.set("icechunk.pushdown", "true")
    return pushed


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def explained(frame: DataFrame) -> str:
    return str(
        frame._jdf.queryExecution().explainString(
            frame.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple")
        )
    )


@pytest.mark.parametrize("condition", CONDITIONS)
def test_chunks_and_rows_are_those_of_the_option_where(spark: SparkSession, cube: str, condition):
    frame = load(spark, cube)
    for _ in range(2):  # both workers keep labels from now on
        rows = sorted(map(str, frame.where(condition).collect()))
    before = icechunk_spark.last_read_metrics(frame)
    assert sorted(map(str, frame.where(condition).collect())) == rows
    pushed = icechunk_spark.last_read_metrics(frame)
    assert rows == same_rows(spark, lambda: frame.where(condition))
    if not rows:
        assert pushed == before
        return
    spark.conf.set("icechunk.pushdown", "false")
    by_option = load(spark, cube, where=condition.replace("rand(3)", "0.5"))
    assert sorted(map(str, by_option.collect())) == rows
    counted = icechunk_spark.last_read_metrics(by_option)
    assert pushed.rows == counted.rows < 288
    assert pushed.chunks_decoded == counted.chunks_decoded


def test_only_the_columns_of_a_query_are_read(spark: SparkSession, cube: str):
    frame = load(spark, cube)
    assert "columns=t2m tasks" in explained(frame.select("t2m"))
    assert "columns=t2m tasks" in explained(frame.selectExpr("avg(t2m * t2m)"))
    assert "columns=latitude,t2m tasks" in explained(frame.where("latitude = 0").select("t2m"))
    assert "columns=" not in explained(frame)
    count = "SELECT count(DISTINCT `snow ``depth```) FROM {frame}"
    assert "columns='snow `depth`'" in explained(spark.sql(count, frame=frame))


def test_counts_read_no_chunk(spark: SparkSession, cube: str):
    frame = load(spark, cube)
    before = icechunk_spark.last_read_metrics(frame)
    assert frame.count() == 288
    assert frame.where("latitude > 10 AND time < '2024-02-28'").count() == 2 * 4
    assert frame.where("latitude = 3").count() == 0
    assert spark.sql("SELECT count(*), count(1) FROM {frame}", frame=frame).first()[:] == (288, 288)
    assert len(frame.selectExpr("1 AS one").collect()) == 288
    assert icechunk_spark.last_read_metrics(frame) == before
    # Rows without columns are made by Spark, whatever the number of tasks that would read them.
    small_tasks = load(spark, cube, rowsPerPartition="24")
    assert small_tasks.rdd.getNumPartitions() > 1
    assert small_tasks.selectExpr("1 AS one").rdd.getNumPartitions() == 1

    same_rows(spark, lambda: frame.where("t2m > 272").groupBy().count())
    assert "aggregate=count(*)" in explained(frame.where("t2m > 272").groupBy().count())


def test_a_limit_plans_as_many_tasks_as_its_rows_need(spark: SparkSession, cube: str):
    frame = load(spark, cube, rowsPerPartition="24")
    for query, tasks in (
        (frame.limit(5), 1),
        (frame.limit(25), 2),
        (frame.select("t2m").limit(300), 12),
        (frame.where("latitude > 10").limit(9), 1),
        (frame.limit(30).limit(3), 1),
    ):
        assert f"tasks='{tasks} of 12'" in explained(query), query
    assert len(frame.limit(25).collect()) == 25
    assert len(frame.where("t2m > 272").limit(25).collect()) == 25
    assert "tasks='12 of 12'" in explained(frame.where("t2m > 272").limit(1))
    # The limit is below the condition, which may not pass it.
    assert len(frame.limit(288).where("latitude = 20").collect()) == 32
    assert len(frame.orderBy("t2m").limit(2).collect()) == 2


@pytest.mark.parametrize(
    "inner",
    [
        "SELECT latitude, 0 * rand(1) + latitude AS r FROM w",
        "SELECT latitude, 0 * monotonically_increasing_id() + latitude AS r FROM w",
        "SELECT latitude, r FROM (SELECT *, 0 * rand(1) + latitude AS r FROM w)",
    ],
)
def test_a_limit_above_a_condition_on_a_random_column(spark: SparkSession, cube: str, inner: str):
    # Spark cannot move the condition below the column, so the read knows only the limit.
    load(spark, cube, rowsPerPartition="24").createOrReplaceTempView("w")
    query = f"SELECT latitude FROM ({inner}) WHERE r < -15 LIMIT 5"
    assert same_rows(spark, lambda: spark.sql(query)) == ["Row(latitude=-20.0)"] * 5


def test_a_condition_above_a_random_one_does_not_choose_its_rows(spark: SparkSession, cube: str):
    # One task, and one generator: its numbers depend on the rows before.
    frame = load(spark, cube)
    same_rows(spark, lambda: frame.where("rand(5) < 0.5").where("latitude > 0"))
    same_rows(spark, lambda: frame.where("latitude > 0").where("rand(5) < 2").where("t2m > 272"))


HAS_TRIM_COLLATIONS = not pyspark.__version__.startswith("4.0")


@pytest.mark.parametrize(
    "condition",
    [
        "`order` = 'STATION 1' COLLATE UTF8_LCASE",
        "`order` COLLATE UTF8_LCASE IN ('STATION 1', 'Station 2')",
        "`order` COLLATE UTF8_LCASE LIKE 'STATION%'",
        # Spark 4.0 has no collations that ignore trailing blanks.
        *(["`order` COLLATE UTF8_BINARY_RTRIM = 'station 1  '"] if HAS_TRIM_COLLATIONS else []),
        "startswith(`order`, 'STATION' COLLATE UNICODE_CI)",
    ],
)
def test_collated_strings_stay_with_spark(spark: SparkSession, cube: str, condition: str):
    frame = load(spark, cube)
    assert same_rows(spark, lambda: frame.where(condition))
    same_rows(spark, lambda: frame.where(f"NOT ({condition})"))
    same_rows(spark, lambda: frame.where(condition).groupBy().count())


def test_each_use_of_a_read_has_its_own_conditions(spark: SparkSession, cube: str):
    frame = load(spark, cube)
    frame.createOrReplaceTempView("w")
    queries = [
        "SELECT latitude FROM w WHERE latitude = 20"
        " UNION ALL SELECT latitude FROM w WHERE time < '2024-02-28'",
        "WITH a AS (SELECT * FROM w WHERE latitude > 0)"
        " SELECT count(*) FROM a JOIN w b USING (time, latitude, `order`)"
        " WHERE b.t2m > 272",
        "SELECT a.t2m FROM w a JOIN w b ON a.time = b.time AND a.latitude = b.latitude"
        " WHERE b.latitude = 20",
        "SELECT t2m FROM w WHERE latitude = 20 EXCEPT SELECT t2m FROM w WHERE latitude = 15",
        "SELECT * FROM w WHERE time = (SELECT max(time) FROM w WHERE latitude > 10)",
        "SELECT * FROM w WHERE latitude IN (SELECT latitude FROM w WHERE t2m > 276)",
        "SELECT latitude, count(*), sum(`icechunk:1`) FROM w WHERE NOT isnan(t2m) GROUP BY 1"
        " HAVING count(*) > 20",
        "SELECT w.latitude AS a, t2m AS latitude FROM w WHERE w.latitude = 10",
        "SELECT x FROM (SELECT latitude + 1 AS x, t2m FROM w) WHERE x > 10 AND t2m > 0"
        " ORDER BY x LIMIT 3",
        "SELECT `snow ``depth```, `icechunk:1` FROM w"
        " WHERE `snow ``depth``` IS NULL AND `icechunk:1` > 3",
        "SELECT * FROM w WHERE `snow ``depth``` <> 0 AND 10 / `snow ``depth``` > 1",
        "SELECT * FROM w WHERE t2m = 'NaN' OR t2m <=> float('NaN')",
        "SELECT * FROM w WHERE t2m = 0 AND `order` IN ('station 1', 'station 2', NULL)",
        "SELECT t2m, row_number() OVER (PARTITION BY latitude ORDER BY time, `order`) FROM w"
        " WHERE latitude < 0",
    ]
    for sql in queries:
        assert same_rows(spark, lambda sql=sql: spark.sql(sql)) or "NaN" in sql, sql


def test_equal_reads_of_a_query_are_one_exchange(spark: SparkSession, cube: str):
    # With one task, there would be no exchange.
    frame = load(spark, cube, rowsPerPartition="24")
    frame.createOrReplaceTempView("w")
    side = "(SELECT latitude, max(t2m) AS m FROM w WHERE time < '2024-02-28' GROUP BY latitude)"
    query = spark.sql(f"SELECT /*+ MERGE(a) */ * FROM {side} a JOIN {side} b ON a.m = b.m")
    query.collect()
    assert "ReusedExchange" in query._jdf.queryExecution().executedPlan().toString()


def test_a_division_by_zero_stays_with_spark(spark: SparkSession, cube: str):
    frame = load(spark, cube)
    guarded = "`icechunk:1` <> 0 AND 6 / `icechunk:1` > 1"
    assert len(frame.where(guarded).collect()) > 0
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        frame.where("6 / `icechunk:1` > 1").collect()
    spark.conf.set("spark.sql.ansi.enabled", "false")
    same_rows(spark, lambda: frame.where("6 / `icechunk:1` > 1"))


def test_a_condition_keeps_the_time_zone_of_its_analysis(spark: SparkSession, cube: str):
    frame = load(spark, cube, timestampType="utc")
    query = frame.where("hour(time) = 5 AND latitude = 0")
    in_kolkata = query.limit(1000)  # analysed now, optimized later
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(in_kolkata.collect()) == 8 == len(query.collect())
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    same_rows(
        spark, lambda: frame.where("time > timestamp'2024-02-28 00:00:00' AND hour(time) = 1")
    )


def test_clocks_set_back_are_two_instants(spark: SparkSession, tmp_path):
    path = str(tmp_path / "autumn")
    instants = "timestamp'2024-11-03 05:00:00Z' + make_dt_interval(0, h)"
    rows = f"SELECT {instants} AS time, h FROM range(4) AS t(h)"
    spark.sql(rows).write.format("icechunk").options(dims="time").save(path)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    frame = load(spark, path, timestampType="utc")
    for hour in (5, 6):
        same = f"time = timestamp'2024-11-03 {hour:02}:00:00Z'"
        assert [row.h for row in frame.where(same).collect()] == [hour - 5]


def test_other_layouts_metadata_tables_and_changes(spark: SparkSession, cube: str):
    for options in (
        {"layout": "chunks"},
        {"layout": "refs"},
        {"layout": "summary"},
        {"missingChunks": "skip"},
        {"where": "t2m > 272"},
        {"sel": "latitude=0:20", "isel": "time=0:3"},
    ):
        frame = load(spark, cube, **options)
        first = frame.columns[0]
        # Sums of squares differ in their last digits, since tasks of a query hold other blocks.
        kept = [
            f"round({quoted(name)}, 6)" if name.endswith("_m2") else quoted(name)
            for name in frame.columns
        ]
        same_rows(
            spark,
            lambda frame=frame, first=first, kept=kept: (
                frame.where(f"`{first}` IS NOT NULL").limit(500).selectExpr(*kept)
            ),
        )
        same_rows(spark, lambda frame=frame, first=first: frame.select(first).distinct())
        same_rows(spark, lambda frame=frame: frame.groupBy().count())
        assert f"columns={first} " in explained(frame.select(first))
    for table in ("history", "refs", "groups", "variables"):
        frame = load(spark, f"{cube}#{table}")
        same_rows(spark, lambda frame=frame: frame.select(frame.columns[0]))
        same_rows(spark, lambda frame=frame: frame.groupBy().count())


def test_the_switches_turn_it_off(spark: SparkSession, cube: str):
    frame = load(spark, cube)
    query = "latitude = 20"
    assert "where=" in explained(frame.where(query))
    spark.sql("SET icechunk.pushdown = false")
    assert "where=" not in explained(frame.where(query))
    icechunk_spark.register(spark, pushdown=True)
    assert "where=" in explained(frame.where(query))
    icechunk_spark.register(spark, pushdown=False)
    assert "where=" not in explained(frame.where(query))


def test_conditions_that_stay_are_logged_at_debug_only(spark: SparkSession, cube: str, caplog):
    frame = load(spark, cube)
    with caplog.at_level(logging.INFO, logger="icechunk_spark"):
        frame.where("md5(`order`) = 'secret' AND latitude = 20").collect()
    assert "secret" not in caplog.text
    with caplog.at_level(logging.DEBUG, logger="icechunk_spark"):
        frame.where("md5(`order`) = 'secret' AND latitude = 15").collect()
    assert re.search(r"only Spark evaluates .*md5.*secret", caplog.text)
