"""Stores files as a stream of commits; a second stream updates hourly means and a Delta table.

Each file that arrives in a folder holds ten minutes of readings of twenty stations. The first
stream writes one commit for each file. The second one follows these commits: it reads the changed
hours again, writes their means to another repository, and refreshes a Delta table of the readings.
The picture shows three lags: the time from the arrival of a file to the commit of its readings, to
the commit of the means that include them, and to the refresh of the table.

Run it with ``python examples/stream_of_files.py [output folder] [number of files]``.
"""

import os
import shutil
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import drawing
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import icechunk_spark
from icechunk_format import Repository

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "stream-of-files"
FILES = int(sys.argv[2]) if len(sys.argv) > 2 else 6
PAUSE = 3.0  # seconds between two files
LANDING, READINGS, MEANS, TABLE = (
    str(OUTPUT / name) for name in ("landing", "readings", "means", "table")
)
FIRST, STATIONS, MINUTES = datetime(2024, 7, 1), 20, 10
SCHEMA = "time timestamp_ntz, station bigint, t double"


def start() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("stream-of-files")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(spark)
    return spark


def arrive(number: int) -> float:
    """Put a file into the folder atomically, and return the time."""
    times = [FIRST + timedelta(minutes=number * MINUTES + m) for m in range(MINUTES)]
    values = 15 + number / 10 + np.random.default_rng(number).normal(0, 1, MINUTES * STATIONS)
    rows = pa.table(
        {
            "time": pa.array(np.repeat(np.array(times, "M8[us]"), STATIONS)),
            "station": np.tile(np.arange(STATIONS), MINUTES),
            "t": values,
        }
    )
    made = OUTPUT / f"{number:05}.parquet"
    pq.write_table(rows, made)
    made.rename(Path(LANDING) / made.name)
    return time.time()


def readings_from_files(spark: SparkSession):
    """Start the stream from files to commits."""
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(LANDING)
    return (
        files.writeStream.format("icechunk")
        .option("checkpointLocation", str(OUTPUT / "checkpoint-readings"))
        .options(dims="time,station", chunks="time=60,station=20")
        .start(READINGS)
    )


def copies_of_readings(spark: SparkSession, refreshed: list):
    """Start the stream from commits to hourly means and to a table.

    Append the snapshot and the time of each refresh of the table to `refreshed`.
    """

    def keep(changed: DataFrame, batch: int) -> None:
        bounds = changed.selectExpr("min(time) AS first", "max(time) AS last").first()
        if bounds.first is None:
            return
        first = bounds.first.replace(minute=0, second=0)
        rows = icechunk_spark.read(spark, READINGS, where=f"time >= timestamp_ntz '{first}'")
        means = rows.selectExpr(
            "CAST(date_trunc('hour', time) AS timestamp_ntz) AS hour", "station", "t"
        )
        icechunk_spark.write(
            means.groupBy("hour", "station")
            .agg({"t": "avg"})
            .withColumnRenamed("avg(t)", "t_mean"),
            MEANS,
            mode="append",
            dims=["hour", "station"],
            metadata={"knows_readings_up_to": str(bounds.last)},
            txn_app_id="hourly means",
            txn_version=batch,
        )
        copied = icechunk_spark.mirror(spark, READINGS, TABLE)
        refreshed.append((str(copied.snapshot_id), time.time()))

    changes = spark.readStream.format("icechunk").load(READINGS)
    return (
        changes.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(OUTPUT / "checkpoint-copies"))
        .start()
    )


def wait_until(done, query) -> None:
    """Wait until a condition is true; stop if the stream has failed."""
    while not done():
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.1)


def commits(path: str) -> list:
    """Return the commits of streams, oldest first."""
    found = Repository.open(path).ancestry() if Repository.exists(path) else []
    return [info for info in found if "txnVersion" in info.metadata][::-1]


def known_up_to(info) -> int:
    """Return the number of the newest file that a commit of means includes."""
    newest = datetime.fromisoformat(info.metadata["knows_readings_up_to"])
    return int((newest - FIRST) / timedelta(minutes=MINUTES))


def lags_of(known: list, arrived: list) -> list:
    """Return the lag of each file between its arrival and `known`, a list of (file, time)."""
    return [
        next(at for newest, at in known if newest >= number) - came
        for number, came in enumerate(arrived)
    ]


def draw(file: str, lags: dict[str, list[float]]) -> None:
    """Draw the lags of each file except the first, whose lags include the start of Spark."""
    figure = drawing.figure(
        "From the arrival of a file to its results",
        "Seconds until its readings, hourly means and table; medians at right",
        height=4.2,
        source="Two cores, a file every 3 seconds",
    )
    axes = drawing.plain(figure.add_axes((0.07, 0.16, 0.61, 0.66)), labelsize=11)
    colors = (drawing.BLUE, drawing.ORANGE, drawing.GREEN)
    for place, ((name, seconds), color) in enumerate(zip(lags.items(), colors, strict=True)):
        axes.plot(range(1, len(seconds)), seconds[1:], color=color, linewidth=2)
        text = f"{name}:\n{np.median(seconds[1:]):.1f} s"
        place = (1.04, 0.84 - 0.3 * place)
        axes.text(*place, text, color=color, fontsize=12, transform=axes.transAxes, va="center")
    axes.set(ylim=(0, None), xlabel="file")
    axes.grid(axis="y", color="0.9")
    drawing.save(figure, file)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    Path(LANDING).mkdir(parents=True)
    spark = start()
    arrived = [arrive(0)]
    first = readings_from_files(spark)
    wait_until(lambda: commits(READINGS), first)
    refreshed: list = []
    second = copies_of_readings(spark, refreshed)
    wait_until(lambda: refreshed, second)
    for number in range(1, FILES):
        arrived.append(arrive(number))
        time.sleep(PAUSE)
    wait_until(lambda: len(commits(READINGS)) == FILES, first)
    newest = str(commits(READINGS)[-1].id)
    wait_until(lambda: refreshed[-1][0] == newest, second)
    # The table can be newer than the means: it includes commits made during their batch.
    wait_until(lambda: known_up_to(commits(MEANS)[-1]) == FILES - 1, second)
    first.stop()
    second.stop()

    stored = commits(READINGS)
    file_of = {str(info.id): number for number, info in enumerate(stored)}
    means = [(known_up_to(info), info.flushed_at / 1e6) for info in commits(MEANS)]
    tables = [(file_of[snapshot], at) for snapshot, at in refreshed]
    lags = {
        "readings committed": [
            info.flushed_at / 1e6 - came for info, came in zip(stored, arrived, strict=True)
        ],
        "means committed": lags_of(means, arrived),
        "table refreshed": lags_of(tables, arrived),
    }
    for name, seconds in lags.items():
        print(f"{name}: {FILES} files, median lag {np.median(seconds[1:]):.1f} s")
    rows = icechunk_spark.read(spark, READINGS).count()
    print(f"{rows:,} readings in {len(stored)} commits; means in {len(means)} commits:")
    icechunk_spark.read(spark, MEANS).where("station = 0").orderBy("hour").show()
    table = icechunk_spark.mirrored(spark, TABLE)
    print(f"the table has {table.count():,} readings after {len(tables)} refreshes")
    draw(str(OUTPUT / "lag.png"), lags)
    spark.stop()


if __name__ == "__main__":
    main()
