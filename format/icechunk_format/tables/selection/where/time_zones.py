"""Converts wall times to timestamps and back, for whole columns, by the rules of a time zone.

Uses the rules of ``zoneinfo``, since Arrow's conversions have no offset changes after 2037.

Rules of this file
------------------
1. Times are ``int64`` microseconds since 1970: in UTC for a timestamp, in local time for a wall
   time.
2. As in Spark, a wall time in a gap (skipped when clocks are set forward) is moved forward by the
   length of the gap, and a wall time that occurs twice is the first of both timestamps.
3. An offset is assumed to change at most once within a day.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError

Micros = NDArray[np.int64]

_DAY: Final = 86_400_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1)
# The range of Python's calendar; beyond it, the rules of a zone are constant.
_FIRST: Final = (datetime(1, 1, 3) - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime(9999, 12, 29) - _EPOCH) // _MICROSECOND
_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?|Z|UTC|GMT|UT", re.ASCII
)


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """Return a zone from a region or an offset, in the format of ``spark.sql.session.timeZone``."""
    match = _OFFSET.fullmatch(name)
    try:
        if match is None:
            return ZoneInfo(name)
        sign, hours, minutes, seconds = match.groups()
        offset = timedelta(
            hours=int(hours or 0), minutes=int(minutes or 0), seconds=int(seconds or 0)
        )
        return timezone(-offset if sign == "-" else offset)
    except (ValueError, KeyError, OSError) as error:
        raise InvalidInputError(
            f"the time zone {name!r} is not known: name a region such as 'Europe/Berlin', or an "
            "offset such as '+02:00' (regions need the system's time zones or the package tzdata)",
            found=name,
        ) from error


def to_wall_times(timestamps: Micros, zone: str) -> Micros:
    """Convert timestamps to wall times of a zone."""
    return timestamps + _offsets(timestamps, zone, of_wall_time=False)


def to_timestamps(wall_times: Micros, zone: str, near: Micros | None = None) -> Micros:
    """Convert wall times to timestamps; ``near`` chooses between two by its offset."""
    found = wall_times - _offsets(wall_times, zone, of_wall_time=True)
    if near is None:
        return found
    kept = wall_times - _offsets(near, zone, of_wall_time=False)
    return np.where(to_wall_times(kept, zone) == wall_times, kept, found)


def shifted(timestamps: Micros, intervals: Micros, zone: str) -> Micros:
    """Add intervals to timestamps: whole days as calendar days, the rest as elapsed time."""
    rest = np.fmod(intervals, _DAY)
    wall_times = to_wall_times(timestamps, zone) + (intervals - rest)
    return to_timestamps(wall_times, zone, near=timestamps) + rest


def _offsets(times: Micros, zone: str, *, of_wall_time: bool) -> Micros:
    if not times.size:
        return times
    clipped = np.clip(times, _FIRST, _LAST)
    days, index = np.unique(clipped // _DAY, return_inverse=True)
    edges = np.unique(np.concatenate([days, days + 1]))
    at_edges = _each(edges * _DAY, zone, of_wall_time)
    first = at_edges[np.searchsorted(edges, days)]
    result = first[index]
    changing = (first != at_edges[np.searchsorted(edges, days + 1)])[index]
    if changing.any():
        distinct, index = np.unique(clipped[changing], return_inverse=True)
        result[changing] = _each(distinct, zone, of_wall_time)[index]
    return result


def _each(times: Micros, zone: str, of_wall_time: bool) -> Micros:
    return np.array([_offset(time, zone, of_wall_time) for time in times.tolist()], np.int64)


@lru_cache(maxsize=1 << 17)
def _offset(time: int, zone: str, of_wall_time: bool) -> int:
    rules: Any = time_zone(zone)
    wall_time = _EPOCH + time * _MICROSECOND
    if not of_wall_time:
        wall_time = wall_time.replace(tzinfo=UTC).astimezone(rules)
    return int(rules.utcoffset(wall_time) // _MICROSECOND)
