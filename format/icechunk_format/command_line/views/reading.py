"""Reads snapshots, nodes, changes and operations as the documents that ``--json`` prints."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from icechunk_format.display.plain_text import iso_time, to_timestamp
from icechunk_format.errors import NotFoundError
from icechunk_format.groups.changing import has_expired
from icechunk_format.options.metadata_tables import GROUPS, STORED_COLUMNS, VARIABLES
from icechunk_format.progress import counted
from icechunk_format.repository.history import newest_first
from icechunk_format.tables import (
    change_rows,
    names_of,
    operation_rows,
    plan_inspection,
    run_inspection,
)
from icechunk_format.tables.writing import applications

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.encoding.ids import SnapshotId
    from icechunk_format.encoding.repo_info.file import SnapshotInfo
    from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
    from icechunk_format.encoding.transaction_log import TransactionLog
    from icechunk_format.progress import ProgressOption
    from icechunk_format.repository import RepositoryReader
    from icechunk_format.repository.history import Changes

Document = dict[str, Any]
_T = TypeVar("_T")

COUNTED: Final = {
    "new_groups": "new group",
    "new_arrays": "new array",
    "deleted_groups": "deleted group",
    "deleted_arrays": "deleted array",
    "updated_groups": "changed group",
    "updated_arrays": "changed array",
    "moved_nodes": "moved node",
}
"""Lists of a transaction log whose lengths are printed, with nouns for their items."""

# Few logs in parallel: a commit of millions of chunks has a large log.
_LOGS_AT_ONCE: Final = 4
# Small enough for steady progress, large enough for the overhead of a task.
_REFS_PER_TASK: Final = 200_000
_JSON_COLUMNS: Final = ("codecs", "fill_value", "attributes")


def find_history(
    repository: RepositoryReader, tips: Sequence[SnapshotId] | None, *, limit: int | None
) -> tuple[list[SnapshotInfo], bool]:
    """Return up to ``limit`` snapshots of the log, newest first, and whether there are more.

    ``tips`` are the newest snapshots of the histories; None selects all snapshots.
    """
    if tips is not None and len(tips) == 1:
        # A single history needs no graph; in spec version 1 each snapshot costs a request.
        return _first(repository.ancestry(snapshot=tips[0]), limit)
    known = {info.id: info for info in repository.snapshots()}
    return _first(newest_first(known, known if tips is None else tips), limit)


def _first(items: Iterable[_T], limit: int | None) -> tuple[list[_T], bool]:
    """Return up to ``limit`` items, and whether there are more."""
    found = list(islice(items, None if limit is None else limit + 1))
    return found[:limit], limit is not None and len(found) > limit


def count_changes(
    repository: RepositoryReader, infos: Sequence[SnapshotInfo], progress: ProgressOption
) -> list[dict[str, int] | None]:
    """Return the number of changes of each snapshot; None without a transaction log."""

    def count(info: SnapshotInfo) -> dict[str, int] | None:
        try:
            log = repository.transaction_log(info.id)
        except NotFoundError:
            return None
        return counts_of(log)

    with ThreadPoolExecutor(_LOGS_AT_ONCE) as pool:
        found = pool.map(count, infos)
        return list(counted(found, progress, "Reading changes", len(infos)))


def counts_of(changes: TransactionLog | Changes) -> dict[str, int]:
    """Return the number of changes of each kind."""
    counts = {name: len(getattr(changes, name)) for name in COUNTED}
    counts["chunks"] = sum(map(len, changes.updated_chunks.values()))
    counts["arrays_with_chunks"] = len(changes.updated_chunks)
    return counts


def describe_snapshots(
    repository: RepositoryReader,
    infos: Sequence[SnapshotInfo],
    changes: Sequence[dict[str, int] | None],
) -> list[Document]:
    """Return the entries of the log."""
    branches, tags = names_of(repository.branches()), names_of(repository.tags())
    return [
        {
            "snapshot_id": str(info.id),
            "parent_id": None if info.parent_id is None else str(info.parent_id),
            "committed_at": iso_time(to_timestamp(info.flushed_at)),
            "message": info.message,
            "metadata": info.metadata,
            "branches": branches.get(info.id, []),
            "tags": tags.get(info.id, []),
            "pruned_ancestors": len(info.pruned_ancestor_tx_logs),
            "changes": counts,
        }
        for info, counts in zip(infos, changes, strict=True)
    ]


def read_snapshot(repository: RepositoryReader, snapshot_id: SnapshotId) -> Document:
    """Return the properties of a snapshot that do not need manifests."""
    info = repository.snapshot_info(snapshot_id)
    snapshot = repository.snapshot(snapshot_id)
    [described] = describe_snapshots(repository, [info], [None])
    del described["changes"]
    arrays = sum(node.array is not None for node in snapshot.nodes)
    files = snapshot.manifest_files
    return {
        **described,
        "group_count": len(snapshot.nodes) - arrays,
        "array_count": arrays,
        "manifest_count": len(files.ids),
        "manifest_bytes": int(files.size_bytes.sum()),
        "chunk_references": int(files.num_chunk_refs.sum()),
        "changes": _changed(repository, info.parent_id, info.id),
    }


def _changed(
    repository: RepositoryReader, older: SnapshotId | None, newer: SnapshotId
) -> list[Document] | None:
    """Return the changes since the parent; None if the parent no longer exists."""
    if older is None:
        return []
    try:
        return read_changes(repository, older, newer)
    except NotFoundError:
        return None


def read_changes(
    repository: RepositoryReader, older: SnapshotId, newer: SnapshotId
) -> list[Document]:
    """Return the changes between two snapshots, by path."""
    keys = ("path", "node_type", "change", "moved_from", "chunk_count", "snapshot_id")
    changes: list[dict[str, Any]] = [
        {key: _plain(row.get(key)) for key in keys} for row in change_rows(repository, older, newer)
    ]
    for change in changes:
        change |= {"resized": None, "only_resized": False}
        if change["change"] == "updated" and change["node_type"] == "array":
            change |= _resizing(repository.snapshot(older), repository.snapshot(newer), change)
    return changes


def _resizing(older: Snapshot, newer: Snapshot, change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dimensions of an array with changed length."""
    now = newer.node(change["path"])
    before = None if now is None else next((n for n in older.nodes if n.id == now.id), None)
    if now is None or before is None or now.array is None or before.array is None:
        return {}
    if len(now.array.shape) != len(before.array.shape):
        return {}
    names = now.array.dimension_names or (None,) * len(now.array.shape)
    resized = [
        {"dimension": name or f"dim_{axis}", "from": old, "to": new}
        for axis, (name, old, new) in enumerate(
            zip(names, before.array.shape, now.array.shape, strict=True)
        )
        if old != new
    ]
    return {
        "resized": resized or None,
        "only_resized": bool(resized) and _is_same_but_shape(before, now),
    }


def _is_same_but_shape(before: NodeSnapshot, now: NodeSnapshot) -> bool:
    documents = []
    for node in (before, now):
        try:
            document = json.loads(node.user_data)
        except ValueError:
            return False
        documents.append({**document, "shape": None} if isinstance(document, dict) else document)
    return bool(documents[0] == documents[1])


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else str(value)


def read_operations(repository: RepositoryReader, limit: int | None) -> tuple[list[Document], bool]:
    """Return entries of the operations log, newest first, and whether there are more."""
    rows, cut = _first(operation_rows(repository.operations()), limit)
    found = []
    for row in rows:
        at = row.pop("at")
        details = json.loads(row.pop("details"))
        timestamp = None if at is None else to_timestamp(at)
        found.append({"at": iso_time(timestamp), **row, "details": details})
    return found, cut


def read_nodes(
    screen: Screen,
    repository: RepositoryReader,
    snapshot_id: SnapshotId,
    *,
    group: str | None,
    with_sizes: bool,
) -> list[Document]:
    """Return the groups and arrays at or below a group, sorted by path.

    Keys are the columns of the metadata tables ``groups`` and ``variables``. Without sizes,
    manifests are not opened, and the keys of stored chunks are left out.
    """
    nodes: list[Document] = []
    for table in (GROUPS, VARIABLES):
        columns = [name for name in table.names if with_sizes or name not in STORED_COLUMNS]
        plan = plan_inspection(
            repository,
            table,
            columns=columns,
            snapshot_id=snapshot_id,
            group=group,
            refs_per_task=_REFS_PER_TASK,
        )
        kind = "group" if table is GROUPS else "array"
        counts = kind == "array" and with_sizes
        doing = "Counting chunks" if counts else "Reading"
        with screen.working(doing) as progress:
            for task in counted(plan.tasks, progress, doing, len(plan.tasks)):
                for batch in run_inspection(plan.context, task):
                    nodes += [{"type": kind, **_from_json(row)} for row in batch.to_pylist()]
    return sorted(nodes, key=lambda node: node_parts(node["path"]))


def _from_json(row: Document) -> Document:
    for name in _JSON_COLUMNS:
        if row.get(name) is not None:
            row[name] = json.loads(row[name])
    return row


def node_parts(path: str) -> list[str]:
    """Return the names in a path; empty for the root."""
    return [part for part in path.split("/") if part]


def add_up(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Sum up stored chunks and bytes over arrays."""
    names = ("total_chunks", *sorted(STORED_COLUMNS))
    totals = dict.fromkeys(names, 0)
    for node in nodes:
        for name in names:
            totals[name] += node.get(name) or 0
    return totals


def read_applications(
    repository: RepositoryReader, branch: str, app_id: str | None
) -> tuple[list[Document], bool]:
    """Return the applications of a branch, the latest first, and whether snapshots have expired."""
    found = [
        {
            "app_id": one.app_id,
            "versions": [list(ends) for ends in one.versions],
            "last_version": one.last_version,
            "commits": one.commits,
            "snapshot_id": str(one.snapshot_id),
            "committed_at": iso_time(to_timestamp(one.newest.flushed_at)),
            "query": one.query,
        }
        for one in applications(repository, branch)
        if app_id is None or one.app_id == app_id
    ]
    return found, has_expired(repository, branch)
