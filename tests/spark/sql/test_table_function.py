"""The table function ``icechunk`` reads what the same options of ``load`` read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.spark.repositories import SHAPE
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from helpers.spark.repositories import Weather
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs_reference, pytest.mark.each_spark]


def call(path: str, more: str = "") -> str:
    return f"icechunk('{path}'{more})"


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("", {}),
        (", tag => 'v1', `where` => 't2m > 300'", {"tag": "v1", "where": "t2m > 300"}),
        (", group => 'ocean'", {"group": "ocean"}),
        (
            ", isel => 'time=0', variables => 't2m,elevation'",
            {"isel": "time=0", "variables": "t2m,elevation"},
        ),
        (", layout => 'summary'", {"layout": "summary"}),
        (", timestamp_type => 'utc', rows_per_partition => 60", {"timestampType": "utc"}),
    ],
)
def test_rows_and_columns_are_those_of_a_read(
    spark: SparkSession, weather: Weather, arguments: str, options: dict[str, str]
):
    found = spark.sql(f"SELECT * FROM {call(weather.path, arguments)}")
    read = spark.read.format("icechunk").options(**options).load(weather.path)
    assert [(f.name, f.dataType) for f in found.schema] == [
        (f.name, f.dataType) for f in read.schema
    ]
    assert sorted(map(str, found.collect())) == sorted(map(str, read.collect()))


def test_a_table_argument_shares_the_tasks(spark: SparkSession, weather: Weather):
    parts = ", rows_per_partition => 60, parts => TABLE(SELECT id, 3 FROM range(0, 3, 1, 3))"
    found = spark.sql(f"SELECT *, spark_partition_id() AS p FROM {call(weather.path, parts)}")
    assert found.count() == np.prod(SHAPE)
    assert found.select("p").distinct().count() == 3


def test_joins_common_tables_and_views(spark: SparkSession, weather: Weather):
    one = call(weather.path, ", isel => 'time=0'")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW first_step AS SELECT * FROM {one}")
    found = spark.sql(
        "WITH warm AS (SELECT * FROM first_step WHERE t2m >= 1)"
        f" SELECT count(*) FROM warm JOIN {one} USING (latitude, longitude)"
    )
    assert found.first()[0] == SHAPE[1] * SHAPE[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (", tag => 'none'", "no tag 'none'"),
        (", tg => 'v1'", "did you mean 'tag'"),
        (", 'v1'", "must be a table, but is 'v1': give options by name"),
        (", parts => TABLE(SELECT id FROM range(3))", "parts => TABLE"),
        (", parts => TABLE(SELECT id, 2 FROM range(3))", "parts => TABLE"),
    ],
)
def test_wrong_arguments_are_named(
    spark: SparkSession, weather: Weather, arguments: str, words: str
):
    with pytest.raises(PySparkException, match=words) as caught:
        spark.sql(f"SELECT * FROM {call(weather.path, arguments)}").collect()
    assert "/icechunk_format/" not in str(caught.value), "frames of the package are shown"


@pytest.mark.parametrize(
    "name", ["storage.secret", "storage_key", "virtual.storage.token", "storage.aws_session_token"]
)
def test_credentials_are_refused_with_the_other_ways(spark: SparkSession, name: str):
    with pytest.raises(PySparkException, match="takes no credentials") as caught:
        spark.sql(f"SELECT * FROM icechunk('s3://bucket/r', `{name}` => 'x')")
    for way in ("credentials => 'weather'", "credentials={", "storage_from_spark", "environment"):
        assert way in str(caught.value)


def test_a_password_in_the_path_is_refused(spark: SparkSession):
    with pytest.raises(PySparkException, match="takes no credentials"):
        spark.sql("SELECT * FROM icechunk('https://me:hunter2@127.0.0.1:1/r')")
