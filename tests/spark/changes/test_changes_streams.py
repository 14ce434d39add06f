"""Streams into and out of a repository, run by Spark."""

from __future__ import annotations

import shutil
import traceback

import pytest
from helpers.raised import raises
from helpers.spark.session import source_session
from helpers.spark.streams import SPARK_TELLS_START, append, commits_of_streams
from pyspark.errors import StreamingQueryException

import icechunk_spark
from icechunk_format import Repository
from icechunk_format.errors import IcechunkError

pytestmark = pytest.mark.each_spark

SCHEMA = "time bigint, x double, t double"


@pytest.fixture
def files(spark, tmp_path):
    """Return a function that adds a file of rows to a folder that streams watch."""
    folder = tmp_path / "files"
    folder.mkdir()

    def add(times, offset=0.0):
        rows = [(t, float(x), t * 100.0 + x + offset) for t in times for x in (0, 1)]
        made = tmp_path / "made"
        spark.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("overwrite").json(str(made))
        (part,) = made.glob("part-*")
        shutil.move(part, folder / f"{len(list(folder.iterdir())):05}.json")

    add.folder = str(folder)
    return add


def run(stream):
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    if query.exception() is not None:
        raise query.exception()
    return query


def sink(session, files, path, checkpoint, **options):
    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(files.folder)
    writer = rows.writeStream.format("icechunk").option("checkpointLocation", str(checkpoint))
    return writer.options(path=path, dims="time,x", chunks="time=1,x=2", **options)


def values(spark, path):
    rows = icechunk_spark.read(spark, path).orderBy("time", "x").collect()
    return [row["t"] for row in rows]


@pytest.mark.parametrize("registered", [True, False])
def test_each_batch_is_one_commit(spark, files, tmp_path, registered):
    session = spark if registered else source_session(spark)
    path, checkpoint = str(tmp_path / "r"), tmp_path / "checkpoint"
    files([0])
    files([1])
    query = run(sink(session, files, path, checkpoint))
    assert commits_of_streams(path) == [(query.id, 0), (query.id, 1)]
    # What Spark does where it died before it noted that the last batch was done.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    files([1, 2], offset=5.0)
    again = run(sink(session, files, path, checkpoint))
    assert again.id == query.id
    assert commits_of_streams(path) == [(query.id, n) for n in range(3)]
    assert values(spark, path) == [0, 1, 105, 106, 205, 206]


def test_a_batch_without_rows_and_complete_mode(spark, files, tmp_path):
    path = str(tmp_path / "r")
    files([0, 1])
    rows = spark.readStream.schema(SCHEMA).json(files.folder)
    means = rows.groupBy("time").avg("t").withColumnRenamed("avg(t)", "mean")

    def stream():
        writer = means.writeStream.format("icechunk").outputMode("complete").option("dims", "time")
        return writer.option("path", path).option("checkpointLocation", str(tmp_path / "c"))

    run(stream())
    files([1], offset=10.0)
    run(stream())
    assert [row["mean"] for row in icechunk_spark.read(spark, path).collect()] == [0.5, 105.5]
    before = len(commits_of_streams(path))
    empty = (
        spark.readStream.schema("time bigint, mean double").json(files.folder).where("time > 99")
    )
    run(
        empty.writeStream.format("icechunk")
        .option("checkpointLocation", str(tmp_path / "e"))
        .option("path", path)
    )
    assert len(commits_of_streams(path)) == before


def test_mistakes_are_told_before_the_stream_starts(spark, files, tmp_path):
    files([0])
    path = str(tmp_path / "r")
    append(path, [0])
    for options, says in (
        ({"dims": "time,y"}, "y"),
        ({"chnks": "time=1"}, "did you mean 'chunks'"),
        ({"txnVersion": "1"}, "does not apply to writeStream"),
    ):
        rows = spark.readStream.schema(SCHEMA).json(files.folder)
        writer = rows.writeStream.format("icechunk").options(**options)
        with pytest.raises(IcechunkError, match=says):
            writer.option("checkpointLocation", str(tmp_path / "c")).start(path)
    wrong = spark.readStream.schema("time bigint, x double, t string").json(files.folder)
    with raises(IcechunkError, variable="t", found="string", wanted="double"):
        wrong.writeStream.format("icechunk").start(path)
    with raises(IcechunkError, method="partitionBy"):
        wrong.writeStream.format("icechunk").partitionBy("x").start(path)
    assert spark.streams.active == []


def test_mistakes_in_other_sessions_are_told_before_rows_are_computed(spark, files, tmp_path):
    files([0])
    path, computed = str(tmp_path / "r"), tmp_path / "computed"
    append(path, [0])

    def compute(batches):
        for batch in batches:
            computed.touch()
            yield batch

    rows = source_session(spark).readStream.schema(SCHEMA).json(files.folder)
    rows = rows.mapInArrow(compute, SCHEMA).withColumnRenamed("x", "y")
    writer = rows.writeStream.format("icechunk").option("checkpointLocation", str(tmp_path / "c"))
    with raises(Exception, variable="t", dims=("time", "x")):
        run(writer.option("path", path))
    assert not computed.exists()


def test_commits_become_a_stream(spark, tmp_path):
    path, out = str(tmp_path / "r"), str(tmp_path / "out")
    for time in range(3):
        append(path, [time])

    def stream(**options):
        rows = spark.readStream.format("icechunk").options(**options).load(path)
        return (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "c"))
            .option("path", out)
        )

    def times():
        return sorted(row["time"] for row in spark.read.parquet(out).where("x = 0").collect())

    query = run(stream(maxSnapshotsPerTrigger="2"))
    if not SPARK_TELLS_START:
        # A limit holds for a whole run there. The first snapshot has no rows.
        assert times() == [0]
        query = run(stream(maxSnapshotsPerTrigger="2"))
    assert times() == [0, 1, 2]
    sources = [progress["sources"][0] for progress in query.recentProgress]
    assert "position" in str(sources[-1]["endOffset"])
    append(path, [3])
    append(path, [4])
    run(stream())
    assert times() == [0, 1, 2, 3, 4]
    repository = Repository.open(path)
    repository.reset_branch("main", list(repository.ancestry())[2].id)
    append(path, [5])
    with pytest.raises(Exception, match="onHistoryChange=restart"):
        run(stream())


@pytest.mark.parametrize("registered", [True, False])
def test_a_checkpoint_inside_of_a_new_repository_is_refused(spark, files, tmp_path, registered):
    session = spark if registered else source_session(spark)
    path = str(tmp_path / "r")
    files([0])
    with pytest.raises((IcechunkError, StreamingQueryException), match="choose a folder beside it"):
        run(sink(session, files, path, f"{path}/_checkpoint"))
    assert not Repository.exists(path)
    run(sink(session, files, path + "2", f"{path}2_checkpoint"))
    files([1])
    # An existing repository ignores other folders.
    run(sink(session, files, path + "2", f"{path}2/_checkpoint"))
    assert values(spark, path + "2") == [0, 1, 100, 101]


def test_the_last_line_of_a_dead_stream_is_the_error(spark, files, tmp_path):
    files([1])
    rows = spark.readStream.schema(SCHEMA).json(files.folder)
    stream = (
        rows.union(rows).writeStream.format("icechunk").options(dims="time,x", path=tmp_path / "r")
    )
    query = stream.option("checkpointLocation", tmp_path / "c").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(300)
    for error in (caught.value, query.exception()):
        last = traceback.format_exception_only(error)[-1]
        assert last.startswith("icechunk_format.errors.InvalidInputError: ")
        assert "time" in last
