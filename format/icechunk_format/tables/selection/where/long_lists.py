"""Reads long IN lists of literals as columns.

Rules of this file
------------------
1. sqlglot would take seconds for long lists, so those of literals are extracted before parsing:
   numbers with and without a suffix, strings in single quotes without a backslash, and dates, times
   and casts of strings as Catalyst writes them. The parser reads all other lists.
2. Such a list becomes one column if the type of the compared value determines the column's type;
   other lists become literals.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.tables.selection.where.condition import Constant
from icechunk_format.tables.selection.where.types import (
    BIGINT,
    DATE,
    DOUBLE,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Typed,
    call,
    cast,
    constant,
    number_literal,
)

# Items from which a list is long.
_LENGTH: Final = 200
_NAME: Final = "icechunk_list_"
_ITEMS: Final = {
    "numbers": r"(?>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?[LSYDF]?)",
    "strings": r"(?>'(?:[^'\\]|'')*+')",
    "times": r"(?>(?:DATE|TIMESTAMP_NTZ) '[^'\\]*+')",
    "casts": r"(?>CAST\('[^'\\]*+' AS (?:FLOAT|DOUBLE|TIMESTAMP)\))",
}
# Quoted strings are matched first, so that lists within quotes are skipped.
_LISTS: Final = re.compile(
    r"\b[rR](?:'[^']*'|\"[^\"]*\")|"
    + "|".join(
        rf"\bIN\s*\(\s*(?P<{name}>{item}(?:\s*,\s*{item}){{{_LENGTH - 1},}}+)\s*\)"
        for name, item in _ITEMS.items()
    )
    + r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_DATES: Final = r"^\d{4}-\d\d-\d\d$"
_TIMES: Final = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?$"
_TIMESTAMPS: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$"
# The start and end of a typed literal, its type, and the pattern of the strings that are read.
_TYPED: Final = (
    ("", "L", pa.int64(), ""),
    ("", "S", pa.int16(), ""),
    ("", "Y", pa.int8(), ""),
    ("", "D", pa.float64(), ""),
    ("CAST('", "' AS DOUBLE)", pa.float64(), ""),
    ("CAST('", "' AS FLOAT)", pa.float32(), ""),
    ("CAST('", "' AS TIMESTAMP)", TIMESTAMP, _TIMESTAMPS),
    ("DATE '", "'", DATE, _DATES),
    ("TIMESTAMP_NTZ '", "'", TIMESTAMP_NTZ, _TIMES),
)


def cut_lists(sql: str) -> tuple[str, dict[str, list[str]]]:
    """Replace each long list in SQL by a placeholder; return the SQL, and items by placeholder."""
    lists: dict[str, list[str]] = {}
    if _NAME in sql or "--" in sql or "/*" in sql:
        return sql, lists

    def cut(match: re.Match[str]) -> str:
        for name, item in _ITEMS.items():
            if match[name] is not None:
                key = f"{_NAME}{len(lists)}"
                lists[key] = re.findall(item, match[name], re.ASCII | re.IGNORECASE)
                return f"IN (:{key})"
        return match[0]

    return _LISTS.sub(cut, sql), lists


def as_literals(items: list[str]) -> list[Typed] | None:
    """Return the items as literals, as the parser would; None if the parser has to read them."""
    if items[0].startswith("'"):
        return [constant(string, STRING) for string in _strings(items)]
    if all(item[-1].isdigit() for item in items):
        return [number_literal(item) for item in items]
    return None


def as_set(value: Typed, items: list[str]) -> tuple[Typed, Typed] | None:
    """Return a value, and the items as a column of its type; None if they must be literals."""
    try:
        if items[0].startswith("'"):
            return _as_strings(value, pa.array(_strings(items)))
        if items[0][-1].isdigit():
            return _as_numbers(value, pa.array(items))
        return _as_typed(value, items)
    except pa.ArrowInvalid:
        return None


def _as_typed(value: Typed, items: list[str]) -> tuple[Typed, Typed] | None:
    """Read literals of the type of the value itself, as Catalyst writes them."""
    for start, end, kind, pattern in _TYPED:
        if kind != value.type or not items[0].startswith(start) or not items[0].endswith(end):
            continue
        if not all(item.startswith(start) and item.endswith(end) for item in items):
            return None
        strings = pa.array([item[len(start) : len(item) - len(end)] for item in items])
        if pattern and not pc.all(pc.match_substring_regex(strings, pattern)).as_py():
            return None
        return value, _column(strings.cast(kind))
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
