"""Copies that Spark's tasks write, and Spark's own reader of their versions."""

from __future__ import annotations

import pytest
from helpers.mirroring.grid import Grid
from helpers.raised import raises
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import (
    AlreadyExistsError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
)


@pytest.fixture
def grid(tmp_path):
    return Grid(tmp_path)


def rows(frame):
    return frame.toArrow().sort_by([("time", "ascending"), ("y", "ascending")])


def test_a_copy_follows_and_older_versions_stay(spark, grid):
    done = icechunk_spark.mirror(spark, grid.place, grid.target, rowsPerPartition=16)
    assert (done.files_added, done.rows, done.snapshot_id) == (3, 48, grid.first)
    assert done.totals.chunks_decoded > 0
    before = grid.rows()
    grid.change("wind", (1, 1))
    newest = grid.append(2)
    grid.repository.create_tag("v2", newest)
    assert icechunk_spark.freshness(grid.target).snapshots_behind == 2
    done = icechunk_spark.mirror(spark, grid.place, grid.target)
    assert (done.files_added, done.files_removed, done.rows) == (2, 1, 32)
    assert icechunk_spark.freshness(grid.target).is_fresh
    assert icechunk_spark.mirror(spark, grid.place, grid.target).rows == 0

    copied = icechunk_spark.mirrored(spark, grid.target)
    read = icechunk_spark.read(spark, grid.place)
    assert rows(copied).equals(rows(read))
    assert rows(copied).to_pydict() == grid.rows().to_pydict()
    # Columns, types and metadata are those of reading; the snapshot is told beside them.
    assert copied.schema.simpleString() == read.schema.simpleString()
    for ours, theirs in zip(copied.schema, read.schema, strict=True):
        assert ours.metadata.pop("icechunk_snapshot") == newest
        assert ours.metadata == theirs.metadata
    assert rows(icechunk_spark.mirrored(spark, grid.target, tag="v2")).equals(rows(read))
    older = icechunk_spark.mirrored(spark, grid.target, snapshot=grid.first)
    assert rows(older).to_pydict() == before.to_pydict()
    assert older.where("y = 30").count() == 6
    with raises(NotFoundError, kind="snapshot", existing=...):
        icechunk_spark.mirrored(spark, grid.target, as_of="2001-01-01")
    with pytest.warns(DeprecationWarning, match="as_of"), pytest.raises(NotFoundError):
        icechunk_spark.mirrored(spark, grid.target, asOf="2001-01-01")


@pytest.mark.parametrize("name", ["a`b", "`", "a.b", "``x.`y"])
def test_names_with_backticks_and_dots_are_read(spark, tmp_path, name):
    grid = Grid(tmp_path, names=(name,))
    icechunk_spark.mirror(spark, grid.place, grid.target)
    assert rows(icechunk_spark.mirrored(spark, grid.target)).equals(grid.rows())


def test_spark_prunes_by_the_statistics_of_dimensions(spark, grid):
    icechunk_spark.mirror(spark, grid.place, grid.target, rowsPerPartition=16)
    frame = icechunk_spark.mirrored(spark, grid.target)
    filtered = frame.where(F.col("time") >= "2024-01-01T04:00:00")
    assert filtered.count() == 16
    plan = filtered._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters: [IsNotNull(time), GreaterThanOrEqual(time" in plan
    assert "FileScan parquet" in plan


def test_any_folder_will_do(spark, grid, tmp_path):
    target = str(tmp_path / "year=2024" / "a copy [é] {1,2}")
    icechunk_spark.mirror(spark, grid.place, target)
    copied = icechunk_spark.mirrored(spark, target)
    assert copied.columns == ["time", "y", "t2m", "wind"]
    assert copied.count() == 48
    for name in ("50%20", "a\\b"):
        with pytest.raises(InvalidInputError, match="choose a folder without one"):
            icechunk_spark.mirror(spark, grid.place, str(tmp_path / name))


def test_selections_and_an_empty_copy(spark, grid):
    icechunk_spark.mirror(
        spark, grid.place, grid.target, variables=["wind"], sel={"y": slice(30, 40)}
    )
    copied = icechunk_spark.mirrored(spark, grid.target)
    assert copied.columns == ["time", "y", "wind"]
    assert copied.count() == 12
    with raises(InvalidInputError, option="variables", remembered=["wind"]):
        icechunk_spark.mirror(spark, grid.place, grid.target, variables=["t2m"])
    done = icechunk_spark.mirror(spark, grid.place, grid.target, full=True, isel="time=0:0")
    assert done.rows == 0
    nothing = icechunk_spark.mirrored(spark, grid.target)
    assert nothing.columns == ["time", "y", "t2m", "wind"]
    assert nothing.count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tag": "v1"}, "option 'tag' does not apply to mirror"),
        ({"layout": "chunks"}, "option 'layout' does not apply to mirror"),
        ({"variable": "wind"}, "did you mean 'variables'"),
        ({"target_options": {"a": 1}}, "with strings by name"),
    ],
)
def test_options_that_a_copy_cannot_take(spark, grid, options, words):
    with pytest.raises(InvalidInputError, match=words):
        icechunk_spark.mirror(spark, grid.place, grid.target, **options)


def test_what_is_no_copy(spark, grid, tmp_path):
    with pytest.raises(NotFoundError, match="there is no copy at"):
        icechunk_spark.mirrored(spark, grid.target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.csv").write_text("a")
    with raises(AlreadyExistsError, found="a.csv"):
        icechunk_spark.mirror(spark, grid.place, str(tmp_path / "full"))


def test_a_task_that_fails_is_told_on_one_line(spark, grid):
    icechunk_spark.mirror(spark, grid.place, grid.target)
    session = grid.repository.writable_session()
    session.set_chunk("/t2m", (0, 0), b"short")
    session.commit("damage")
    with pytest.raises(IcechunkError, match="/t2m") as raised:
        icechunk_spark.mirror(spark, grid.place, grid.target)
    assert "\n" not in str(raised.value)
    assert icechunk_spark.freshness(grid.target).snapshots_behind == 1
    assert rows(icechunk_spark.mirrored(spark, grid.target)).to_pydict() == grid.rows().to_pydict()


OVER_CONNECT = """
import json, sys
from pyspark.sql import SparkSession
import icechunk_spark
spark = SparkSession.builder.remote("local[2]").getOrCreate()
place, target = sys.argv[1:]
done = icechunk_spark.mirror(spark, place, target, rowsPerPartition=16)
copied = icechunk_spark.mirrored(spark, target)
told = copied.schema["time"].metadata["icechunk_snapshot"]
wind = [row["wind"] for row in copied.orderBy("time", "y").collect()]
print("ANSWER " + json.dumps([done.rows, told, wind]))
"""


def test_over_connect(grid):
    pytest.importorskip("grpc")
    from helpers.spark.connect_client import answer_over_connect

    wind = grid.rows()["wind"].to_pylist()
    answer = answer_over_connect(OVER_CONNECT, grid.place, grid.target)
    assert answer == [48, grid.first, wind]
