"""Statements of other formats have the answers that the manual lists, and leave nothing behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructField, StructType

import icechunk_spark
from icechunk_format.errors import IcechunkError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from helpers.spark.repositories import Weather
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs_reference, pytest.mark.each_spark]

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "sql.md"


def listed() -> list[tuple[str, str]]:
    """Return the statements of the manual with the errors that it lists."""
    rows = PAGE.read_text().split("<!-- statements -->")[1].split("<!-- /statements -->")[0]
    return re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", rows, re.MULTILINE)


def test_statements_of_other_formats_have_the_answers_of_the_manual(
    spark: SparkSession, weather: Weather
):
    icechunk_spark.view(spark, "weather", weather.path)
    spark.table("weather").limit(1).createOrReplaceTempView("changes")
    before = spark.table("weather").count()
    wrong = {}
    for statement, listed_error in listed():
        with pytest.raises((IcechunkError, PySparkException, Py4JError)) as caught:
            spark.sql(statement).collect()
        found = f"{type(caught.value).__name__} {caught.value}"
        if listed_error not in found:
            wrong[statement] = found[:200]
    assert wrong == {}
    assert len(listed()) > 15
    assert spark.table("weather").count() == before


def test_statements_on_other_views_are_those_of_spark(spark: SparkSession, weather: Weather):
    """The rule refuses changes of its own reads, not of plans that only read them elsewhere."""
    icechunk_spark.view(spark, "weather", weather.path)
    spark.range(3).createOrReplaceTempView("plain")
    for statement in (
        "UPDATE plain SET id = 1",
        "MERGE INTO plain USING weather ON plain.id = weather.t2m WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(PySparkException) as caught:
            spark.sql(statement)
        assert "icechunk" not in str(caught.value).splitlines()[0]
    assert spark.sql("SELECT 'create table t using icechunk' AS text").first().text


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE made (t2m FLOAT) USING icechunk",
        "CREATE TABLE IF NOT EXISTS made (t2m FLOAT) USING `Icechunk` OPTIONS (path '{path}')",
        "CREATE EXTERNAL TABLE made (t2m FLOAT) USING icechunk LOCATION '{path}'",
        "CREATE OR REPLACE TABLE made (t2m FLOAT) USING icechunk LOCATION '{path}'",
        "CREATE TABLE made USING icechunk LOCATION '{path}'",
        "CREATE TABLE made LIKE parquet_table USING icechunk",
    ],
)
def test_catalog_tables_are_refused(spark: SparkSession, weather: Weather, statement: str):
    spark.sql("CREATE TABLE IF NOT EXISTS parquet_table (t2m FLOAT) USING parquet")
    try:
        with pytest.raises(UnsupportedError, match="use CREATE TEMPORARY VIEW"):
            spark.sql(statement.format(path=weather.path))
        assert not spark.catalog.tableExists("made")
    finally:
        spark.sql("DROP TABLE IF EXISTS made")
        spark.sql("DROP TABLE parquet_table")


@pytest.mark.parametrize(
    "option", ["storage.secret", "storage.accessKeyId", "virtual.storage.token"]
)
def test_credentials_as_options_of_a_view_are_refused(
    spark: SparkSession, weather: Weather, option: str
):
    sql = (
        f"CREATE TEMPORARY VIEW made USING icechunk OPTIONS (path '{weather.path}', {option} 'x9')"
    )
    with pytest.raises(InvalidInputError, match="credentials 'weather'") as caught:
        spark.sql(sql)
    assert "x9" not in str(caught.value)
    assert not spark.catalog.tableExists("made")
    spark.sql(
        f"CREATE TEMPORARY VIEW made USING icechunk OPTIONS (path '{weather.path}',"
        " storage.follow_symlinks 'true')"
    )
    assert spark.table("made").count() > 0
    spark.catalog.dropTempView("made")


def test_a_table_of_the_catalog_api_is_refused(spark: SparkSession, weather: Weather):
    icechunk_spark.read(spark, weather.path)  # installs the rule
    schema = StructType([StructField("x", LongType())])
    with pytest.raises(PySparkException, match="use CREATE TEMPORARY VIEW"):
        spark.catalog.createTable("made", source="icechunk", schema=schema)
    assert not spark.catalog.tableExists("made")


def test_a_session_that_is_not_registered_keeps_the_method_of_spark(spark: SparkSession):
    other = spark.newSession()
    assert other.sql.__func__ is not None
    assert not hasattr(other.sql, "__wrapped__")
    assert hasattr(spark.sql, "__wrapped__")
