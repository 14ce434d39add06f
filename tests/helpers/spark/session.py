"""The Spark session of the tests: one JVM for a whole run, whichever folders take part in it.

``tests/conftest.py`` offers it as the fixture ``spark``. The session's time zone is far from UTC
on purpose: a value that depends on it fails here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

SESSION_TIME_ZONE = "Asia/Kolkata"
# A test runs a query once on few rows: compiling it takes longer than interpreting it. Workers that
# Spark ends after a limit are forked again with their imports.
_QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.daemon.module": "icechunk_spark.daemon",
}


def quick_settings() -> dict[str, str]:
    """Return settings that save time; Spark 4.0 keeps its defaults, which are thus tested too."""
    from pyspark import __version__

    return {} if __version__.startswith("4.0.") else dict(_QUICK)


def environment_of_a_program(**more: str) -> dict[str, str]:
    """Return the variables for a program that starts a Spark of its own."""
    settings = [f"--conf {name}={value}" for name, value in quick_settings().items()]
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }
    # A classic session of this process would draw the program to its own gateway.
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE"):
        environment.pop(name, None)
    return environment


@functools.cache
def source_session(spark: SparkSession) -> SparkSession:
    """Return a session beside `spark` that nobody registered: it reads by Spark's data source."""
    return spark.newSession()


def by_source(spark: SparkSession) -> DataFrameReader:
    """Return a reader of icechunk that takes Spark's data source, as in Connect and in SQL."""
    return source_session(spark).read.format("icechunk")


def without_base(schema: StructType) -> StructType:
    """Return a schema of the data source as that of the function, which pins no base of writes."""
    for field in schema:
        field.metadata.get("icechunk", {}).pop("base", None)
    return schema


@contextlib.contextmanager
def running_spark(warehouse: Path) -> Iterator[SparkSession]:
    """Start a local session with the source registered, and stop it at the end.

    Parameters
    ----------
    warehouse
        An empty folder for Spark's own tables.
    """
    # Spark looks sources up in a Python worker: without these it takes python3 from the PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Not needed, nor wanted, by the many suites that run without Java.
    from pyspark.sql import SparkSession

    import icechunk_spark

    session = (
        SparkSession.builder.config(map=quick_settings())
        .master("local[2]")
        .appName("icechunk-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", SESSION_TIME_ZONE)
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(session)
    yield session
    session.stop()
