"""Converts dates of the CF calendars to day numbers and back, on whole arrays of integers.

NumPy lacks these calendars: a climate model's year may have 360 days, and the ``standard`` calendar
of CF changes from Julian to Gregorian in October 1582. A library call for each value would be too
slow for time coordinates of millions of steps.

Rules of this file
------------------
1. A *day number* counts days without a gap within one calendar. In the Gregorian, Julian and
   standard calendars it counts from 1970-01-01 (Gregorian); in the others from year 0, month 1, day
   1 of that calendar.
2. Years are astronomical: the year before 1 is 0. ``standard`` and ``julian`` write it as -1 (they
   have no year zero), which :func:`day_number` translates.
3. All functions work on ``int64`` arrays and never on floats, so no time changes.

CF conventions, section 4.4.1 "Calendar".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ALIASES: Final = {
    "standard": "standard",
    "gregorian": "standard",
    "proleptic_gregorian": "proleptic_gregorian",
    "julian": "julian",
    "noleap": "noleap",
    "365_day": "noleap",
    "all_leap": "all_leap",
    "366_day": "all_leap",
    "360_day": "360_day",
}

CALENDAR_NAMES: Final = tuple(_ALIASES)
GREGORIAN_CALENDARS: Final = frozenset({"standard", "proleptic_gregorian"})

_MONTH_LENGTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LEAP_MONTH_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTH_STARTS: Final = np.concatenate([[0], np.cumsum(_MONTH_LENGTHS)]).astype(np.int64)
_LEAP_MONTH_STARTS: Final = np.concatenate([[0], np.cumsum(_LEAP_MONTH_LENGTHS)]).astype(np.int64)

# Days between 0000-03-01 and 1970-01-01 in the Julian calendar.
_JULIAN_EPOCH: Final = 719470
# Day number of 1582-10-15, the first Gregorian day of the standard calendar.
GREGORIAN_REFORM: Final = -141427


def canonical_calendar(name: str) -> str | None:
    """Return the canonical name of a calendar, or None if it is not a CF calendar."""
    return _ALIASES.get(name.lower())


def day_number(calendar: str, year: int, month: int, day: int) -> int:
    """Return the day number of one date; ValueError if the calendar has no such date."""
    if calendar in ("standard", "julian"):
        if year == 0:
            raise ValueError(f"the {calendar} calendar has no year 0")
        year += year < 0
    if not 1 <= month <= 12:
        raise ValueError(f"there is no month {month}")
    if not 1 <= day <= _month_length(calendar, year, month):
        raise ValueError(f"the {calendar} calendar has no {year:04d}-{month:02d}-{day:02d}")
    if calendar == "360_day":
        return 360 * year + 30 * (month - 1) + day - 1
    if calendar == "noleap":
        return 365 * year + int(_MONTH_STARTS[month - 1]) + day - 1
    if calendar == "all_leap":
        return 366 * year + int(_LEAP_MONTH_STARTS[month - 1]) + day - 1
    if calendar == "julian":
        return _julian_day_number(year, month, day)
    if calendar == "proleptic_gregorian" or (year, month, day) >= (1582, 10, 15):
        return int(_gregorian_day_numbers(year, month, day))
    if (year, month, day) > (1582, 10, 4):
        raise ValueError("the standard calendar skips 1582-10-05 to 1582-10-14")
    return _julian_day_number(year, month, day)


def dates(
    calendar: str, day_numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return year, month and day of day numbers in a calendar that is not Gregorian."""
    if calendar == "julian":
        return _julian_dates(day_numbers)
    if calendar == "360_day":
        years, rest = np.divmod(day_numbers, 360)
        months, days = np.divmod(rest, 30)
        return years, months + 1, days + 1
    starts, length = (_MONTH_STARTS, 365) if calendar == "noleap" else (_LEAP_MONTH_STARTS, 366)
    years, rest = np.divmod(day_numbers, length)
    months = np.searchsorted(starts, rest, side="right").astype(np.int64)
    return years, months, rest - starts[months - 1] + 1


def proleptic_day_numbers(
    day_numbers: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Convert days of the standard calendar before the reform to the same Gregorian dates.

    A timestamp column shows proleptic Gregorian dates. The Julian date 1500-01-01 becomes the
    timestamp 1500-01-01, although that is another time, ten days away. The second array is False
    for dates that Gregorian lacks (the Julian 29 February of 1500).
    """
    years, months, days = _julian_dates(day_numbers)
    moved = _gregorian_day_numbers(years, months, days)
    leap = (years % 4 == 0) & ((years % 100 != 0) | (years % 400 == 0))
    return moved, leap | (months != 2) | (days != 29)


def _month_length(calendar: str, year: int, month: int) -> int:
    if calendar == "360_day":
        return 30
    if calendar == "noleap":
        leap = False
    elif calendar == "all_leap":
        leap = True
    elif calendar == "julian" or (calendar == "standard" and year <= 1582):
        leap = year % 4 == 0
    else:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return (_LEAP_MONTH_LENGTHS if leap else _MONTH_LENGTHS)[month - 1]


def _gregorian_day_numbers(years: Any, months: Any, days: Any) -> Any:
    """Return day numbers of dates, each given by numbers or by arrays."""
    first_days = np.asarray((years - 1970) * 12 + months - 1).astype("M8[M]").astype("M8[D]")
    return first_days.astype(np.int64) + days - 1


# Years are counted from March: the leap day is then the last of the year, and any five months have
# 153 days.


def _julian_day_number(year: int, month: int, day: int) -> int:
    march_year = year - (month <= 2)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return 365 * march_year + march_year // 4 + day_of_year - _JULIAN_EPOCH


def _julian_dates(
    day_numbers: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    shifted = day_numbers + _JULIAN_EPOCH
    march_years = (4 * shifted + 3) // 1461
    day_of_year = shifted - (365 * march_years + march_years // 4)
    march_months = (5 * day_of_year + 2) // 153
    days = day_of_year - (153 * march_months + 2) // 5 + 1
    months = (march_months + 2) % 12 + 1
    return march_years + (months <= 2), months, days
