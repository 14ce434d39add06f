"""Writes that Spark itself starts work without `register` and by SQL's INSERT."""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers.spark.written import (
    LATITUDES,
    grid_frame,
    hours,
    messages,
    reference_dataset,
    temperatures,
    write_grid,
    written_grid,
)
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.repository import Repository

pytestmark = [pytest.mark.needs_reference, pytest.mark.each_spark]

DIMS = "time,latitude,longitude"


@pytest.fixture
def unregistered(spark):
    """Give the session as it is where nobody called `register`: Spark found the source."""
    icechunk_spark.unregister(spark)
    yield spark
    icechunk_spark.register(spark)


@pytest.fixture
def path(tmp_path):
    return written_grid(tmp_path, 2, chunks={"time": 2}, message="Create")


def stored_files(path):
    return sorted(
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in names
    )


def test_append_and_overwrite(unregistered, path):
    spark = unregistered
    frame = grid_frame(spark, hours(2, 3)).repartition(3)
    frame.write.format("icechunk").mode("append").save(path)
    found = reference_dataset(path)
    np.testing.assert_array_equal(
        found["t2m"].sel(latitude=LATITUDES).values, temperatures(hours(0, 5))
    )
    frame.write.format("icechunk").mode("overwrite").option("dims", DIMS).save(path)
    np.testing.assert_array_equal(reference_dataset(path)["time"].values, hours(2, 3))
    assert not [name for name in stored_files(path) if "staging" in name]


def test_it_creates_a_repository(unregistered, tmp_path):
    path = str(tmp_path / "new")
    frame = grid_frame(unregistered, hours(0, 2))
    frame.write.format("icechunk").mode("append").option("dims", DIMS).save(path)
    assert reference_dataset(path)["t2m"].shape == (2, 4, 3)


def test_insert_into_a_view(spark, path):
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW w USING icechunk OPTIONS (path '{path}')")
    grid_frame(spark, hours(2, 1)).createOrReplaceTempView("fresh")
    spark.sql("INSERT INTO w SELECT time, latitude, longitude, t2m FROM fresh")
    np.testing.assert_array_equal(
        reference_dataset(path)["t2m"].sel(latitude=LATITUDES).values, temperatures(hours(0, 3))
    )


OVERWRITES = {
    "rows": lambda spark: spark.sql("INSERT OVERWRITE w SELECT * FROM w WHERE latitude > 40"),
    "values": lambda spark: spark.sql(
        "INSERT OVERWRITE w SELECT time, latitude, longitude, t2m + 1 AS t2m FROM w"
    ),
    "by position": lambda spark: spark.sql(
        "INSERT OVERWRITE w SELECT time, latitude + 0, longitude + 0, t2m * 2 FROM w"
    ),
    "insertInto": lambda spark: (
        spark.table("w").where("latitude > 40").write.insertInto("w", overwrite=True)
    ),
    "writeTo": lambda spark: (
        spark.table("w").where("latitude > 40").writeTo("w").overwrite(F.lit(True))
    ),
}


@pytest.mark.parametrize("way", OVERWRITES)
def test_an_overwrite_through_a_view_that_is_not_at_the_tip_is_a_conflict(
    spark, path, last_line, way
):
    create = f"CREATE OR REPLACE TEMPORARY VIEW w USING icechunk OPTIONS (path '{path}')"
    spark.sql(create)
    if way == "values":  # the view's own
        spark.sql("INSERT INTO w SELECT time + INTERVAL 9 HOURS, latitude, longitude, t2m FROM w")
    else:
        write_grid(path, hours(2, 1), mode="append", message="Since")
    before, files = messages(path), stored_files(path)
    text = last_line(lambda: OVERWRITES[way](spark))
    assert text.startswith("icechunk_format.errors.ConflictError")
    assert (messages(path), stored_files(path)) == (before, files)
    spark.sql(create)
    OVERWRITES[way](spark)
    assert len(messages(path)) == len(before) + 1


def test_a_view_of_a_version_takes_no_rows(spark, path, last_line):
    repository = Repository.open(path)
    repository.create_tag("v1", repository.resolve(branch="main"))
    for word in ("tag 'v1'", "asOf '2100-01-01'"):
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW w USING icechunk OPTIONS (path '{path}', {word})"
        )
        text = last_line(lambda: spark.sql("INSERT OVERWRITE w SELECT * FROM w"))
        assert "does not apply to write: it is for 'read'" in text


DOORS = {
    "create": lambda writer: writer.create(),
    "createOrReplace": lambda writer: writer.createOrReplace(),
    "replace": lambda writer: writer.replace(),
    "append": lambda writer: writer.append(),
    "overwrite": lambda writer: writer.overwrite(F.lit(True)),
    "overwritePartitions": lambda writer: writer.overwritePartitions(),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("is_registered", [True, False])
def test_doors_to_catalog_tables_are_shut(spark, path, last_line, request, door, is_registered):
    if not is_registered:
        request.getfixturevalue("unregistered")
    spark.sql("DROP TABLE IF EXISTS door")
    if door == "replace":
        spark.sql("CREATE TABLE door USING parquet AS SELECT 1 AS a")
    before, files = messages(path), stored_files(path)
    rows = grid_frame(spark, hours(0, 3))
    text = last_line(
        lambda: DOORS[door](rows.writeTo("door").using("icechunk").option("path", path))
    )
    if is_registered or "reate" in door or door == "replace":
        assert text.startswith("icechunk_format.errors.UnsupportedError") or is_registered
        assert "save(path)" in text
    assert (messages(path), stored_files(path)) == (before, files)
    # Spark drops a table before it asks who replaces it.
    assert spark.catalog.tableExists("door") == (is_registered and door == "replace")


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_table_by_other_doors_is_not_created(spark, path, last_line, request, is_registered):
    if not is_registered:
        request.getfixturevalue("unregistered")
    spark.sql("DROP TABLE IF EXISTS door")
    before = messages(path)
    rows = grid_frame(spark, hours(0, 3))
    rows.createOrReplaceTempView("fresh")
    writer = rows.write.format("icechunk").option("path", path)
    assert "save(path)" in last_line(lambda: writer.saveAsTable("door"))
    create = f"CREATE TABLE door USING icechunk OPTIONS (path '{path}') AS SELECT * FROM fresh"
    assert "save(path)" in last_line(lambda: spark.sql(create))
    assert messages(path) == before
    assert not spark.catalog.tableExists("door")


def test_too_much_says_to_register(unregistered, path, last_line):
    before = stored_files(path)
    frame = grid_frame(unregistered, hours(2, 20)).repartition(1)
    writer = frame.write.format("icechunk").mode("append").option("maxUnplannedBytes", "2k")
    said = last_line(lambda: writer.save(path))
    assert "icechunk_spark.register(spark)" in said
    assert stored_files(path) == before


def test_a_failing_task_leaves_nothing(unregistered, path):
    before = stored_files(path)
    frame = grid_frame(unregistered, hours(2, 4)).repartition(2)
    broken = frame.withColumn(
        "t2m", F.expr("if(latitude = 50, raise_error('sensor lost'), t2m)").cast("float")
    )
    with pytest.raises(PySparkException, match="sensor lost"):
        broken.write.format("icechunk").mode("append").save(path)
    assert messages(path)[0] == "Create"
    assert stored_files(path) == before


def test_a_failing_commit_leaves_the_branch(unregistered, path, last_line):
    frame = grid_frame(unregistered, hours(2, 1))
    writer = frame.union(frame).write.format("icechunk").mode("append")
    said = last_line(lambda: writer.save(path))
    assert "latitude" in said
    assert messages(path)[0] == "Create"
    assert not [name for name in stored_files(path) if "staging" in name]


def test_modes_that_spark_denies(unregistered, path):
    frame = grid_frame(unregistered, hours(2, 1))
    with pytest.raises(AnalysisException, match=r"(?i)append|save.?mode"):
        frame.write.format("icechunk").save(path)


def test_a_view_in_utc_stores_timestamps_as_df_write_does(spark, tmp_path):
    path = str(tmp_path / "r")
    zone = spark.conf.get("spark.sql.session.timeZone")
    first = "SELECT timestamp_ntz '2024-07-01' AS time, 0D AS v"
    spark.sql(first).write.format("icechunk").options(dims="time").save(path)
    options = f"OPTIONS (path '{path}', timestampType 'utc')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW in_utc USING icechunk {options}")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        rows = spark.sql("SELECT timestamp '2024-07-02 00:00:00' AS time, 1D AS v")
        rows.write.format("icechunk").mode("append").save(path)
        spark.sql("INSERT INTO in_utc SELECT timestamp '2024-07-02 00:00:00', 2D")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = spark.read.format("icechunk").load(path).orderBy("time").collect()
    assert [(str(row.time), row.v) for row in found] == [
        ("2024-07-01 00:00:00", 0.0),
        ("2024-07-02 04:00:00", 2.0),
    ]
