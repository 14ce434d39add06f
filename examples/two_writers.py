"""Runs two jobs concurrently: both commit if they write different cells, otherwise one fails.

Jobs do not lock the branch. If the branch has moved when the second job commits, the changes of
both are compared: the job is rebased on the first, or fails and names the cells in conflict. The
picture shows which writer wrote each cell.
Run it with ``python examples/two_writers.py [output folder]``.
"""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import drawing
from matplotlib.colors import ListedColormap
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from weather import one_day

import icechunk_spark
from icechunk_format import Repository
from icechunk_format.errors import ConflictError

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "two-writers"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("two-writers").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def race(path: str, *frames: DataFrame) -> None:
    """Write all frames at the same time, and print the result of each."""

    def attempt(number: int, frame: DataFrame) -> str:
        try:
            done = icechunk_spark.write(frame, path, mode="append", message=f"Writer {number}")
        except ConflictError as error:
            return f"writer {number}: refused. {error}"
        tries = done.commit.rebased if done.commit is not None else 0
        how = "rebased on the other commit" if tries else "committed first"
        return f"writer {number}: {done.rows:,} cells, {how}"

    with ThreadPoolExecutor(len(frames)) as pool:
        for line in pool.map(attempt, range(1, len(frames) + 1), frames):
            print(" ", line)


def draw(added: DataFrame, file: Path) -> None:
    """Draw a map of the writers, each of which has added a different number of degrees."""
    grid = added.toPandas().pivot(index="latitude", columns="longitude", values="added")
    figure = drawing.figure(
        "Concurrent writers: the writer of each cell",
        "Writes to different cells both commit; of two writes to the same cells, one is refused",
        height=5.4,
        source="Grid: Met Office climate model",
    )
    colors = {"writer 1": "#7fb3d5", "writer 2": "#e0a458"}
    colors["the first of two conflicting writers"] = drawing.GREEN
    chosen = ListedColormap([*colors.values(), drawing.GREEN])
    axes = figure.add_axes((0.02, 0.12, 0.96, 0.75))
    drawing.north_america(axes, grid, cmap=chosen, vmin=0.5, vmax=4.5)
    drawing.legend(figure, 0.08, colors)
    drawing.save(figure, file)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    path = str(OUTPUT)
    spark = start()
    day = one_day(spark, "2024-07-01")
    icechunk_spark.write(
        day,
        path,
        dims=["time", "latitude", "longitude"],
        chunks={"time": 24, "latitude": 19, "longitude": 49},
        message="1 July",
    )

    def warmer(degrees: int) -> DataFrame:
        return day.withColumn("t2m", (F.col("t2m") + degrees).cast("float"))

    print("One job writes the northern cells, the other the southern cells:")
    race(path, warmer(1).where("latitude > 37"), warmer(2).where("latitude <= 37"))

    print("Both jobs write the same cells:")
    race(path, warmer(3).where("latitude > 50"), warmer(4).where("latitude > 55"))

    print("History, newest first:")
    for info in Repository.open(path).ancestry(branch="main"):
        print(f"  {info.id}  {info.message}")

    now = spark.read.format("icechunk").load(path).withColumnRenamed("t2m", "now")
    added = now.join(day, ["time", "latitude", "longitude"]).where("hour(time) = 0")
    draw(added.withColumn("added", F.round(F.col("now") - F.col("t2m"))), OUTPUT / "writers.png")
    spark.stop()


if __name__ == "__main__":
    main()
