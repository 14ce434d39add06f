"""Encodes times as numbers of an array's unit, such as ``"hours since 1900-01-01"``.

The inverse of ``times``, with its rules: integers are exact, calendars keep the label of a date,
and a time that does not fit is an error.

CF conventions, section 4.4 "Time Coordinate".
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf.calendars import GREGORIAN_REFORM, day_number
from icechunk_format.tables.cf.times import (
    MICROSECONDS_PER_DAY,
    NOT_A_TIME,
    TimeScale,
    time_of_day,
)

_ISO_TIME: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?", re.ASCII
)


def microseconds_of(column: pa.Array, time: TimeScale, *, name: str) -> NDArray[np.int64]:
    """Return microseconds since the epoch of the array's calendar; arbitrary at NULL.

    The column holds timestamps, dates, durations, or ISO 8601 strings if the calendar is not
    Gregorian.
    """
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _microseconds_of_strings(column, time, name)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    elif pa.types.is_timestamp(column.type):
        column = _to_unit(column, pa.timestamp("us", column.type.tz), name)
    else:
        column = _to_unit(column, pa.duration("us"), name)
    numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    if time.calendar != "standard":
        return np.asarray(numbers, np.int64)
    return _standard_of_proleptic(numbers, name)


def _to_unit(column: pa.Array, output_type: pa.DataType, name: str) -> pa.Array:
    try:
        return column.cast(output_type)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"column {name!r} has a time too large for microseconds: {error}", variable=name
        ) from error


def _standard_of_proleptic(numbers: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """Convert dates before the reform to the Julian dates with the same label."""
    old = numbers < GREGORIAN_REFORM * MICROSECONDS_PER_DAY
    if not old.any():
        return numbers
    days, rest = np.divmod(numbers[old], MICROSECONDS_PER_DAY)
    distinct, index = np.unique(days, return_inverse=True)
    dates = distinct.astype("M8[D]").astype(str).tolist()
    moved = [
        _day("standard", *map(int, string.rsplit("-", 2)), string=string, name=name)
        for string in dates
    ]
    result = numbers.copy()
    result[old] = np.array(moved, np.int64)[index.reshape(-1)] * MICROSECONDS_PER_DAY + rest
    return result


def _day(calendar: str, year: int, month: int, day: int, *, string: str, name: str) -> int:
    try:
        return day_number(calendar, year, month, day)
    except ValueError as error:
        raise InvalidInputError(
            f"column {name!r} has the date {string!r}, which its array cannot hold: {error}",
            variable=name,
            value=string,
            calendar=calendar,
        ) from error


def _microseconds_of_strings(column: pa.Array, time: TimeScale, name: str) -> NDArray[np.int64]:
    calendar = time.calendar or "standard"
    encoded = column.dictionary_encode()
    known: list[int] = []
    for string in encoded.dictionary.to_pylist():
        match = _ISO_TIME.fullmatch(string)
        if match is None:
            raise InvalidInputError(
                f"column {name!r} has {string!r}, which is not a time of the {calendar} calendar; "
                "write YYYY-MM-DDThh:mm:ss",
                variable=name,
                value=string,
                allowed="YYYY-MM-DDThh:mm:ss",
            )
        clock = time_of_day(*match.groups()[3:])
        if clock is None:
            raise InvalidInputError(
                f"column {name!r} has {string!r}, an impossible time of day", variable=name
            )
        days = _day(calendar, *map(int, match.groups()[:3]), string=string, name=name)
        known.append(days * MICROSECONDS_PER_DAY + clock)
    index = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    if not known:
        return np.zeros(len(column), np.int64)
    found: NDArray[np.int64] = np.array(known, np.int64)[index]
    return found


def stored_times(
    microseconds: NDArray[np.int64],
    valid: NDArray[np.bool_] | None,
    time: TimeScale,
    dtype: np.dtype[Any],
    *,
    name: str,
) -> NDArray[Any]:
    """Return times as numbers of an array's unit: integers, floats or NumPy's times.

    Integers must be exact: a time between two steps of the unit is an error.
    """
    if dtype.kind == "M" and np.datetime_data(dtype)[0] in ("Y", "M"):
        times = microseconds.astype("M8[us]")
        result = times.astype(dtype)
        _check(result.astype("M8[us]") != times, microseconds, valid, time, name)
        return result
    since = microseconds if time.offset == 0 else microseconds - np.int64(time.offset)
    if valid is not None:
        since = np.where(valid, since, 0)
    unit = time.unit
    if dtype.kind == "f":
        whole, part = np.divmod(since, np.int64(unit.numerator))
        numbers = whole.astype(np.float64) + part.astype(np.float64) / unit.numerator
        return (numbers * unit.denominator).astype(dtype)
    largest = np.iinfo(np.int64).max // unit.denominator
    _check(np.abs(since) > largest, microseconds, valid, time, name)
    whole, part = np.divmod(since * np.int64(unit.denominator), np.int64(unit.numerator))
    _check(part != 0, microseconds, valid, time, name)
    if dtype.kind in "Mm":
        viewed: NDArray[Any] = whole.view(dtype)
        return viewed
    _check(whole == NOT_A_TIME, microseconds, valid, time, name)
    return whole


def _check(
    wrong: NDArray[np.bool_],
    microseconds: NDArray[np.int64],
    valid: NDArray[np.bool_] | None,
    time: TimeScale,
    name: str,
) -> None:
    if valid is not None:
        wrong = wrong & valid
    if not wrong.any():
        return
    number = int(microseconds[int(np.argmax(wrong))])
    if time.calendar is None:
        shown = f"a duration of {number / 1_000_000:g} seconds"
    elif time.is_timestamp:
        shown = str(np.datetime64(number, "us"))
    else:
        (shown,), _ = time.iso_strings(np.array([number]))
    step = time.unit / 1_000_000
    raise InvalidInputError(
        f"column {name!r} has the time {shown}, and its array counts whole steps of "
        f"{float(step):g} seconds in integers; the time is neither rounded nor cut off. Write "
        "times that the unit can count, or an array with a finer unit",
        variable=name,
        value=shown,
        step=float(step),
    )
