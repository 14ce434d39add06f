"""Creates a repository from a DataFrame and appends a day to it, as a nightly job does.

The job can be run again: `txnAppId` and `txnVersion` identify a write, and a committed write is
skipped. The picture shows the hours that each commit added.
Run it with ``python examples/append_a_day.py [output folder]``.
"""

import os
import shutil
import sys
from pathlib import Path

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import drawing
import pandas as pd
from pyspark.sql import SparkSession
from weather import one_day

import icechunk_spark
from icechunk_format import Repository

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "append-a-day"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("append-a-day").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def draw(hours: pd.DataFrame, file: Path) -> None:
    """Draw the mean of each hour, in a colour for each commit."""
    figure = drawing.figure(
        "One commit for each day",
        "Mean temperature of North America in each hour, °C",
        height=4.2,
        source="Fields: Met Office climate model, with noise added",
    )
    axes = drawing.plain(figure.add_axes((0.08, 0.16, 0.89, 0.66)), labelsize=11)
    colors = (drawing.BLUE, drawing.ORANGE, drawing.GREEN)
    days = hours.assign(celsius=hours["avg(t2m)"] - 273.15).groupby(hours["time"].dt.normalize())
    for (day, found), color in zip(days, colors, strict=True):
        axes.plot(found["time"], found["celsius"], color=color, linewidth=3)
        place = (day + pd.Timedelta(hours=12), found["celsius"].max() + 0.25)
        axes.annotate(f"commit “{day:%d %B}”".replace("“0", "“"), place, ha="center", color=color)
    axes.set_xticks([day for day, _ in days], [f"{day.day} July, 0:00" for day, _ in days])
    axes.margins(y=0.15)
    axes.grid(axis="y", color="0.92")
    drawing.save(figure, file)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    path = str(OUTPUT)
    spark = start()

    first = one_day(spark, "2024-07-01")
    first.write.format("icechunk").options(
        dims="time,latitude,longitude",
        chunks="time=24,latitude=37,longitude=25",
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
    hours = spark.read.format("icechunk").load(path).groupBy("time").agg({"t2m": "avg"})
    draw(hours.orderBy("time").toPandas(), OUTPUT / "days.png")
    spark.stop()


if __name__ == "__main__":
    main()
