"""Writes new data to a branch, checks it there, and publishes it to `main`.

Readers of `main` never see rows that failed the check. The picture shows both branches.
Run it with ``python examples/write_audit_publish.py [output folder]``.
"""

import os
import shutil
import sys
from pathlib import Path

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import drawing
import matplotlib as mpl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from weather import one_day

import icechunk_spark
from icechunk_format import Repository

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "write-audit-publish"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("write-audit-publish").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def publish(spark: SparkSession, path: str, rows: DataFrame, branch: str) -> None:
    """Write `rows` to a branch, and move `main` to it if they pass the check."""
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


def draw(spark: SparkSession, path: str, file: Path) -> None:
    """Draw the last noon of `main` and the noon of the unpublished branch."""
    panels = {}
    for heading, branch, day in (
        ("main: 2 July", "main", 2),
        ("branch july-3: not published", "july-3", 3),
    ):
        hour = spark.read.format("icechunk").option("sel", f"time=2024-07-0{day}T18:00")
        rows = hour.option("branch", branch).load(path).toPandas()
        grid = rows.pivot(index="latitude", columns="longitude", values="t2m")
        panels[heading] = grid - 273.15
    figure = drawing.figure(
        "Data that fail the check stay on their branch",
        "Temperature at 18:00 UTC, °C; implausible values are black",
        height=4.2,
        source="Fields: Met Office climate model, with noise added",
    )
    colors = mpl.colormaps["RdYlBu_r"].with_extremes(over="black")
    labels = {-20: "−20 °C", 0: "0", 20: "20", 40: "40 °C"}
    drawing.compare(figure, panels, labels, cmap=colors, vmin=-20, vmax=40)
    drawing.save(figure, file)


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
        "t2m",
        F.when(F.col("latitude") == 37.5, F.lit(9999.0)).otherwise(F.col("t2m")).cast("float"),
    )
    publish(spark, path, broken, "july-3")

    print("\nBranches:")
    for name, snapshot in Repository.open(path).branches().items():
        print(f"  {name:8} {snapshot}")
    latest = spark.read.format("icechunk").load(path).agg(F.max("time"), F.max("t2m")).first()
    print(f"main ends at {latest[0]}, and its warmest cell has {latest[1]:.1f} K")
    draw(spark, path, OUTPUT / "branches.png")
    spark.stop()


if __name__ == "__main__":
    main()
