"""The options of reading that select the cells of a copy; the table records them.

Rules of this file
------------------
1. Names and meanings are those of the options of reading. A table records the options that were
   given, never the defaults.
2. A later run uses the recorded options. An option that it gives again must be the same.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icechunk_format.dataset.reading.scan import ScanPlan
from icechunk_format.dataset.table.table import Table
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_format.dataset.dataset import Dataset

# Options that select rows and columns, with the names of the arguments.
_OF_TABLE: Final = {
    "variables": "variables",
    "coords": "coords",
    "decodeCf": "decode_cf",
    "timestampType": "timestamp_type",
}
_OF_PLAN: Final = {
    "where": "where",
    "sel": "sel",
    "sel.method": "sel_method",
    "isel": "isel",
    "missingChunks": "missing_chunks",
}
# Key of a slice in JSON; a dimension cannot have this name.
_SLICE: Final = "/slice"

REMEMBERED: Final = ("group", *_OF_TABLE, *_OF_PLAN, "rowsPerPartition")
"""The options that a copy accepts and records, by their documented names."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Options of reading that select cells: JSON values by documented name."""

    given: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Selection:
        """Return the selection of parsed options, or raise InvalidInputError for another option."""
        for name in given:
            if name not in REMEMBERED:
                raise InvalidInputError(
                    f"option '{name}' has no effect on a copy; give one of {', '.join(REMEMBERED)}",
                    option=name,
                )
        return cls({name: _as_json(value) for name, value in given.items() if value is not None})

    def check_later(self, later: Selection, *, target: str) -> None:
        """Raise InvalidInputError if a later run gives a recorded option another value."""
        for name, value in later.given.items():
            known = self.given.get(name)
            if known != value:
                remembered = f"{name}={_shown(known)}" if name in self.given else f"no {name}"
                raise InvalidInputError(
                    f"{target} was copied with {remembered}, and now {name}={_shown(value)} is"
                    " given: leave the option out to continue, choose another target, or copy"
                    " all cells anew with full=True",
                    option=name,
                    remembered=known,
                    given=value,
                )

    @property
    def group(self) -> str | None:
        """The group to copy; None for the default of reading."""
        group = self.given.get("group")
        return None if group is None else str(group)

    @property
    def rows_per_file(self) -> int | None:
        """Rows of a file; None for the default."""
        rows = self.given.get("rowsPerPartition")
        return None if rows is None else int(rows)

    def table(self, dataset: Dataset) -> Table:
        """Return the selected table of a dataset."""
        return dataset.table(**self._arguments(_OF_TABLE))

    def plan(self, dataset: Dataset, table: Table, read_ahead_bytes: int) -> ScanPlan:
        """Plan a scan of the selected cells."""
        return dataset.plan(table, read_ahead_bytes=read_ahead_bytes, **self._arguments(_OF_PLAN))

    def _arguments(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {
            names[name]: _from_json(value) for name, value in self.given.items() if name in names
        }


def _as_json(value: Any) -> Any:
    """Return an option's value as JSON; slices become objects, and timestamps become strings."""
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
