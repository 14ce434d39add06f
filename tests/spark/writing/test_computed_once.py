"""Rows that are expensive or not deterministic are computed once in a write."""

import pytest
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import IcechunkError
from icechunk_spark.writing.computed_once import is_costly


def rows(spark):
    return spark.range(200).selectExpr("id % 20 AS x", "id div 20 AS y", "double(id) AS v")


@pytest.mark.each_spark
def test_costly_plans_are_known(spark):
    plain = rows(spark)
    assert not is_costly(plain)
    assert not is_costly(plain.where("x > 3").withColumn("Join", F.lit(1)))
    doubled = F.udf(lambda v: v * 2, "double")
    assert is_costly(plain.withColumn("v", doubled("v")))
    assert is_costly(plain.groupBy("x", "y").agg(F.sum("v").alias("v")))
    assert is_costly(plain.withColumn("v", F.rand()))
    assert is_costly(plain.join(plain.select("x").distinct(), "x"))


@pytest.mark.each_spark
@pytest.mark.parametrize(("choice", "times"), [("auto", 1), (True, 1), (False, 2)])
def test_functions_run_once_for_each_row(spark, tmp_path, choice, times):
    calls = spark.sparkContext.accumulator(0)

    def counted(batches):
        for batch in batches:
            calls.add(batch.num_rows)
            yield batch

    frame = rows(spark).mapInArrow(counted, "x bigint, y bigint, v double")
    icechunk_spark.write(frame, str(tmp_path / "r"), dims=["y", "x"], compute_once=choice)
    assert calls.value == 200 * times
    assert not frame.storageLevel.useMemory
    back = icechunk_spark.read(spark, str(tmp_path / "r"))
    assert back.agg(F.sum("v")).first()[0] == sum(range(200))


@pytest.mark.each_spark
def test_rows_that_are_not_deterministic_can_be_written(spark, tmp_path):
    frame = rows(spark).withColumn("x", (F.rand() * 10).cast("bigint"))
    frame = frame.dropDuplicates(["x", "y"])
    done = icechunk_spark.write(frame, str(tmp_path / "r"), dims=["y", "x"])
    assert done.rows > 10


@pytest.mark.each_spark
def test_rows_are_let_go_after_a_failure(spark, tmp_path):
    twice = rows(spark).union(rows(spark)).repartition(2)
    with pytest.raises(IcechunkError):
        icechunk_spark.write(twice, str(tmp_path / "r"), dims=["y", "x"], compute_once=True)
    assert not twice.storageLevel.useMemory


@pytest.mark.each_spark
@pytest.mark.parametrize(
    "clock",
    ["current_timestamp()", "cast(now() AS timestamp_ntz)", "localtimestamp()", "current_date()"],
)
def test_the_time_of_the_query_can_be_a_dimension(spark, tmp_path, clock):
    frame = spark.range(4).selectExpr(f"{clock} AS run", "int(id) AS station", "double(id) AS t")
    assert is_costly(frame)
    done = icechunk_spark.write(frame, str(tmp_path / "r"), dims=["run", "station"])
    assert done.rows == 4
    back = icechunk_spark.read(spark, str(tmp_path / "r"))
    assert back.selectExpr("count(*)", "count(DISTINCT run)").first() == (4, 1)
