"""Corrects the cells of one region, the Gulf of Mexico, which are 8 K too warm.

A write stores only the chunks that contain its cells, and merges its cells into partially covered
chunks. The snapshot before the correction stays readable: the picture shows both snapshots.
Run it with ``python examples/fix_a_region.py [output folder]``.
"""

import os
import shutil
import sys
from pathlib import Path

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import drawing
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from weather import one_day

import icechunk_spark
from icechunk_format import Repository

INSIDE = "latitude BETWEEN 22 AND 30 AND longitude BETWEEN 262 AND 278"
OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "fix-a-region"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("fix-a-region").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    path = str(OUTPUT)
    spark = start()
    measured = one_day(spark, "2024-07-01").withColumn(
        "t2m", (F.col("t2m") + F.when(F.expr(INSIDE), 8).otherwise(0)).cast("float")
    )
    icechunk_spark.write(
        measured,
        path,
        dims=["time", "latitude", "longitude"],
        chunks={"time": 24, "latitude": 10, "longitude": 13},
        message="As measured",
    )
    before = str(Repository.open(path).resolve(branch="main"))

    # Only these rows are read, changed and written; columns carry their encoding as metadata.
    region = (
        spark.read.format("icechunk").option("sel", "latitude=22:30; longitude=262:278").load(path)
    )
    fixed = region.withColumn("t2m", (F.col("t2m") - 8).cast("float"))
    done = icechunk_spark.write(fixed, path, mode="append", message="Gulf of Mexico: 8 K less")
    print(f"rewrote {done.rows:,} cells in {done.chunks} of the 16 chunks")

    def mean(**options: str) -> DataFrame:
        frame = spark.read.format("icechunk").options(**options).load(path)
        place = F.when(F.expr(INSIDE), "Gulf of Mexico").otherwise("elsewhere")
        return frame.groupBy(place.alias("where")).agg(F.round(F.avg("t2m"), 3).alias("kelvin"))

    fixed = mean().withColumnRenamed("kelvin", "kelvin fixed")
    mean(snapshot=before).join(fixed, "where").show()

    def noon(**options: str) -> pd.DataFrame:
        hour = spark.read.format("icechunk").options(sel="time=2024-07-01T18:00", **options)
        rows = hour.load(path).toPandas()
        return rows.pivot(index="latitude", columns="longitude", values="t2m") - 273.15

    figure = drawing.figure(
        "A region is fixed, and both states stay readable",
        "Temperature on 1 July at 18:00 UTC, °C",
        height=4.2,
        source="Fields: Met Office climate model, with noise added",
    )
    panels = {"snapshot before the fix": noon(snapshot=before), "branch main": noon()}
    labels = {-20: "−20 °C", 0: "0", 20: "20", 40: "40 °C"}
    drawing.compare(figure, panels, labels, cmap="RdYlBu_r", vmin=-20, vmax=40)
    drawing.save(figure, OUTPUT / "fixed.png")
    spark.stop()


if __name__ == "__main__":
    main()
