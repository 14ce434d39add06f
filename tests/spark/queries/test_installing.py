"""The rule raises nothing, holds no read for longer than its plan, and serves every session."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_spark.queries import answering, installing, replanning
from icechunk_spark.queries.reads import READS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.each_spark


def chain(error: BaseException | None) -> list[BaseException]:
    """List an error and those that were being handled when it was raised."""
    return [error, *chain(error.__context__)] if error else []


def plan(frame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


def test_a_failure_leaves_the_plan(spark: SparkSession, cube: str, monkeypatch):
    frame = icechunk_spark.read(spark, cube)

    def fail(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(replanning, "replanned", fail)
    monkeypatch.setattr(replanning.QueriedRead, "pruned", fail)
    assert "where=" not in plan(frame.where("latitude = 20"))
    assert frame.where("latitude = 20").count() == 32

    icechunk_spark.view(spark, "failing", cube)
    with pytest.raises(PySparkException, match="view failing was not planned for this query"):
        spark.table("failing").collect()


def test_other_sessions_have_their_own_settings(spark: SparkSession, cube: str):
    icechunk_spark.read(spark, cube).createOrReplaceGlobalTempView("shared")
    other = spark.newSession()
    theirs = icechunk_spark.read(other, cube)
    other.conf.set("icechunk.pushdown", "false")
    query = "SELECT t2m FROM global_temp.shared WHERE latitude = 20"
    assert "where=" in plan(spark.sql(query))
    assert "where=" not in plan(other.sql(query))
    assert "where=" not in plan(theirs.where("latitude = 20"))
    assert len(other.sql(query).collect()) == len(spark.sql(query).collect()) == 32


def test_reads_are_forgotten_with_their_plans(spark: SparkSession, cube: str):
    kept = icechunk_spark.read(spark, cube)
    before = len(READS)
    for _ in range(30):
        icechunk_spark.read(spark, cube).where("latitude = 20")
    gc.collect()
    for _ in range(20):
        spark._jvm.System.gc()
        icechunk_spark.read(spark, cube)
        if len(READS) < before + 10:
            break
    assert len(READS) < before + 10
    assert "where=" in plan(kept.where("latitude = 20"))


def test_a_closed_table_is_opened_again_at_its_snapshot(spark: SparkSession, cube: str):
    frame = icechunk_spark.read(spark, cube)
    READS._open.clear()
    assert "where=" in plan(frame.where("latitude = 15"))


def test_threads(spark: SparkSession, cube: str):
    frame = icechunk_spark.read(spark, cube)
    found: dict[int, int] = {}

    def run(number: int) -> None:
        query = frame.where(f"latitude = {5 * number}").selectExpr("count(t2m) + count(latitude)")
        found[number] = len(query.collect())

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: 1, 1: 1, 2: 1, 3: 1}


def test_cached_rows_are_all_rows(spark: SparkSession, cube: str):
    frame = icechunk_spark.read(spark, cube, isel={"time": slice(0, 4)})
    frame.cache()
    try:
        assert frame.where("latitude = 20").count() == 16
        assert frame.count() == 144
        assert "InMemoryRelation" in plan(frame.where("latitude = 20"))
    finally:
        frame.unpersist()


def test_long_conditions(spark: SparkSession, cube: str):
    frame = icechunk_spark.read(spark, cube)
    values = ", ".join(f"{number}.25D" for number in range(5_000))
    assert frame.where(f"latitude IN ({values}, 20D)").count() == 32
    assert (
        len(
            plan(frame.where(f"latitude IN ({values}, 20D)").select("t2m"))
            .split("where=")[1]
            .split("columns")[0]
        )
        < 200
    )


def test_a_stream_joins_a_read(spark: SparkSession, cube: str, tmp_path):
    frame = icechunk_spark.read(spark, cube).where("latitude = 20 AND time < '2024-02-28'")
    spark.range(3).write.parquet(str(tmp_path / "in"))
    counts = []

    def batch(rows, _):
        joined = rows.crossJoin(frame)
        counts.append(
            (joined.count(), icechunk_spark.read(spark, cube).where("latitude = 0").count())
        )

    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    query = stream.join(frame, stream.id == frame["icechunk:1"]).writeStream
    query = query.foreachBatch(batch).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "check")).start().awaitTermination()
    assert counts == [(4 * 4, 32)]


def test_mapInArrow_of_a_user_is_no_read(spark: SparkSession, cube: str):
    frame = icechunk_spark.read(spark, cube).select("`icechunk:1`")
    doubled = frame.mapInArrow(lambda batches: batches, "n long").where("n > 2")
    assert "where=" not in plan(doubled)
    assert doubled.count() == frame.where("`icechunk:1` > 2").count()


def test_without_the_compiler_reads_are_whole(spark: SparkSession, cube: str, monkeypatch, caplog):
    monkeypatch.setattr(installing, "_current", None)
    monkeypatch.setattr(installing, "_has_informed", False)

    def refused(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr("pyspark.java_gateway.ensure_callback_server_started", refused)
    with caplog.at_level("INFO", logger="icechunk_spark"):
        frame = icechunk_spark.read(spark, cube)
        icechunk_spark.view(spark, "whole", cube)
    assert caplog.text.count("queries do not limit what is read (no compiler)") == 1
    assert (
        frame.where("latitude = 20").count() == spark.table("whole").where("latitude = 20").count()
    )
    assert "where=" not in plan(frame.where("latitude = 20"))


def test_names_of_columns_are_quoted():
    planner = answering.Planner("icechunk_12ab_")
    names = ["a` = 1 OR `b", "true"]
    assert planner._named("(icechunk_12ab_1 > 3)", names) == "(`true` > 3)"
    assert planner._named("`icechunk_12ab_0` = 'x'", names) == "`a`` = 1 OR ``b` = 'x'"


def test_an_error_of_a_view_is_raised_by_its_task(spark: SparkSession, cube: str):
    with pytest.raises(InvalidInputError):
        icechunk_spark.view(spark, "wrong", cube, where="nothing = 1")


def run_alone(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with its own JVM."""
    start = """
import sys, threading, icechunk_spark
from pyspark.sql import SparkSession
def session():
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
def plan(frame):
    return frame._jdf.queryExecution().optimizedPlan().toString()
"""
    return subprocess.run(
        [sys.executable, "-c", start + code, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_process_ends_without_stopping_spark(cube: str):
    ended = run_alone(
        """
frame = icechunk_spark.read(session(), sys.argv[1])
found = []
query = lambda: found.append(len(frame.where("latitude = 20").select("t2m").collect()))
thread = threading.Thread(target=query, daemon=True)
thread.start()
thread.join()
assert found == [32], found
# A thread that still makes queries at exit.
threading.Thread(target=lambda: [query() for _ in range(10**6)], daemon=True).start()
print("done", flush=True)
""",
        cube,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "done"), ended.stderr[-3000:]


def test_a_new_session_after_stop(cube: str):
    ended = run_alone(
        """
from icechunk_spark.queries.reads import READS
for number in range(3):
    spark = session()
    frame = icechunk_spark.read(spark, sys.argv[1])
    icechunk_spark.view(spark, "w", sys.argv[1])
    assert len(READS) == 2, len(READS)
    for query in frame, spark.table("w"):
        assert "where=" in plan(query.where("latitude = 20"))
        assert query.where("latitude = 20").count() == 32
    spark.stop()
print("done")
""",
        cube,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "done"), ended.stderr[-3000:]


def test_an_interrupted_query_leaves_the_next_one_right(
    spark: SparkSession, cube: str, monkeypatch: pytest.MonkeyPatch
):
    frame = icechunk_spark.read(spark, cube)
    with monkeypatch.context() as patch:

        def interrupt(*_):
            patch.undo()
            raise KeyboardInterrupt

        patch.setattr(replanning, "replanned", interrupt)

        def repeat() -> None:
            for _ in range(1_000):
                assert len(frame.where("latitude = 20").collect()) == 32

        # The interrupt may come anywhere in PySpark. Its handler of interrupts calls the JVM, which
        # fails in py4j within a call; and clean-ups of PySpark may fail in place of the interrupt.
        with pytest.raises(BaseException) as raised:  # noqa: PT011
            repeat()
        assert any(isinstance(e, (KeyboardInterrupt, Py4JError)) for e in chain(raised.value))
    for _ in range(3):
        assert "where=" in plan(frame.where("latitude = 15"))
        assert len(frame.where("latitude = 15").collect()) == 32


def test_queries_while_other_threads_of_python_are_busy(spark: SparkSession, cube: str):
    frame = icechunk_spark.read(spark, cube)
    stop, counts = threading.Event(), []

    def compute() -> None:
        while not stop.is_set():
            sum(range(10_000))

    def query(number: int) -> None:
        for latitude in range(-20, 25, 20):
            rows = frame.where(f"latitude = {latitude} AND `icechunk:1` >= {-number}")
            counts.append("where=" in plan(rows) and len(rows.select("t2m").collect()))

    busy = [threading.Thread(target=compute, daemon=True) for _ in range(2)]
    threads = [threading.Thread(target=query, args=(n,), daemon=True) for n in range(3)]
    for thread in busy + threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    for thread in busy:
        thread.join()
    assert counts == [32] * 9
