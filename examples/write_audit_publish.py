"""Writes new data to a branch, checks it there, and publishes it to `main`.

Readers of `main` never see rows that failed the check.
Run it with ``python examples/write_audit_publish.py [output folder]``.
"""

import os
import shutil
import sys
from pathlib import Path

# Spark starts Python workers by name: they must be this very interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format import Repository

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "write-audit-publish"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("write-audit-publish").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def one_day(spark: SparkSession, day: str) -> DataFrame:
    """Return 24 hours of a made-up global temperature on a 2.5 degree grid, one row per cell."""
    return spark.range(24 * 73 * 144).selectExpr(
        f"timestamp_ntz '{day}' + make_dt_interval(0, cast(id div (73 * 144) as int)) AS time",
        "90 - 2.5D * (id div 144 % 73) AS latitude",
        "2.5D * (id % 144) AS longitude",
        "cast(288 + 25 * cos(2 * radians(90 - 2.5 * (id div 144 % 73)))"
        " + 6 * cos(radians(15 * (id div (73 * 144)) + 2.5 * (id % 144) - 210)) AS float) AS t2m",
    )


def publish(spark: SparkSession, path: str, rows: DataFrame, branch: str) -> None:
    """Write `rows` to a branch, and move `main` there if they pass."""
    icechunk_spark.write(
        rows, path, mode="append", branch=branch, createBranch=True, message=f"Candidate {branch}"
    )
    candidate = spark.read.format("icechunk").option("branch", branch).load(path)
    bad = candidate.where(~F.col("t2m").between(180, 340)).count()
    print(f"{branch}: {candidate.count():,} cells, {bad:,} outside of 180 to 340 K", end=" -> ")
    if bad:
        print("not published")
        return
    Repository.open(path).fast_forward("main", branch)
    print("published")


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    path = str(OUTPUT)
    spark = start()
    icechunk_spark.write(
        one_day(spark, "2024-07-01"),
        path,
        dims=["time", "latitude", "longitude"],
        chunks={"time": 24},
        message="1 July",
    )

    publish(spark, path, one_day(spark, "2024-07-02"), "july-2")
    broken = one_day(spark, "2024-07-03").withColumn(
        "t2m", F.when(F.col("latitude") == 0, F.lit(9999.0)).otherwise(F.col("t2m")).cast("float")
    )
    publish(spark, path, broken, "july-3")

    print("\nBranches:")
    for name, snapshot in Repository.open(path).branches().items():
        print(f"  {name:8} {snapshot}")
    latest = spark.read.format("icechunk").load(path).agg(F.max("time"), F.max("t2m")).first()
    print(f"main ends at {latest[0]}, and its warmest cell has {latest[1]:.1f} K")
    spark.stop()


if __name__ == "__main__":
    main()
