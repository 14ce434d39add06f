"""Escapes strings, and formats numbers and timestamps for display.

A repository is untrusted input: a commit message may contain terminal escape sequences or
characters that reverse the text direction. Non-printing characters are displayed as Python escapes,
so that different names never look the same.
"""

from __future__ import annotations

from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")
_AGES: Final = (
    (365 * 86_400, "year"),
    (30 * 86_400, "month"),
    (7 * 86_400, "week"),
    (86_400, "day"),
    (3_600, "hour"),
    (60, "minute"),
)


def safe(value: object) -> str:
    """Escape a string to one line of printable characters."""
    return escaped(str(value))


def safe_lines(text: str) -> list[str]:
    """Return the escaped lines of a string, without leading and trailing blank lines.

    Lines end with LF or CR LF only.
    """
    lines = [safe(line.removesuffix("\r").replace("\t", "    ")) for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    while lines and not lines[0].strip():
        lines.pop(0)
    return lines


def first_line(text: str) -> str:
    """Return the first escaped line of a string; empty without a line."""
    return next(iter(safe_lines(text)), "")


def one_line(text: str) -> str:
    """Join the lines of a string, such as an error message."""
    lines = [line.strip().removesuffix(";") for line in safe_lines(text) if line.strip()]
    return "; ".join(lines).replace(":; ", ": ")


def size(count: int | None) -> str:
    """Format a number of bytes: ``817 B``, ``1.3 MB`` (powers of 1000)."""
    if count is None:
        return "?"
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in _UNITS:
        amount /= 1000
        if amount < 999.5 or unit == _UNITS[-1]:
            return f"{amount:.1f} {unit}" if amount < 99.95 else f"{amount:.0f} {unit}"
    raise AssertionError("the last unit returns")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: ``1 chunk``, ``2,000 chunks``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def aligned(rows: Sequence[Sequence[str]], *, to_right: bool = False) -> list[str]:
    """Format rows of escaped strings as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = str.rjust if to_right else str.ljust
    return ["  ".join(map(pad, row, widths)).rstrip() for row in rows]


def to_timestamp(microseconds: int) -> datetime:
    """Convert microseconds since 1970 to a UTC timestamp, clipped to the range of ``datetime``."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def iso_time(timestamp: datetime | None) -> str | None:
    """Format a timestamp for scripts: ISO 8601 in UTC with microseconds."""
    if timestamp is None:
        return None
    return timestamp.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shown_time(timestamp: datetime | None) -> str:
    """Format a timestamp for display, in UTC with seconds.

    Seconds are rounded up, so that ``asOf`` with the displayed time of a snapshot includes it.
    """
    if timestamp is None:
        return "?"
    found = timestamp.astimezone(UTC)
    if found.microsecond and found.year < MAXYEAR:
        found += timedelta(seconds=1)
    return found.strftime("%Y-%m-%d %H:%M:%S UTC")


def age(timestamp: datetime, now: datetime) -> str:
    """Format the age of a timestamp: ``3 hours ago``."""
    seconds = (now - timestamp).total_seconds()
    if seconds < 0:
        return "in the future"
    for length, name in _AGES:
        if seconds >= length:
            return f"{counted(int(seconds // length), name)} ago"
    return "just now"


def shown_value(value: Any) -> str:
    """Format a JSON value for display: strings without quotes, other values as JSON."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{safe(k)}: {shown_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(shown_value(item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return safe(value)
