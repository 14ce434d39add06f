"""Defines the read options that select the cells of a copy, and that its table records.

Rules of this file
------------------
1. Names and meanings are those of read options. A table records the given options, not the
   defaults.
2. A later run uses the recorded options. An option given again must have the same value.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.parse import by_attribute
from icechunk_format.options.read import ReadRequest

# Key of a slice in JSON; a dimension cannot have this name.
_SLICE: Final = "/slice"

REMEMBERED: Final = (
    *("group", "variables", "coords", "decodeCf", "timestampType"),
    *("where", "sel", "sel.method", "isel", "missingChunks", "rowsPerPartition"),
)
"""The options that a copy accepts and records, by their documented names."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Read options that select cells: JSON values by documented name."""

    given: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Selection:
        """Return the selection from parsed options; raise InvalidInputError for other options."""
        for name in given:
            if name not in REMEMBERED:
                raise InvalidInputError(
                    f"option '{name}' has no effect on a copy; give one of {', '.join(REMEMBERED)}",
                    option=name,
                )
        return cls({name: _as_json(value) for name, value in given.items() if value is not None})

    def check_later(self, later: Selection, *, target: str) -> None:
        """Raise InvalidInputError if a later run gives another value of a recorded option."""
        for name, value in later.given.items():
            known = self.given.get(name)
            if known != value:
                remembered = f"{name}={_shown(known)}" if name in self.given else f"no {name}"
                raise InvalidInputError(
                    f"{target} was copied with {remembered}, and now {name}={_shown(value)} is"
                    " given: leave the option out to continue, choose another target, or copy"
                    " all cells again with full=True",
                    option=name,
                    remembered=known,
                    given=value,
                )

    @property
    def rows_per_file(self) -> int | None:
        """Rows of a file; None for the default."""
        rows = self.given.get("rowsPerPartition")
        return None if rows is None else int(rows)

    def of_read(self, read: ReadRequest) -> ReadRequest:
        """Return a read request of the selected cells, without the number of rows of a file."""
        given = by_attribute({name: _from_json(value) for name, value in self.given.items()})
        return replace(read, **given | {"rows_per_partition": None})


def _as_json(value: Any) -> Any:
    """Convert an option's value to JSON; slices become objects, and timestamps become strings."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case slice():
            return {_SLICE: [_as_json(part) for part in (value.start, value.stop, value.step)]}
        case Mapping():
            return {str(name): _as_json(item) for name, item in value.items()}
        case np.generic() | np.ndarray() if value.dtype.kind in "biufU":
            return value.tolist()
        case list() | tuple() | range() | np.ndarray():
            return [_as_json(item) for item in value]
        case dt.date():
            return value.isoformat()
        case _:
            return str(value)


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_SLICE}:
            return slice(*value[_SLICE])
        return {name: _from_json(item) for name, item in value.items()}
    return value


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else repr(value)
