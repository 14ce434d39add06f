"""Writes change Spark's batch size while they run, and only where that is safe."""

from __future__ import annotations

import pytest

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_spark.jobs.session import bounded_by_rows

BOUND = "spark.sql.execution.arrow.maxBytesPerBatch"
NUMBERS = (
    "timestamp_ntz '2024-07-01' AS time",
    "cast(id AS double) AS x",
    "cast(id AS float) AS v",
)


@pytest.fixture
def bound(spark):
    if not spark.conf.isModifiable(BOUND):
        pytest.skip("this Spark does not bound batches by bytes")
    yield lambda: spark.conf.get(BOUND, None)
    spark.conf.unset(BOUND)


def test_rows_of_numbers_are_only_counted(spark, bound):
    with bounded_by_rows(spark.range(3).selectExpr(*NUMBERS)):
        assert bound() == "2147483647"
    assert bound() is None


def test_texts_of_any_length_stay_bounded(spark, bound):
    with bounded_by_rows(spark.range(3).selectExpr("cast(id AS string) AS name", "id")):
        assert bound() is None


def test_what_the_user_has_set_stays(spark, bound):
    spark.conf.set(BOUND, "1000000")
    with bounded_by_rows(spark.range(3).selectExpr(*NUMBERS)):
        assert bound() == "1000000"
    assert bound() == "1000000"


def test_the_setting_goes_with_a_write_that_fails(spark, bound, tmp_path):
    twice = spark.range(3).selectExpr(*NUMBERS).selectExpr("time", "0D AS x", "v")
    with pytest.raises(InvalidInputError):
        icechunk_spark.write(twice, str(tmp_path / "r"), dims=["time", "x"])
    assert bound() is None
