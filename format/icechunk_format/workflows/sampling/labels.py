"""Converts labels of a coordinate and values of a points' column to comparable numbers.

=============  ===================================  =============================================
kind           labels                               columns
=============  ===================================  =============================================
``number``     integers and floats, and positions   any number
               of a dimension without labels
``time``       timestamps                           TIMESTAMP, TIMESTAMP_NTZ, DATE
``duration``   durations                            INTERVAL DAY TO SECOND
``calendar``   times of calendars such as 360_day,  STRING in ISO 8601; TIMESTAMP, TIMESTAMP_NTZ
               which are ISO 8601 strings           and DATE, by the date that they show
``string``     strings                              STRING, with the method ``exact``
=============  ===================================  =============================================

Times and durations are ``int64`` microseconds. Times without a time zone are taken as UTC.
"""

from __future__ import annotations

import contextlib
import re
from datetime import timedelta
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.tables.cf import canonical_calendar, day_number, is_number
from icechunk_format.tables.reading import DURATION_EXAMPLES, Column, read_duration

Kind = Literal["number", "time", "duration", "calendar", "string"]

_DAY: Final = 86_400_000_000
_ISO: Final = re.compile(
    r"\s*(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2})(?::(\d{2})(?::(\d{2})(?:\.(\d{1,6})\d*)?)?)?)?Z?\s*",
    re.ASCII,
)
_COLUMNS: Final[dict[Kind, str]] = {
    "number": "a number",
    "time": "TIMESTAMP, TIMESTAMP_NTZ or DATE",
    "duration": "INTERVAL DAY TO SECOND",
    "calendar": "STRING such as '2001-02-30T12:00:00', TIMESTAMP_NTZ, TIMESTAMP or DATE",
    "string": "STRING",
}


def kind_of(column: Column) -> Kind:
    """Return the kind of a coordinate's labels."""
    labels = column.arrow_type
    if is_number(labels):
        return "number"
    if pa.types.is_timestamp(labels):
        return "time"
    if pa.types.is_duration(labels):
        return "duration"
    if pa.types.is_string(labels):
        return "string" if calendar_of(column) is None else "calendar"
    raise UnsupportedError(
        f"coordinate {column.name!r} is {labels}, which points cannot be compared with; choose its"
        " positions with option isel",
        coordinate=column.name,
    )


def calendar_of(column: Column) -> str | None:
    """Return the calendar of a coordinate whose times are strings; None for other strings."""
    decoder = column.decoder
    if decoder is None or "since" not in str(decoder.encoding.get("units")):
        return None
    return canonical_calendar(str(decoder.encoding.get("calendar", "standard")))


def check_column(name: str, arrow_type: pa.DataType, coordinate: str, kind: Kind) -> None:
    """Raise InvalidInputError if the type of a column does not fit the kind of labels."""
    types = pa.types
    is_time = types.is_timestamp(arrow_type) or types.is_date(arrow_type)
    is_string = types.is_string(arrow_type) or types.is_large_string(arrow_type)
    fits = {
        "number": is_number(arrow_type),
        "time": is_time,
        "duration": types.is_duration(arrow_type),
        "calendar": is_time or is_string,
        "string": is_string,
    }[kind]
    if not fits:
        hint = ": cast it first, as in F.col(...).cast('timestamp_ntz')" if kind == "time" else ""
        hint = ": cast it first, as in F.col(...).cast('double')" if kind == "number" else hint
        raise InvalidInputError(
            f"on[{coordinate!r}] is {name}, which is {arrow_type}, but the labels of"
            f" {coordinate!r} need {_COLUMNS[kind]}{hint}",
            column=name,
            coordinate=coordinate,
        )


def column_numbers(
    column: pa.Array, kind: Kind, calendar: str | None
) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_] | None]:
    """Convert the values of a points' column to numbers.

    Returns
    -------
    tuple
        The numbers (0 for NULL and NaN), or unchanged strings; a mask of the values that are not
        NULL or NaN; and a mask of the values that exist in the calendar of the labels, None if all
        do.
    """
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if kind == "string":
        return column, valid, None
    if kind == "calendar":
        numbers, exists = _calendar_numbers(column, str(calendar))
        return numbers, valid, exists
    if kind == "time":
        if not pa.types.is_timestamp(column.type) or column.type.unit != "us":
            zone = getattr(column.type, "tz", None)
            column = column.cast(pa.timestamp("us", zone), safe=False)
        return _integers(column), valid, None
    if kind == "duration":
        return _integers(column.cast(pa.duration("us"), safe=False)), valid, None
    if pa.types.is_decimal(column.type):
        column = _narrowed(column, pa.int64())
    if pa.types.is_floating(column.type):
        floats: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        is_there = ~np.isnan(floats)
        return np.where(is_there, floats, 0), valid & is_there, None
    return _integers(column), valid, None


def coordinate_numbers(
    labels: pa.Array, kind: Kind, calendar: str | None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Convert decoded labels to numbers, and return a mask of those that are not NULL."""
    if pa.types.is_decimal(labels.type):
        labels = _narrowed(labels, pa.int64(), pa.uint64())
    numbers, valid, exists = column_numbers(labels, kind, calendar)
    if numbers.dtype.kind == "i":
        numbers = numbers.astype(np.int64)
    return numbers, valid if exists is None else valid & exists


def _narrowed(column: pa.Array, *kinds: pa.DataType) -> pa.Array:
    """Cast decimals to the first of ``kinds`` that holds all of them, else to doubles."""
    for kind in kinds:
        with contextlib.suppress(pa.ArrowInvalid):
            return column.cast(kind)
    # By the digits: Arrow's cast to doubles may return a neighbour of the nearest one.
    return column.cast(pa.string()).cast(pa.float64())


def _integers(column: pa.Array) -> NDArray[Any]:
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    numbers: NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _calendar_numbers(
    column: pa.Array, calendar: str
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Convert dates to microseconds in a calendar; return these, and a mask of valid dates."""
    rest: Any = 0
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        encoded = column.dictionary_encode()
        dates = encoded.dictionary.to_pylist()
        index = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    else:
        microseconds = _integers(column.cast(pa.timestamp("us"), safe=False))
        days, rest = np.divmod(microseconds, _DAY)
        distinct, index = np.unique(days, return_inverse=True)
        dates = distinct.astype("M8[D]").astype(str).tolist()
    # A column of NULLs has no dates.
    times = [_calendar_time(date, calendar) for date in dates] or [0]
    numbers = np.array([time or 0 for time in times], np.int64)
    exists = np.array([time is not None for time in times], np.bool_)
    return numbers[index] + rest, exists[index]


def _calendar_time(string: str, calendar: str) -> int | None:
    """Return microseconds of a date in a calendar; None if the calendar does not have the date."""
    match = _ISO.fullmatch(string)
    if match is None:
        raise InvalidInputError(
            f"{string!r} is not a time of the {calendar} calendar: write it like"
            " 2001-02-30T12:00:00"
        )
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    fraction = int((match[7] or "").ljust(6, "0"))
    try:
        days = day_number(calendar, year, month, day)
    except ValueError:
        return None
    seconds = (hour * 60 + minute) * 60 + second
    return days * _DAY + seconds * 1_000_000 + fraction


def read_tolerance(value: Any, coordinate: str, kind: Kind) -> float:
    """Parse a tolerance to units of the labels; microseconds for times.

    Parameters
    ----------
    value
        A number; for times and durations a string such as ``"1 hour"``, or a duration of Python,
        NumPy or pandas.
    """
    is_plain = isinstance(value, int | float | np.number) and not isinstance(
        value, bool | np.timedelta64
    )
    read: float | None = None
    if kind == "number":
        read = float(value) if is_plain else None
        expected = "a number in the units of its labels, such as 0.2"
    elif kind == "string":
        expected = "left out, because strings have no distance"
    else:
        if isinstance(value, str):
            read = read_duration(value)
        elif isinstance(value, timedelta):
            read = value / timedelta(microseconds=1)
        elif isinstance(value, np.timedelta64):
            read = float(value / np.timedelta64(1, "us"))
        elif is_plain and float(value) in (0.0, float("inf")):
            read = float(value)
        expected = f"a duration such as {DURATION_EXAMPLES}"
    if read is None or not read >= 0:
        raise InvalidInputError(
            f"tolerance[{coordinate!r}]={value!r} must be {expected}", coordinate=coordinate
        )
    return float(read)
