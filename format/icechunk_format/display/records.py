"""Displays results and plans, which are dataclasses, by the names and values of their fields.

Long values are replaced by their length, and values that could start work, such as a DataFrame, by
their type. Fields with ``repr=False`` are left out.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from icechunk_format.display.markup import cut, escaped, facts, folded, page, title
from icechunk_format.display.plain_text import counted, safe, size

_MOST_ITEMS: Final = 5
_MOST_CHARACTERS: Final = 120
_PLAIN: Final = (bool, int, float, type(None))


def record_text(record: Any) -> str:
    """Return a record on one line, without defaults; counts are kept if all are defaults."""
    return _text(record, depth=2)


def _text(record: Any, depth: int) -> str:
    values = [(one, getattr(record, one.name)) for one in fields(record) if one.repr]
    counts = [(one, value) for one, value in values if _is_count(value, one)]
    has_counts = any(not _is_default(value, one) for one, value in counts)
    words = [
        f"{one.name}={_value_text(value, depth)}"
        for one, value in values
        if not _is_default(value, one) or (_is_count(value, one) and not has_counts)
    ]
    return f"{type(record).__name__}({', '.join(words)})"


def _is_count(value: Any, one: Any) -> bool:
    """Return True if a field is a number or collection with a default."""
    is_needed = one.default is MISSING and one.default_factory is MISSING
    return isinstance(value, int | tuple | dict) and not isinstance(value, bool) and not is_needed


def _is_default(value: Any, one: Any) -> bool:
    default = one.default_factory() if one.default_factory is not MISSING else one.default
    # Values of other types are not compared: comparing arrays returns arrays.
    plain = (*_PLAIN, str, tuple, dict)
    return isinstance(value, plain) and isinstance(default, plain) and bool(value == default)


def _value_text(value: Any, depth: int) -> str:
    if isinstance(value, Enum | datetime):
        return str(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, str | bytes):
        return safe(repr(value[:_MOST_CHARACTERS])) + ("…" if len(value) > _MOST_CHARACTERS else "")
    if is_dataclass(value) and not isinstance(value, type):
        if _has_own_text(value):
            return repr(str(value))
        return _text(value, depth - 1) if depth > 1 else f"<{type(value).__name__}>"
    # Not a subclass, which may hide its content.
    if type(value) is dict and len(value) <= _MOST_ITEMS and depth > 0:
        items = (
            f"{_value_text(key, 0)}: {_value_text(item, depth - 1)}" for key, item in value.items()
        )
        return f"{{{', '.join(items)}}}"
    if isinstance(value, tuple | list) and len(value) <= _MOST_ITEMS and depth > 0:
        shown = ", ".join(_value_text(item, depth - 1) for item in value)
        return f"({shown},)" if len(value) == 1 else f"({shown})"
    return f"<{_counted(value)}>"


def _has_own_text(value: Any) -> bool:
    """Return True if the class of a value defines its string, as for an id or a location."""
    return any("__str__" in vars(one) for one in type(value).__mro__[:-1])


def _counted(value: Any) -> str:
    """Return the type of a value, with its length if it is cheap to compute."""
    name = type(value).__name__
    if isinstance(value, Sized) and not hasattr(value, "rdd"):
        return f"{name} of {len(value):,}"
    return name


def record_html(record: Any) -> str:
    """Return a record as HTML, with a row for each field with a value."""
    return page(record_text(record), title(type(record).__name__), _table(record, depth=2))


def _table(record: Any, depth: int) -> str:
    rows = []
    for one in fields(record):
        value = getattr(record, one.name)
        is_empty = value is None or (isinstance(value, str | dict) and not value)
        if one.repr and not is_empty:
            rows.append((one.name.replace("_", " "), _value_html(one.name, value, depth)))
    return facts(rows)


def _value_html(name: str, value: Any, depth: int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        is_bytes = "bytes" in name.split("_")
        return f"{size(value)} ({value:,})" if is_bytes and value >= 1000 else f"{value:,}"
    if isinstance(value, str):
        return escaped(value)
    if is_dataclass(value) and not isinstance(value, type):
        if _has_own_text(value):
            return f"<code>{escaped(value)}</code>"
        if depth > 1:
            return folded(type(value).__name__, _table(value, depth - 1))
        return escaped(type(value).__name__)
    if type(value) is dict and depth > 0 and len(value) <= _MOST_ITEMS:
        part = "bytes" if "bytes" in name.split("_") else ""
        return facts((escaped(k, 60), _value_html(part, v, depth - 1)) for k, v in value.items())
    if isinstance(value, tuple | list) and not value:
        return "none"
    if isinstance(value, tuple | list) and all(isinstance(one, str) for one in value):
        listed = ", ".join(escaped(one, 80) for one in value[:_MOST_ITEMS])
        rest = len(value) - _MOST_ITEMS
        return listed if rest <= 0 else f"{listed} … and {rest:,} more"
    if isinstance(value, tuple | list):
        kind = type(value[0]).__name__
        return escaped(counted(len(value), kind))
    return escaped(cut(_value_text(value, depth)))
