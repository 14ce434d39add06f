"""Reads and writes entries of the operations log inside the repo info file.

Rules of this file
------------------
1. Each kind of update is a value class named as in ``repo.fbs``; its decorator declares the storage
   of its fields.
2. An entry of a newer kind is read as the number of its kind, so that history stays readable. Its
   details have an unknown schema, so it cannot be written: see `repo_info.file.encode`.

Specification: "Updates to the repo info file" and the union ``UpdateType`` of ``repo.fbs``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar, dataclass_transform

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import is_backup_name
from icechunk_format.encoding.repo_info.lists import (
    MIN_ROWS,
    UPDATE,
    Commit,
    read_commits,
    read_in_bulk,
    write_commits,
)
from icechunk_format.encoding.tables.reader import Table
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.errors import InvalidInputError, UnsupportedError


class Availability(IntEnum):
    """The changes that a repository accepts."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


class UpdateKind(IntEnum):
    """Number of the union ``UpdateType``; UNKNOWN is any number above 16."""

    UNKNOWN = 0
    REPO_INITIALIZED = 1
    REPO_MIGRATED = 2
    CONFIG_CHANGED = 3
    METADATA_CHANGED = 4
    TAG_CREATED = 5
    TAG_DELETED = 6
    BRANCH_CREATED = 7
    BRANCH_DELETED = 8
    BRANCH_RESET = 9
    NEW_COMMIT = 10
    COMMIT_AMENDED = 11
    NEW_DETACHED_SNAPSHOT = 12
    GC_RAN = 13
    EXPIRATION_RAN = 14
    FEATURE_FLAG_CHANGED = 15
    REPO_STATUS_CHANGED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoStatus:
    """Availability of a repository, since ``set_at`` microseconds after 1970-01-01T00:00:00Z."""

    availability: Availability = Availability.ONLINE
    set_at: int
    reason: str | None = None


class UpdateDetails:
    """Base class of the details of an update; ``_kind`` declares each subclass."""

    __slots__ = ()


_SNAPSHOT: Final = "id12"
_STRING: Final = "string"
_STATUS: Final = "status"
_KINDS: Final[dict[UpdateKind, tuple[type[Any], dict[str, str]]]] = {}
_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _kind(kind: UpdateKind, **fields: str) -> Callable[[type[_T]], type[_T]]:
    """Declare the number of a kind, and the storage of its fields."""

    def declare(details: type[_T]) -> type[_T]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(details)
        _KINDS[kind] = made, fields
        return made

    return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownUpdate(UpdateDetails):
    """An operation of a newer library; ``number`` is its index in the union."""

    number: int


@_kind(UpdateKind.REPO_INITIALIZED)
class RepoInitializedUpdate(UpdateDetails):
    """The repository was created."""


@_kind(UpdateKind.REPO_MIGRATED, from_version="u8", to_version="u8")
class RepoMigratedUpdate(UpdateDetails):
    """The repository was moved from one spec version to another."""

    from_version: int
    to_version: int


@_kind(UpdateKind.CONFIG_CHANGED)
class ConfigChangedUpdate(UpdateDetails):
    """The stored configuration was replaced."""


@_kind(UpdateKind.METADATA_CHANGED)
class MetadataChangedUpdate(UpdateDetails):
    """The metadata of the repository was replaced."""


@_kind(UpdateKind.TAG_CREATED, name=_STRING)
class TagCreatedUpdate(UpdateDetails):
    """A tag was created."""

    name: str


@_kind(UpdateKind.TAG_DELETED, name=_STRING, previous_snap_id=_SNAPSHOT)
class TagDeletedUpdate(UpdateDetails):
    """A tag was deleted; it pointed to ``previous_snap_id``."""

    name: str
    previous_snap_id: SnapshotId


@_kind(UpdateKind.BRANCH_CREATED, name=_STRING)
class BranchCreatedUpdate(UpdateDetails):
    """A branch was created."""

    name: str


@_kind(UpdateKind.BRANCH_DELETED, name=_STRING, previous_snap_id=_SNAPSHOT)
class BranchDeletedUpdate(UpdateDetails):
    """A branch was deleted; it pointed to ``previous_snap_id``."""

    name: str
    previous_snap_id: SnapshotId


@_kind(UpdateKind.BRANCH_RESET, name=_STRING, previous_snap_id=_SNAPSHOT)
class BranchResetUpdate(UpdateDetails):
    """A branch was moved to another snapshot; it pointed to ``previous_snap_id``."""

    name: str
    previous_snap_id: SnapshotId


@_kind(UpdateKind.NEW_COMMIT, branch=_STRING, new_snap_id=_SNAPSHOT)
class NewCommitUpdate(UpdateDetails):
    """A branch advanced to a new snapshot."""

    branch: str
    new_snap_id: SnapshotId


@_kind(UpdateKind.COMMIT_AMENDED, branch=_STRING, previous_snap_id=_SNAPSHOT, new_snap_id=_SNAPSHOT)
class CommitAmendedUpdate(UpdateDetails):
    """The tip of a branch was replaced by a new snapshot with the same parent."""

    branch: str
    previous_snap_id: SnapshotId
    new_snap_id: SnapshotId


@_kind(UpdateKind.NEW_DETACHED_SNAPSHOT, new_snap_id=_SNAPSHOT)
class NewDetachedSnapshotUpdate(UpdateDetails):
    """A snapshot without a branch was added."""

    new_snap_id: SnapshotId


@_kind(UpdateKind.GC_RAN)
class GCRanUpdate(UpdateDetails):
    """Garbage was collected."""


@_kind(UpdateKind.EXPIRATION_RAN)
class ExpirationRanUpdate(UpdateDetails):
    """Old snapshots were removed from history."""


@_kind(UpdateKind.FEATURE_FLAG_CHANGED, id="u16", new_value="bool", is_set="bool")
class FeatureFlagChangedUpdate(UpdateDetails):
    """A feature flag was set to ``new_value``, or returned to its default if not ``is_set``."""

    id: int
    new_value: bool
    is_set: bool


@_kind(UpdateKind.REPO_STATUS_CHANGED, status=_STATUS)
class RepoStatusChangedUpdate(UpdateDetails):
    """The status of the repository was set; None if the writer omitted it."""

    status: RepoStatus | None


REPO_STATUS = TableSchema(
    "RepoStatus", availability="u8", set_at="u64", limited_availability_reason="offset"
)

_KIND_OF = {details: kind for kind, (details, _) in _KINDS.items()}
_SCHEMAS = {
    kind: TableSchema(
        details.__name__,
        **{name: "offset" if k in (_STRING, _STATUS) else k for name, k in fields.items()},
    )
    for kind, (details, fields) in _KINDS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One entry of the operations log.

    Parameters
    ----------
    updated_at
        Microseconds since 1970-01-01T00:00:00Z.
    backup_path
        Name below ``overwritten/`` of the backup of ``repo`` in which this entry is the newest;
        None for the newest entry of ``repo`` itself, which has no backup yet.
    """

    details: UpdateDetails
    updated_at: int
    backup_path: str | None = None

    @property
    def kind(self) -> UpdateKind:
        """The kind of the entry; UNKNOWN for kinds that only newer libraries define."""
        return _KIND_OF.get(type(self.details), UpdateKind.UNKNOWN)


def read_status(table: Table) -> RepoStatus:
    """Read a status; UnsupportedError for an unknown availability."""
    number = table.number("availability")
    if number not in Availability.__members__.values():
        raise UnsupportedError(
            f"{table.file_type} {table.object_key!r} has the availability {number}, but this "
            f"library supports {[int(a) for a in Availability]}; upgrade icechunk-spark",
            object_key=table.object_key,
            found=number,
            allowed=tuple(int(a) for a in Availability),
        )
    return RepoStatus(
        availability=Availability(number),
        set_at=table.number("set_at"),
        reason=table.optional_string("limited_availability_reason"),
    )


def write_status(writer: TableWriter, status: RepoStatus) -> int:
    """Write a status and return its handle."""
    return writer.table(
        REPO_STATUS,
        availability=int(status.availability),
        set_at=status.set_at,
        limited_availability_reason=None if status.reason is None else writer.string(status.reason),
    )


def read_backup_name(table: Table, field: str) -> str | None:
    """Read the name of a backup, which must stay inside ``overwritten/``."""
    found = table.optional_string(field)
    if found is not None and not is_backup_name(found):
        raise table.error(field, f"{found!r} has a segment that leaves overwritten/")
    return found


def read_update(table: Table) -> Update:
    """Read one entry of the log; an unknown kind becomes ``UnknownUpdate``."""
    number = table.union_kind("update_type")
    details: UpdateDetails
    if number in _NUMBERS:
        details = _read_details(table, UpdateKind(number))
    else:
        details = UnknownUpdate(number=number)
    return Update(
        details=details,
        updated_at=table.number("updated_at"),
        backup_path=read_backup_name(table, "backup_path"),
    )


_NUMBERS = frozenset(int(kind) for kind in _KINDS)


def _read_details(table: Table, kind: UpdateKind) -> UpdateDetails:
    details_type, fields = _KINDS[kind]
    child = table.child("update_type", _SCHEMAS[kind])
    values: dict[str, Any] = {}
    for name, stored in fields.items():
        if stored == _STRING:
            values[name] = child.string(name)
        elif stored == _SNAPSHOT:
            values[name] = SnapshotId(child.raw_id(name))
        elif stored == _STATUS:
            status = child.optional_child(name, REPO_STATUS)
            values[name] = None if status is None else read_status(status)
        else:
            values[name] = child.number(name)
    details: UpdateDetails = details_type(**values)
    return details


def read_updates(root: Table) -> tuple[Update, ...]:
    """Read the log of a repo info file."""
    found = read_in_bulk(
        root, "latest_updates", UPDATE, lambda updates: read_commits(updates, UpdateKind.NEW_COMMIT)
    )
    if found is None or not all(commit is None or is_backup_name(commit[-1]) for commit in found):
        return tuple(read_update(table) for table in root.children("latest_updates", UPDATE))
    others = [row for row, commit in enumerate(found) if commit is None]
    tables = root.children("latest_updates", UPDATE, others)
    updates: list[Update] = []
    for commit in found:
        if commit is None:
            updates.append(read_update(next(tables)))
            continue
        branch, snapshot_id, updated_at, backup = commit
        details = NewCommitUpdate(branch=branch, new_snap_id=snapshot_id)
        updates.append(Update(details=details, updated_at=updated_at, backup_path=backup))
    return tuple(updates)


def write_updates(writer: TableWriter, updates: Sequence[Update]) -> int:
    """Write a log and return its handle."""
    commits: dict[int, Commit] = {}
    for row, update in enumerate(updates):
        details, backup = update.details, update.backup_path
        if type(details) is NewCommitUpdate and backup is not None:
            commits[row] = details.branch, details.new_snap_id, update.updated_at, backup
    handles: dict[int, int] = {}
    if len(commits) >= MIN_ROWS:
        written = write_commits(writer, UpdateKind.NEW_COMMIT, list(commits.values()))
        if written is not None:
            handles.update(zip(commits, written.tolist(), strict=True))
    return writer.offsets(
        [
            handles[row] if row in handles else write_update(writer, update)
            for row, update in enumerate(updates)
        ]
    )


def write_update(writer: TableWriter, update: Update) -> int:
    """Write one entry and return its handle."""
    kind = update.kind
    if kind is UpdateKind.UNKNOWN:
        raise InvalidInputError(
            f"the log entry {update.details!r} has an unknown kind and cannot be written",
            found=repr(update.details),
            allowed=sorted(_NUMBERS),
        )
    values: dict[str, int | bytes | None] = {}
    for name, stored in _KINDS[kind][1].items():
        value = getattr(update.details, name)
        if stored == _STRING:
            values[name] = writer.string(value)
        elif stored == _SNAPSHOT:
            values[name] = value.raw
        elif stored == _STATUS:
            values[name] = None if value is None else write_status(writer, value)
        else:
            values[name] = value
    details = writer.table(_SCHEMAS[kind], **values)
    backup = None if update.backup_path is None else writer.string(update.backup_path)
    return writer.table(
        UPDATE,
        update_type_type=int(kind),
        update_type=details,
        updated_at=update.updated_at,
        backup_path=backup,
    )
