"""Builds the repository that most tests of this folder read, and loads it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers.spark.session import by_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.spark.repositories import Weather
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Weather:
    from helpers.spark.repositories import build_weather

    return build_weather(tmp_path_factory.mktemp("repositories") / "weather")


@pytest.fixture
def load(request: pytest.FixtureRequest, spark: SparkSession) -> Callable[..., DataFrame]:
    """Load a path, with a schema or options: by `icechunk_spark.read` or by the data source.

    A test that takes both has the mark ``by_both`` of its module. That both give the same rows and
    schema is asserted for each option in ``reading/test_reader.py``.
    """

    def load_by_source(path: str, *, schema: str | None = None, **options: object) -> DataFrame:
        reader = by_source(spark).options(**options)
        return (reader if schema is None else reader.schema(schema)).load(path)

    if getattr(request, "param", "function") == "function":
        import icechunk_spark

        return partial(icechunk_spark.read, spark)
    return load_by_source


@pytest.fixture
def read(load: Callable[..., DataFrame], weather: Weather) -> Callable[..., DataFrame]:
    """Load the weather repository."""
    return partial(load, weather.path)
