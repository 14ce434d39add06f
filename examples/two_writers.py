"""Runs two jobs concurrently: both commit if they write different cells, otherwise one fails.

Jobs take no locks. The second job to commit finds that the branch has moved and compares the
changes of both: it is rebased on the other, or fails and names the cells in conflict.
Run it with ``python examples/two_writers.py [output folder]``.
"""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Spark starts Python workers by name: they must be this very interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format import Repository
from icechunk_format.errors import ConflictError

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "two-writers"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("two-writers").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def one_day(spark: SparkSession, day: str) -> DataFrame:
    """Return 24 hours of a synthetic global temperature on a 2.5 degree grid, one row per cell."""
    return spark.range(24 * 73 * 144).selectExpr(
        f"timestamp_ntz '{day}' + make_dt_interval(0, cast(id div (73 * 144) as int)) AS time",
        "90 - 2.5D * (id div 144 % 73) AS latitude",
        "2.5D * (id % 144) AS longitude",
        "cast(288 + 25 * cos(2 * radians(90 - 2.5 * (id div 144 % 73)))"
        " + 6 * cos(radians(15 * (id div (73 * 144)) + 2.5 * (id % 144) - 210)) AS float) AS t2m",
    )


def race(path: str, *frames: DataFrame) -> None:
    """Write all frames at the same time, and print the result of each."""

    def attempt(number: int, frame: DataFrame) -> str:
        try:
            done = icechunk_spark.write(frame, path, mode="append", message=f"Writer {number}")
        except ConflictError as error:
            return f"writer {number}: refused. {error}"
        tries = done.commit.rebased if done.commit is not None else 0
        how = "went on top of the other's commit" if tries else "was first"
        return f"writer {number}: {done.rows:,} cells, {how}"

    with ThreadPoolExecutor(len(frames)) as pool:
        for line in pool.map(attempt, range(1, len(frames) + 1), frames):
            print(" ", line)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    path = str(OUTPUT)
    spark = start()
    day = one_day(spark, "2024-07-01")
    icechunk_spark.write(
        day,
        path,
        dims=["time", "latitude", "longitude"],
        chunks={"time": 24, "latitude": 37, "longitude": 144},
        message="1 July",
    )
    warmer = day.withColumn("t2m", (F.col("t2m") + 1).cast("float"))

    print("One writes the northern cells, the other the southern:")
    race(path, warmer.where("latitude > 0"), warmer.where("latitude <= -2.5"))

    print("Both write the same cells:")
    hotter = day.withColumn("t2m", (F.col("t2m") + 2).cast("float"))
    race(path, hotter.where("latitude > 50"), hotter.where("latitude > 60"))

    print("History, newest first:")
    for info in Repository.open(path).ancestry(branch="main"):
        print(f"  {info.id}  {info.message}")
    spark.stop()


if __name__ == "__main__":
    main()
