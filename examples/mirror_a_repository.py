"""Copies a repository to Parquet: copy, SQL query, refresh after a commit, time travel.

The copy is a Delta table. DuckDB reads it as well, if it is installed. The picture shows the table
at its two snapshots. Run it with ``python examples/mirror_a_repository.py [output folder]``.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

# By default, Spark runs Python workers with the python3 on the PATH; use this interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import drawing
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from weather import one_day

import icechunk_spark

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "mirror"
MEANS = "SELECT date_trunc('day', time) AS day, round(avg(t2m), 2) AS mean, count(*) AS cells"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("mirror").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def draw(states: dict[str, DataFrame], file: Path) -> None:
    """Draw the mean of each hour in the table at each snapshot."""
    figure = drawing.figure(
        "The copy in Parquet, at two snapshots",
        "Mean temperature of North America in each hour, °C",
        height=4.2,
        source="Fields: Met Office climate model, with noise added",
    )
    axes = drawing.plain(figure.add_axes((0.08, 0.16, 0.68, 0.66)), labelsize=11)
    looks = (("#9cc3dc", 9), (drawing.BLUE, 2.5))
    for place, ((name, frame), (color, width)) in enumerate(
        zip(states.items(), looks, strict=True)
    ):
        hours = frame.groupBy("time").avg("t2m").orderBy("time").toPandas()
        axes.plot(hours["time"], hours["avg(t2m)"] - 273.15, color=color, linewidth=width)
        text = f"{name}:\n{len(hours)} hours"
        axes.text(1.03, 0.8 - 0.3 * place, text, color=color,
                  transform=axes.transAxes)  # fmt: skip
    axes.set_xticks(
        hours["time"][::12], [f"{at.day} July, {at:%H:%M}" for at in hours["time"][::12]]
    )
    axes.grid(axis="y", color="0.92")
    drawing.save(figure, file)


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    repository, copy = str(OUTPUT / "repository"), str(OUTPUT / "copy")
    spark = start()
    icechunk_spark.write(
        one_day(spark, "2024-07-01"),
        repository,
        dims="time,latitude,longitude",
        chunks="time=24,latitude=37,longitude=25",
        message="1 July",
    )

    first = icechunk_spark.mirror(spark, repository, copy)
    print(f"copied {first.rows:,} cells of snapshot {first.snapshot_id}")

    icechunk_spark.write(one_day(spark, "2024-07-02"), repository, mode="append", message="2 July")
    print(f"the copy is {icechunk_spark.freshness(copy).snapshots_behind} snapshot behind")
    second = icechunk_spark.mirror(spark, repository, copy)
    print(f"copied {second.rows:,} more cells, {second.files_removed} files rewritten")
    print(f"third run: {icechunk_spark.mirror(spark, repository, copy).rows} cells")

    icechunk_spark.mirrored(spark, copy).createOrReplaceTempView("weather")
    spark.sql(f"{MEANS} FROM weather GROUP BY day ORDER BY day").show()
    older = icechunk_spark.mirrored(spark, copy, snapshot=first.snapshot_id)
    print(f"the first snapshot has {older.count():,} cells")

    if importlib.util.find_spec("duckdb"):
        import duckdb

        files = DeltaTable(copy).file_uris()
        found = duckdb.execute(f"{MEANS} FROM read_parquet(?) GROUP BY day ORDER BY day", [files])
        print("DuckDB:", found.fetchall())
    newest = icechunk_spark.mirrored(spark, copy)
    draw({"first snapshot": older, "second snapshot": newest}, OUTPUT / "snapshots.png")
    spark.stop()


if __name__ == "__main__":
    main()
