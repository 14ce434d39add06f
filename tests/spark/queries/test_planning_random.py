"""Random queries of reads return the rows of the same queries of rows in memory.

Several queries are one union, since a job takes longer than their few cells. If one of them fails,
each runs by itself.
"""

from __future__ import annotations

import os
import random
import re
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from helpers.spark.random_queries import Drawing, Source, source_of
from spark.queries.conftest import put_back, set_quick

import icechunk_spark
from icechunk_format import Repository
from icechunk_format.tables import aggregates
from icechunk_spark.queries import answering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.each_spark

# The oldest Spark has the same rule, and other classes below it.
BY_DAY = 50 if pyspark.__version__.startswith("4.0.") else 150
BY_NIGHT, TOGETHER = 10_000, 10
ROWS = """
SELECT timestamp_ntz'2024-11-02 21:00:00' + make_dt_interval(0, 5 * t) AS time,
       10 - 7.5D * y AS latitude,
       'station ' || x AS `order`,
       IF((t + y + x) % 7 = 0, float('NaN'), IF((t + x) % 5 = 0, -0.0F, IF(y = 3, 0.0F,
          float(270 + t - y + x / 4)))) AS t2m,
       IF(y = 0, double('NaN'), IF(y = 1, NULL, IF(t = 3, double('Infinity'), t / 2D - x)))
          AS `a.b`,
       IF((t * y + x) % 4 = 0, NULL, t * 10 + y - x) AS `snow ``depth```,
       IF((t + x) % 4 = 0, NULL, smallint(300 * t - y)) AS `count(1)`,
       tinyint(40 * y - 80 + t) AS `Größe`,
       t * y - 3 * x AS `icechunk:1`,
       cast(IF(t = 1, 18446744073709551615BD, t * y) AS DECIMAL(20, 0)) AS `null`,
       (t + y) % 3 = 0 AS sunny,
       timestamp_ntz'2024-11-03 00:30:00' + make_dt_interval(t, y, 30 * x) AS seen,
       IF(t = 2, ' ', IF(x = 1, 'It''s \\\\ Ä', 'kind ' || (t % 2))) AS kind
FROM range(5) AS a(t), range(4) AS b(y), range(3) AS c(x)
"""
OPTIONS = {
    "cells": {},
    "one": {"variables": "latitude"},
    "none": {"isel": "time=0:0"},
    "instants": {"timestampType": "utc"},
    "tasks": {"rowsPerPartition": "13"},
    "part": {"where": "t2m > 270 OR latitude < 0", "isel": "time=0:4", "timestampType": "utc"},
    "stored": {"missingChunks": "skip"},
    "chunks": {"layout": "chunks", "variables": "t2m,snow `depth`"},
    "refs": {"layout": "refs"},
    "summary": {"layout": "summary"},
    "changes": {"changesSince": "first"},
}
TABLES = ("history", "variables", "refs")
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
NEGATIVE_ZERO = re.compile(r"-0\.0(?![0-9])")
DIGITS = re.compile(r"-?[0-9]+\.[0-9]{11,}(E-?[0-9]+)?|-?[0-9]\.[0-9]+E-?[0-9]+")
# Errors that depend on the rows that reach an expression, and on the order of conditions.
OF_SOME_ROWS = ("OVERFLOW", "DIVIDE_BY_ZERO", "CAST_INVALID_INPUT", "OUT_OF_RANGE")


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("icechunk").options(**options).load(path)


@pytest.fixture(scope="module")
def in_memory(spark: SparkSession, sources: list[Source]) -> SparkSession:
    """Return a session in which each table has the rows of a whole read in memory."""
    session = spark.newSession()
    for source in sources:
        read = spark.table(source.name)
        session.createDataFrame(read.toArrow(), read.schema).createOrReplaceTempView(source.name)
    return session


@pytest.fixture(scope="module")
def sources(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Source]]:
    """Create views of small tables of all kinds."""
    folder = tmp_path_factory.mktemp("random")
    path = str(folder / "grid")
    encoding = '{"snow `depth`": {"_FillValue": -999}, "count(1)": {"_FillValue": -999}}'
    dims = {"dims": "time,latitude,order", "chunks": "time=2,latitude=2,order=2"}
    rows = spark.sql(ROWS)
    early = rows.where("time < '2024-11-03 07:00:00'").write.format("icechunk")
    early.options(**dims, encoding=encoding).save(path)
    repository = Repository.open(path)
    repository.create_tag("first", repository.resolve())
    late = rows.where("time >= '2024-11-03 07:00:00'").write.format("icechunk")
    late.mode("append").save(path)
    found = []
    for name, options in OPTIONS.items():
        load(spark, path, **options).createOrReplaceTempView(name)
        is_grid = options.get("layout", "cells") == "cells"
        found.append(source_of(spark, name, 3 if is_grid and name != "one" else 1))
    for table in TABLES:
        load(spark, f"{path}#{table}").createOrReplaceTempView(f"meta_{table}")
        found.append(source_of(spark, f"meta_{table}", 0))
    icechunk_spark.view(spark, "newest", path)
    spark.sql(
        "CREATE OR REPLACE TEMP VIEW of_sql AS SELECT time, -latitude AS latitude, `order`,"
        " t2m * 2 AS t2m, seen, kind, `a.b` FROM instants WHERE latitude < 8 OR kind = 'kind 1'"
    )
    found += [source_of(spark, name, dims) for name, dims in (("newest", 3), ("of_sql", 3))]
    kept = load(spark, path).where("latitude > -8").cache()
    kept.createOrReplaceTempView("kept")
    found.append(source_of(spark, "kept", 3))
    yield found
    kept.unpersist()


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the kinds of plans that take the place of reads."""
    found: list[str] = []
    answer = answering.Planner._answer

    def noted(self: answering.Planner, request: dict[str, Any]) -> Any:
        plan = answer(self, request)
        if plan is not None:
            found.append(request["kind"])
        return plan

    monkeypatch.setattr(answering.Planner, "_answer", noted)
    return found


@pytest.fixture(autouse=True)
def quick(
    spark: SparkSession, in_memory: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setattr(aggregates, "_FEWEST_CELLS_OF_A_ROW", 0)
    set_quick(in_memory)
    with put_back(spark, "spark.sql.caseSensitive"):
        set_quick(spark)
        yield


def outcome(spark: SparkSession, queries: Sequence[tuple[str, bool]]) -> object:
    """Return the rows of queries as strings, or the error's class."""
    parts = (
        f"(SELECT {number} AS query, CAST(struct(*) AS STRING) AS row FROM ({sql}))"
        for number, (sql, _) in enumerate(queries)
    )
    try:
        rows = spark.sql(" UNION ALL ".join(parts)).collect()
    except Exception as error:
        found = re.search(r"\[([A-Z_.]+)\]", str(error))
        return found[1] if found else str(error).split("\n")[0]
    return sorted((row.query, comparable(row.row, queries[row.query][1])) for row in rows)


def comparable(row: str, has_signs: bool) -> str:
    """Return a row with the digits that do not depend on the order of a sum."""
    row = DIGITS.sub(lambda number: f"{float(number[0]):.11g}", row)
    return row if has_signs else NEGATIVE_ZERO.sub("0.0", row)


def compare(
    spark: SparkSession, in_memory: SparkSession, sources: Sequence[Source], seed: int, queries: int
) -> None:
    draw = random.Random(seed)
    for batch in range(0, queries, TOGETHER):
        settings = {
            "spark.sql.session.timeZone": draw.choice(ZONES),
            "spark.sql.ansi.enabled": draw.choice(["true", "false"]),
            "spark.sql.caseSensitive": draw.choice(["true", "false"]),
        }
        for name, value in settings.items():
            spark.conf.set(name, value)
            in_memory.conf.set(name, value)
        drawing = Drawing(draw, sources)
        drawn = [drawing.query() for _ in range(TOGETHER)]
        read = outcome(spark, drawn)
        if not isinstance(read, str) and read == outcome(in_memory, drawn):
            continue
        for one in drawn:
            read, whole = outcome(spark, [one]), outcome(in_memory, [one])
            if isinstance(whole, str) and any(word in whole for word in OF_SOME_ROWS):
                continue
            assert read == whole, (seed, batch, settings, one[0])


def test_random_queries(
    spark: SparkSession, in_memory: SparkSession, sources: list[Source], answers: list[str]
):
    compare(spark, in_memory, sources, random.randrange(10**6), BY_DAY)
    assert answers.count("read") > BY_DAY / 2


@pytest.mark.nightly
def test_random_queries_all_night(
    spark: SparkSession, in_memory: SparkSession, sources: list[Source], answers: list[str]
):
    number = int(os.environ.get("QUERIES", BY_NIGHT))
    seed = int(os.environ.get("QUERIES_SEED", random.randrange(10**6)))
    compare(spark, in_memory, sources, seed, number)
    assert answers.count("read") > number / 2
