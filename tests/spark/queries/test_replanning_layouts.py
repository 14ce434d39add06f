"""Queries on layouts without cells, on metadata tables and on changes read what they need."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest
from spark.queries.test_planning import explained, load

import icechunk_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.each_spark

# Conditions by layout, with the number of rows that tasks send.
ON_CHUNKS = {
    "array = '/t2m'": 24,
    "array LIKE '%t2m' AND chunk[0] = 1": 6,
    "chunk[0] = 1 AND start[1] >= 3": 12,
    "get(chunk, 0) IN (1, 3) AND array = '/t2m'": 12,
    "element_at(chunk, 2) = 2": 24,
    "chunk = array(0, 1, 1)": 3,
    "chunk IN (array(0, 1, 1), array(0, 0, 0)) AND array = '/t2m'": 4,
    "(array = '/t2m' AND chunk[0] = 1) OR (array = '/t2m' AND chunk[0] = 2)": 12,
    "shape[0] < 2": 0,
    "dtype = '<f4'": 24,
    "array = '/nothing'": 0,
    "chunk[0] * 2 > 5 AND array > '/s'": 12,
}
ON_REFS = {
    "array = '/t2m'": 24,
    "array = '/latitude'": 1,
    "array LIKE '%t2m' AND chunk[0] = 1": 6,
    "kind = 'virtual'": 0,
    "length IS NULL": 0,
    "array = '/t2m' AND chunk = array(0, 1, 1)": 1,
    "get(chunk, 1) = 1 AND array = '/t2m'": 8,
}
ON_SUMMARY = {
    "time_first >= '2024-02-28 12:00:00'": 12,
    "latitude_first = 20": 0,
    "latitude_last BETWEEN -10 AND 15 AND time_last < '2024-02-29'": 8,
    "latitude_first < latitude_last AND order_first = 'station 0'": 12,
    "order_last = 'station 3' AND `icechunk:1_max` > 40": 1,
    "time_first IS NULL": 0,
}
CONDITIONS = [
    (layout, condition, rows)
    for layout, conditions in (("chunks", ON_CHUNKS), ("refs", ON_REFS), ("summary", ON_SUMMARY))
    for condition, rows in conditions.items()
]


def shown(row: object) -> str:
    """Return a row whose floats have few digits: sums depend on the order of blocks."""
    return re.sub(r"\d+\.\d{6,}(e-?\d+)?", lambda m: f"{float(m[0]):.6g}", str(row))


def counted(frame: DataFrame) -> tuple[list[str], int, int]:
    """Run a query; return its rows, and the numbers of rows and chunks that its tasks read."""
    before = icechunk_spark.last_read_metrics(frame)
    rows = sorted(map(shown, frame.collect()))
    found = icechunk_spark.last_read_metrics(frame)
    if found is None or found == before:
        return rows, 0, 0
    return rows, found.rows, found.chunks_decoded


@pytest.mark.parametrize(("layout", "condition", "sent"), CONDITIONS)
def test_conditions_on_chunks_references_and_blocks(
    spark: SparkSession, cube: str, layout: str, condition: str, sent: int
):
    rows, read, chunks = counted(load(spark, cube, layout=layout).where(condition))
    assert read == sent
    assert "where=" in explained(load(spark, cube, layout=layout).where(condition))
    if layout == "chunks":
        assert chunks == sent
    if layout == "refs":
        assert chunks == 0
    spark.conf.set("icechunk.pushdown", "false")
    whole = load(spark, cube, layout=layout)
    assert rows == sorted(map(shown, whole.where(condition).collect()))
    assert len(rows) == sent or "chunk" in condition


@pytest.mark.parametrize(("layout", "condition", "sent"), CONDITIONS)
def test_counts_fetch_no_chunk(
    spark: SparkSession, cube: str, layout: str, condition: str, sent: int
):
    del sent
    frame = load(spark, cube, layout=layout)
    expected = len(frame.where(condition).collect())
    before = icechunk_spark.last_read_metrics(frame)
    assert frame.where(condition).count() == expected
    found = icechunk_spark.last_read_metrics(frame)
    has_statistic = "_max" in condition
    assert found == before or found is None or has_statistic or found.chunks_decoded <= 3


def test_conditions_that_name_shorter_lists(spark: SparkSession, cube: str):
    # `latitude` has one axis, so `chunk[2]` fails there, and get() is NULL.
    frame = load(spark, cube, layout="refs")
    with pytest.raises(Exception, match="INVALID_ARRAY_INDEX"):
        frame.where("chunk[2] = 1").collect()
    assert len(frame.where("array = '/t2m' AND chunk[2] = 1").collect()) == 12
    assert frame.where("get(chunk, 2) IS NULL").count() == 3
    assert frame.where("get(chunk, 2) = 1").count() == 36


def test_limits_of_chunks_and_blocks(spark: SparkSession, cube: str):
    chunks = load(spark, cube, layout="chunks")
    assert len(chunks.limit(2).collect()) == 2
    some = load(spark, cube, layout="chunks", rowsPerPartition="6")
    assert "tasks='1 of 12'" in explained(some.limit(6))
    assert "tasks='2 of 12'" in explained(some.limit(7))
    assert "tasks='1 of 12'" in explained(some.where("array = '/t2m'").limit(6))
    assert "tasks='4 of 12'" in explained(some.where("array = '/t2m' AND rand() < 0.9999").limit(6))
    blocks = load(spark, cube, layout="summary", rowsPerPartition="24")
    assert "tasks='1 of 12'" in explained(blocks.limit(2))
    assert "tasks='2 of 12'" in explained(blocks.limit(3))
    assert len(blocks.limit(100).collect()) == 24
    assert blocks.count() == 24
    assert "Range" in explained(blocks.groupBy().count())
    assert chunks.count() == 72


def test_a_dimension_with_the_name_of_a_column(spark: SparkSession, tmp_path):
    # The condition is on the column of the layout, not on the labels of the dimension.
    path = str(tmp_path / "names")
    rows = "SELECT id AS length, id * 2 AS kind, id * 1.0D AS x_first FROM range(6)"
    spark.sql(rows).write.format("icechunk").options(dims="length", chunks="length=2").save(path)
    for layout, condition in (
        ("refs", "length > 3"),
        ("refs", "kind = 'inline'"),
        ("chunks", "array = '/kind'"),
        ("summary", "length_first > 1 AND x_first_max > 3"),
    ):
        found = load(spark, path, layout=layout).where(condition).collect()
        spark.conf.set("icechunk.pushdown", "false")
        assert sorted(map(str, found)) == sorted(
            map(str, load(spark, path, layout=layout).where(condition).collect())
        )
        spark.conf.set("icechunk.pushdown", "true")
        assert found


# Conditions by metadata table, and the number of rows that tasks send.
ON_METADATA = (
    ("chunks", "path = '/t2m'", 24),
    ("chunks", "path = '/t2m' AND chunk[0] = 1", 24),
    ("chunks", "path LIKE '%t2m' AND kind = 'native'", 0),
    ("chunks", "manifest_id = 'none'", 0),
    ("variables", "path = '/t2m'", 1),
    ("variables", "name LIKE '%t2m' AND stored_chunks > 2", 1),
    ("variables", "`group` = '/absent'", 0),
    ("groups", "path = '/'", 1),
    ("snapshots", "message IS NULL", 0),
    ("history", "position < 1", 1),
    ("refs", "name = 'main'", 1),
    ("operations", "kind = 'no'", 0),
    ("manifests", "num_chunk_refs < 2", 3),
)


@pytest.mark.parametrize(("table", "condition", "sent"), ON_METADATA)
def test_conditions_on_metadata_tables(
    spark: SparkSession, cube: str, table: str, condition: str, sent: int
):
    frame = load(spark, f"{cube}#{table}").where(condition)
    rows, read, _ = counted(frame)
    assert read == sent
    assert "where=" in explained(frame)
    spark.conf.set("icechunk.pushdown", "false")
    assert rows == sorted(map(shown, load(spark, f"{cube}#{table}").where(condition).collect()))


def test_a_path_opens_the_manifests_of_its_array(spark: SparkSession, cube: str):
    for table, column in (("chunks", "chunk"), ("variables", "stored_chunks")):
        load(spark, f"{cube}#{table}").select(column).collect()
        frame = load(spark, f"{cube}#{table}").select("path", column)
        frame.collect()
        whole = icechunk_spark.last_read_metrics(frame)
        frame.where("path = '/t2m'").collect()
        one = icechunk_spark.last_read_metrics(frame)
        assert one.requests + one.cache_hits < whole.requests + whole.cache_hits


def test_limits_and_columns_of_metadata_tables(spark: SparkSession, cube: str):
    for table in ("snapshots", "history", "refs", "operations", "variables", "groups"):
        frame = load(spark, f"{cube}#{table}")
        assert len(frame.limit(1).collect()) == 1
        first = frame.columns[0]
        assert f"columns={first} " in explained(frame.select(first))


@pytest.fixture(scope="session")
def feed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a table with three commits, the second of which adds labels."""
    path = str(tmp_path_factory.mktemp("changes") / "feed")
    rows = "SELECT t AS time, 20 - 5.0D * y AS latitude, float(270 + t - y) AS t2m FROM"
    times, later = "range(6) AS a(t), range(9) AS b(y)", "range(6, 8) AS a(t), range(9) AS b(y)"
    options = {"dims": "time,latitude", "chunks": "time=2,latitude=3"}
    spark.sql(f"{rows} {times}").write.format("icechunk").options(**options).save(path)
    for changed in (f"{rows} {later}", f"{rows} {times} WHERE y = 8"):
        writer = spark.sql(changed).write.format("icechunk").mode("append")
        writer.option("dims", "time,latitude").save(path)
    return path


def test_conditions_on_changes(spark: SparkSession, feed: str):
    history = load(spark, f"{feed}#history").orderBy("position").collect()
    last, first = history[0], history[-2]
    options = {
        "changesSince": first.snapshot_id,
        "changesBy": "snapshot",
        "changeColumns": "true",
    }
    counts = {}
    for condition in (
        "1 = 1",
        "_change = 'written'",
        "_change = 'deleted'",
        f"_snapshot_id = '{last.snapshot_id}'",
        f"_committed_at < timestamp'{last.committed_at.isoformat()}'",
        "latitude = -20",
        "latitude = -20 AND _change = 'written' AND t2m > 270",
        "_change = 'written' OR latitude = 0",
    ):
        counted(load(spark, feed, **options).where(condition))  # workers keep labels from now on
        found, read, _ = counted(load(spark, feed, **options).where(condition))
        counts[condition] = read
        spark.conf.set("icechunk.pushdown", "false")
        whole = load(spark, feed, **options).where(condition)
        assert found == sorted(map(shown, whole.collect())), condition
        assert len(found) == read
        spark.conf.set("icechunk.pushdown", "true")
    assert counts["_change = 'deleted'"] == 0
    assert "tasks='0 of" in explained(load(spark, feed, **options).where("_change = 'deleted'"))
    only = explained(load(spark, feed, **options).where(f"_snapshot_id = '{last.snapshot_id}'"))
    tasks = re.search(r"tasks='(\d+) of (\d+)'", only)
    assert tasks is not None
    assert int(tasks[1]) < int(tasks[2])


def test_long_lists_are_shown_by_their_number(spark: SparkSession, cube: str, caplog):
    values = ", ".join(str(n / 10) for n in range(20_000))
    where = f"latitude IN ({values})"
    assert ", … 20,000 values)" in explained(load(spark, cube).where(where))
    assert ", … 20,000 values)" in explained(load(spark, cube, where=where))
    both = load(spark, cube, where="time > '2024-02-28'").where("latitude = 20")
    assert "where='time > '2024-02-28' AND `latitude` = 20.0D'" in explained(both)
    by_tasks = explained(both.groupBy("time").max("t2m"))
    assert "where='time > '2024-02-28' AND `latitude` = 20.0D'" in by_tasks
    assert "pushed=" not in by_tasks
    with caplog.at_level(logging.DEBUG, logger="icechunk_spark"):
        load(spark, cube).where("sha2(`order`, 256) = 'x'").explain()
    reasons = [m for m in caplog.messages if "only Spark evaluates" in m]
    assert reasons
    assert all("\n" not in m and len(m) < 600 for m in reasons)
    assert "is not supported" in reasons[0]
