"""Feeds and streams see a merge as one snapshot, and a deletion of labels as deleted rows."""

import pytest

import icechunk_spark
from icechunk_format import Repository


@pytest.fixture
def days(spark, tmp_path):
    path = str(tmp_path / "days")
    icechunk_spark.write(rows(spark, 0, 6), path, dims=["day", "x"], chunks={"day": 1})
    return path


def rows(spark, first, last, value="1D * id"):
    table = spark.range(first * 4, last * 4)
    return table.selectExpr("id div 4 AS day", "1D * (id % 4) AS x", f"{value} AS t")


@pytest.mark.each_spark
def test_a_merge_is_one_snapshot(spark, days):
    repository = Repository.open(days)
    first = repository.resolve()
    repository.create_branch("fix", first)
    for day in (1, 3):
        icechunk_spark.write(rows(spark, day, day + 1, "-1D"), days, mode="append", branch="fix")
    icechunk_spark.write(rows(spark, 6, 7), days, mode="append")
    before = Repository.open(days).resolve()
    merged = Repository.open(days).merge("fix").commit.snapshot_id
    feed = icechunk_spark.read(
        spark, days, changes_since=str(before), changes_by="snapshot", change_columns=True
    )
    found = {(row["_snapshot_id"], row["day"]) for row in feed.collect()}
    assert found == {(str(merged), 1), (str(merged), 3)}
    assert feed.where("t <> -1").count() == 0


def test_a_stream_follows_merges_and_deletions(spark, days, tmp_path):
    target = str(tmp_path / "copy")
    seen = []

    def follow(batch, number):
        seen.extend(row.asDict() for row in batch.collect())

    def run():
        stream = (
            spark.readStream.format("icechunk")
            .option("changeColumns", "true")
            .option("startingFrom", "latest")
            .load(days)
        )
        query = stream.writeStream.foreachBatch(follow).option(
            "checkpointLocation", f"{target}-checkpoint"
        )
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    assert not seen
    repository = Repository.open(days)
    repository.create_branch("fix", repository.resolve())
    icechunk_spark.write(rows(spark, 2, 3, "-1D"), days, mode="append", branch="fix")
    Repository.open(days).set_attributes("/t", {"long_name": "count"}, branch="main")
    icechunk_spark.delete(spark, days, where="day = 5", branch="fix")
    run()
    assert not seen
    Repository.open(days).cherry_pick(
        next(
            e.id for e in Repository.open(days).ancestry(branch="fix") if "Delete" not in e.message
        )
    )
    run()
    assert {(row["_change"], row["day"]) for row in seen} == {("written", 2)}
    seen.clear()
    icechunk_spark.delete(spark, days, where="day = 1")
    run()
    assert {(row["_change"], row["day"]) for row in seen if row["_change"] == "deleted"} == {
        ("deleted", 1)
    }
