"""Types conditions by the rules of Spark's ANSI mode: which types go together, and as what.

Whether ``flux = 0.1`` compares floats or doubles, or whether ``'2024-07-01'`` is text or a date,
changes which rows are selected.

Rules of this file
------------------
1. An expression under construction carries its Arrow type (:class:`Typed`); casts are explicit.
2. A literal takes the type of the column where that does not change the result: a number that
   ``float32`` holds exactly is compared as ``float32``; text becomes a timestamp next to one.
3. Decimal literals stay exact against integers; against floats both become doubles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from icechunk_format.dataset.cf.arrow_values import numpy_dtype
from icechunk_format.dataset.cf.column_types import is_number, sql_name
from icechunk_format.dataset.selection.where.condition import (
    Call,
    ColumnRef,
    Constant,
    Expression,
    evaluate,
)

BOOLEAN: Final = pa.bool_()
STRING: Final = pa.string()
DOUBLE: Final = pa.float64()
BIGINT: Final = pa.int64()
INT: Final = pa.int32()
DATE: Final = pa.date32()
TIMESTAMP: Final = pa.timestamp("us")
INTERVAL: Final = pa.duration("us")

_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
# Decimal digits that hold every integer of the width, as Spark counts them.
_INTEGER_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_SPARK_DIGITS: Final = 38

_TIMESTAMP_TEXT: Final = re.compile(
    r"(\d{4,5})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{1,2}:\d{2})?)?)?)?",
    re.ASCII,
)

_OTHER_ZONE: Final = re.compile(r"[+-]\d{1,2}:\d{2}\s*$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression with its type.

    ``is_instant`` marks timestamps that are moments in UTC rather than clock readings.
    """

    expression: Expression
    type: pa.DataType
    is_instant: bool = False

    @property
    def literal(self) -> pa.Scalar | None:
        """The value, where the expression is a constant."""
        return self.expression.value if isinstance(self.expression, Constant) else None


class TypeMismatchError(Exception):
    """Spark would not compare or combine these types; the text says why."""


def constant(value: Any, kind: pa.DataType) -> Typed:
    """Return a constant of a type."""
    return Typed(Constant(pa.scalar(value, kind)), kind)


def column(name: str, kind: pa.DataType) -> Typed:
    """Return a column; its timestamps have no zone, as when they are evaluated."""
    if pa.types.is_timestamp(kind):
        return Typed(ColumnRef(name), TIMESTAMP, is_instant=kind.tz is not None)
    return Typed(ColumnRef(name), kind)


def call(
    operation: str, kind: pa.DataType, *arguments: Typed, options: tuple[Any, ...] = ()
) -> Typed:
    """Return an operation; one on constants is computed at once."""
    expression = Call(operation, tuple(argument.expression for argument in arguments), options)
    instant = any(argument.is_instant for argument in arguments) and kind == TIMESTAMP
    if all(argument.literal is not None for argument in arguments):
        value = evaluate(expression, {})
        return Typed(Constant(value if value.type == kind else value.cast(kind)), kind, instant)
    return Typed(expression, kind, instant)


def number_literal(text: str) -> Typed:
    """Read a number without a suffix: with a point it is a decimal, with ``e`` a double."""
    if "e" in text.lower():
        return constant(float(text), DOUBLE)
    value = Decimal(text)
    if "." not in text:
        for kind in (INT, BIGINT):
            if abs(value) <= np.iinfo(numpy_dtype(kind)).max:
                return constant(int(value), kind)
    return decimal_literal(value)


def decimal_literal(value: Decimal) -> Typed:
    """Return a decimal with exactly the digits of its text."""
    exponent = value.as_tuple().exponent
    scale = max(-int(exponent), 0)
    digits = max(len(value.as_tuple().digits), scale)
    if digits > _SPARK_DIGITS:
        raise TypeMismatchError(f"the number {value} has more than {_SPARK_DIGITS} digits")
    return constant(value, pa.decimal128(max(digits, 1), scale))


def cast(value: Typed, target: pa.DataType) -> Typed:
    """Return an explicit or implied cast, if Spark allows it and it is supported here."""
    source = value.type
    if source.equals(target):
        return value
    if value.literal is not None and pa.types.is_null(source):
        return Typed(Constant(pa.scalar(None, target)), target)
    if value.literal is not None and pa.types.is_string(source):
        return Typed(Constant(_read_text(value.literal.as_py(), target)), target)
    if not _can_cast(source, target):
        raise TypeMismatchError(f"{sql_name(source)} cannot be cast to {sql_name(target)} here")
    return call("cast", target, value, options=(target,))


def _can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    plain = source in _INTEGERS or pa.types.is_floating(source) or pa.types.is_boolean(source)
    if target in _INTEGERS or pa.types.is_floating(target):
        # Text that is a time or a decimal needs more rules than a filter is worth.
        return (
            plain
            or pa.types.is_string(source)
            or (pa.types.is_decimal(source) and pa.types.is_floating(target))
        )
    if pa.types.is_boolean(target):
        return plain
    if pa.types.is_string(target):
        return source in _INTEGERS or pa.types.is_boolean(source)
    if pa.types.is_decimal(target):
        return source in _INTEGERS or pa.types.is_decimal(source)
    if target in (DATE, TIMESTAMP):
        return source in (DATE, TIMESTAMP)
    return False


def comparable(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    """Return both sides of a comparison in their common type.

    Raises
    ------
    TypeMismatchError
        If Spark would not compare them.
    """
    left, right = _settle_zones(left, right)
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
    """Return the type in which Spark compares two others.

    Raises
    ------
    TypeMismatchError
        If there is none.
    """
    if left.equals(right):
        return left
    if pa.types.is_null(left) or pa.types.is_null(right):
        return right if pa.types.is_null(left) else left
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    pair = {left, right}
    if pair == {DATE, TIMESTAMP}:
        return TIMESTAMP
    if STRING in pair:
        other = right if left == STRING else left
        if other in _INTEGERS:
            return BIGINT
        if is_number(other):
            return DOUBLE
        if other in (DATE, TIMESTAMP, BOOLEAN, INTERVAL):
            return other
    raise TypeMismatchError(f"{sql_name(left)} and {sql_name(right)} have no common type")


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        # An integer or a decimal may not fit FLOAT, so Spark goes to DOUBLE.
        return DOUBLE
    if pa.types.is_decimal(left) or pa.types.is_decimal(right):
        (left_whole, left_scale), (right_whole, right_scale) = _digits(left), _digits(right)
        scale = max(left_scale, right_scale)
        return pa.decimal256(max(left_whole, right_whole) + scale, scale)
    return max(left, right, key=_INTEGERS.index)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Return the digits before and after the point."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return _INTEGER_DIGITS[kind], 0


def arithmetic_type(operation: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type of ``+``, ``-``, ``*``, ``/`` or ``%`` on numbers; operands are cast to it.

    Raises
    ------
    TypeMismatchError
        If the result is a decimal that would have to be rounded.
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
    """Return a number as a decimal of its own digits, ready for exact arithmetic."""
    whole, scale = _digits(value.type)
    return cast(value, pa.decimal256(whole + scale, scale))


def _fit_literal(other: Typed, literal: Typed) -> tuple[Typed, Typed]:
    """Give a number literal the type that it is compared with, if that type holds it exactly."""
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


def _settle_zones(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    """Read text that is compared with a timestamp, as an instant if the timestamp is one."""
    for value, other in ((left, right), (right, left)):
        if value.type == TIMESTAMP and other.literal is not None and other.type == STRING:
            text = other.literal.as_py()
            scalar = pa.scalar(read_timestamp(text, is_instant=value.is_instant), TIMESTAMP)
            read = Typed(Constant(scalar), TIMESTAMP, value.is_instant)
            return (value, read) if value is left else (read, value)
        if value.literal is not None and value.is_instant and not other.is_instant:
            raise TypeMismatchError(
                "a timestamp with a time zone meets a clock reading without one; write the time as "
                "the column shows it"
            )
    return left, right


def timestamp_literal(text: Typed, *, zoned: bool) -> Typed:
    """Read text that is cast to a timestamp; with a time zone in it, the result is an instant.

    Raises
    ------
    TypeMismatchError
        If the text is no timestamp, or has a time zone where the type has none.
    """
    word = None if text.literal is None else text.literal.as_py()
    if word is None:
        return constant(None, TIMESTAMP)
    is_instant = zoned and bool(_OTHER_ZONE.search(word))
    scalar = pa.scalar(read_timestamp(word, is_instant=is_instant), TIMESTAMP)
    return Typed(Constant(scalar), TIMESTAMP, is_instant)


def _is_opaque(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind))


def _read_text(text: str | None, target: pa.DataType) -> pa.Scalar:
    """Cast a text literal, as ANSI Spark does."""
    if text is None:
        return pa.scalar(None, target)
    word = text.strip()
    try:
        if target == TIMESTAMP:
            return pa.scalar(read_timestamp(word, is_instant=False), TIMESTAMP)
        if target == DATE:
            return pa.scalar(read_timestamp(word, is_instant=False).date(), DATE)
        if target in _INTEGERS:
            return pa.scalar(int(word), target)
        if pa.types.is_floating(target):
            return pa.scalar(float(re.sub(r"[dDfF]$", "", word)), target)
        if pa.types.is_boolean(target):
            return pa.scalar(_BOOLEAN_WORDS[word.lower()], target)
        if pa.types.is_decimal(target):
            return pa.scalar(Decimal(word), target)
    except (ValueError, KeyError, ArithmeticError, pa.ArrowException) as error:
        raise TypeMismatchError(f"{text!r} is not a {sql_name(target)}") from error
    raise TypeMismatchError(f"text cannot be cast to {sql_name(target)} here")


_BOOLEAN_WORDS: Final = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}


def read_timestamp(text: str, *, is_instant: bool) -> datetime:
    """Read a date or a timestamp as Spark casts text.

    A time zone moves instants to UTC. Against a timestamp without a zone, only UTC has a meaning
    that does not depend on a session, so any other zone is refused.

    Raises
    ------
    TypeMismatchError
        If the text is no timestamp.
    """
    match = _TIMESTAMP_TEXT.fullmatch(text.strip())
    if match is None:
        raise TypeMismatchError(f"{text!r} is not a timestamp such as 2024-07-01 06:00:00")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        result = datetime(
            *(int(year), int(month or 1), int(day or 1)),
            *(int(hour or 0), int(minute or 0), int(second or 0)),
            int((fraction or "")[:6].ljust(6, "0")),
        )
    except ValueError as error:
        raise TypeMismatchError(f"{text!r} is not a timestamp: {error}") from error
    if zone is None or zone in ("Z", "UTC", "GMT"):
        return result
    hours, minutes = zone[1:].split(":")
    shift = timedelta(hours=int(hours), minutes=int(minutes))
    if shift and not is_instant:
        raise TypeMismatchError(
            f"{text!r} has a time zone, but the column is a clock reading without one; "
            f"write the time as the column shows it"
        )
    zoned = result.replace(tzinfo=timezone(-shift if zone[0] == "-" else shift))
    return zoned.astimezone(UTC).replace(tzinfo=None)
