"""Defines the record of a mirrored snapshot: JSON in the metadata of each table version.

Rules of this file
------------------
1. A record contains no credentials: the URL of the repository is the sanitized one of messages.
2. A table is untrusted, so every field is checked when a record is read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from icechunk_format.errors import FormatError
from icechunk_format.spec.ids import SnapshotId

RECORD_KEY: Final = "icechunk_spark_mirror"
"""The key of the record in the metadata of a commit."""
APP_ID: Final = "icechunk-spark-mirror"
"""The application id of a transaction in Delta's log, whose version numbers the records."""
_FORMAT: Final = 1
# The end of the year 9999 (the limit of ``datetime``), in microseconds.
_LAST_TIMESTAMP: Final = 253_402_300_799_999_999


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
    def committed(self) -> datetime:
        """The commit time of the snapshot."""
        return datetime.fromtimestamp(self.committed_at / 1e6, UTC)


def parse_record(text: object, *, target: str, version: int) -> MirrorRecord:
    """Parse the record of a version; raise FormatError if it is invalid."""

    def bad(problem: str) -> FormatError:
        return FormatError(
            f"{problem}; choose another target, or copy all cells again with full=True",
            object_key=f"version {version} of {target}",
            file_type="record of a copy",
        )

    try:
        found = json.loads(text) if isinstance(text, str) else None
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
