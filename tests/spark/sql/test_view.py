"""A view reads its branch as it is at each query, and one snapshot in each query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.builder import reference_repository
from helpers.spark.repositories import SHAPE, add_array, commit
from pyspark.errors import PySparkException

import icechunk_spark
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.options.keywords import parse_arguments
from icechunk_spark.reading import plan
from icechunk_spark.reading.plan import resolve_read
from icechunk_spark.sql.functions import run_part, serialized_plan

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.spark.repositories import Weather
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.core, pytest.mark.needs_reference, pytest.mark.each_spark]


def add_line(root, values):
    add_array(root, "x", np.arange(float(len(values))), ["x"])
    add_array(root, "v", np.asarray(values, "int64"), ["x"], chunks=(2,))


@pytest.fixture
def line(tmp_path: Path):
    """Return a repository of the reference, and its path: a row of numbers."""
    repository = reference_repository(tmp_path / "line")
    commit(repository, "line", lambda root: add_line(root, [1, 2, 3, 4, 5]))
    return repository, str(tmp_path / "line")


def test_a_view_has_the_rows_and_columns_of_a_read(spark: SparkSession, weather: Weather):
    icechunk_spark.view(spark, "weather", weather.path)
    found, read = spark.table("weather"), icechunk_spark.read(spark, weather.path)
    assert [(f.name, f.dataType) for f in found.schema] == [
        (f.name, f.dataType) for f in read.schema
    ]
    assert found.count() == np.prod(SHAPE)
    assert found.exceptAll(read).isEmpty()


def test_a_view_follows_its_branch_and_a_tag_stays(spark: SparkSession, line):
    repository, path = line
    icechunk_spark.view(spark, "follows", path)
    repository.create_tag("v1", snapshot_id=repository.lookup_branch("main"))
    icechunk_spark.view(spark, "stays", path, tag="v1")
    total = "SELECT (SELECT sum(v) FROM follows), (SELECT sum(v) FROM stays)"
    assert tuple(spark.sql(total).first()) == (15, 15)

    commit(repository, "change", lambda root: root["v"].__setitem__(0, 100))
    assert tuple(spark.sql(total).first()) == (114, 15)


def test_a_query_reads_one_snapshot_however_often_it_names_the_view(
    spark: SparkSession, line, monkeypatch: pytest.MonkeyPatch
):
    _, path = line
    resolved = []

    def resolve(options):
        resolved.append(options)
        return resolve_read(options)

    monkeypatch.setattr(plan, "resolve_read", resolve)
    icechunk_spark.view(spark, "line", path)
    query = spark.sql(
        "SELECT count(*) FROM line WHERE v > 2 UNION ALL SELECT count(DISTINCT x) FROM line"
        " UNION ALL SELECT sum(a.v) FROM line a JOIN line b USING (x)"
    )
    resolved.clear()
    assert [row[0] for row in query.collect()] == [3, 5, 15]
    assert len(resolved) == 1
    query = spark.sql("SELECT (SELECT max(v) FROM line), sum(v) FROM line WHERE x >= 0")
    assert tuple(query.first()) == (5, 15)
    assert len(resolved) == 2


def test_a_view_of_a_metadata_table_follows(spark: SparkSession, line):
    repository, path = line
    icechunk_spark.view(spark, "history", f"{path}#history")
    before = spark.table("history").count()
    commit(repository, "one more", lambda root: root["v"].__setitem__(0, 9))
    assert spark.table("history").count() == before + 1
    assert spark.sql("SELECT message FROM history").first().message == "one more"


def test_a_view_reads_conditions_in_the_zone_of_the_query(spark: SparkSession, weather: Weather):
    options = {"timestamp_type": "utc", "where": "hour(time) = 2"}
    before = spark.conf.get("spark.sql.session.timeZone")
    icechunk_spark.view(spark, "zoned", weather.path, **options)
    try:
        counts = []
        for zone in ("Asia/Kolkata", "UTC", "Etc/GMT+4"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            rows = spark.read.format("icechunk").load(weather.path, timestampType="utc")
            counts.append(spark.table("zoned").count())
            assert counts[-1] == rows.where(options["where"]).count()
        assert len(set(counts)) > 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_new_columns_stay_out_and_a_lost_column_fails(spark: SparkSession, line):
    repository, path = line
    icechunk_spark.view(spark, "line", path)
    commit(
        repository, "more", lambda root: add_array(root, "w", np.arange(5.0), ["x"], chunks=(2,))
    )
    assert spark.table("line").columns == ["x", "v"]
    assert spark.table("line").count() == 5

    commit(repository, "less", lambda root: root.__delitem__("v"))
    with pytest.raises(PySparkException, match=r"'v' was bigint .* does not exist now: create the"):
        spark.table("line").count()
    icechunk_spark.view(spark, "line", path)
    assert spark.table("line").columns == ["x", "w"]


def test_a_type_that_still_fits_is_not_the_cause(spark: SparkSession, line):
    repository, path = line
    icechunk_spark.view(spark, "types", path)

    def change(root):
        for name, values in (("x", np.arange(5, dtype="i4")), ("v", np.arange(5) / 2)):
            del root[name]
            add_array(root, name, values, ["x"], chunks=(2,))

    commit(repository, "types", change)
    with pytest.raises(PySparkException, match=r"'v' was bigint .* is double now: create the view"):
        spark.table("types").count()


def test_more_tasks_than_at_the_creation(spark: SparkSession, line):
    repository, path = line
    icechunk_spark.view(spark, "line", path, rows_per_partition=2)

    def grow(root):
        root["x"].append(np.arange(5.0, 50.0))
        root["v"].append(np.arange(45))

    commit(repository, "grow", grow)
    assert spark.sql("SELECT count(*), count(DISTINCT x) FROM line").first()[:] == (50, 50)


def test_names_and_options(spark: SparkSession, weather: Weather):
    icechunk_spark.view(spark, "odd `name` -1", weather.path, isel={"time": 0}, variables=["t2m"])
    found = spark.sql("SELECT min(t2m), count(*) FROM `odd ``name`` -1`").first()
    assert found[:] == (1.0, SHAPE[1] * SHAPE[2])
    with pytest.raises(NotFoundError):
        icechunk_spark.view(spark, "none", weather.path, branch="none")
    with pytest.raises(InvalidInputError):
        icechunk_spark.view(spark, "none", weather.path, brunch="none")


def test_spark_takes_a_view_for_as_large_as_its_rows(spark: SparkSession, weather: Weather):
    icechunk_spark.view(spark, "weather", weather.path)

    def size(frame):
        return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())

    read = size(icechunk_spark.read(spark, weather.path))
    assert read / 4 <= size(spark.table("weather")) <= 4 * read


def test_plans_of_others_are_not_unpickled(weather: Weather):
    request = parse_arguments(weather.path, {}, "read")
    from icechunk_spark.reading.plan import open_read

    schema = open_read(request).schema
    plan = serialized_plan(request, schema, b"one key")
    rows = sum(batch.num_rows for part in range(3) for batch in run_part(plan, part, 3, b"one key"))
    assert rows == np.prod(SHAPE)
    with pytest.raises(InvalidInputError):
        next(run_part(plan, 0, 3, b"another key"))
    with pytest.raises(InvalidInputError):
        next(run_part(plan[:40] + bytes([plan[40] ^ 1]) + plan[41:], 0, 3, b"one key"))
