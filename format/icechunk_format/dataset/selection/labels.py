"""Reads labels that users type in ``sel``, and finds them among coordinate values.

Rules of this file
------------------
1. A label is read as the type of its coordinate, so that ``35.1`` finds the ``float32`` 35.1.
2. A shortened date or time stands for its whole period, as in pandas and xarray: ``2024-07`` is a
   month.
3. A time without a time zone is taken as the column shows it; one with a zone is converted to UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icechunk_format.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIME: Final = re.compile(
    r"(?P<year>\d{4})(?:-?(?P<month>\d{2})(?:-?(?P<day>\d{2})"
    r"(?:[T ](?P<hour>\d{2})"
    r"(?::(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?)?"
    r"(?P<zone>Z|[+-]\d{2}:?\d{2})?)?)?)?",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1)
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
DURATION_TEXT: Final = "6h, 1 day 12 hours or 90 min"
_DURATION_PART: Final = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", re.ASCII)
_ISO_TEXT: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Period:
    """The values that one label stands for: from ``first`` to ``last``, both included."""

    first: Any
    last: Any


class Labels:
    """The values of one coordinate, ready to be compared with labels.

    Parameters
    ----------
    values
        Decoded coordinate values; nulls match no label.
    name
        The dimension, for errors.

    Raises
    ------
    UnsupportedError
        If labels cannot name values of this type.
    """

    def __init__(self, values: pa.Array, name: str) -> None:
        self._name = name
        self._type = values.type
        self.valid: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
        self.is_text = pa.types.is_string(values.type)
        self.is_time = pa.types.is_timestamp(values.type)
        self.is_duration = pa.types.is_duration(values.type)
        self._numbers = np.dtype(np.int64)
        if self.is_text:
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
                f"use isel={name}=<positions> instead"
            )
        self.is_iso_text = (
            self.is_text
            and len(values) > 0
            and all(_ISO_TEXT.fullmatch(text) for text in self.values[self.valid].tolist())
        )

    def read(self, text: str) -> Period | None:
        """Return the values that a label stands for, or None where it does not read as one."""
        text = text.strip()
        if self.is_text:
            return Period(text, text)
        if self.is_time:
            return _read_time(text)
        if self.is_duration:
            exact = read_duration(text)
            return None if exact is None else Period(exact, exact)
        if self.values.dtype.kind == "b":
            flag = {"true": True, "false": False}.get(text.lower())
            return None if flag is None else Period(flag, flag)
        return self._read_number(text)

    def expected(self) -> str:
        """Say how a label of this coordinate is written."""
        if self.is_time:
            return "a date or time such as 2024-07, 2024-07-01 or 2024-07-01T06:00"
        if self.is_duration:
            return f"a duration such as {DURATION_TEXT}"
        return "true or false" if self.values.dtype.kind == "b" else "a number"

    def matches(self, period: Period) -> NDArray[np.bool_]:
        """Return where the coordinate lies in a period."""
        return self.between(period, period)

    def between(self, low: Period | None, high: Period | None) -> NDArray[np.bool_]:
        """Return where the coordinate lies from ``low`` to ``high``, both included."""
        found = self.valid.copy()
        if low is not None:
            found &= np.asarray(self.values >= low.first, np.bool_)
        if high is not None:
            values = self.values
            if self.is_iso_text:
                # A cut text compares as its whole period: 2001-02 holds 2001-02-28T18:00:00.
                values = np.array([text[: len(high.last)] for text in values], dtype=object)
            found &= np.asarray(values <= high.last, np.bool_)
        return found

    @property
    def is_sorted(self) -> bool:
        """Whether the values go up or down, equal ones side by side."""
        values = self.values[self.valid]
        up, down = values[1:] >= values[:-1], values[1:] <= values[:-1]
        return bool(np.all(up) or np.all(down))

    def nearest(self, period: Period) -> int | None:
        """Return the position of the nearest value, of two the higher; None if all are NULL."""
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
        # Python's numbers, whose differences neither overflow nor round.
        best = min(around, key=lambda value: (abs(value - wanted), -value))
        return int(np.flatnonzero(self.valid & (self.values == best))[0])

    def show(self, position: int) -> str:
        """Return a coordinate value as a user would type it."""
        value = self.values[position]
        if self.is_time:
            return str(np.datetime64(int(value), "us").item().isoformat())
        if self.is_duration:
            return str(timedelta(microseconds=int(value)))
        return str(value)

    def _read_number(self, text: str) -> Period | None:
        try:
            if self._numbers.kind == "f":
                number: Any = self._numbers.type(text)
                return None if np.isnan(number) else Period(number, number)
            number = int(text)
        except ValueError:
            number = None
        if number is None:
            try:
                number = float(text)
            except ValueError:
                return None
        return Period(number, number)


def _read_time(text: str) -> Period | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    fields = match.groupdict()
    fraction = fields["fraction"] or ""
    try:
        first = datetime(
            int(fields["year"]),
            int(fields["month"] or 1),
            int(fields["day"] or 1),
            int(fields["hour"] or 0),
            int(fields["minute"] or 0),
            int(fields["second"] or 0),
            int(fraction[:6].ljust(6, "0")),
        )
    except ValueError:
        return None
    if fraction:
        length = 10 ** (6 - min(len(fraction), 6))
    elif fields["second"]:
        length = 1_000_000
    elif fields["minute"]:
        length = 60_000_000
    elif fields["hour"]:
        length = 3_600_000_000
    elif fields["day"]:
        length = 86_400_000_000
    elif fields["month"]:
        length = 86_400_000_000 * _days_in_month(first.year, first.month)
    else:
        length = 86_400_000_000 * (366 if _days_in_month(first.year, 2) == 29 else 365)
    zone = fields["zone"]
    if zone and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        shift = timedelta(hours=hours, minutes=minutes)
        try:
            aware = first.replace(tzinfo=timezone(-shift if zone[0] == "-" else shift))
            first = aware.astimezone(UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):
            return None
    start = (first - _EPOCH) // _MICROSECOND
    return Period(start, start + length - 1)


def _days_in_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def read_duration(text: str) -> int | None:
    """Return the microseconds of a duration such as ``"1 day 12 hours"``, or None."""
    total, position = 0.0, 0
    while position < len(text):
        part = _DURATION_PART.match(text, position)
        if part is None:
            return None
        unit = _DURATION_UNITS.get(part[2].lower())
        if unit is None:
            return None
        total += float(part[1]) * unit
        position = part.end()
    return round(total) if position else None


def nearest_label_error(text: str, labels: Labels, name: str) -> InvalidInputError:
    """Return the error for a label that names no value of the coordinate."""
    period = labels.read(text)
    hint = ""
    if period is not None and not labels.is_text:
        position = labels.nearest(period)
        if position is not None:
            around = range(max(position - 1, 0), min(position + 2, len(labels.values)))
            shown = ", ".join(labels.show(i) for i in around if labels.valid[i])
            hint = f"; the nearest values are {shown}. Name one of them, or set sel.method=nearest"
    elif labels.is_text:
        shown = ", ".join(repr(value) for value in labels.values[:5])
        hint = f"; its first values are {shown}"
    return InvalidInputError(
        f"sel: dimension {name!r} has no value {text!r}{hint}", dimension=name, value=text
    )
