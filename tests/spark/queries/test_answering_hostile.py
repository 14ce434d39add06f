"""Queries with hostile names, long lists, secrets, broken plans and cancelled jobs."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_spark.queries import answering, reads

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.each_spark

NAMES = (
    "a` = 1 OR `b",
    "x.y",
    'a "quote"',
    "it's",
    "icechunk:1",
    "icechunk_12ab_0",
    "Größe 😀",
    "null",
    "IN (1, 2)",
    "-- comment",
    "${env:HOME",
    ":name",
    "a\\",
)


def optimized(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def same_rows(spark: SparkSession, frame: DataFrame) -> list[str]:
    """Run a query with and without the rule; return its rows, which have to be equal."""
    found = []
    for setting in ("true", "false"):
        spark.conf.set("icechunk.pushdown", setting)
        found.append(sorted(map(str, frame.select("*").collect())))
    spark.conf.set("icechunk.pushdown", "true")
    assert found[0] == found[1]
    return found[0]


def test_hostile_names_of_columns(spark: SparkSession, tmp_path):
    dim = "y` IS NULL OR `x"
    rows = spark.range(12).select(
        F.col("id").alias(dim), *((F.col("id") * n).alias(name) for n, name in enumerate(NAMES))
    )
    path = str(tmp_path / "names")
    icechunk_spark.write(rows, path, dims=[dim], chunks={dim: 4})
    frame = icechunk_spark.read(spark, path)
    columns = [F.col(quoted(name)) for name in NAMES]
    kept = frame.where(F.col(quoted(dim)) > 8)
    every = kept.where(" AND ".join(f"{quoted(name)} >= 0" for name in NAMES)).select(*columns)
    assert len(same_rows(spark, every)) == 3
    assert "where=" in optimized(every)
    for number, (name, column) in enumerate(zip(NAMES, columns, strict=True)):
        query = frame.where(column == 4 * number).select(quoted(dim))
        assert "where=" in optimized(query), name
        assert query.count() == (1 if number else 12), name
    sums = kept.groupBy(quoted(dim)).agg(*map(F.sum, columns), F.count_if(columns[2] > 19))
    assert len(same_rows(spark, sums)) == 3
    same_rows(spark, kept.groupBy().agg(*map(F.sum, columns)))


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("latitude IN ({numbers}, 20D)", 32),
        ("latitude NOT IN ({numbers}, 20D)", 256),
        ("`icechunk:1` IN ({whole}, 3)", 8),
        ("`order` IN ({strings}, 'station 1')", 72),
    ],
)
def test_lists_of_very_many_values(
    spark: SparkSession, cube: str, condition: str, rows: int, monkeypatch, caplog
):
    import sqlglot

    parsed: list[int] = []
    parse_one = sqlglot.parse_one

    def noted(sql: str, **options: Any) -> Any:
        parsed.append(len(sql))
        return parse_one(sql, **options)

    monkeypatch.setattr(sqlglot, "parse_one", noted)
    values = range(100, 100_100)
    texts = {"numbers": "{}.25D", "whole": "{}", "strings": "'no {}'"}
    name = next(name for name in texts if f"{{{name}}}" in condition)
    sql = condition.format(**{name: ", ".join(texts[name].format(one) for one in values)})
    frame = icechunk_spark.read(spark, cube)
    with caplog.at_level(logging.DEBUG, logger="icechunk_spark"):
        query = frame.where(sql).select("t2m")
        plan = optimized(query)
        assert len(query.collect()) == rows
    assert "where=" in plan
    node = next(line for line in plan.splitlines() if "where=" in line)
    assert len(node) < 2_000
    assert max(len(record.getMessage()) for record in caplog.records) < 1_000
    assert sum(parsed) < 1_000
    # Such a condition is not kept for later queries.
    held = (key for one in reads.READS._open.values() for key in one.plans)
    assert all(len(repr(key)) < 100_000 for key in held)


def test_deep_conditions_are_left_to_spark(spark: SparkSession, cube: str):
    frame = icechunk_spark.read(spark, cube)
    terms = " OR ".join(f"(latitude = {n} AND t2m > {n})" for n in range(300))
    assert len(same_rows(spark, frame.where(terms).where("latitude > 5").select("t2m"))) > 0
    assert "where=" in optimized(frame.where(terms).where("latitude > 5"))


def test_secrets_are_in_no_log_and_no_plan(spark: SparkSession, cube: str, caplog, capfd):
    frame = icechunk_spark.read(spark, cube, virtual_storage_secret="hunter2")
    query = frame.where("`order` <> 'password' AND latitude = 20")
    with caplog.at_level(logging.INFO, logger="icechunk_spark"):
        query.collect()
        query.groupBy("latitude").agg(F.max("t2m"), F.count_if(F.col("order") != "password")).show()
    assert "password" not in caplog.text
    with caplog.at_level(logging.DEBUG, logger="icechunk_spark"):
        icechunk_spark.read(spark, cube, virtual_storage_secret="hunter2").where(
            "md5(`order`) <> 'password' AND t2m > 3"
        ).explain(extended=True)
    assert "hunter2" not in caplog.text
    printed = capfd.readouterr()
    assert "hunter2" not in printed.out + printed.err


def test_each_session_reads_with_its_own_credentials(spark: SparkSession, cube: str, monkeypatch):
    sessions = {"one": spark.newSession(), "two": spark.newSession()}
    frames = {
        user: icechunk_spark.read(session, cube, virtual_storage_secret=f"of {user}")
        for user, session in sessions.items()
    }
    for frame in frames.values():
        frame.createOrReplaceTempView("same_name")
    kept: list[Any] = []
    options: dict[str, Any] = {}
    get = reads.READS.get

    def got(id: str) -> Any:
        found = get(id)
        kept.append(found)
        return found

    monkeypatch.setattr(reads.READS, "get", got)
    for user, session in (*sessions.items(), *reversed(sessions.items())):
        kept.clear()
        assert session.sql("SELECT t2m FROM same_name WHERE latitude = 20").count() == 32
        assert len(session.sql("SELECT t2m FROM same_name WHERE latitude = 20").collect()) == 32
        assert kept
        assert all(one.spark is session for one in kept)
        options[user] = kept[0].options
        assert all(one.options == options[user] for one in kept)
    assert options["one"] != options["two"]


def test_a_failure_is_logged_once(monkeypatch, caplog):
    planner = answering.Planner("token_")

    def fail(*_: object) -> None:
        raise RuntimeError("password")

    monkeypatch.setattr(planner, "_answer", fail)
    with caplog.at_level(logging.INFO, logger="icechunk_spark"):
        assert [planner.apply('{"kind": "read"}') for _ in range(3)] == [None] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "password" not in caplog.text
    assert planner.apply("no JSON") is None


def test_a_plan_of_another_kind_is_left(spark: SparkSession, cube: str):
    # The rule raises an error of types in the JVM.
    marked = spark.range(4).select(F.col("id").alias("task", metadata={"icechunk.read": 5}))
    same = marked.mapInArrow(lambda batches: batches, "task long").where("task > 1")
    assert [row.task for row in same.collect()] == [2, 3]
    forged = spark.range(4).select(F.col("id").alias("task", metadata={"icechunk.read": "x-1"}))
    same = forged.mapInArrow(lambda batches: batches, "task long").where("task > 1")
    assert [row.task for row in same.collect()] == [2, 3]
    frame = icechunk_spark.read(spark, cube)
    assert "where=" in optimized(frame.where("latitude = 10"))


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(60)
        yield batch


def test_a_cancelled_job_group_leaves_other_queries(spark: SparkSession, cube: str):
    frame, context = icechunk_spark.read(spark, cube), spark.sparkContext
    errors: list[Exception] = []

    def run() -> None:
        context.setJobGroup("cancelled", "a slow query", interruptOnCancel=True)
        rows = frame.where("latitude = 20").select("t2m")
        try:
            rows.mapInArrow(slowly, "t2m float").collect()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    tracker = context.statusTracker()
    while not tracker.getJobIdsForGroup("cancelled") and thread.is_alive():
        time.sleep(0.05)
    context.cancelJobGroup("cancelled")
    thread.join()
    assert len(errors) == 1
    assert "cancel" in str(errors[0]).lower()
    assert len(frame.where("latitude = 20").select("t2m").collect()) == 32


def test_queries_of_eight_threads_with_job_groups(spark: SparkSession, cube: str):
    frame = icechunk_spark.read(spark, cube)
    icechunk_spark.view(spark, "of_threads", cube)
    found: list[tuple[int, bool, int, int]] = []
    barrier = threading.Barrier(8)

    def run(number: int) -> None:
        spark.sparkContext.setJobGroup(f"group {number}", "one of eight")
        barrier.wait()
        for latitude in (20 - 5 * number, -20 + 5 * number):
            query = frame.where(f"latitude = {latitude} AND `icechunk:1` >= {-number}")
            rows = query.selectExpr("latitude", "t2m").collect()
            viewed = spark.table("of_threads").where(f"latitude = {latitude}").count()
            right = all(row.latitude == latitude for row in rows)
            found.append((number, right and "where=" in optimized(query), len(rows), viewed))

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(number, True, 32, 32) for number in range(8) for _ in range(2)]
