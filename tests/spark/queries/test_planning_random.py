"""Random queries return the same rows, whether or not the rule plans their reads again."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.each_spark

BY_DAY, BY_NIGHT = 40, 2_000
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
TERMS = (
    "latitude {op} {latitude}",
    "latitude IN ({latitude}, {latitude}, 0)",
    "latitude BETWEEN {latitude} AND 15",
    "latitude * 2 - 1 {op} {latitude}",
    "cast(latitude AS INT) {op} {latitude}",
    "abs(latitude) {op} 10",
    "latitude / ({latitude}) > 0.5",
    "time {op} timestamp_ntz'2024-02-{day} 12:00:00'",
    "time {op} '2024-02-{day}'",
    "time {op} date'2024-02-{day}'",
    "time {op} timestamp'2024-02-{day} 06:00:00'",
    "day(time) = {day}",
    "hour(time) {op} 6",
    "date_trunc('day', time) = '2024-02-{day}'",
    "year(time) = 2024",
    "`order` {op} 'station 1'",
    "`order` LIKE '%{digit}'",
    "substring(`order`, 9, 1) = '{digit}'",
    "t2m {op} 27{digit}",
    "t2m IS {no}NULL",
    "isnan(t2m)",
    "t2m <=> NULL",
    "`snow ``depth``` {op} {digit}0",
    "`snow ``depth``` IS {no}NULL",
    "`icechunk:1` % 3 = {digit} % 3",
    "coalesce(`snow ``depth```, 0) {op} `icechunk:1`",
    "CASE WHEN latitude > 0 THEN t2m > 272 ELSE latitude = {latitude} END",
    "NOT (latitude {op} {latitude} OR t2m > 273)",
    "(latitude {op} {latitude} OR `order` = 'station {digit}')",
    "(latitude = 20 AND t2m > 271 OR latitude = -20 AND `icechunk:1` > 4)",
)
QUERIES = (
    "SELECT * FROM w WHERE {a}",
    "SELECT t2m, latitude FROM w WHERE {a} AND {b}",
    "SELECT `order`, latitude + 1 AS latitude FROM w WHERE {a} AND {b} AND {c}",
    "SELECT count(*) FROM w WHERE {a}",
    "SELECT count(*), count(t2m), max(`icechunk:1`) FROM w WHERE {a} AND {b}",
    "SELECT latitude, count(*), min(t2m) FROM w WHERE {a} GROUP BY latitude",
    "SELECT day(time), `order`, count(*) FROM w WHERE {a} GROUP BY ALL HAVING count(*) > 2",
    "SELECT t2m FROM w WHERE {a} UNION ALL SELECT t2m FROM w WHERE {b}",
    "SELECT * FROM w WHERE {a} EXCEPT SELECT * FROM w WHERE {b}",
    "SELECT l.t2m, r.`order` FROM w l JOIN w r USING (time, latitude)"
    " WHERE l.latitude > 5 AND r.t2m > 272",
    "WITH a AS (SELECT * FROM w WHERE {a}) SELECT count(*) FROM a WHERE {b}",
    "SELECT * FROM (SELECT * FROM w WHERE {a} ORDER BY time, latitude, `order` LIMIT 7) WHERE {b}",
    "SELECT time FROM w WHERE latitude = (SELECT max(latitude) FROM w WHERE {a})",
)


def drawn(draw: random.Random) -> str:
    def term() -> str:
        return draw.choice(TERMS).format(
            op=draw.choice(["<", "<=", "=", "<>", ">=", ">", "<=>"]),
            latitude=draw.choice(["-20", "7.5", "10", "15D", "20.0", "float(5)"]),
            day=draw.choice(["27", "28", "29"]),
            digit=draw.randrange(5),
            no=draw.choice(["", "NOT "]),
        )

    return draw.choice(QUERIES).format(a=term(), b=term(), c=term())


def outcome(spark: SparkSession, sql: str, pushdown: str) -> object:
    spark.conf.set("icechunk.pushdown", pushdown)
    try:
        return sorted(map(str, spark.sql(sql).collect()))
    except Exception as error:
        return str(error).split(" ")[0]


def compare(spark: SparkSession, path: str, seed: int, queries: int) -> None:
    draw = random.Random(seed)
    for number in range(queries):
        options = draw.choice([{}, {"timestampType": "utc"}, {"rowsPerPartition": "50"}])
        spark.read.format("icechunk").options(**options).load(path).createOrReplaceTempView("w")
        spark.conf.set("spark.sql.session.timeZone", draw.choice(ZONES))
        spark.conf.set("spark.sql.ansi.enabled", draw.choice(["true", "true", "false"]))
        sql = drawn(draw)
        assert outcome(spark, sql, "true") == outcome(spark, sql, "false"), (seed, number, sql)


def test_random_queries(spark: SparkSession, cube: str):
    compare(spark, cube, random.randrange(10**6), BY_DAY)


@pytest.mark.nightly
def test_random_queries_all_night(spark: SparkSession, cube: str):
    compare(spark, cube, int(os.environ.get("QUERIES_SEED", random.randrange(10**6))), BY_NIGHT)
