"""Defines the record of a mirrored snapshot: JSON in the metadata of each table version.

Rules of this file
------------------
1. A record contains no credentials: the URL of the repository is the sanitized one of messages.
2. A table is untrusted, so every field is checked when a record is read.
3. Names and meanings of the recorded options are those of read options. A table records the given
   options, not the defaults.
4. A later run uses the recorded options. An option given again must have the same value.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.options.parse import by_attribute
from icechunk_format.options.read import ReadRequest

RECORD_KEY: Final = "icechunk_spark_mirror"
"""The key of the record in the metadata of a commit."""
APP_ID: Final = "icechunk-spark-mirror"
"""The application id of a transaction in Delta's log, whose version numbers the records."""
_FORMAT: Final = 1
# The end of the year 9999 (the limit of ``datetime``), in microseconds.
_LAST_TIMESTAMP: Final = 253_402_300_799_999_999
# Key of a slice in JSON; a dimension cannot have this name.
_SLICE: Final = "/slice"

REMEMBERED: Final = (
    *("group", "variables", "coords", "decodeCf", "timestampType"),
    *("where", "sel", "sel.method", "isel", "missingChunks", "rowsPerPartition"),
)
"""The options that a copy accepts and records, by their documented names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRecord:
    """One mirrored snapshot, and the options and file sizes that the next run needs."""

    repository: str
    branch: str
    snapshot_id: str
    committed_at: int
    """Microseconds since 1970."""
    run: str
    """A random string that identifies the run that wrote the version."""
    number: int
    """The number of the record in the table, from 1."""
    options: dict[str, Any] = field(default_factory=dict)
    """The read options that were given."""
    dims: tuple[str, ...] = ()
    """Dimensions of the rows, in the order of the bounds in names of files."""
    lead: str | None = None
    """Path of the leading array, at whose chunk edges files are cut."""
    steps: tuple[int, ...] = ()
    """Chunks of a file along each dimension."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Metadata of each column."""

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @property
    def committed(self) -> dt.datetime:
        """The commit time of the snapshot."""
        return dt.datetime.fromtimestamp(self.committed_at / 1e6, dt.UTC)


def parse_record(string: object, *, target: str, version: int) -> MirrorRecord:
    """Parse the record of a version; raise FormatError if it is invalid."""

    def bad(problem: str) -> FormatError:
        return FormatError(
            f"{problem}; choose another target, or copy all cells again with full=True",
            object_key=f"version {version} of {target}",
            file_type="record of a copy",
        )

    try:
        found = json.loads(string) if isinstance(string, str) else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise bad("it is not a JSON object")
    if found.pop("format", None) != _FORMAT:
        raise bad(f"its format is not {_FORMAT}, the only one that this release reads")
    kinds: dict[str, Any] = {
        "repository": str,
        "branch": str,
        "snapshot_id": str,
        "committed_at": int,
        "run": str,
        "number": int,
        "options": dict,
        "dims": list,
        "lead": (str, type(None)),
        "steps": list,
        "columns": dict,
    }
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind):
            raise bad(f"its field {name} is {found.get(name)!r}")
    dims, steps = found["dims"], found["steps"]
    if not all(isinstance(dim, str) for dim in dims) or len(dims) != len(steps):
        raise bad("its fields dims and steps differ in length")
    if not all(type(step) is int and step > 0 for step in steps):
        raise bad(f"its field steps is {steps!r}")
    if not 0 <= found["committed_at"] <= _LAST_TIMESTAMP:
        raise bad(f"its field committed_at is {found['committed_at']}")
    SnapshotId.parse(found["snapshot_id"])
    fields = {name: found[name] for name in kinds}
    return MirrorRecord(**{**fields, "dims": tuple(dims), "steps": tuple(steps)})


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
