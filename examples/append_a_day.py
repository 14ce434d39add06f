"""Creates a repository from a DataFrame and appends a day to it, as a nightly job does.

The job can be run again: `txnAppId` and `txnVersion` identify a write, and a write that is already
committed is skipped. Run it with ``python examples/append_a_day.py [output folder]``.
"""

import os
import shutil
import sys
from pathlib import Path

# Spark starts Python workers by name: they must be this very interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession

import icechunk_spark
from icechunk_format import Repository

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "append-a-day"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("append-a-day").getOrCreate()
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


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    path = str(OUTPUT)
    spark = start()

    first = one_day(spark, "2024-07-01")
    first.write.format("icechunk").options(
        dims="time,latitude,longitude",
        chunks="time=24,latitude=73,longitude=72",
        encoding='{"t2m": {"attributes": {"units": "K", "long_name": "2 metre temperature"}}}',
        message="1 July",
    ).save(path)

    # Later writes take dimensions, chunks and encoding from the repository.
    for version, day in enumerate(["2024-07-02", "2024-07-03", "2024-07-03"]):
        done = icechunk_spark.write(
            one_day(spark, day),
            path,
            mode="append",
            message=f"{day}",
            txnAppId="nightly",
            txnVersion=min(version, 1),
        )
        print(f"{day}: {done.reason if done.is_skipped else f'{done.rows:,} cells'}")

    print("\nHistory, newest first:")
    for info in Repository.open(path).ancestry(branch="main"):
        print(f"  {info.id}  {info.message}")

    days = spark.read.format("icechunk").option("layout", "summary").load(path)
    days.groupBy("time_first").agg(
        {"t2m_count": "sum", "t2m_min": "min", "t2m_max": "max"}
    ).orderBy("time_first").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
