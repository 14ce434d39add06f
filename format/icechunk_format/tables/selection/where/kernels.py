"""Implements the operators and functions of a ``where`` over Arrow arrays, as Spark defines them.

Arrow's kernels follow IEEE 754 and C++; Spark follows SQL and Java in NULL, NaN, overflow and
division by zero.

Rules of this file
------------------
1. NULL arguments return NULL, except where SQL defines otherwise (AND, OR, IS NULL, ``<=>``,
   coalesce).
2. NaN equals NaN and is greater than every other number, as in Spark.
3. Overflow and division by zero are errors, as under spark.sql.ansi.enabled, Spark's default.
4. The planner makes the types of the arguments agree; no kernel coerces.
5. An Arrow timestamp without a zone is a TIMESTAMP_NTZ (wall time); with the zone UTC it is a
   TIMESTAMP (a time in UTC). Operations between the two take the name of a time zone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.tables.cf.arrow_values import numpy_dtype, timestamp_type
from icechunk_format.tables.selection.where import time_zones

_INTEGER_DIGITS: Final = 19
# An array, or a scalar for all rows.
Datum = Any


class EvaluationError(Exception):
    """An operation has no result for some value; the caller adds the condition to the message."""


def _is_float(value: Datum) -> bool:
    return bool(pa.types.is_floating(value.type))


def _is_plain_scalar(value: Datum) -> bool:
    """Return True if a value is a scalar other than NaN, which simplifies comparisons."""
    return isinstance(value, pa.Scalar) and not (value.is_valid and value.as_py() != value.as_py())


def _equal(left: Datum, right: Datum) -> Datum:
    equal = pc.equal(left, right)
    if not _is_float(left) or _is_plain_scalar(left) or _is_plain_scalar(right):
        return equal
    return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less(left: Datum, right: Datum) -> Datum:
    if not _is_float(left) or _is_plain_scalar(right):
        return pc.less(left, right)
    if _is_plain_scalar(left):
        return pc.invert(pc.greater_equal(left, right))
    return pc.or_(pc.less(left, right), pc.and_not(pc.is_nan(right), pc.is_nan(left)))


def _less_equal(left: Datum, right: Datum) -> Datum:
    if not _is_float(left) or _is_plain_scalar(right):
        return pc.less_equal(left, right)
    if _is_plain_scalar(left):
        return pc.invert(pc.greater(left, right))
    # NULL on the left must stay NULL: pc.is_nan(left) is NULL there.
    known = pc.or_(pc.is_nan(left), pc.invert(pc.is_nan(left)))
    return pc.or_(pc.less_equal(left, right), pc.and_(pc.is_nan(right), known))


def _null_safe_equal(left: Datum, right: Datum) -> Datum:
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both_null, pc.fill_null(_equal(left, right), False))


def _in(value: Datum, choices: pa.Array) -> Datum:
    if _is_float(value):
        # Both zeros are equal, but Arrow's sets distinguish them.
        zero = pa.scalar(0, value.type)
        value, choices = pc.add(value, zero), pc.add(choices, zero)
    found = pc.is_in(value, value_set=choices)
    if choices.null_count:
        # SQL: a value that is not in the list may equal the NULL in it.
        found = pc.if_else(found, found, pa.scalar(None, pa.bool_()))
    return pc.if_else(pc.is_valid(value), found, pa.scalar(None, pa.bool_()))


def _divide(left: Datum, right: Datum) -> Datum:
    _refuse_zero(left, right)
    return pc.divide(left, right)


def _remainder(left: Datum, right: Datum) -> Datum:
    """Return the remainder with the sign of the dividend, as in Java."""
    _refuse_zero(left, right)
    return _by_numpy(np.fmod)(left, right)


def _refuse_zero(left: Datum, right: Datum) -> None:
    zero = pc.and_(pc.equal(right, pa.scalar(0, right.type)), pc.is_valid(left))
    if pc.any(_array(zero)).as_py():
        raise EvaluationError(
            "division by zero, which is an error in Spark too; divide by nullif(divisor, 0) instead"
        )


def _numpy(value: Datum) -> Any:
    if isinstance(value, pa.Scalar):
        return np.array([value.as_py()], numpy_dtype(value.type))
    return value.to_numpy(zero_copy_only=False)


def _by_numpy(function: Callable[..., Any], output_type: pa.DataType | None = None) -> Any:
    """Extend a NumPy function on numbers to NULLs and scalars."""

    def lifted(*values: Datum) -> Datum:
        kind = output_type or values[0].type
        with np.errstate(all="ignore"):
            numbers = function(*(_numpy(pc.fill_null(v, pa.scalar(0, v.type))) for v in values))
        valid = reduce(pc.and_, map(pc.is_valid, values))
        result = pc.if_else(_array(valid), pa.array(numbers).cast(kind), pa.scalar(None, kind))
        return result[0] if all(isinstance(value, pa.Scalar) for value in values) else result

    return lifted


def _in_zone(function: Callable[..., Any], output_type: pa.DataType) -> Any:
    """Extend a function of microseconds and a time zone, the last option of a call, to columns."""

    def lifted(*arguments: Any) -> Datum:
        *values, zone = arguments
        of_micros = _by_numpy(lambda *micros: function(*micros, zone=zone), pa.int64())
        return of_micros(*(value.cast(pa.int64()) for value in values)).cast(output_type)

    return lifted


def _array(value: Datum) -> pa.Array:
    return pa.array([value.as_py()], value.type) if isinstance(value, pa.Scalar) else value


def _to_bigint(numbers: Any) -> Any:
    """Cast whole floats to BIGINT as Spark does: NaN becomes 0, too large a value is an error."""
    numbers = np.where(np.isnan(numbers), 0.0, numbers)
    if (np.abs(numbers) >= 2.0**63).any():
        raise EvaluationError(
            "floor or ceil of a number beyond BIGINT is an error, in Spark too; compare the number "
            "itself"
        )
    return numbers.astype(np.int64)


def _round_half_up(numbers: Any) -> Any:
    """Round to whole numbers, halves away from zero, as Spark does."""
    whole = np.trunc(numbers)
    return np.where(np.abs(numbers - whole) >= 0.5, whole + np.sign(numbers), whole)


def _natural_log(value: Datum) -> Datum:
    """Return the natural logarithm; NULL for zero and negative numbers, as in Spark."""
    positive = pc.invert(pc.less_equal(value, pa.scalar(0.0)))
    return pc.if_else(positive, _by_numpy(np.log)(value), pa.scalar(None, pa.float64()))


def _cast(value: Datum, output_type: pa.DataType) -> Datum:
    """Cast between allowed types; raise EvaluationError if a value does not fit."""
    source = value.type
    if pa.types.is_floating(source) and pa.types.is_integer(output_type):
        value = pc.trunc(value)
    elif pa.types.is_integer(source) and pa.types.is_decimal(output_type):
        # Arrow refuses a decimal that cannot hold every integer of the type.
        value = value.cast(pa.decimal256(_INTEGER_DIGITS + output_type.scale, output_type.scale))
    elif pa.types.is_decimal(source) and source.scale and pa.types.is_floating(output_type):
        # By the digits: Arrow's own cast may return a neighbour of the nearest double.
        value = value.cast(pa.string())
    elif pa.types.is_string(source):
        value = pc.utf8_trim_whitespace(value)
    elif pa.types.is_timestamp(source) and pa.types.is_date(output_type):
        value = pc.floor_temporal(value, unit="day")
    elif pa.types.is_integer(source) and pa.types.is_boolean(output_type):
        return pc.not_equal(value, pa.scalar(0, source))
    elif pa.types.is_floating(source) and pa.types.is_boolean(output_type):
        return pc.not_equal(value, pa.scalar(0.0, source))
    # Integers beyond 2**53 lose digits as doubles in Spark as well.
    safe = not pa.types.is_floating(output_type)
    try:
        return value.cast(output_type, safe=safe)
    except pa.ArrowInvalid as error:
        raise EvaluationError(
            f"a value cannot be cast to {output_type}, which is an error in Spark too: {error}"
        ) from error


def _quotient(left: Datum, right: Datum) -> Datum:
    """Return the whole quotient of integers, rounded towards zero, as in Java."""
    _refuse_zero(left, right)
    return pc.divide_checked(left, right)


def _positive_remainder(left: Datum, right: Datum) -> Datum:
    """Return the remainder with the sign of the divisor, as ``pmod`` does."""
    _refuse_zero(left, right)
    return _by_numpy(_pmod)(left, right)


def _pmod(numbers: Any, divisors: Any) -> Any:
    rest = np.fmod(numbers, divisors)
    return np.where(rest < 0, np.fmod(rest + divisors, divisors), rest)


def _larger(left: Datum, right: Datum) -> Datum:
    """Return the larger value; the other one if one is NULL."""
    return pc.if_else(pc.fill_null(_less(left, right), pc.is_null(left)), right, left)


def _smaller(left: Datum, right: Datum) -> Datum:
    return pc.if_else(pc.fill_null(_less(right, left), pc.is_null(left)), right, left)


def _days_between(end: Datum, start: Datum) -> Datum:
    return pc.subtract_checked(end.cast(pa.int32()), start.cast(pa.int32()))


def _formatted(value: Datum, pattern: str) -> Datum:
    """Format times by a pattern of ``strftime``."""
    years = pc.year(value)
    if not pc.all(_array(pc.and_(pc.greater(years, 999), pc.less(years, 10_000)))).as_py():
        raise EvaluationError("date_format needs years of four digits")
    return pc.strftime(value, pattern)


def _nullif(left: Datum, right: Datum) -> Datum:
    equal = pc.fill_null(_equal(left, right), False)
    return pc.if_else(equal, pa.scalar(None, left.type), left)


def _is_nan(value: Datum) -> Datum:
    return pc.fill_null(pc.is_nan(value), False)


def _negate(value: Datum) -> Datum:
    if pa.types.is_duration(value.type):
        return pc.subtract_checked(pa.scalar(0, value.type), value)
    return pc.negate(value) if pa.types.is_decimal(value.type) else pc.negate_checked(value)


# Operations whose last option is the time zone.
ZONED: Final[dict[str, Callable[..., Datum]]] = {
    "to_wall_time": _in_zone(time_zones.to_wall_times, timestamp_type("ntz")),
    "to_timestamp": _in_zone(time_zones.to_timestamps, timestamp_type("utc")),
    "day_to_timestamp": _in_zone(time_zones.to_timestamps, timestamp_type("utc")),
    "to_timestamp_near": _in_zone(
        lambda wall_time, near, zone: time_zones.to_timestamps(wall_time, zone, near),
        timestamp_type("utc"),
    ),
    "shift": _in_zone(time_zones.shifted, timestamp_type("utc")),
}

# Operation -> function of the arguments, followed by the options of the call.
KERNELS: Final[dict[str, Callable[..., Datum]]] = {
    **ZONED,
    "and": lambda *values: reduce(pc.and_kleene, values),
    "or": lambda *values: reduce(pc.or_kleene, values),
    "not": pc.invert,
    "eq": _equal,
    "ne": lambda left, right: pc.invert(_equal(left, right)),
    "lt": _less,
    "le": _less_equal,
    "gt": lambda left, right: _less(right, left),
    "ge": lambda left, right: _less_equal(right, left),
    "null_safe_eq": _null_safe_equal,
    "is_null": pc.is_null,
    "in": _in,
    "add": pc.add_checked,
    "subtract": pc.subtract_checked,
    "multiply": pc.multiply_checked,
    "divide": _divide,
    "remainder": _remainder,
    "quotient": _quotient,
    "positive_remainder": _positive_remainder,
    "bit_and": pc.bit_wise_and,
    "bit_or": pc.bit_wise_or,
    "bit_xor": pc.bit_wise_xor,
    "greatest": lambda *values: reduce(_larger, values),
    "least": lambda *values: reduce(_smaller, values),
    "sign": pc.sign,
    "negate": _negate,
    "cast": _cast,
    "matches": lambda value, pattern: pc.match_substring_regex(value, pattern),
    "abs": pc.abs_checked,
    "floor": _by_numpy(lambda numbers: _to_bigint(np.floor(numbers)), pa.int64()),
    "ceil": _by_numpy(lambda numbers: _to_bigint(np.ceil(numbers)), pa.int64()),
    "round": _by_numpy(_round_half_up),
    "sqrt": _by_numpy(np.sqrt),
    "exp": _by_numpy(np.exp),
    "sin": _by_numpy(np.sin),
    "cos": _by_numpy(np.cos),
    "tan": _by_numpy(np.tan),
    "radians": _by_numpy(np.radians),
    "degrees": _by_numpy(np.degrees),
    "ln": _natural_log,
    "power": _by_numpy(np.power),
    "is_nan": _is_nan,
    "coalesce": pc.coalesce,
    "nullif": _nullif,
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "length": pc.utf8_length,
    "concat": lambda *values: pc.binary_join_element_wise(*values, ""),
    "format": _formatted,
    "add_days": lambda date, days: pc.add_checked(date.cast(pa.int32()), days).cast(pa.date32()),
    "days_between": _days_between,
    "seconds": lambda value: _by_numpy(lambda micros: micros // 1_000_000)(value.cast(pa.int64())),
    "trim": lambda value: pc.utf8_trim(value, " "),
    "slice": lambda value, start, stop: pc.utf8_slice_codeunits(value, start, stop),
    "starts_with": lambda value, string: pc.starts_with(value, string),
    "ends_with": lambda value, string: pc.ends_with(value, string),
    "contains": lambda value, string: pc.match_substring(value, string),
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "day_of_year": pc.day_of_year,
    "week_of_year": pc.iso_week,
    "day_of_week": lambda value: pc.day_of_week(value, count_from_zero=False, week_start=7),
    "weekday": lambda value: pc.day_of_week(value, count_from_zero=True, week_start=1),
    "truncate": lambda value, unit: pc.floor_temporal(value, unit=unit),
}
