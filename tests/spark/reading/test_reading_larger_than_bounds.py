"""Data larger than read-ahead, Arrow batch and task pass whole, read and written in each way."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import functions as F

import icechunk_spark

TIMES, PLACES = 300, 1_000
BOUNDS = {"readAheadBytes": "100k", "rowsPerPartition": "150000"}
SUMS = "sum(v) AS v", "count(*) AS n", "count(DISTINCT t, x) AS c"


def frame(spark, times=TIMES):
    """300,000 rows, in batches of 10,000 rows: v = 1000 * t + x."""
    return (
        spark.range(0, times * PLACES, 1, 4)
        .selectExpr(f"id div {PLACES} AS t", f"id % {PLACES} AS x", "cast(id AS double) AS v")
        .orderBy(F.rand(1))
    )


def assert_whole(rows, times=TIMES):
    total = times * PLACES
    [found] = rows.selectExpr(*SUMS).collect()
    assert (found.v, found.n, found.c) == (total * (total - 1) / 2, total, total)


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("bounds") / "repository")
    icechunk_spark.write(frame(spark), path, dims="t,x", chunks="t=30,x=70")
    return path


@pytest.mark.parametrize("way", ["format", "function", "view"])
def test_reading_cells(spark, written, way):
    source = spark.read.format("icechunk").options(**BOUNDS)
    if way == "format":
        rows = source.load(written)
    elif way == "function":
        rows = icechunk_spark.read(spark, written, **BOUNDS)
    else:
        options = ", ".join(f"{name} '{value}'" for name, value in BOUNDS.items())
        spark.sql(
            "CREATE OR REPLACE TEMPORARY VIEW bounds USING icechunk"
            f" OPTIONS (path '{written}', {options})"
        )
        rows = spark.table("bounds")
    assert_whole(rows)


@pytest.mark.parametrize("way", ["format", "function"])
def test_reading_other_layouts(spark, written, way):
    def load(**options):
        if way == "function":
            return icechunk_spark.read(spark, written, **options)
        return spark.read.format("icechunk").options(**options).load(written)

    total = TIMES * PLACES
    [found] = (
        load(layout="summary", block="t=7", **BOUNDS)
        .selectExpr("sum(v_sum) AS v", "sum(v_count) AS n", "count(*) AS blocks")
        .collect()
    )
    assert (found.v, found.n, found.blocks) == (total * (total - 1) / 2, total, 43 * 15)
    chunks = load(layout="chunks", variables="v", **BOUNDS).select("chunk", "data").collect()
    assert len({tuple(row.chunk) for row in chunks}) == len(chunks) == 10 * 15
    values = np.concatenate([np.frombuffer(row.data) for row in chunks])
    assert np.array_equal(np.sort(values), np.arange(total))
    references = load(layout="refs", variables="v", rowsPerPartition=90).select("chunk").collect()
    assert len({tuple(row.chunk) for row in references}) == len(references) == 10 * 15


@pytest.mark.parametrize("registered", [True, False])
def test_writing_over_part_of_what_is_there(spark, tmp_path, registered):
    path = str(tmp_path / "repository")
    if not registered:
        icechunk_spark.unregister(spark)
    try:
        start = frame(spark, 200).withColumn("v", F.col("v") + 0.5)
        options = {"dims": "t,x", "chunks": "t=30,x=70"}
        start.write.format("icechunk").mode("append").options(**options).save(path)
        frame(spark).write.format("icechunk").mode("append").save(path)
    finally:
        icechunk_spark.register(spark)
    assert_whole(icechunk_spark.read(spark, path))
