"""Mirrors a repository to Parquet: copy, SQL query, refresh after a commit, time travel.

The copy is a Delta table. DuckDB reads it as well, if it is installed. Run it with
``python examples/mirror_a_repository.py [output folder]``.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

# Spark starts Python workers by name: they must be this very interpreter.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import icechunk_spark

OUTPUT = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output") / "mirror"
MEANS = "SELECT date_trunc('day', time) AS day, round(avg(t2m), 2) AS mean, count(*) AS cells"


def start() -> SparkSession:
    spark = SparkSession.builder.master("local[2]").appName("mirror").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
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
    repository, copy = str(OUTPUT / "repository"), str(OUTPUT / "copy")
    spark = start()
    icechunk_spark.write(
        one_day(spark, "2024-07-01"),
        repository,
        dims="time,latitude,longitude",
        chunks="time=24,latitude=73,longitude=72",
        message="1 July",
    )

    first = icechunk_spark.mirror(spark, repository, copy)
    print(f"copied {first.rows:,} cells of snapshot {first.snapshot_id}")

    icechunk_spark.write(one_day(spark, "2024-07-02"), repository, mode="append", message="2 July")
    print(f"the copy is {icechunk_spark.freshness(copy).snapshots_behind} snapshot behind")
    second = icechunk_spark.mirror(spark, repository, copy)
    print(f"copied {second.rows:,} cells more, {second.files_removed} files rewritten")
    print(f"once more: {icechunk_spark.mirror(spark, repository, copy).rows} cells")

    icechunk_spark.mirrored(spark, copy).createOrReplaceTempView("weather")
    spark.sql(f"{MEANS} FROM weather GROUP BY day ORDER BY day").show()
    older = icechunk_spark.mirrored(spark, copy, snapshot=first.snapshot_id)
    print(f"the first snapshot has {older.count():,} cells")

    if importlib.util.find_spec("duckdb"):
        import duckdb

        files = DeltaTable(copy).file_uris()
        found = duckdb.execute(f"{MEANS} FROM read_parquet(?) GROUP BY day ORDER BY day", [files])
        print("DuckDB:", found.fetchall())
    spark.stop()


if __name__ == "__main__":
    main()
