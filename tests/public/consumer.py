"""A user's program, which mypy and pyright check in `test_types.py`; nobody runs it.

A line with ``type: ignore`` is a mistake that they must find: an ignore that is not needed fails.
"""

from datetime import UTC, datetime
from typing import assert_type

from pyspark.sql import DataFrame, SparkSession

import icechunk_format
import icechunk_spark
from icechunk_format import Repository
from icechunk_spark import maintenance

ON = {"time": "at", "latitude": "lat", "longitude": "lon"}


def read(spark: SparkSession) -> DataFrame:
    """Read a part of a version."""
    table = icechunk_spark.read(
        spark,
        "weather",
        where="t2m > 290",
        sel={"latitude": slice(35, 70)},
        as_of=datetime.now(UTC),
    )
    assert_type(table, DataFrame)
    icechunk_spark.read(spark, "weather", layout="cell")  # type: ignore[arg-type]
    return table


def workflows(spark: SparkSession, trips: DataFrame, zones: DataFrame) -> None:
    """Call the functions that users start with, and use what they answer."""
    assert_type(icechunk_spark.sample(trips, "weather", on=ON), DataFrame)
    assert_type(icechunk_spark.zonal(zones, "weather", statistics=["mean"]), DataFrame)
    written = icechunk_spark.write(read(spark), "weather", mode="append", chunks={"time": 24})
    assert_type(written.rows, int)
    found = icechunk_spark.virtualize(spark, ["a.nc"], "days", concat_dim="time")
    assert_type(found.files_added, int)
    icechunk_spark.virtualize(spark, ["a.nc"], 7)  # type: ignore[arg-type]
    assert_type(icechunk_spark.mirror(spark, "weather", "lake").version, int)
    assert_type(maintenance.verify(spark, "weather"), DataFrame)


def versions() -> str:
    """Look at a repository without Spark."""
    repository = Repository.open("weather")
    assert_type(repository, Repository)
    for info in repository.ancestry(branch="main"):
        assert_type(info.message, str)
    try:
        repository.create_tag("today", repository.resolve(branch="main"))
        repository.create_tag("today", 5)  # type: ignore[arg-type]
    except icechunk_format.AlreadyExistsError as error:
        return str(error)
    return icechunk_spark.__version__
