"""Counts Spark's cores, and moves rows with equal numbers into one partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession

#: Spark's name of a streaming query's id among the properties of its threads and tasks.
QUERY_ID: Final = "sql.streaming.queryId"


def cores_of(spark: SparkSession) -> int:
    """Return the approximate number of tasks that run at once."""
    if ".connect" in type(spark).__module__:  # which has no SparkContext
        return int(spark.conf.get("spark.sql.shuffle.partitions", "2") or 2)
    return spark.sparkContext.defaultParallelism


def together(rows: DataFrame, number: Column, tasks: int) -> DataFrame:
    """Return the rows in `tasks` partitions, with equal numbers in the same partition."""
    dealt = dealt_out(rows, number, tasks)
    # By hash: ranges would need a pass over the rows, which would compute them twice.
    return rows.repartition(tasks, number) if dealt is None else dealt


def dealt_out(rows: DataFrame, number: Column, tasks: int) -> DataFrame | None:
    """Distribute numbers over tasks round-robin; return None before Spark 4.1."""
    by_id: Callable[..., DataFrame] | None = getattr(rows, "repartitionById", None)
    return None if by_id is None else by_id(tasks, (number % tasks).cast("int"))
