"""Summaries of blocks combine to the statistics of all cells."""

import numpy as np
import pytest
from helpers.raised import raises
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import InvalidInputError, UnsupportedError


@pytest.mark.each_spark
def test_blocks_combine_exactly(spark, tmp_path):
    path = str(tmp_path / "grid")
    rows = spark.range(600).selectExpr(
        "id div 20 AS time",
        "1D * (id % 20) AS x",
        "CASE WHEN id % 7 = 0 THEN NULL ELSE 300 + sin(id) * id / 100 END AS t",
    )
    icechunk_spark.write(rows, path, dims=["time", "x"], chunks={"time": 7, "x": 9})
    blocks = icechunk_spark.read(spark, path, layout="summary", block={"time": 3, "x": 7})
    ids = np.arange(600)
    values = 300 + np.sin(ids) * ids / 100
    values[ids % 7 == 0] = np.nan
    [row] = icechunk_spark.combine_summaries(blocks).collect()
    assert row["t_count"] == np.isfinite(values).sum()
    np.testing.assert_allclose(
        [row["t_mean"], row["t_std"], row["t_min"], row["t_max"]],
        [f(values) for f in (np.nanmean, np.nanstd, np.nanmin, np.nanmax)],
        rtol=1e-12,
    )
    half = (F.col("time_first") < 15).alias("half")
    found = {
        r["half"]: r["t_std"] for r in icechunk_spark.combine_summaries(blocks, half).collect()
    }
    np.testing.assert_allclose(found[True], np.nanstd(values[:300]), rtol=1e-12)
    np.testing.assert_allclose(found[False], np.nanstd(values[300:]), rtol=1e-12)


def test_blocks_without_values_have_no_mean(spark, tmp_path):
    path = str(tmp_path / "grid")
    rows = spark.range(4).selectExpr("id AS time", "cast(NULL AS double) AS t")
    icechunk_spark.write(rows, path, dims=["time"])
    blocks = icechunk_spark.read(spark, path, layout="summary")
    with pytest.raises(InvalidInputError, match="time_first"):
        icechunk_spark.combine_summaries(blocks, "time")
    [row] = icechunk_spark.combine_summaries(blocks).collect()
    assert (row["t_count"], row["t_mean"], row["t_std"]) == (0, None, None)


def test_other_rows_are_refused(spark):
    with pytest.raises(InvalidInputError):
        icechunk_spark.combine_summaries(spark.range(3))


def test_weights_lead_to_reduce(spark, tmp_path):
    path = str(tmp_path / "grid")
    rows = spark.range(4).selectExpr("id AS latitude", "cast(id AS double) AS t")
    icechunk_spark.write(rows, path, dims=["latitude"])
    blocks = icechunk_spark.read(spark, path, layout="summary")
    advice = r"reduce\(spark, path, \{'t': 'mean'\}, over=\.\.\., weights='area'\)"
    with raises(UnsupportedError, match=advice, option="weights"):
        icechunk_spark.combine_summaries(blocks, weights="area")
