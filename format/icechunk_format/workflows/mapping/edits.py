"""Detects changes that other writers made to the result of a followed source.

A run records the snapshot that its commit is based on. The first later commit that changes the
group is that of the run, since the record changes with it, and another change of the group is a
conflict. Chunks of the result that any other later commit changed are edits.

Rules of this file
------------------
1. Attributes that only describe are no edits, if the snapshot of the run still exists.
2. If the commits are unknown, for example because history expired in spec version 1, all blocks are
   computed.
"""

from __future__ import annotations

import numpy as np

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError
from icechunk_format.repository import RepositoryReader
from icechunk_format.repository.changes import same_meaning
from icechunk_format.repository.files import load_snapshot, manifest_keys
from icechunk_format.repository.history import snapshots_after
from icechunk_format.workflows.changes.steps import logs_of, read_logs
from icechunk_format.workflows.mapping.record import BEGINNING, FollowRecord


def check_unedited(
    repository: RepositoryReader, tip: Snapshot, group: NodePath, record: FollowRecord
) -> str | None:
    """Return a reason to compute all blocks if the changes of the result are unknown, or None.

    Raises ConflictError if another writer changed arrays of the result since the last run.
    """
    node = tip.node(group)
    if record.base is None or node is None:
        return None  # Earlier releases did not record it.
    try:
        infos = list(repository.ancestry(snapshot=tip.id))
        if record.base != BEGINNING:
            found = snapshots_after(SnapshotId.parse(record.base), infos)
            if found is None:
                return f"the changes of {group} since the last run are unknown"
            infos = found
        logs = list(read_logs(repository, logs_of(reversed(infos))))
    except (NotFoundError, InvalidInputError) as error:
        return f"the changes of {group} since the last run are unknown: {error.message}"
    own = next((at for at, log in enumerate(logs) if _changes_group(log, node.id)), None)
    if own is None:
        return f"the changes of {group} since the last run are unknown"
    ids = {placed["node"] for placed in record.arrays.values()}
    results = {n.id: n for n in tip.children(group) if str(n.id) in ids}
    before = _edited(logs[:own], results)
    after = _edited(logs[own + 1 :], results)
    if after:
        unchanged = _unchanged(repository, logs[own].id, results)
        after = {node_id: by for node_id, by in after.items() if node_id not in unchanged}
    for node_id, snapshot_id in {**after, **before}.items():
        path = results[node_id].path
        raise ConflictError(
            f"{path} of {repository.location} was changed by snapshot {snapshot_id} after the last "
            "run that follows its source; only changed blocks would be computed, which mixes both. "
            "Set another function_version to compute all blocks again, or write the result to "
            "another group",
            path=str(path),
            snapshot=str(snapshot_id),
            option="function_version",
        )
    return None


def _changes_group(log: TransactionLog, node_id: NodeId) -> bool:
    return node_id in log.updated_groups or node_id in log.new_groups


def _edited(
    logs: list[TransactionLog], results: dict[NodeId, NodeSnapshot]
) -> dict[NodeId, SnapshotId]:
    """Return the arrays that some commits changed, and the last of these commits."""
    found: dict[NodeId, SnapshotId] = {}
    for log in logs:
        changed = {*log.updated_arrays, *(i for i, at in log.updated_chunks.items() if len(at))}
        found.update(dict.fromkeys(changed & results.keys(), log.id))
    return found


def _unchanged(
    repository: RepositoryReader, snapshot_id: SnapshotId, results: dict[NodeId, NodeSnapshot]
) -> set[NodeId]:
    """Return the arrays with the chunks, shape and meaning that they had in a snapshot."""
    try:
        snapshot = load_snapshot(repository.storage, snapshot_id)
    except NotFoundError:
        return set()
    return {node_id for node_id, node in results.items() if _is_same(snapshot, node)}


def _is_same(snapshot: Snapshot, now: NodeSnapshot) -> bool:
    was = snapshot.nodes.with_id(now.id)
    if was is None or was.array is None or now.array is None or was.array.shape != now.array.shape:
        return False
    before, after = (np.sort(manifest_keys(node.manifests)) for node in (was.array, now.array))
    return np.array_equal(before, after) and same_meaning(was, now)
