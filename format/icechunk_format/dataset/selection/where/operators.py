"""Builds comparisons, arithmetic and long IN lists by Spark's type rules.

Rules of this file
------------------
1. sqlglot would take seconds for long IN lists, so those of plain numbers, or of strings in single
   quotes without a backslash, are extracted before parsing. The parser reads all other lists.
2. Such a list becomes one column if the type of the compared value determines the column's type;
   other lists become literals.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.dataset.cf.arrow_values import is_number, sql_name
from icechunk_format.dataset.selection.where.condition import Constant
from icechunk_format.dataset.selection.where.syntax import INTERVAL_UNITS, TIME_PARTS
from icechunk_format.dataset.selection.where.types import (
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
    comparable,
    constant,
    decimal_operand,
    number_literal,
)

# Items from which a list is long.
_LENGTH: Final = 200
_NAME: Final = "icechunk_list_"
_NUMBER: Final = r"(?>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
_STRING: Final = r"(?>'(?:[^'\\]|'')*+')"
# Quoted strings are matched first, so that lists within quotes are skipped.
_LISTS: Final = re.compile(
    r"\b[rR](?:'[^']*'|\"[^\"]*\")|"
    + "|".join(
        rf"\bIN\s*\(\s*(?P<{name}>{item}(?:\s*,\s*{item}){{{_LENGTH - 1},}}+)\s*\)"
        for name, item in (("numbers", _NUMBER), ("strings", _STRING))
    )
    + r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_DATES: Final = r"^\d{4}-\d\d-\d\d$"
_TIMES: Final = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?$"
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


def cut_lists(sql: str) -> tuple[str, dict[str, list[str]]]:
    """Replace each long list in SQL by a placeholder; return the SQL, and items by placeholder."""
    lists: dict[str, list[str]] = {}
    if _NAME in sql or "--" in sql or "/*" in sql:
        return sql, lists

    def cut(match: re.Match[str]) -> str:
        for name, item in (("numbers", _NUMBER), ("strings", _STRING)):
            if match[name] is not None:
                key = f"{_NAME}{len(lists)}"
                lists[key] = re.findall(item, match[name], re.ASCII)
                return f"IN (:{key})"
        return match[0]

    return _LISTS.sub(cut, sql), lists


def as_literals(items: list[str]) -> list[Typed]:
    """Return the items as literals, as the parser would."""
    if items[0].startswith("'"):
        return [constant(text, STRING) for text in _strings(items)]
    return [number_literal(item) for item in items]


def as_set(value: Typed, items: list[str]) -> tuple[Typed, Typed] | None:
    """Return a value, and the items as a column of its type; None if they must be literals."""
    try:
        if not items[0].startswith("'"):
            return _as_numbers(value, pa.array(items))
        return _as_strings(value, pa.array(_strings(items)))
    except pa.ArrowInvalid:
        return None


def _as_numbers(value: Typed, items: pa.Array) -> tuple[Typed, Typed] | None:
    if pa.types.is_integer(value.type):
        return cast(value, BIGINT), _column(items.cast(BIGINT))
    if pa.types.is_floating(value.type):
        return cast(value, DOUBLE), _column(items.cast(DOUBLE))
    return None


def _as_strings(value: Typed, items: pa.Array) -> tuple[Typed, Typed] | None:
    if value.type == STRING:
        return value, _column(items)
    pattern = {DATE: _DATES, TIMESTAMP_NTZ: _TIMES, TIMESTAMP: _TIMES}.get(value.type)
    if pattern is None or not pc.all(pc.match_substring_regex(items, pattern)).as_py():
        return None
    if value.type == TIMESTAMP:
        return value, call("to_timestamp", TIMESTAMP, _column(items.cast(TIMESTAMP_NTZ)))
    return value, _column(items.cast(value.type))


def _column(items: pa.Array) -> Typed:
    return Typed(Constant(items), items.type)


def _strings(items: list[str]) -> list[str]:
    return [item[1:-1].replace("''", "'") for item in items]
