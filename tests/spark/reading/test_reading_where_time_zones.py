"""In every session time zone, ``where`` keeps the rows that ``df.where`` keeps.

Rows are instants (TIMESTAMP) and clock readings (TIMESTAMP_NTZ) around changes of a zone's offset,
from the days of local mean time to those after 2037. Each function of a time is evaluated by this
package and by Spark.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from helpers.raised import raises
from helpers.spark.session import by_source, source_session
from helpers.where.expressions import check_answers
from helpers.where.time_zones import CHANGES, KEPT, Change, columns, conditions, digest, kept_rows

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.where.split import plan_where
from icechunk_spark.reading.reader import in_time_zone_of_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.spark.repositories import Weather
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    # Compiling hundreds of expressions to Java takes minutes, and evaluating few rows no time.
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    zone = spark.conf.get("spark.sql.session.timeZone")
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)
    spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.zone} {change.at[:10]}")
def test_every_condition_on_times_keeps_the_rows_that_spark_keeps(
    session: SparkSession, change: Change
) -> None:
    values, every = columns(change), conditions(change)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    table = session.createDataFrame(pa.table(values)).coalesce(1)
    table = table.withColumn("clock", table.clock.cast("timestamp_ntz"))
    session.conf.set("spark.sql.session.timeZone", change.zone)
    found = table.selectExpr(
        *(f"coalesce(({sql}), false) AS c{number}" for number, sql in enumerate(every))
    ).toArrow()
    wrong, answers = {}, {}
    for number, sql in enumerate(every):
        kept = kept_rows(change, sql)
        theirs = found.column(f"c{number}").to_pylist()
        answers[sql] = digest(theirs)
        if kept != theirs:
            wrong[sql] = [
                (str(values["instant"][row]), str(values["clock"][row]), kept[row])
                for row in range(len(kept)) if kept[row] != theirs[row]
            ]  # fmt: skip
    assert not wrong
    if change in KEPT:
        check_answers(change.zone, answers)


def load(spark: SparkSession, route: str, path: str, where: str) -> DataFrame:
    if route == "function":
        return icechunk_spark.read(spark, path, timestamp_type="utc", where=where)
    if route == "source":
        return by_source(spark).options(timestampType="utc", where=where).load(path)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW zoned USING icechunk "
        f'OPTIONS (path "{path}", timestampType "utc", where "{where}")'
    )
    return spark.table("zoned")


@pytest.mark.needs_reference
@pytest.mark.parametrize("route", ["function", "source", "view"])
@pytest.mark.parametrize(
    "where",
    [
        "hour(time) IN (2, 5, 23)",
        "time >= timestamp '2024-07-01 05:00:00' AND time < '2024-07-02'",
        "date(time) = '2024-06-30' OR latitude > 55",
    ],
)
def test_every_way_to_read_takes_the_zone_of_the_session(
    session: SparkSession, weather: Weather, route: str, where: str
) -> None:
    every = icechunk_spark.read(session, weather.path, timestamp_type="utc")
    counts = set()
    for zone in ("America/New_York", "Asia/Kolkata"):
        for each in (session, source_session(session)):
            each.conf.set("spark.sql.session.timeZone", zone)
        expected = every.where(where).select("time", "t2m").collect()
        found = load(session, route, weather.path, where).select("time", "t2m").collect()
        assert sorted(map(str, found)) == sorted(map(str, expected))
        counts.add(len(expected))
    assert len(counts) == 2


@pytest.mark.needs_reference
def test_a_view_reads_in_the_zone_of_the_query(session: SparkSession, weather: Weather) -> None:
    session.conf.set("spark.sql.session.timeZone", "UTC")
    view = load(session, "view", weather.path, "date(time) = '2024-06-30'")
    assert view.count() == 0
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    assert session.table("zoned").count() == 60


def test_a_task_that_is_not_told_the_zone_refuses() -> None:
    """Spark then takes the zone of the driver's machine."""
    types = {"t": pa.timestamp("us", "UTC")}
    residual = plan_where("hour(t) = 2", types, (), None).residual
    with raises(InvalidInputError, sql="hour(t) = 2"):
        in_time_zone_of_task(SimpleNamespace(residual=residual))
