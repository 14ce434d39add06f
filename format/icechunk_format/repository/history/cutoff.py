"""Reads cutoffs: instants, and ages before now, as values of Python or as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.history.resolve import microseconds

#: An instant with a time zone, an age, or the text of either.
Cutoff = datetime | timedelta | str

_AGE: Final = re.compile(r"(\d{1,9})\s*(s|min|h|d|w)", re.ASCII)
_AGE_SECONDS: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def parse_cutoff(given: Cutoff, *, argument: str, now: datetime | None = None) -> datetime:
    """Return the instant of a cutoff; text without a zone is in UTC.

    Raises
    ------
    InvalidInputError
        It is neither an instant nor an age, or a `datetime` has no time zone.
    """
    present = datetime.now(UTC) if now is None else now
    if isinstance(given, datetime):
        microseconds(given, argument=argument)
        return given
    try:
        if isinstance(given, timedelta) and given >= timedelta(0):
            return present - given
        if isinstance(given, str):
            stripped = given.strip()
            match = _AGE.fullmatch(stripped.lower())
            if match is not None:
                return present - timedelta(seconds=int(match[1]) * _AGE_SECONDS[match[2]])
            instant = datetime.fromisoformat(stripped)
            # Also refuses instants without an equivalent in UTC.
            return (
                instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
            )
    except (ValueError, OverflowError):
        pass
    raise InvalidInputError(
        f"{argument} {given!r} is neither an age, such as 30d, 12h, 45min or 4w, nor a time,"
        " such as 2026-01-31 or 2026-01-31T12:00:00Z",
        argument=argument,
    )
