"""Parses the labels in ``sel``, and finds them among coordinate values.

Rules of this file
------------------
1. A label is converted to the type of its coordinate, so that ``35.1`` matches the ``float32``
   35.1. ``exactly``, for deletions, converts only numbers that a ``float32`` is written as.
2. A partial date or time selects its whole period, as in pandas and xarray: ``2024-07`` is a month.
3. A date or ``datetime64`` selects the period of its unit; other Python values select one value.
4. A time without a time zone is compared as the column shows it; a time with a zone is converted to
   UTC first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.tables.cf.round_trip import is_written_as

_TIME: Final = re.compile(
    r"(?P<year>\d{4})(?:-?(?P<month>\d{2})(?:-?(?P<day>\d{2})"
    r"(?:[T ](?P<hour>\d{2})"
    r"(?::(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?)?"
    r"(?P<zone>Z|[+-]\d{2}:?\d{2})?)?)?)?",
    re.ASCII,
)
_MICROSECOND: Final = timedelta(microseconds=1)

_DURATION_UNITS: Final = {
    unit: microseconds
    for microseconds, units in (
        (1, "us microsecond microseconds"),
        (1_000, "ms millisecond milliseconds"),
        (1_000_000, "s sec secs second seconds"),
        (60_000_000, "m min mins minute minutes"),
        (3_600_000_000, "h hr hrs hour hours"),
        (86_400_000_000, "d day days"),
        (604_800_000_000, "w week weeks"),
    )
    for unit in units.split()
}
#: Examples of durations, for errors.
DURATION_EXAMPLES: Final = "6h, 1 day 12 hours or 90 min"
_DURATION_PART: Final = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", re.ASCII)
_ISO_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Period:
    """The range of values that one label selects, from ``first`` to ``last`` inclusive."""

    first: Any
    last: Any


class Labels:
    """The values of one coordinate, prepared for comparison with labels; nulls match no label."""

    def __init__(self, values: pa.Array, name: str, *, exactly: bool = False) -> None:
        self._name = name
        self._exactly = exactly
        self._type = values.type
        self.valid: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
        self.is_string = pa.types.is_string(values.type)
        self.is_time = pa.types.is_timestamp(values.type)
        self.is_duration = pa.types.is_duration(values.type)
        self._numbers = np.dtype(np.int64)
        if self.is_string:
            self.values: NDArray[Any] = values.fill_null("").to_numpy(zero_copy_only=False)
        elif self.is_time or self.is_duration:
            self.values = values.cast(pa.int64()).fill_null(0).to_numpy()
        elif pa.types.is_boolean(values.type):
            self.values = values.fill_null(False).to_numpy(zero_copy_only=False)
        elif pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            self.values = values.fill_null(0).to_numpy()
            self._numbers = self.values.dtype
            if self._numbers.kind == "f":
                self.valid &= ~np.isnan(self.values)
        else:
            raise UnsupportedError(
                f"sel cannot name values of dimension {name!r}, which are {values.type}; "
                f"use isel={name}=<positions> instead",
                option="sel",
                dimension=name,
            )
        self.is_iso_string = (
            self.is_string
            and len(values) > 0
            and all(_ISO_TIME.fullmatch(string) for string in self.values[self.valid].tolist())
        )

    def read(self, value: Any) -> Period | None:
        """Return the values that a label selects; None if it is not a label of this type."""
        if self.is_string:
            string = value.isoformat() if hasattr(value, "isoformat") else str(value)
            return Period(string, string)
        if self.is_time:
            return _read_time(value) if isinstance(value, str) else _period_of(value)
        if self.is_duration:
            exact = read_duration(value) if isinstance(value, str) else _duration_of(value)
            return None if exact is None else Period(exact, exact)
        if self.values.dtype.kind == "b":
            flag = {"true": True, "false": False}.get(str(value).lower())
            return None if flag is None else Period(flag, flag)
        return self._read_number(value)

    def expected(self) -> str:
        """Describe the format of a label of this coordinate, for errors."""
        if self.is_time:
            return "a date or time such as 2024-07, 2024-07-01 or 2024-07-01T06:00"
        if self.is_duration:
            return f"a duration such as {DURATION_EXAMPLES}"
        return "true or false" if self.values.dtype.kind == "b" else "a number"

    def between(self, low: Period | None, high: Period | None) -> NDArray[np.bool_]:
        """Return a mask of the values from ``low`` to ``high``, both included."""
        found = self.valid.copy()
        if low is not None:
            found &= np.asarray(self.values >= low.first, np.bool_)
        if high is not None:
            values = self.values
            if self.is_iso_string:
                # A partial time selects its whole period: 2001-02 includes 2001-02-28T18:00:00.
                values = np.array([string[: len(high.last)] for string in values], dtype=object)
            found &= np.asarray(values <= high.last, np.bool_)
        return found

    @property
    def is_sorted(self) -> bool:
        """True if the values ascend or descend; equal values may repeat."""
        values = self.values[self.valid]
        up, down = values[1:] >= values[:-1], values[1:] <= values[:-1]
        return bool(np.all(up) or np.all(down))

    def nearest(self, period: Period) -> int | None:
        """Return the position of the nearest value, the higher of two; None if all are NULL."""
        values, wanted = self.values[self.valid], period.first
        around = [
            best.item()
            for side, choose in (
                (values[values <= wanted], np.max),
                (values[values >= wanted], np.min),
            )
            if len(side)
            for best in [choose(side)]
        ]
        if not around:
            return None
        # Python integers do not overflow or round.
        best = min(around, key=lambda value: (abs(value - wanted), -value))
        return int(np.flatnonzero(self.valid & (self.values == best))[0])

    def show(self, position: int) -> str:
        """Format a coordinate value as a label of ``sel``."""
        value = self.values[position]
        if self.is_time:
            return str(np.datetime64(int(value), "us").item().isoformat())
        if self.is_duration:
            return str(timedelta(microseconds=int(value)))
        return str(value)

    def _read_number(self, value: Any) -> Period | None:
        is_number = isinstance(value, str | int | float | Decimal | np.number)
        if not is_number or isinstance(value, bool | np.timedelta64):
            return None
        try:
            if self._numbers.kind == "f":
                number: Any = self._numbers.type(value)
                if np.isnan(number):
                    return None
                given = np.float64(value)
                if self._exactly and not is_written_as(number, given):
                    return Period(given, given)
                return Period(number, number)
            # Integers are not converted to doubles, which would lose their last digits.
            number = float(value) if _is_fraction(value) else int(value)
        except ValueError:
            return None
        return Period(number, number)


def _is_fraction(value: Any) -> bool:
    """Return True if a number, or its string, is not written as an integer."""
    if isinstance(value, str):
        return re.fullmatch(r"[+-]?\d[\d_]*", value) is None
    return not isinstance(value, int | np.integer)


def _read_time(string: str) -> Period | None:
    match = _TIME.fullmatch(string)
    if match is None:
        return None
    fields = match.groupdict()
    date, clock = (
        between.join(fields[name] for name in names if fields[name])
        for between, names in (("-", ("year", "month", "day")), (":", ("hour", "minute", "second")))
    )
    try:
        period = _unit_of(np.datetime64(f"{date}T{clock}" if clock else date))
    except ValueError:
        return None
    if fields["fraction"]:
        digits = fields["fraction"][:6]
        first = period.first + int(digits.ljust(6, "0"))
        period = Period(first, first + 10 ** (6 - len(digits)) - 1)
    zone = fields["zone"]
    if zone and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        if hours > 23:
            return None
        shift = (60 * hours + minutes) * 60_000_000 * (1 if zone[0] == "-" else -1)
        period = Period(period.first + shift, period.last + shift)
    return period


def _period_of(value: Any) -> Period | None:
    """Return the period of a Python date or time in microseconds; None if it is neither."""
    if isinstance(value, datetime):  # pandas' as well
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        value = np.datetime64(value, "us" if value.microsecond else "s")
    elif isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
        value = np.datetime64(f"{value:04d}", "Y")
    elif hasattr(value, "isoformat"):  # a date of Python or cftime
        try:
            value = np.datetime64(value.isoformat())
        except ValueError:
            return None
    if not isinstance(value, np.datetime64) or np.isnat(value):
        return None
    return _unit_of(value)


def _unit_of(value: np.datetime64) -> Period:
    """Return the period from a time to the end of its unit, in microseconds."""
    unit: Any = np.datetime_data(value.dtype)
    ends = (value, value + np.timedelta64(1, unit))
    first, after = (int(at.astype("M8[us]").astype(np.int64)) for at in ends)
    return Period(first, max(first, after - 1))


def _duration_of(value: Any) -> int | None:
    """Return a duration in microseconds; None if it is not a whole number of them."""
    if isinstance(value, timedelta):
        # pandas has nanoseconds.
        return None if getattr(value, "nanoseconds", 0) else value // _MICROSECOND
    if not isinstance(value, np.timedelta64) or np.isnat(value):
        return None
    if np.datetime_data(value.dtype)[0] in ("Y", "M"):
        return None
    exact = value.astype("m8[us]")
    return int(exact.astype(np.int64)) if exact == value else None


def read_duration(string: str) -> int | None:
    """Return the microseconds of a duration such as ``"1 day 12 hours"``, or None."""
    total, position = 0.0, 0
    while position < len(string):
        part = _DURATION_PART.match(string, position)
        if part is None:
            return None
        unit = _DURATION_UNITS.get(part[2].lower())
        if unit is None:
            return None
        total += float(part[1]) * unit
        position = part.end()
    return round(total) if position else None


def nearest_label_error(period: Period, value: Any, labels: Labels, name: str) -> InvalidInputError:
    """Return the error for a label without a match, with the nearest values."""
    hint = ""
    if labels.is_string:
        shown = ", ".join(repr(value) for value in labels.values[:5])
        hint = f"; its first values are {shown}"
    elif (position := labels.nearest(period)) is not None:
        around = range(max(position - 1, 0), min(position + 2, len(labels.values)))
        shown = ", ".join(labels.show(i) for i in around if labels.valid[i])
        hint = f"; the nearest values are {shown}. Name one of them, or set sel.method=nearest"
    given = str(value) if isinstance(value, np.generic) else repr(value)
    return InvalidInputError(
        f"sel: dimension {name!r} has no value {given}{hint}", dimension=name, value=value
    )
