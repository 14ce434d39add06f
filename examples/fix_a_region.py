"""Corrects the cells of one region, in which a sensor over the North Sea was wrong.

A write stores only the chunks that hold its cells, and patches chunks that it covers in part. The
snapshot before the fix stays readable. Run it with ``python examples/fix_a_region.py [output
folder]``.
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

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "fix-a-region"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("fix-a-region").getOrCreate()
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
    icechunk_spark.write(
        one_day(spark, "2024-07-01"),
        path,
        dims=["time", "latitude", "longitude"],
        chunks={"time": 24, "latitude": 10, "longitude": 36},
        message="As measured",
    )
    measured = str(Repository.open(path).resolve(branch="main"))

    # Only these rows are read, changed and written; columns carry their encoding as metadata.
    region = (
        spark.read.format("icechunk").option("sel", "latitude=50:60; longitude=0:10").load(path)
    )
    fixed = region.withColumn("t2m", (F.col("t2m") - 1.5).cast("float"))
    done = icechunk_spark.write(fixed, path, mode="append", message="North Sea: 1.5 K less")
    print(f"rewrote {done.rows:,} cells in {done.chunks} of the 32 chunks")

    def mean(**options: str) -> DataFrame:
        frame = spark.read.format("icechunk").options(**options).load(path)
        inside = F.col("latitude").between(50, 60) & (F.col("longitude") <= 10)
        place = F.when(inside, "North Sea").otherwise("elsewhere")
        return frame.groupBy(place.alias("where")).agg(F.round(F.avg("t2m"), 3).alias("kelvin"))

    before, after = mean(snapshot=measured), mean()
    before.join(after.withColumnRenamed("kelvin", "kelvin fixed"), "where").show()
    spark.stop()


if __name__ == "__main__":
    main()
