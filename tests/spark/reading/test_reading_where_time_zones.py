"""In every session time zone, ``where`` keeps the rows that ``df.where`` keeps.

Rows are instants (TIMESTAMP) and clock readings (TIMESTAMP_NTZ) around changes of a zone's offset,
from the days of local mean time to those after 2037. Each function of a time is evaluated by this
package and by Spark.
"""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from helpers.raised import raises
from helpers.spark.session import by_source, source_session

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.where.split import plan_where
from icechunk_format.tables.selection.where.syntax import EXTRACT_PARTS, TIME_PARTS, TRUNCATIONS
from icechunk_spark.reading.reader import in_time_zone_of_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.spark.repositories import Weather
    from pyspark.sql import DataFrame, SparkSession

UTC = dt.UTC


class Change(NamedTuple):
    zone: str
    at: str
    """An instant at which the offset changes."""


# Gaps and overlaps: of an hour, of half an hour, of a day, at midnight, before 1900, after 2037.
CHANGES = [
    Change("America/New_York", "2024-03-10T07:00:00"),
    Change("America/New_York", "2024-11-03T06:00:00"),
    Change("America/New_York", "2090-03-12T07:00:00"),
    Change("America/New_York", "1883-11-18T17:00:00"),
    Change("America/Sao_Paulo", "2018-11-04T03:00:00"),
    Change("America/Sao_Paulo", "2018-02-18T02:00:00"),
    Change("Australia/Lord_Howe", "2024-10-05T15:30:00"),
    Change("Australia/Lord_Howe", "2024-04-06T15:00:00"),
    Change("Pacific/Apia", "2011-12-30T10:00:00"),
    Change("Asia/Kathmandu", "1985-12-31T18:30:00"),
    Change("+05:30", "2024-01-01T00:00:00"),
    Change("UTC", "1970-01-01T00:00:00"),
]
STEPS = [
    dt.timedelta(hours=hours, minutes=minutes, microseconds=micros)
    for hours in (-49, -25, -24, -12, -2, -1, 0, 1, 2, 12, 23, 24, 49)
    for minutes, micros in ((0, -1), (0, 0), (15, 0), (30, 250_000))
]

# {0} is a column of times; the others are readings of the zone's clock and their date.
COMPARED = """
{0} = '{before}'
{0} < '{inside}'
{0} >= timestamp '{inside}'
timestamp '{after}' >= {0}
{0} <> timestamp_ntz '{inside}'
{0} > date '{date}'
{0} BETWEEN '{date}' AND '{after}'
{0} IN ('{before}', '{inside}', '{after}')
{0} <= timestamp '{before}+02:00'
{0} < timestamp '{before} Europe/Berlin'
{0} <=> CAST('{inside}' AS TIMESTAMP)
instant > clock
date({0}) >= timestamp '{inside}'
{0} IN (timestamp '{inside}', timestamp '{after}')
{0} IN (timestamp '{inside}')
timestamp_ntz '{inside}' < CAST({0} AS TIMESTAMP)
clock - instant < INTERVAL '0 00:30:00' DAY TO SECOND
date({0}) = '{date}'
to_date({0}) > '{date}'
CAST({0} AS DATE) <= date '{date}'
CAST({0} AS TIMESTAMP) = '{inside}'
CAST({0} AS TIMESTAMP_NTZ) >= '{inside}'
coalesce({0}, timestamp '{date}') < '{inside}'
nullif({0}, timestamp '{before}') IS NULL
{0} + INTERVAL 1 DAY >= timestamp '{inside}'
{0} + INTERVAL 90 MINUTES > '{inside}'
{0} - INTERVAL '1 01:30:00' DAY TO SECOND <= '{before}'
{0} + lead > timestamp '{inside}'
{0} - timestamp '{inside}' < INTERVAL 1 HOUR
timestamp '{after}' - {0} >= INTERVAL 1 DAY
{0} - timestamp_ntz '{inside}' < INTERVAL 1 HOUR
date({0}) - INTERVAL 1 DAY < '{date}'
hour(date({0})) = 0
minute(timestamp '{inside}') = minute({0})
date_trunc('hour', {0}) = {0}
date_trunc('day', {0}) = date({0})
"""
CONDITIONS = [
    *COMPARED.strip().splitlines(),
    *(f"{part}({{0}}) = {part}(timestamp '{{inside}}')" for part in TIME_PARTS),
    *(f"extract({part} FROM {{0}}) > extract({part} FROM timestamp '{{inside}}')"
      for part in EXTRACT_PARTS if part != "DAYOFYEAR"),
    *(f"date_trunc('{unit}', {{0}}) {operator} timestamp '{{inside}}'"
      for unit in TRUNCATIONS for operator in ("=", "<")),
    *(f"date_trunc('{unit}', {{0}}) = date_trunc('{unit}', timestamp '{{before}}')"
      for unit in TRUNCATIONS),
]  # fmt: skip


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


def conditions(change: Change) -> list[str]:
    """Return every condition on both columns, with readings from around a change."""
    zone = ZoneInfo(change.zone) if not change.zone.startswith("+") else UTC
    before = dt.datetime.fromisoformat(change.at).replace(tzinfo=UTC) - dt.timedelta(seconds=1)
    reading = before.astimezone(zone).replace(tzinfo=None) + dt.timedelta(seconds=1)
    words = {
        "before": reading,
        "inside": reading + dt.timedelta(minutes=15),
        "after": reading + dt.timedelta(hours=26),
        "date": reading.date(),
    }
    return [text.format(column, **words) for column in ("instant", "clock") for text in CONDITIONS]


def columns(change: Change) -> dict[str, pa.Array]:
    at = dt.datetime.fromisoformat(change.at)
    instants = [
        *(at + step for step in STEPS),
        dt.datetime(1850, 7, 1, 12),
        dt.datetime(2090, 7, 1),
    ]
    offset = at.replace(tzinfo=UTC).astimezone(ZoneInfo("UTC")).utcoffset()
    assert offset is not None
    leads = [dt.timedelta(hours=7 * number - 50) for number in range(len(instants))]
    return {
        "instant": pa.array([*instants, None], pa.timestamp("us", "UTC")),
        "clock": pa.array([*local(change, instants), None], pa.timestamp("us")),
        "lead": pa.array([*leads, None], pa.duration("us")),
    }


def local(change: Change, instants: list[dt.datetime]) -> list[dt.datetime]:
    """Return readings at one offset throughout, so that some of them are skipped by the clock."""
    zone = ZoneInfo(change.zone) if not change.zone.startswith("+") else UTC
    earlier = dt.datetime.fromisoformat(change.at).replace(tzinfo=UTC) - dt.timedelta(days=1)
    offset = earlier.astimezone(zone).utcoffset()
    assert offset is not None
    return [instant + offset for instant in instants]


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
    types = {name: column.type for name, column in values.items()}
    rows = len(values["instant"])
    wrong = {}
    for number, sql in enumerate(every):
        residual = plan_where(sql, types, (), change.zone).residual
        kept = [False] * rows if residual is None else residual.evaluate(values, rows).to_pylist()
        theirs = found.column(f"c{number}").to_pylist()
        if kept != theirs:
            wrong[sql] = [
                (str(values["instant"][row]), str(values["clock"][row]), kept[row])
                for row in range(rows) if kept[row] != theirs[row]
            ]  # fmt: skip
    assert not wrong


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
