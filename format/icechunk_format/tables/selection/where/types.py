"""Types expressions by the rules of Spark's ANSI mode: compatible types, and their common type.

Whether ``flux = 0.1`` compares floats or doubles, or whether ``'2024-07-01'`` is a string or a
date, changes which rows are selected.

Rules of this file
------------------
1. An expression under construction carries its Arrow type (:class:`Typed`); casts are explicit.
2. A literal takes the type of the column if that does not change the result: a number that
   ``float32`` holds exactly is compared as ``float32``; a string compared with a timestamp becomes
   a timestamp.
3. Decimal literals stay exact against integers; against floats both become doubles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf.arrow_values import is_number, numpy_dtype, sql_name, timestamp_type
from icechunk_format.tables.selection.where.condition import (
    Call,
    ColumnRef,
    Constant,
    Expression,
    columns_of,
    evaluate,
)
from icechunk_format.tables.selection.where.kernels import ZONED
from icechunk_format.tables.selection.where.time_zones import time_zone

BOOLEAN: Final = pa.bool_()
STRING: Final = pa.string()
DOUBLE: Final = pa.float64()
BIGINT: Final = pa.int64()
INT: Final = pa.int32()
DATE: Final = pa.date32()
TIMESTAMP_NTZ: Final = timestamp_type("ntz")
TIMESTAMP: Final = timestamp_type("utc")
INTERVAL: Final = pa.duration("us")

_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
# Decimal digits that hold every integer of the type, as in Spark.
_INTEGER_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_SPARK_DIGITS: Final = 38
_MOST_DIGITS: Final = 1_000

_TIMESTAMP_FORMAT: Final = re.compile(
    r"(\d{4,5})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?"
    r"\s*([A-Za-z+-][\w+:/-]*)?)?)?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression with its type."""

    expression: Expression
    type: pa.DataType

    @property
    def literal(self) -> pa.Scalar | None:
        """The value, if the expression is a single constant."""
        value = self.expression.value if isinstance(self.expression, Constant) else None
        return value if isinstance(value, pa.Scalar) else None


class TypeMismatchError(Exception):
    """Types that Spark does not compare or combine; the message gives the reason."""


def constant(value: Any, kind: pa.DataType) -> Typed:
    """Build a constant of a type."""
    return Typed(Constant(pa.scalar(value, kind)), kind)


def column(name: str, kind: pa.DataType) -> Typed:
    """Build a reference to a column."""
    return Typed(ColumnRef(name), kind)


def call(
    operation: str, kind: pa.DataType, *arguments: Typed, options: tuple[Any, ...] = ()
) -> Typed:
    """Build an operation; on constants, compute it unless it needs a time zone."""
    expression = Call(operation, tuple(argument.expression for argument in arguments), options)
    if operation in ZONED:
        return Typed(replace(expression, options=(None,)), kind)
    if all(argument.literal is not None for argument in arguments):
        value = evaluate(expression, {})
        return Typed(Constant(value if value.type == kind else value.cast(kind)), kind)
    return Typed(expression, kind)


def number_literal(string: str) -> Typed:
    """Parse a number without a suffix: with a point it is a decimal, with ``e`` a double."""
    if "e" in string.lower():
        return constant(float(string), DOUBLE)
    value = Decimal(string)
    if len(string) > _MOST_DIGITS:  # which arithmetic of decimals does not support
        raise TypeMismatchError(f"the number {string} has more than {_SPARK_DIGITS} digits")
    if "." not in string:
        for kind in (INT, BIGINT):
            if abs(value) <= np.iinfo(numpy_dtype(kind)).max:
                return constant(int(value), kind)
    return decimal_literal(value)


def decimal_literal(value: Decimal) -> Typed:
    """Build a decimal with exactly the written digits."""
    exponent = value.as_tuple().exponent
    scale = max(-int(exponent), 0)
    digits = max(len(value.as_tuple().digits), scale)
    if digits > _SPARK_DIGITS:
        raise TypeMismatchError(f"the number {value} has more than {_SPARK_DIGITS} digits")
    return constant(value, pa.decimal128(max(digits, 1), scale))


def cast(value: Typed, output_type: pa.DataType) -> Typed:
    """Build a cast; raise TypeMismatchError if Spark or this library does not support it."""
    source = value.type
    if source.equals(output_type):
        return value
    if value.literal is not None and pa.types.is_null(source):
        return Typed(Constant(pa.scalar(None, output_type)), output_type)
    if output_type == TIMESTAMP:
        return _timestamp(value)
    if source == TIMESTAMP and output_type in (DATE, TIMESTAMP_NTZ):
        return cast(call("to_wall_time", TIMESTAMP_NTZ, value), output_type)
    if value.literal is not None and pa.types.is_string(source):
        return Typed(Constant(_read_string(value.literal.as_py(), output_type)), output_type)
    if not _can_cast(source, output_type):
        raise TypeMismatchError(
            f"{sql_name(source)} cannot be cast to {sql_name(output_type)} here"
        )
    return call("cast", output_type, value, options=(output_type,))


def _timestamp(value: Typed) -> Typed:
    """Convert a string, a date or a TIMESTAMP_NTZ to a TIMESTAMP."""
    literal = value.literal
    if literal is not None and value.type == STRING and literal.is_valid:
        wall_time, zone = _read_time(literal.as_py())
        if zone is not None:
            moment = wall_time.replace(tzinfo=time_zone(zone)).astimezone(UTC)
            return constant(moment, TIMESTAMP)
    operation = "day_to_timestamp" if value.type == DATE else "to_timestamp"
    return call(operation, TIMESTAMP, cast(value, TIMESTAMP_NTZ))


def _can_cast(source: pa.DataType, output_type: pa.DataType) -> bool:
    plain = source in _INTEGERS or pa.types.is_floating(source) or pa.types.is_boolean(source)
    if output_type in _INTEGERS or pa.types.is_floating(output_type):
        # Strings are not cast to times or decimals: Spark has many special rules for these.
        return (
            plain
            or pa.types.is_string(source)
            or (pa.types.is_decimal(source) and pa.types.is_floating(output_type))
        )
    if pa.types.is_boolean(output_type):
        return plain
    if pa.types.is_string(output_type):
        return source in _INTEGERS or pa.types.is_boolean(source)
    if pa.types.is_decimal(output_type):
        return source in _INTEGERS or pa.types.is_decimal(source)
    if output_type in (DATE, TIMESTAMP_NTZ):
        return source in (DATE, TIMESTAMP_NTZ)
    return False


def comparable(left: Typed, right: Typed, *, by_wall_time: bool = True) -> tuple[Typed, Typed]:
    """Return both sides of a comparison in their common type.

    ``by_wall_time`` is False for the items of an IN list, which Spark compares as timestamps.
    """
    if by_wall_time:
        left, right = _by_wall_time(left, right)
    if left.literal is not None and right.literal is None:
        right, left = _fit_literal(right, left)
    else:
        left, right = _fit_literal(left, right)
    if left.type.equals(right.type):
        if _is_opaque(left.type):
            raise TypeMismatchError(f"values of type {sql_name(left.type)} cannot be compared")
        return left, right
    kind = common_type(left.type, right.type)
    return cast(left, kind), cast(right, kind)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type in which Spark compares values of two types."""
    if left.equals(right):
        return left
    if pa.types.is_null(left) or pa.types.is_null(right):
        return right if pa.types.is_null(left) else left
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    pair = {left, right}
    if pair <= {DATE, TIMESTAMP_NTZ, TIMESTAMP}:
        return TIMESTAMP if TIMESTAMP in pair else TIMESTAMP_NTZ
    if STRING in pair:
        other = right if left == STRING else left
        if other in _INTEGERS:
            return BIGINT
        if is_number(other):
            return DOUBLE
        if other in (DATE, TIMESTAMP_NTZ, TIMESTAMP, BOOLEAN, INTERVAL):
            return other
    raise TypeMismatchError(f"{sql_name(left)} and {sql_name(right)} have no common type")


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        # FLOAT may not hold an integer or a decimal exactly, so Spark uses DOUBLE.
        return DOUBLE
    if pa.types.is_decimal(left) or pa.types.is_decimal(right):
        (left_whole, left_scale), (right_whole, right_scale) = _digits(left), _digits(right)
        scale = max(left_scale, right_scale)
        return pa.decimal256(max(left_whole, right_whole) + scale, scale)
    return max(left, right, key=_INTEGERS.index)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Return the number of digits before and after the decimal point."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return _INTEGER_DIGITS[kind], 0


def arithmetic_type(operation: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type of ``+``, ``-``, ``*``, ``/`` or ``%`` on numbers; operands are cast to it.

    Raises TypeMismatchError if the result is a decimal that would be rounded.
    """
    kind = DOUBLE if operation == "divide" else common_type(left, right)
    either_decimal = pa.types.is_decimal(left) or pa.types.is_decimal(right)
    if either_decimal and not (pa.types.is_floating(left) or pa.types.is_floating(right)):
        if operation in ("divide", "remainder"):
            raise TypeMismatchError(
                "dividing decimals rounds them in Spark; write the number as a double, such as 2.5D"
            )
        (left_whole, left_scale), (right_whole, right_scale) = _digits(left), _digits(right)
        if operation == "multiply":
            digits, scale = _total(left) + _total(right) + 1, left_scale + right_scale
        else:
            scale = max(left_scale, right_scale)
            digits = max(left_whole, right_whole) + scale + 1
        if digits > _SPARK_DIGITS:
            raise TypeMismatchError(
                f"the result would need {digits} digits and Spark would round it; write the number "
                f"as a double, such as 2.5D"
            )
        return pa.decimal256(digits, scale)
    return kind


def _total(kind: pa.DataType) -> int:
    return sum(_digits(kind))


def decimal_operand(value: Typed) -> Typed:
    """Convert a number to a decimal with exactly its digits."""
    whole, scale = _digits(value.type)
    return cast(value, pa.decimal256(whole + scale, scale))


def _by_wall_time(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    """Return both sides of a comparison; a TIMESTAMP_NTZ column and a constant as wall times.

    Spark's optimizer does the same. Wall times in a gap would compare differently as timestamps.
    """
    for value, other in ((left, right), (right, left)):
        wall_times = _wall_times(value)
        if wall_times is None or columns_of(other.expression):
            continue
        if other.type == TIMESTAMP or (wall_times is not value and other.literal is not None):
            constant_time = cast(cast(other, TIMESTAMP), TIMESTAMP_NTZ)
            return (wall_times, constant_time) if value is left else (constant_time, wall_times)
    return left, right


def _wall_times(value: Typed) -> Typed | None:
    """Return the TIMESTAMP_NTZ column that a value is, or was cast from."""
    expression = value.expression
    if not columns_of(expression):
        return None
    if isinstance(expression, Call) and expression.operation == "to_timestamp":
        return Typed(expression.arguments[0], TIMESTAMP_NTZ)
    return value if value.type == TIMESTAMP_NTZ else None


def _fit_literal(other: Typed, literal: Typed) -> tuple[Typed, Typed]:
    """Cast a number literal to the type of the other side, if that type holds it exactly."""
    value = None if literal.literal is None else literal.literal.as_py()
    if value is None or isinstance(value, (bool, str)) or not is_number(literal.type):
        return other, literal
    if other.type in _INTEGERS and not isinstance(value, float):
        limits = np.iinfo(numpy_dtype(other.type))
        if value == int(value) and limits.min <= value <= limits.max:
            return other, constant(int(value), other.type)
    if other.type == pa.float32():
        double = float(value)
        with np.errstate(over="ignore"):
            if float(np.float32(double)) == double:
                return other, constant(double, pa.float32())
    return other, literal


def _is_opaque(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind))


def _read_string(string: str | None, output_type: pa.DataType) -> pa.Scalar:
    """Cast a string literal, as ANSI Spark does."""
    if string is None:
        return pa.scalar(None, output_type)
    word = string.strip()
    try:
        if output_type == TIMESTAMP_NTZ:
            return pa.scalar(_read_wall_time(word), TIMESTAMP_NTZ)
        if output_type == DATE:
            return pa.scalar(_read_wall_time(word).date(), DATE)
        if output_type in _INTEGERS:
            return pa.scalar(int(word), output_type)
        if pa.types.is_floating(output_type):
            return pa.scalar(float(re.sub(r"[dDfF]$", "", word)), output_type)
        if pa.types.is_boolean(output_type):
            return pa.scalar(_BOOLEAN_WORDS[word.lower()], output_type)
    except (ValueError, KeyError, ArithmeticError, pa.ArrowException) as error:
        raise TypeMismatchError(f"{string!r} is not a {sql_name(output_type)}") from error
    raise TypeMismatchError(f"a string cannot be cast to {sql_name(output_type)} here")


_BOOLEAN_WORDS: Final = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}


def _read_wall_time(string: str) -> datetime:
    """Parse a date or a timestamp as a wall time; a time zone must have the offset 0."""
    wall_time, zone = _read_time(string)
    if zone is not None and wall_time.replace(tzinfo=time_zone(zone)).utcoffset():
        raise TypeMismatchError(
            f"{string!r} has a time zone, but the column is a TIMESTAMP_NTZ; "
            f"write the time as the column shows it"
        )
    return wall_time


def _read_time(string: str) -> tuple[datetime, str | None]:
    """Parse a date or a timestamp, as Spark casts strings, with its time zone."""
    match = _TIMESTAMP_FORMAT.fullmatch(string.strip())
    if match is None:
        raise TypeMismatchError(f"{string!r} is not a timestamp such as 2024-07-01 06:00:00")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        result = datetime(
            *(int(year), int(month or 1), int(day or 1)),
            *(int(hour or 0), int(minute or 0), int(second or 0)),
            int((fraction or "")[:6].ljust(6, "0")),
        )
        if zone is not None:
            time_zone(zone)
    except (ValueError, InvalidInputError) as error:
        raise TypeMismatchError(f"{string!r} is not a timestamp: {error}") from error
    return result, zone
