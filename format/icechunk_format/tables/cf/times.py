"""Decodes CF times, such as numbers of ``"hours since 1900-01-01"``, to exact microseconds.

The result equals that of xarray: no rounding through floats, no silent truncation.

Rules of this file
------------------
1. Integer times are converted with integers. A time finer than a microsecond, or outside of the
   years 1 to 9999, is an error that names the variable.
2. Float times are rounded to the nearest microsecond. Their whole and fractional parts are
   converted separately, so that only the stored number is rounded. Float counts of nanoseconds are
   converted like integers.
3. ``standard`` is the mixed Julian and Gregorian calendar. Dates before 1582-10-15 keep their label
   (year, month, day), as xarray shows them, and not their distance in days.
4. Times of calendars that a timestamp cannot hold become ISO 8601 strings, one per distinct time.
5. Reference dates may be written as xarray accepts them in practice: ISO 8601 without leading zeros
   (``1-1-1``, ``00:00:0.0``), a time zone, yyyymmdd, slashes after the year, ``01-JAN-1970``. An
   offset without a sign, other than ``0:0``, is refused: UDUNITS, xarray and cftime read three
   different times.

CF conventions, section 4.4 "Time Coordinate".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import UnsupportedError
from icechunk_format.tables.cf.attributes import attribute_error
from icechunk_format.tables.cf.calendars import (
    CALENDAR_NAMES,
    GREGORIAN_CALENDARS,
    GREGORIAN_REFORM,
    canonical_calendar,
    dates,
    day_number,
    proleptic_day_numbers,
)

MICROSECONDS_PER_DAY: Final = 86_400_000_000
NOT_A_TIME: Final = np.iinfo(np.int64).min

# 0001-01-01T00:00 and 9999-12-31T23:59:59.999999 as microseconds since 1970.
EARLIEST_TIMESTAMP: Final = -719_162 * MICROSECONDS_PER_DAY
LATEST_TIMESTAMP: Final = 2_932_897 * MICROSECONDS_PER_DAY - 1

# Microseconds in each unit, under every name that xarray or cftime takes in "<unit> since <date>".
_UNIT_NAMES: Final[dict[str, tuple[Fraction, str]]] = {
    "nanoseconds": (Fraction(1, 1000), "nanosecond"),
    "microseconds": (Fraction(1), "microsecond microsec microsecs"),
    "milliseconds": (Fraction(1_000), "millisecond millisec millisecs msec msecs ms"),
    "seconds": (Fraction(1_000_000), "second sec secs s"),
    "minutes": (Fraction(60_000_000), "minute min mins"),
    "hours": (Fraction(3_600_000_000), "hour hr hrs h"),
    "days": (Fraction(MICROSECONDS_PER_DAY), "day d"),
}
_UNITS: Final[dict[str, Fraction]] = {
    spelling: length
    for name, (length, others) in _UNIT_NAMES.items()
    for spelling in (name, *others.split())
}
# Units whose length is a whole number of days in one calendar only.
_CALENDAR_UNITS: Final = {
    ("360_day", "months"): 30,
    ("360_day", "month"): 30,
    ("noleap", "common_years"): 365,
    ("noleap", "common_year"): 365,
}
_VARYING_UNITS: Final = frozenset(
    [*("month", "months", "mon", "mons"), *("year", "years", "yr", "yrs")]
)

# xarray decodes a timedelta only from exactly these words.
TIMEDELTA_UNITS: Final = frozenset(_UNIT_NAMES)

_CLOCK = (
    r"(?:[T\s]\s*(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})"
    r"(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?)?)?"
)
_ZONE = r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?|[+-]\d{1,2}:\d{1,2}|00?:00?)?"
_REFERENCE_DATES: Final = tuple(
    re.compile(date + _CLOCK + _ZONE, re.IGNORECASE)
    for date in (
        r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
        r"(?P<year>[+-]?\d{1,5})(?:[-/](?P<month>\d{1,2})(?:[-/](?P<day>\d{1,2}))?)?",
        r"(?P<day>\d{1,2})[-\s](?P<month>[A-Z]{3,9})[-\s](?P<year>\d{4})",
    )
)
_MONTH_NAMES: Final = (
    "january february march april may june july august september october november december"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """Converts a stored number to microseconds: ``number * unit + offset``."""

    unit: Fraction
    """Microseconds in one unit."""
    offset: int = 0
    """Microseconds from the epoch of the calendar to the reference time; 0 for durations."""
    calendar: str | None = None
    """Canonical name of the calendar; None for durations and for times that NumPy stored."""

    @property
    def is_timestamp(self) -> bool:
        """True if the times fit a timestamp column, rather than ISO 8601 strings."""
        return self.calendar in GREGORIAN_CALENDARS

    def microseconds(
        self, numbers: NDArray[Any], valid: NDArray[np.bool_] | None, *, name: str
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Convert flat integers or floats to microseconds since the epoch of the calendar, exactly.

        Returns the microseconds (0 at missing values) and the validity, None if all are present.
        NaN and the smallest ``int64`` are always missing. Raises UnsupportedError if a time needs
        more precision than microseconds, or is out of range.
        """
        if numbers.dtype.kind == "f":
            numbers = numbers.astype(np.float64, copy=False)
            missing = np.isnan(numbers)
        elif numbers.dtype == np.int64:
            missing = numbers == NOT_A_TIME
        else:
            missing = np.zeros(0, np.bool_)
        if missing.any():
            valid = ~missing if valid is None else valid & ~missing
        if valid is not None:
            # Missing values become 0, which passes the checks with any unit and offset.
            numbers = np.where(valid, numbers, numbers.dtype.type(0))
        if not numbers.size:
            return np.zeros(0, np.int64), valid
        self._check_range(numbers, valid, name)
        if numbers.dtype.kind == "f":
            result = self._from_floats(numbers, name)
        else:
            result = self._from_integers(numbers.astype(np.int64, copy=False), name)
        return result, valid

    def _check_range(
        self, numbers: NDArray[Any], valid: NDArray[np.bool_] | None, name: str
    ) -> None:
        present = numbers if valid is None else numbers[valid]
        if not present.size:
            return
        low, high = self._bounds()
        extremes: tuple[Any, Any] = (present.min(), present.max())
        for number in extremes:
            if numbers.dtype.kind == "f":
                fits = bool(np.isfinite(number)) and low <= Fraction(float(number)) <= high
            else:
                fits = low <= int(number) <= high
            if not fits:
                raise UnsupportedError(
                    f"variable {name!r}: the stored time {number.item()!r} is out of range. "
                    f"Times must be in the years 1 to 9999 and durations within 2**63 "
                    f"microseconds; if the number marks a missing value, the array lacks a "
                    f"_FillValue attribute. Read variable {name!r} with decodeCf=false to get the "
                    f"stored numbers",
                    variable=name,
                    value=number.item(),
                )

    def _bounds(self) -> tuple[Fraction, Fraction]:
        """Return the smallest and the largest number whose time is in range."""
        if self.calendar is None and self.offset == 0:
            low, high = int(NOT_A_TIME) + 1, np.iinfo(np.int64).max
        elif self.calendar is None or self.is_timestamp:
            # Two days of margin: Julian dates are checked exactly after their conversion.
            slack = 2 * MICROSECONDS_PER_DAY if self.calendar == "standard" else 0
            low, high = EARLIEST_TIMESTAMP - slack, LATEST_TIMESTAMP
        else:
            assert self.calendar is not None
            low = day_number(self.calendar, 1, 1, 1) * MICROSECONDS_PER_DAY
            if self.calendar != "julian":
                low -= 366 * MICROSECONDS_PER_DAY  # these calendars have a year zero
            high = (day_number(self.calendar, 9999, 12, 30) + 1) * MICROSECONDS_PER_DAY - 1
        return Fraction(low - self.offset) / self.unit, Fraction(high - self.offset) / self.unit

    def _from_integers(self, numbers: NDArray[np.int64], name: str) -> NDArray[np.int64]:
        if self.unit.denominator != 1:
            numbers, rest = np.divmod(numbers, self.unit.denominator)
            if rest.any():
                raise _too_fine(name)
        result: NDArray[np.int64] = numbers * np.int64(self.unit.numerator)
        if self.offset:
            result += np.int64(self.offset)
        return result

    def _from_floats(self, numbers: NDArray[np.float64], name: str) -> NDArray[np.int64]:
        if self.unit.denominator != 1:
            if (numbers != np.floor(numbers)).any():
                raise _too_fine(name)
            return self._from_integers(numbers.astype(np.int64), name)
        whole = np.floor(numbers)
        part = np.rint((numbers - whole) * float(self.unit.numerator)).astype(np.int64)
        return self._from_integers(whole.astype(np.int64), name) + part

    def timestamps(
        self, microseconds: NDArray[np.int64], valid: NDArray[np.bool_] | None, *, name: str
    ) -> NDArray[np.int64]:
        """Move times of a Gregorian calendar to microseconds since 1970, proleptic Gregorian."""
        if self.calendar != "standard":
            return microseconds
        old = microseconds < GREGORIAN_REFORM * MICROSECONDS_PER_DAY
        if valid is not None:
            old &= valid
        if not old.any():
            return microseconds
        days, rest = np.divmod(microseconds[old], MICROSECONDS_PER_DAY)
        moved, exists = proleptic_day_numbers(days)
        result = moved * MICROSECONDS_PER_DAY + rest
        if not exists.all() or bool((result < EARLIEST_TIMESTAMP).any()):
            raise UnsupportedError(
                f"variable {name!r}: the standard calendar is Julian before 1582-10-15, and no "
                "timestamp holds one of its dates there: a Julian 29 February, or a date before "
                f"the year 1. Read variable {name!r} with decodeCf=false to get the stored numbers",
                variable=name,
                calendar=self.calendar,
            )
        microseconds = microseconds.copy()
        microseconds[old] = result
        return microseconds

    def iso_strings(self, microseconds: NDArray[np.int64]) -> tuple[list[str], NDArray[np.intp]]:
        """Return the distinct times as ISO 8601 strings, and the position of each among them."""
        assert self.calendar is not None
        distinct, positions = np.unique(microseconds, return_inverse=True)
        days, rest = np.divmod(distinct, MICROSECONDS_PER_DAY)
        seconds, fractions = np.divmod(rest, 1_000_000)
        minutes, seconds = np.divmod(seconds, 60)
        hours, minutes = np.divmod(minutes, 60)
        columns = (*dates(self.calendar, days), hours, minutes, seconds, fractions)
        strings = [
            f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}"
            + (f".{fraction:06d}" if fraction else "")
            for year, month, day, hour, minute, second, fraction in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
        return strings, positions.reshape(-1)


def parse_time_units(units: str, calendar: Any, *, name: str) -> TimeScale:
    """Read the ``units`` and ``calendar`` attributes of a time variable."""
    canonical = canonical_calendar(calendar) if isinstance(calendar, str) else None
    if calendar is None:
        canonical = "standard"
    if canonical is None:
        raise attribute_error(
            name, "calendar", calendar, f"allowed are {', '.join(CALENDAR_NAMES)}"
        )
    match = re.fullmatch(r"\s*(\S.*?)\s+since\s+(.+?)\s*", units, re.DOTALL)
    if match is None:
        raise attribute_error(name, "units", units, 'it should read "<unit> since <date>"')
    word, date = match[1].lower(), match[2]
    days = _CALENDAR_UNITS.get((canonical, word))
    unit = _UNITS.get(word) if days is None else Fraction(days * MICROSECONDS_PER_DAY)
    if unit is None:
        raise attribute_error(
            name,
            "units",
            units,
            f"{match[1]!r} is not a unit of time here; allowed are {', '.join(_UNIT_NAMES)} "
            f"(and months where calendar='360_day')",
        )
    try:
        offset = _reference_time(date, canonical)
    except ValueError as error:
        raise attribute_error(name, "units", units, f"{error}") from error
    return TimeScale(unit=unit, offset=offset, calendar=canonical)


def has_varying_unit(units: str, calendar: Any) -> bool:
    """Return True if the units are months or years, which have no fixed length in the calendar."""
    match = re.match(r"\s*(\S+)\s+since\s", units)
    word = "" if match is None else match[1].lower()
    canonical = canonical_calendar(calendar) if isinstance(calendar, str) else None
    return word in _VARYING_UNITS and (canonical, word) not in _CALENDAR_UNITS


def duration_scale(units: str) -> TimeScale:
    """Return the scale of a CF timedelta; ``units`` is one of :data:`TIMEDELTA_UNITS`."""
    return TimeScale(unit=_UNITS[units])


def stored_scale(dtype: np.dtype[Any], *, name: str) -> TimeScale:
    """Return the scale of an array that NumPy stored as ``datetime64`` or ``timedelta64``."""
    unit, count = np.datetime_data(dtype)
    if dtype.kind == "M" and unit in ("Y", "M"):
        unit, count = "D", 1  # callers have converted these dates to days
    lengths = {
        "W": Fraction(7 * MICROSECONDS_PER_DAY),
        "D": _UNITS["d"],
        "h": _UNITS["h"],
        "m": _UNITS["min"],
        "s": _UNITS["s"],
        "ms": _UNITS["ms"],
        "us": Fraction(1),
        "ns": Fraction(1, 10**3),
        "ps": Fraction(1, 10**6),
        "fs": Fraction(1, 10**9),
        "as": Fraction(1, 10**12),
    }
    if unit not in lengths:
        raise UnsupportedError(
            f"variable {name!r}: data type {dtype} has no unit of fixed length, so it has no SQL "
            f"type; units from weeks to attoseconds can be read",
            variable=name,
        )
    calendar = "proleptic_gregorian" if dtype.kind == "M" else None
    return TimeScale(unit=lengths[unit] * count, calendar=calendar)


def _reference_time(string: str, calendar: str) -> int:
    """Return microseconds from the calendar's epoch to a date; ValueError if it is not a date."""
    match = next((m for m in (p.fullmatch(string) for p in _REFERENCE_DATES) if m), None)
    if match is None:
        word = re.fullmatch(r".*\d\s*([A-Za-z]+(?:/[A-Za-z_/]+)?|\s\d{1,2}:\d{1,2})", string)
        problem = f", and {word[1].strip()!r} is not an offset such as -05:00" if word else ""
        raise ValueError(f"the date {string!r} should read YYYY-MM-DD hh:mm:ss{problem}")
    fields = match.groupdict()
    month = fields["month"] or "1"
    if month.isalpha():
        named = [
            i for i, full in enumerate(_MONTH_NAMES.split(), 1) if full.startswith(month.lower())
        ]
        if len(named) != 1:
            raise ValueError(f"the date {string!r} does not name a month")
        month = str(named[0])
    days = day_number(calendar, int(fields["year"]), int(month), int(fields["day"] or 1))
    clock = time_of_day(*(fields[part] for part in ("hour", "minute", "second", "fraction")))
    if clock is None:
        raise ValueError(f"the date {string!r} has an impossible time of day")
    if (fields["fraction"] or "")[6:].strip("0"):
        raise ValueError(f"the date {string!r} is finer than a microsecond")
    zone = re.fullmatch(r"([+-]?)(\d{1,2}):?(\d{1,2})?", fields["zone"] or "")
    if zone is not None:
        shift = (3600 * int(zone[2]) + 60 * int(zone[3] or 0)) * 1_000_000
        clock += shift if zone[1] == "-" else -shift
    return days * MICROSECONDS_PER_DAY + clock


def time_of_day(
    hour: str | None, minute: str | None, second: str | None, fraction: str | None
) -> int | None:
    """Return the microseconds since midnight; None if the time of day is invalid."""
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    whole = 3600 * hours + 60 * minutes + seconds
    return whole * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])


def _too_fine(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"variable {name!r} holds times finer than a microsecond, which no SQL timestamp or "
        f"interval can hold; they are not truncated. Leave the variable out with the option "
        f"variables, or, where it is stored as plain numbers, read {name!r} with decodeCf=false",
        variable=name,
    )
