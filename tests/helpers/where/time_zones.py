"""Conditions on times, and rows around changes of a zone's offset.

Rows are instants (TIMESTAMP) and clock readings (TIMESTAMP_NTZ), from the days of local mean time
to those after 2037.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa

from icechunk_format.tables.selection.where.split import plan_where
from icechunk_format.tables.selection.where.syntax import EXTRACT_PARTS, TIME_PARTS, TRUNCATIONS

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
KEPT = (CHANGES[1], CHANGES[6])
"""Changes whose answers are kept for the tests without Spark."""
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


def kept_rows(change: Change, sql: str) -> list[bool]:
    """Return whether our evaluation keeps each row."""
    values = columns(change)
    types, rows = {name: column.type for name, column in values.items()}, len(values["instant"])
    residual = plan_where(sql, types, (), change.zone).residual
    return [False] * rows if residual is None else residual.evaluate(values, rows).to_pylist()


def digest(kept: list[bool]) -> str:
    """Return a short text for rows that are kept."""
    return hashlib.sha256(bytes(kept)).hexdigest()[:8]
