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
)
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

import icechunk_spark

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
    path = str(tmp_path / "weather")
    write_grid(path, hours(0, 2), chunks={"time": 2}, message="Create")
    return path


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
