"""Adds one day to a repository, as a scheduler runs it: ``python add_a_day.py REPOSITORY DAY``.

A run that is repeated, also after its commit, changes nothing: the day is the version of the write.
Replace `rows_of` by what reads your source.
"""

import argparse
import os
import sys
from datetime import date

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import DataFrame, SparkSession

import icechunk_spark


def rows_of(spark: SparkSession, day: date) -> DataFrame:
    """Return a temperature for each hour and station of a day."""
    return spark.range(24 * 10).selectExpr(
        f"timestamp_ntz '{day}' + make_dt_interval(0, cast(id div 10 AS int)) AS time",
        "cast(id % 10 AS int) AS station",
        "cast(288 + 5 * sin(id) AS float) AS t2m",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository")
    parser.add_argument("day", type=date.fromisoformat)
    given = parser.parse_args()
    spark = SparkSession.builder.appName(f"add {given.day}").getOrCreate()
    icechunk_spark.register(spark)
    done = icechunk_spark.write(
        rows_of(spark, given.day),
        given.repository,
        mode="append",
        dims=["time", "station"],
        chunks={"time": 24},
        message=f"Add {given.day}",
        txn_app_id="nightly",
        txn_version=int(f"{given.day:%Y%m%d}"),
    )
    print(done.reason or f"{given.day}: {done.rows} rows in snapshot {done.snapshot_id}")
    spark.stop()


if __name__ == "__main__":
    main()
