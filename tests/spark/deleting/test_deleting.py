"""Labels and cells deleted on executors; feeds and copies of the table follow."""

import numpy as np
import pytest

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository

pytestmark = pytest.mark.core


@pytest.fixture
def hours(spark, tmp_path):
    """Return a repository of 10 days of 4 times on a grid of 3 x 5."""
    path = str(tmp_path / "hours")
    rows = spark.range(10 * 4 * 15).selectExpr(
        "timestamp_ntz '2024-07-01' + make_dt_interval(0, 6 * cast(id div 15 as int)) AS time",
        "10D * (id div 5 % 3) AS latitude",
        "1D * (id % 5) AS longitude",
        "cast(id AS float) AS t2m",
    )
    icechunk_spark.write(
        rows, path, dims=["time", "latitude", "longitude"], chunks={"time": 4, "longitude": 3}
    )
    return path


@pytest.mark.each_spark
def test_a_bad_day(spark, hours):
    before = Repository.open(hours).resolve()
    planned = icechunk_spark.delete(spark, hours, where="date(time) = '2024-07-04'", dry_run=True)
    assert (planned.dim, planned.labels, planned.commit) == ("time", 4, None)
    done = icechunk_spark.delete(spark, hours, where="date(time) = '2024-07-04'", message="Bad day")
    assert done.commit.commit.files_written.get("chunks", 0) <= 1  # the labels
    table = icechunk_spark.read(spark, hours)
    assert table.count() == 36 * 15
    assert table.where("date(time) = '2024-07-04'").count() == 0
    old = icechunk_spark.read(spark, hours, snapshot=str(before))
    assert table.exceptAll(old.where("date(time) <> '2024-07-04'")).count() == 0
    assert Repository.open(hours).snapshot_info(done.commit.snapshot_id).message == "Bad day"


@pytest.mark.each_spark
def test_a_region_of_a_day(spark, hours):
    condition = "date(time) = '2024-07-04' AND latitude >= 10"
    done = icechunk_spark.delete(spark, hours, where=condition)
    assert done.cells == {"/t2m": 4 * 10}
    table = icechunk_spark.read(spark, hours)
    assert table.where("t2m IS NULL").count() == 40
    assert table.where(f"t2m IS NULL AND NOT ({condition})").count() == 0


def test_a_condition_on_values_in_the_session_time_zone(spark, hours):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        condition = "t2m > 100 AND hour(time) = 6"
        done = icechunk_spark.delete(spark, hours, where=condition)
        table = icechunk_spark.read(spark, hours)
        assert done.cells == {"/t2m": table.where("t2m IS NULL").count()}
        assert table.where(condition).count() == 0
        assert table.where("t2m IS NULL AND hour(time) <> 6").count() == 0
        assert table.where("t2m IS NULL").count() > 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_feed_shows_deleted_rows(spark, hours):
    before = str(Repository.open(hours).resolve())
    icechunk_spark.delete(spark, hours, where="date(time) = '2024-07-04'")
    feed = icechunk_spark.read(spark, hours, changes_since=before, change_columns=True)
    kinds = {row["_change"]: row["count"] for row in feed.groupBy("_change").count().collect()}
    assert kinds["deleted"] == 4 * 15
    assert feed.where("_change = 'deleted' AND date(time) <> '2024-07-04'").count() == 0


def test_a_copy_follows(spark, hours, tmp_path):
    pytest.importorskip("deltalake")
    target = str(tmp_path / "copy")
    icechunk_spark.mirror(spark, hours, target)
    icechunk_spark.delete(spark, hours, where="date(time) = '2024-07-04'")
    icechunk_spark.mirror(spark, hours, target)
    icechunk_spark.delete(spark, hours, where="time < '2024-07-02' AND longitude > 2")
    icechunk_spark.mirror(spark, hours, target)
    import deltalake

    copied = deltalake.DeltaTable(target).to_pyarrow_table().to_pandas()
    stored = icechunk_spark.read(spark, hours).toPandas()
    keys = ["time", "latitude", "longitude"]
    copied, stored = (t.sort_values(keys).reset_index(drop=True) for t in (copied, stored))
    np.testing.assert_array_equal(copied["t2m"], stored["t2m"])
    assert len(copied) == 36 * 15


def test_mistakes(spark, hours):
    for options in ({}, {"where": "t2n > 3"}, {"where": "t2m > 3", "varaibles": ["t2m"]}):
        with pytest.raises(InvalidInputError):
            icechunk_spark.delete(spark, hours, **options)
