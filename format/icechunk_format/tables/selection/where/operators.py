"""Builds comparisons, arithmetic and functions by Spark's type rules."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa

from icechunk_format.tables.cf.arrow_values import is_number, sql_name
from icechunk_format.tables.selection.where.condition import CASE
from icechunk_format.tables.selection.where.syntax import FORMATS, INTERVAL_UNITS, TIME_PARTS
from icechunk_format.tables.selection.where.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    INTERVAL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Typed,
    TypeMismatchError,
    arithmetic_type,
    call,
    cast,
    common_type,
    comparable,
    constant,
    decimal_operand,
)

_FORMAT_PARTS: Final = re.compile("|".join([*FORMATS, r"%?."]), re.DOTALL)
# The comparison to use when the sides are swapped.
_MIRRORED: Final = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}


def compare(operation: str, left: Typed, right: Typed) -> Typed:
    """Return a comparison in the common type of both sides."""
    if left.literal is not None and right.literal is None and operation in _MIRRORED:
        operation, left, right = _MIRRORED[operation], right, left
    bound = _float_bound(left, right) if operation in _MIRRORED else None
    if bound is not None:
        operation, right = {"gt": "gt", "ge": "gt", "lt": "le", "le": "le"}[operation], bound
    left, right = comparable(left, right)
    if operation == "null_safe_ne":
        return call("not", BOOLEAN, call("null_safe_eq", BOOLEAN, left, right))
    if pa.types.is_null(left.type):
        left, right = cast(left, BOOLEAN), cast(right, BOOLEAN)
    return call(operation, BOOLEAN, left, right)


def _float_bound(left: Typed, right: Typed) -> Typed | None:
    """Return the largest FLOAT below a number that is not exactly a FLOAT.

    Spark would widen a FLOAT column to DOUBLE. A comparison with this bound has the same result at
    a tenth of the cost, since no FLOAT is between the number and the bound.
    """
    value = None if right.literal is None else right.literal.as_py()
    if left.type != pa.float32() or not isinstance(value, (int, float, Decimal)):
        return None
    number = float(value)
    if not math.isfinite(number):
        return None
    with np.errstate(over="ignore"):
        nearest = np.float32(number)
    if float(nearest) > number:
        nearest = np.nextafter(nearest, np.float32(-np.inf))
    if float(nearest) == number or not np.isfinite(nearest):
        return None
    return constant(float(nearest), pa.float32())


def combine(operation: str, left: Typed, right: Typed) -> Typed:
    """Build arithmetic on numbers, or on times and intervals."""
    temporal = {DATE, TIMESTAMP_NTZ, TIMESTAMP, INTERVAL}
    if left.type in temporal or right.type in temporal:
        return _combine_times(operation, left, right)
    left, right = _as_number(left, right), _as_number(right, left)
    kind = arithmetic_type(operation, left.type, right.type)
    if pa.types.is_decimal(kind):
        return call(operation, kind, decimal_operand(left), decimal_operand(right))
    return call(operation, kind, cast(left, kind), cast(right, kind))


def combine_bits(operation: str, left: Typed, right: Typed) -> Typed:
    """Build a bitwise operation, or a quotient of integers, in the common type of both sides."""
    kind = BIGINT if operation == "quotient" else common_type(left.type, right.type)
    for value in (left, right):
        if not pa.types.is_integer(value.type):
            raise TypeMismatchError(f"integers are needed here, not {sql_name(value.type)}")
    return call(operation, kind, cast(left, kind), cast(right, kind))


def positive_remainder(left: Typed, right: Typed) -> Typed:
    """Build ``pmod`` of numbers other than decimals."""
    kind = common_type(left.type, right.type)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise TypeMismatchError(f"integers or doubles are needed here, not {sql_name(kind)}")
    return call("positive_remainder", kind, cast(left, kind), cast(right, kind))


def chosen(*arguments: Typed) -> Typed:
    """Build a CASE of conditions and values in turn, and the value of all other rows."""
    values = [*arguments[1::2], arguments[-1]]
    kind = widest(values)
    cases = [
        cast(argument, kind if number % 2 or number == len(arguments) - 1 else BOOLEAN)
        for number, argument in enumerate(arguments)
    ]
    return call(CASE, kind, *cases)


def widest(values: Sequence[Typed]) -> pa.DataType:
    """Return the common type of values."""
    kind = values[0].type
    for value in values[1:]:
        kind = common_type(kind, value.type)
    return kind


def days_added(date: Typed, days: Typed) -> Typed:
    """Add days to a date."""
    if not pa.types.is_integer(days.type):
        raise TypeMismatchError(f"a number of days is needed here, not {sql_name(days.type)}")
    return call("add_days", DATE, cast(date, DATE), cast(days, INT))


def formatted(pattern: str, value: Typed) -> Typed:
    """Build ``date_format`` for sqlglot's pattern of years, months, days, hours and minutes."""
    strftime = ""
    for part in _FORMAT_PARTS.findall(pattern):
        if part not in FORMATS and (part[0].isalpha() or part[0] in "%'[]"):
            raise TypeMismatchError("a format can consist of yyyy, MM, dd, HH, mm and signs")
        strftime += FORMATS.get(part, part)
    wall_time = cast(cast(value, TIMESTAMP), TIMESTAMP_NTZ)
    return call("format", STRING, wall_time, options=(strftime,))


def _as_number(value: Typed, other: Typed) -> Typed:
    """Convert a string operand of a number to a number, and give an untyped NULL a type."""
    if pa.types.is_null(value.type):
        return cast(value, other.type if is_number(other.type) else DOUBLE)
    if value.type == STRING:
        return cast(value, BIGINT if pa.types.is_integer(other.type) else DOUBLE)
    if not is_number(value.type):
        raise TypeMismatchError(f"{sql_name(value.type)} is not a number")
    return value


def _combine_times(operation: str, left: Typed, right: Typed) -> Typed:
    if operation == "add" and left.type == INTERVAL:
        left, right = right, left
    kinds = {left.type, right.type}
    if operation == "subtract" and kinds <= {DATE, TIMESTAMP_NTZ, TIMESTAMP}:
        if kinds == {DATE, TIMESTAMP}:
            left, right = cast(left, TIMESTAMP), cast(right, TIMESTAMP)
        return call(operation, INTERVAL, cast(left, TIMESTAMP_NTZ), cast(right, TIMESTAMP_NTZ))
    if operation in ("add", "subtract") and right.type == INTERVAL:
        if left.type == DATE:
            # Whole days yield a date in Spark; its midnight compares equal.
            micros = None if right.literal is None else right.literal.cast(BIGINT).as_py()
            is_days = micros is not None and micros % INTERVAL_UNITS["DAY"] == 0
            left = cast(left, TIMESTAMP_NTZ if is_days else TIMESTAMP)
        if left.type == TIMESTAMP:
            right = call("negate", INTERVAL, right) if operation == "subtract" else right
            return call("shift", TIMESTAMP, left, right)
        if left.type in (TIMESTAMP_NTZ, INTERVAL):
            return call(operation, left.type, left, right)
    raise TypeMismatchError(
        f"{sql_name(left.type)} and {sql_name(right.type)} cannot be combined in this way"
    )


def truncated(unit: str, value: Typed) -> Typed:
    """Truncate a TIMESTAMP to a unit of the calendar or of time."""
    timestamp = cast(value, TIMESTAMP)
    wall_time = call("truncate", TIMESTAMP_NTZ, cast(timestamp, TIMESTAMP_NTZ), options=(unit,))
    if unit in ("day", "hour", "minute", "second"):
        return call("to_timestamp_near", TIMESTAMP, wall_time, timestamp)
    return call("day_to_timestamp", TIMESTAMP, wall_time)


def time_part(name: str, value: Typed) -> Typed:
    """Build a function such as ``year`` or ``hour`` of a date or a timestamp."""
    kernel, needs_time_of_day = TIME_PARTS[name]
    if value.type not in (DATE, TIMESTAMP_NTZ, TIMESTAMP):
        raise TypeMismatchError(f"{name} needs a date or a timestamp, not {sql_name(value.type)}")
    if value.type == DATE and needs_time_of_day:
        value = cast(value, TIMESTAMP)
    if value.type == TIMESTAMP:
        value = cast(value, TIMESTAMP_NTZ)
    return call("cast", INT, call(kernel, BIGINT, value), options=(INT,))
