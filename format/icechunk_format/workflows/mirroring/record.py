"""Defines what a version of the Delta table says of the snapshot that it holds.

The record is a JSON text in the metadata of the commit. It names the snapshot, and it holds what
the next run needs: the options, and how files are cut.

Rules of this file
------------------
1. A record holds no credential: the URL of the repository is the one for messages.
2. A table may come from anyone, so every field is checked when a record is read.
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
"""The application of the transaction that numbers the runs."""
_FORMAT: Final = 1
# The end of the year 9999 in microseconds: later instants are no datetime.
_LAST_INSTANT: Final = 253_402_300_799_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRecord:
    """What is known of one mirrored snapshot.

    Attributes
    ----------
    repository
        URL of the repository, without credentials.
    branch
        The branch that the table follows.
    snapshot_id
        The snapshot.
    committed_at
        When the snapshot was committed, in microseconds since 1970.
    run
        A random text, different for each run, by which a run knows its own version.
    number
        Counts the records of the table from 1.
    options
        The options of reading that were given.
    dims
        Dimensions of the rows, in the order in which file names give their bounds.
    lead
        Path of the array whose chunks files hold whole.
    steps
        Chunks of a file along each dimension.
    columns
        For each column its metadata, as reading gives them.
    """

    repository: str
    branch: str
    snapshot_id: str
    committed_at: int
    run: str
    number: int
    options: dict[str, Any] = field(default_factory=dict)
    dims: tuple[str, ...] = ()
    lead: str | None = None
    steps: tuple[int, ...] = ()
    columns: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @property
    def committed(self) -> datetime:
        """When the snapshot was committed."""
        return datetime.fromtimestamp(self.committed_at / 1e6, UTC)


def parse_record(text: object, *, target: str, version: int) -> MirrorRecord:
    """Return the record of a version.

    Raises
    ------
    FormatError
        It is no record, or one of a newer release.
    """

    def bad(problem: str) -> FormatError:
        return FormatError(
            f"{problem}; choose another target, or copy all anew with full=True",
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
        raise bad(f"it is not of format {_FORMAT}, the only one that is known here")
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
        raise bad("its fields dims and steps do not fit together")
    if not all(type(step) is int and step > 0 for step in steps):
        raise bad(f"its field steps is {steps!r}")
    if not 0 <= found["committed_at"] <= _LAST_INSTANT:
        raise bad(f"its field committed_at is {found['committed_at']}")
    SnapshotId.parse(found["snapshot_id"])
    fields = {name: found[name] for name in kinds}
    return MirrorRecord(**{**fields, "dims": tuple(dims), "steps": tuple(steps)})
