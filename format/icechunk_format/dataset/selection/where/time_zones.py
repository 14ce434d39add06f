"""Converts clock readings to instants and back, for whole columns, by the rules of a time zone.

The rules are those of ``zoneinfo``: Arrow's conversions lack changes of an offset after 2037.

Rules of this file
------------------
1. Times are ``int64`` microseconds since 1970: of UTC for an instant, of the clock for a reading.
2. A reading that the clock skips means the instant as long after the change as the reading is after
   the last one before it; of a reading that occurs twice, the first instant counts. So does Spark.
3. Within a day an offset changes at most once.
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
# Python's calendar ends here; rules of zones do not differ beyond.
_FIRST: Final = (datetime(1, 1, 3) - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime(9999, 12, 29) - _EPOCH) // _MICROSECOND
_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?|Z|UTC|GMT|UT", re.ASCII
)


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """Return a zone by the name of a region or by an offset, as ``spark.sql.session.timeZone``."""
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


def to_clock(instants: Micros, zone: str) -> Micros:
    """Return the readings of a zone's clock at some instants."""
    return instants + _offsets(instants, zone, of_clock=False)


def to_instants(readings: Micros, zone: str, near: Micros | None = None) -> Micros:
    """Return the instants of clock readings; of two instants, that with the offset of ``near``."""
    found = readings - _offsets(readings, zone, of_clock=True)
    if near is None:
        return found
    kept = readings - _offsets(near, zone, of_clock=False)
    return np.where(to_clock(kept, zone) == readings, kept, found)


def shifted(instants: Micros, intervals: Micros, zone: str) -> Micros:
    """Add intervals: their whole days by the calendar, the rest of each by the second."""
    rest = np.fmod(intervals, _DAY)
    readings = to_clock(instants, zone) + (intervals - rest)
    return to_instants(readings, zone, near=instants) + rest


def _offsets(times: Micros, zone: str, *, of_clock: bool) -> Micros:
    if not times.size:
        return times
    clipped = np.clip(times, _FIRST, _LAST)
    days, index = np.unique(clipped // _DAY, return_inverse=True)
    edges = np.unique(np.concatenate([days, days + 1]))
    at_edges = _each(edges * _DAY, zone, of_clock)
    first = at_edges[np.searchsorted(edges, days)]
    result = first[index]
    changing = (first != at_edges[np.searchsorted(edges, days + 1)])[index]
    if changing.any():
        distinct, index = np.unique(clipped[changing], return_inverse=True)
        result[changing] = _each(distinct, zone, of_clock)[index]
    return result


def _each(times: Micros, zone: str, of_clock: bool) -> Micros:
    return np.array([_offset(time, zone, of_clock) for time in times.tolist()], np.int64)


@lru_cache(maxsize=1 << 17)
def _offset(time: int, zone: str, of_clock: bool) -> int:
    rules: Any = time_zone(zone)
    reading = _EPOCH + time * _MICROSECOND
    if not of_clock:
        reading = reading.replace(tzinfo=UTC).astimezone(rules)
    return int(rules.utcoffset(reading) // _MICROSECOND)
