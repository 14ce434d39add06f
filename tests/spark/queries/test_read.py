"""``icechunk_spark.read`` does more than ``format("icechunk")``: errors, sizes, explain.

Rows, columns and versions are tested for both at once: see the fixture ``load``.
"""

from __future__ import annotations

import pickle
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import reference_repository
from helpers.raised import raises
from helpers.spark.repositories import SHAPE, T2M, add_array, commit
from helpers.spark.session import by_source, without_base
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.options.parse import parse_read_options
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table
from icechunk_spark.queries import frames as reading
from icechunk_spark.reading.plan import plan_table

pytestmark = pytest.mark.needs_reference

CELLS = int(np.prod(SHAPE))
SPARKS_WIDTH = 8 + 8 + 8 + 8 + 4 + 8  # of a row with 5 columns, in bytes

MISTAKES = {
    "tag": ({"tag": "v9"}, NotFoundError, r"no tag 'v9'.*v1"),
    "name": ({"tga": "v1"}, InvalidInputError, "did you mean 'tag'"),
    "condition": ({"where": "height > 3"}, InvalidInputError, "'height'"),
    "column": ({"schema": "t2mm float"}, InvalidInputError, "'t2mm'"),
    "type": ({"schema": "float"}, InvalidInputError, "schema='float'.*t2m float"),
    "list": ({"schema": ["t2m"]}, InvalidInputError, r"schema must be.*StructType.*\['t2m'\]"),
    "path": ({"Path": "elsewhere"}, InvalidInputError, "given twice"),
    "value": ({"variables": {1, 2}}, InvalidInputError, "'variables'"),
}


def size_in_spark(frame) -> int:
    """Return what Spark expects a table to hold, in bytes."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def stored(folder, values: np.ndarray, dims: list[str], chunks: tuple[int, ...]) -> str:
    repository = reference_repository(folder)
    commit(repository, "a", lambda root: add_array(root, "a", values, dims, chunks=chunks))
    return str(folder)


def test_schema_metadata_and_rows_are_those_of_the_format(spark, weather):
    ours, theirs = icechunk_spark.read(spark, weather.path), by_source(spark).load(weather.path)
    assert ours.schema == without_base(theirs.schema)
    assert ours.schema["t2m"].metadata != {}
    assert ours.exceptAll(theirs).isEmpty()


@pytest.mark.parametrize("name", ["history", "chunks"])
def test_metadata_tables(spark, weather, name):
    path = f"{weather.path}#{name}"
    ours = icechunk_spark.read(spark, path, tag="v1")
    theirs = by_source(spark).option("tag", "v1").load(path)
    assert ours.schema == theirs.schema
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_errors_of_ours_and_come_at_once(spark, weather, mistake):
    options, error, says = MISTAKES[mistake]
    with pytest.raises(error, match=f"(?s){says}"):
        icechunk_spark.read(spark, weather.path, **options)


def test_a_place_without_a_repository(spark, tmp_path):
    with raises(NotFoundError, kind="repository", location=str(tmp_path / "nowhere")):
        icechunk_spark.read(spark, tmp_path / "nowhere")


def test_options_may_be_values_of_python(spark, weather):
    frame = icechunk_spark.read(
        spark, weather.path, variables=["t2m"], rowsPerPartition=60, decodeCf=False
    )
    assert frame.columns == ["time", "latitude", "longitude", "t2m"]
    assert frame.rdd.getNumPartitions() == 8
    assert frame.agg(F.max("time")).first()[0] == 42  # hours, as they are stored


def test_a_session_that_nobody_registered(spark, weather):
    assert icechunk_spark.read(spark.newSession(), weather.path).count() == CELLS


def test_each_task_is_one_partition_and_runs_once(spark, tmp_path):
    # More than two blocks of packed tasks, the last of them not full.
    values = np.arange(150, dtype="i4")
    path = stored(tmp_path / "many", values, ["x"], (1,))
    frame = icechunk_spark.read(spark, path, rowsPerPartition=1)
    assert frame.rdd.getNumPartitions() == 150
    rows = frame.withColumn("task", F.spark_partition_id()).collect()
    assert [(row.task, row.a) for row in rows] == list(enumerate(values.tolist()))


def test_very_many_tasks_travel_apart_from_the_credentials(spark, tmp_path, monkeypatch):
    # Half a megabyte of tasks takes a minute to read, so here are two blocks of tasks.
    monkeypatch.setattr(reading, "_MOST_SERIALIZED_BYTES", 100)
    functions = []
    map_in_arrow = type(spark.range(1)).mapInArrow

    def noted(self, function, schema):
        functions.append(function)
        return map_in_arrow(self, function, schema)

    monkeypatch.setattr(type(spark.range(1)), "mapInArrow", noted)
    values = np.arange(70, dtype="i4")
    frame = icechunk_spark.read(
        spark, stored(tmp_path / "many", values, ["x"], (1,)), rowsPerPartition=1
    )
    assert functions[0].serialized_bytes == 0
    assert frame.agg(F.sum("a"), F.count("a")).first() == (values.sum(), 70)


def test_the_largest_tables_cost_no_more_numbers(spark):
    numbers = reading._numbers(spark, 30_000, 10**18, {})
    assert 8 << 30 < size_in_spark(numbers) < 80 << 30


def test_counting_needs_no_chunk_and_no_manifest(spark, tmp_path):
    path = stored(tmp_path / "grid", np.zeros((6, 8), dtype="f4"), ["y", "x"], (2, 4))
    one_column = icechunk_spark.read(spark, path, schema="x bigint", isel="y=0:2")
    shutil.rmtree(tmp_path / "grid" / "manifests")
    assert one_column.count() == 2 * 8
    columns = "path string, shape array<bigint>"
    shapes = icechunk_spark.read(spark, f"{path}#variables", schema=columns)
    product = "aggregate(shape, 1L, (cells, size) -> cells * size)"
    assert shapes.where("path = '/a'").selectExpr(product).first()[0] == 6 * 8


def test_explain_shows_place_version_and_selection(spark, weather, capsys):
    condition = "t2m > 300\n  AND wind IN (1" + ",1" * 100 + ")"
    frame = icechunk_spark.read(
        spark, weather.path, tag="v1", variables=["t2m", "wind"], where=condition, isel={"time": 1}
    )
    frame.explain()
    shown = capsys.readouterr().out
    assert f"MapInArrow icechunk {weather.path} tag=v1 snapshot={weather.v1} layout=cells" in shown
    assert "variables=t2m,wind where='t2m > 300 AND wind IN (1, 1, … 101 values)' isel=" in shown
    long = icechunk_spark.read(spark, weather.path, where=" OR ".join(["t2m > 300"] * 100))
    long.explain()
    shown = capsys.readouterr().out
    assert "where='t2m > 300 OR t2m > 300 OR" in shown
    assert "…'" in shown
    assert len(shown.splitlines()[1]) < 500
    icechunk_spark.read(spark, f"{weather.path}#history", branch="dev").explain()
    assert f"icechunk {weather.path} table=history branch=dev snapshot=" in capsys.readouterr().out


def test_explain_shows_no_credentials(weather):
    secrets = {"storage.client": "fsspec", "virtual.storage.secret": "hunter2"}
    planned, _, _ = plan_table(parse_read_options({"path": weather.path, **secrets}), None)
    assert planned.__name__.startswith(f"icechunk {weather.path} snapshot=")
    assert "hunter2" not in planned.__name__


def test_tasks_travel_small_and_apart(weather):
    options = parse_read_options({"path": weather.path, "rowsPerPartition": "1"})
    planned, _, _ = plan_table(options, None)
    tasks = pickle.loads(pickle.dumps(planned))
    parts = planned._reader.partitions()
    assert len(tasks) == len(parts) > 8
    assert [tasks._task(i).value for i in range(len(tasks))] == [part.value for part in parts]
    assert "object at" in repr(tasks)
    assert len(pickle.dumps(parts)) > 2 * sum(map(len, tasks._blocks))


def test_spark_knows_about_how_large_the_table_is(spark, weather):
    honest = CELLS * SPARKS_WIDTH
    whole = icechunk_spark.read(spark, weather.path)
    assert 0.9 * honest <= size_in_spark(whole) <= 2.1 * honest
    half = icechunk_spark.read(spark, weather.path, isel="time=0:4")
    assert 0.9 * honest <= 2 * size_in_spark(half) <= 2.1 * honest
    nothing = icechunk_spark.read(spark, weather.path, where="latitude > 99")
    assert size_in_spark(nothing) <= 1
    # Nobody knows how large chunks are, so they are never small.
    chunks = icechunk_spark.read(spark, weather.path, layout="chunks", variables="t2m")
    assert size_in_spark(chunks) > 10 << 20


def test_small_tables_are_broadcast_in_joins_and_large_ones_are_not(spark, weather, tmp_path):
    path = stored(tmp_path / "long", np.zeros(2_000_000, dtype="i1"), ["x"], (1_000_000,))
    long = icechunk_spark.read(spark, path)
    assert size_in_spark(long) > 20 << 20
    numbers = spark.range(3_000_000).withColumnRenamed("id", "x")
    plan = long.join(numbers, "x")._jdf.queryExecution().toString()
    assert "BroadcastHashJoin" not in plan
    levels = icechunk_spark.read(spark, weather.path, variables="elevation")
    joined = icechunk_spark.read(spark, weather.path).join(levels, ["latitude", "longitude"])
    assert "BroadcastHashJoin" in joined._jdf.queryExecution().toString()
    assert joined.count() == CELLS
    assert joined.agg(F.sum("t2m")).first()[0] == pytest.approx(np.nansum(T2M.astype("f8")))


def test_one_frame_in_a_plan_twice(spark, weather):
    frame = icechunk_spark.read(spark, weather.path, variables="t2m")
    later = frame.selectExpr(
        "time - interval 6 hours AS time", "latitude", "longitude", "t2m AS next"
    )
    steps = frame.join(later, ["time", "latitude", "longitude"]).selectExpr("next - t2m AS step")
    expected = np.diff(T2M, axis=0)
    assert steps.count() == expected.size
    assert steps.agg(F.max("step")).first()[0] == pytest.approx(np.nanmax(expected))
    assert frame.union(frame).count() == 2 * CELLS


def test_variables_that_are_left_out_are_named_once(spark, tmp_path):
    path = str(tmp_path / "two")
    both = pa.table({"t": [0, 0, 1, 1], "x": [0, 1, 0, 1], "v": [1.0, 2.0, 3.0, 4.0]})
    write_table(path, both, WriteOptions(dims=("t", "x")))
    mask = pa.table({"x": [0, 1], "mask": [1.0, 0.0]})
    write_table(path, mask, WriteOptions(mode="append", merge_schema=True, dims=("x",)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            assert icechunk_spark.read(spark, path).columns == ["t", "x", "v"]
    texts = [str(item.message) for item in caught if "leaves out" in str(item.message)]
    assert len(texts) == 1
    assert "over (t, x) leaves out variables on fewer dimensions: mask (x)" in texts[0]
    named = icechunk_spark.read(spark, path, variables=["v", "mask"])
    assert named.columns == ["t", "x", "v", "mask"]
    tables = icechunk_spark.read(spark, f"{path}#variables").select("name", "is_column").collect()
    assert [tuple(row) for row in tables] == [
        ("mask", False),
        ("t", True),
        ("v", True),
        ("x", True),
    ]
