"""The repository that most tests of this folder read, and a short way to load it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from spark_repositories import Weather


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
