"""One Spark session for the whole folder, and the repositories that its tests read.

The session's time zone is far from UTC on purpose: a value that depends on it fails here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from spark_repositories import Weather

SESSION_TIME_ZONE = "Asia/Kolkata"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_reference: builds its repositories with the icechunk and zarr wheels"
    )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark looks sources up in a Python worker: without these it takes python3 from the PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    import icechunk_spark

    session = (
        SparkSession.builder.master("local[2]")
        .appName("icechunk-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", SESSION_TIME_ZONE)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Weather:
    from spark_repositories import build_weather

    return build_weather(tmp_path_factory.mktemp("repositories") / "weather")


@pytest.fixture
def read(spark: SparkSession, weather: Weather) -> Callable[..., DataFrame]:
    """Load the weather repository with options, which may be spelled as Python names them."""

    def load(**options: object) -> DataFrame:
        return spark.read.format("icechunk").options(**options).load(weather.path)

    return load


@pytest.fixture
def last_line() -> Callable[[Callable[[], object]], str]:
    """Run something that fails in Spark; return the line of the error that a user reads last."""
    from pyspark.errors import PySparkException

    def of(action: Callable[[], object]) -> str:
        with pytest.raises(PySparkException) as caught:
            action()
        lines = [line.strip() for line in str(caught.value).splitlines() if line.strip()]
        # Spark adds "SQLSTATE: 38000" and, for tasks, the JVM's own stack.
        ours = [line for line in lines if line.startswith("icechunk_format.errors.")]
        if ours:
            after = lines[lines.index(ours[-1]) :]
            text = [line for line in after if not line.startswith(("SQLSTATE", "at ", "JVM"))]
            return text[-1]
        return [line for line in lines if not line.startswith("SQLSTATE")][-1]

    return of
