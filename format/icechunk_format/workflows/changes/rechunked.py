"""Finds arrays that only rechunking has replaced between two snapshots, so that no value differs.

A commit that rechunks arrays in place deletes them and creates others at their paths, and marks
this in its metadata.

Rules of this file
------------------
1. An array has the same values only if no other commit between the snapshots touched it or an array
   that it replaces, not even its attributes.
2. Missing chunks are not the same: a rechunked array may store fill values, or the other way round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.errors import NotFoundError
from icechunk_format.workflows.changes.steps import read_logs

if TYPE_CHECKING:
    from icechunk_format.groups import Variable
    from icechunk_format.repository import RepositoryReader

#: Key of the metadata of a commit that replaced arrays by others with the same values, and did
#: nothing else. The value is the ``mark`` of the new arrays, so it has no meaning on other commits.
SAME_VALUES: Final = "icechunk_spark_same_values"


def mark(node_ids: Iterable[NodeId]) -> str:
    """Return the mark of a commit that creates these arrays."""
    return hashlib.sha256(" ".join(sorted(map(str, node_ids))).encode()).hexdigest()[:32]


def rechunked_arrays(
    repository: RepositoryReader,
    logs: Sequence[SnapshotId],
    older: Mapping[str, Variable],
    newer: Mapping[str, Variable],
) -> frozenset[str]:
    """Return the paths of arrays that were replaced by arrays with the same values.

    Parameters
    ----------
    logs
        The ids of all transaction logs between the snapshots, in any order.
    older, newer
        The arrays of both snapshots by path.
    """
    replaced = {
        path for path in older.keys() & newer.keys() if older[path].node.id != newer[path].node.id
    }
    marks = {log: _mark_of(repository, log) for log in logs} if replaced else {}
    if not any(marks.values()):
        return frozenset()
    touching: dict[NodeId, set[SnapshotId]] = {}
    marked: list[TransactionLog] = []
    for log in read_logs(repository, logs):
        for node_id in _touched(log):
            touching.setdefault(node_id, set()).add(log.id)
        if marks[log.id] == mark(log.new_arrays):
            marked.append(log)
    # By path, the array that each of these commits created.
    created = [(log, _created(repository, log, replaced)) for log in marked]
    return frozenset(
        path
        for path in replaced
        if _is_same(path, older[path].node.id, newer[path].node.id, created, touching)
    )


def _is_same(
    path: str,
    old: NodeId,
    new: NodeId,
    created: Sequence[tuple[TransactionLog, Mapping[str, NodeId]]],
    touching: Mapping[NodeId, set[SnapshotId]],
) -> bool:
    """Return True if rechunking alone leads from one array at a path to the other."""
    commits = {ids[path]: log for log, ids in created if path in ids}
    # The commit that replaced the array; None for the newest one.
    after: SnapshotId | None = None
    current = new
    while current != old:
        log = commits.pop(current, None)
        if log is None or touching.get(current, set()) - {log.id, after}:
            return False
        before = commits.keys() & set(log.deleted_arrays)
        if old in log.deleted_arrays:
            before = {old}
        if len(before) != 1:
            return False
        [current] = before
        after = log.id
    return not touching.get(old, set()) - {after}


def _mark_of(repository: RepositoryReader, snapshot_id: SnapshotId) -> object:
    try:
        return repository.snapshot_info(snapshot_id).metadata.get(SAME_VALUES)
    except NotFoundError:
        return None  # It has expired.


def _created(
    repository: RepositoryReader, log: TransactionLog, paths: set[str]
) -> dict[str, NodeId]:
    """Return the ids of arrays that a commit created at some paths."""
    try:
        snapshot = repository.snapshot(log.id)
    except NotFoundError:
        return {}
    nodes = {path: snapshot.node(path) for path in paths}
    new = set(log.new_arrays)
    return {path: node.id for path, node in nodes.items() if node is not None and node.id in new}


def _touched(log: TransactionLog) -> set[NodeId]:
    """Return the arrays that a commit creates, deletes, moves or changes."""
    return {
        *log.new_arrays,
        *log.deleted_arrays,
        *log.updated_arrays,
        *(node_id for node_id, coords in log.updated_chunks.items() if len(coords)),
        *(move.node_id for move in log.moved_nodes),
    }
