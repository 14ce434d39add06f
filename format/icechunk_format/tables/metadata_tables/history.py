"""Makes the rows of the metadata tables about the repository and its history.

Rows are made one by one from the repository's lists; no manifest is opened. Executors run these
functions, so the driver never serializes a list of a hundred thousand snapshots.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.encoding.envelope import SPEC_V1
from icechunk_format.encoding.ids import ObjectId, SnapshotId
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.repo_info.updates import (
    BranchCreatedUpdate,
    BranchDeletedUpdate,
    BranchResetUpdate,
    TagCreatedUpdate,
    TagDeletedUpdate,
    Update,
)
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.options.metadata_tables import REFS

if TYPE_CHECKING:
    from icechunk_format.repository import RepositoryReader

Row = dict[str, Any]

#: The largest number, and the last microsecond, that Spark's BIGINT and TIMESTAMP can hold.
LARGEST: Final = 2**63 - 1


def json_string(value: Any) -> str:
    """Return JSON as a string, in the order in which it was stored."""
    string = json.dumps(value, ensure_ascii=False)
    return string if string == valid_string(string) else json.dumps(value)


def valid_string(string: str) -> str:
    """Replace lone surrogates, which JSON allows and UTF-8 does not, by ``?``."""
    return string if string.isascii() else string.encode("utf-8", "replace").decode("utf-8")


def fitting(number: int) -> int | None:
    """Return a number or the microseconds of a timestamp; None if they are too large for Spark."""
    return number if number <= LARGEST else None


def _snapshot(info: SnapshotInfo) -> Row:
    return {
        "snapshot_id": str(info.id),
        "parent_id": None if info.parent_id is None else str(info.parent_id),
        "committed_at": fitting(info.flushed_at),
        "message": info.message,
        "metadata": json_string(info.metadata),
    }


def snapshot_rows(repository: RepositoryReader) -> Iterator[Row]:
    """Yield the rows of ``snapshots``.

    Spec version 2 lists all snapshots. In version 1 only snapshots that a branch or tag reaches are
    found, at one request each.
    """
    branches, tags = names_of(repository.branches()), names_of(repository.tags())
    infos = sorted(repository.snapshots(), key=lambda info: (-info.flushed_at, info.id.raw))
    for info in infos:
        yield {
            **_snapshot(info),
            "branches": branches.get(info.id, []),
            "tags": tags.get(info.id, []),
            "pruned_logs": len(info.pruned_ancestor_tx_logs),
        }


def names_of(refs: Mapping[str, SnapshotId]) -> dict[SnapshotId, list[str]]:
    """Return the names of branches or tags by the snapshots that they point to."""
    names: dict[SnapshotId, list[str]] = {}
    for name, snapshot_id in refs.items():
        names.setdefault(snapshot_id, []).append(name)
    return names


def history_rows(repository: RepositoryReader, snapshot_id: SnapshotId) -> Iterator[Row]:
    """Yield the rows of ``history`` of one snapshot."""
    for position, info in enumerate(repository.ancestry(snapshot=snapshot_id)):
        yield {"position": position, **_snapshot(info)}


def ref_rows(repository: RepositoryReader, wanted: Collection[str] = REFS.names) -> Iterator[Row]:
    """Yield the rows of ``refs``: branches, tags, deleted tags, each by name.

    Times of commits are looked up only if ``wanted`` has them.
    """
    refs = [("branch", *ref) for ref in repository.branches().items()]
    refs += [("tag", *ref) for ref in repository.tags().items()]
    deleted = repository.deleted_tags()
    times: Mapping[SnapshotId, int | None] = {}
    if "committed_at" in wanted:
        times = _commit_times(repository, {snapshot_id for _, _, snapshot_id in refs})
    for kind, name, snapshot_id in refs:
        yield {
            "name": name,
            "type": kind,
            "snapshot_id": str(snapshot_id),
            "committed_at": times.get(snapshot_id),
        }
    for name in deleted:
        yield {"name": name, "type": "deleted tag"}


def freshness_rows(repository: RepositoryReader) -> Iterator[Row]:
    """Yield the rows of ``freshness``: branches by name, at the current time."""
    now = time.time_ns() // 1000
    for name, snapshot_id in repository.branches().items():
        info = repository.snapshot_info(snapshot_id)
        yield {
            "branch": name,
            "snapshot_id": str(snapshot_id),
            "committed_at": info.flushed_at,
            "age_seconds": max(0, now - info.flushed_at) // 1_000_000,
            "message": info.message,
        }


def _commit_times(
    repository: RepositoryReader, wanted: set[SnapshotId]
) -> dict[SnapshotId, int | None]:
    """Return the commit times of snapshots, in one read if the repository lists its snapshots."""
    infos = (
        [repository.snapshot_info(snapshot_id) for snapshot_id in wanted]
        if repository.spec_version == SPEC_V1
        else repository.snapshots()
    )
    return {info.id: fitting(info.flushed_at) for info in infos}


_TAG_UPDATES: Final = (TagCreatedUpdate, TagDeletedUpdate)
_BRANCH_UPDATES: Final = (BranchCreatedUpdate, BranchDeletedUpdate, BranchResetUpdate)


def operation_rows(updates: Iterable[Update]) -> Iterator[Row]:
    """Yield the rows of ``operations`` from the entries of the log."""
    for update in updates:
        details = update.details
        stored = _plain(details)
        name = stored.get("name")
        yield {
            "kind": update.kind.name.lower(),
            "at": fitting(update.updated_at),
            "branch": name if isinstance(details, _BRANCH_UPDATES) else stored.get("branch"),
            "tag": name if isinstance(details, _TAG_UPDATES) else None,
            "snapshot_id": stored.get("new_snap_id"),
            "previous_snapshot_id": stored.get("previous_snap_id"),
            "backup_path": update.backup_path,
            "details": json_string(stored),
        }


def _plain(value: Any) -> Any:
    """Return a value of the log as JSON."""
    if isinstance(value, ObjectId):
        return str(value)
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.name.lower()
    return value


def change_rows(
    repository: RepositoryReader, older_id: SnapshotId, newer_id: SnapshotId
) -> Iterator[Row]:
    """Yield the rows of ``changes``, by path; raises the errors of ``Repository.diff``."""
    changes = repository.diff(older_id, newer_id)
    older, newer = repository.snapshot(older_id), repository.snapshot(newer_id)
    found: list[Row] = []
    for change, node_type, paths in (
        ("added", "group", changes.new_groups),
        ("added", "array", changes.new_arrays),
        ("removed", "group", changes.deleted_groups),
        ("removed", "array", changes.deleted_arrays),
        ("updated", "group", changes.updated_groups),
        ("updated", "array", changes.updated_arrays),
    ):
        found += [{"path": p, "node_type": node_type, "change": change} for p in paths]
    for path, coords in changes.updated_chunks.items():
        row = {"path": path, "node_type": "array", "change": "chunks", "chunk_count": len(coords)}
        found.append(row)
    for move in changes.moved_nodes:
        found.append(
            {
                "path": move.to_path,
                "node_type": _node_type(move.to_path, move.from_path, newer, older),
                "change": "moved",
                "moved_from": move.from_path,
            }
        )
    yield from sorted(found, key=lambda row: (row["path"], row["change"]))
    for snapshot_id in changes.missing_logs:
        yield {"change": "unknown", "snapshot_id": snapshot_id}


def _node_type(to_path: str, from_path: str, newer: Snapshot, older: Snapshot) -> str | None:
    """Return the type of a moved node; None if neither snapshot has a node at these paths."""
    node = newer.node(to_path) or older.node(from_path)
    if node is None:
        return None
    return "group" if node.array is None else "array"
