"""Lists the changes between two snapshots, by node path, from transaction logs only.

Neither manifests nor chunks are read: each snapshot has a log of the nodes and chunks that it
changed, and the logs between two snapshots are combined.

Algorithm
---------
1. Walk from the newer snapshot to the older one, which must be an ancestor.
2. Combine the logs, including those of ancestors that expired in between.
3. Convert node ids to paths in the newer snapshot, or in the older one for deleted nodes. Nodes
   that were created and deleted in between are omitted.

Specification: "Transaction logs"; ``pruned_ancestor_tx_logs`` is of spec 2.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.transaction_log import NODE_LISTS, TransactionLog
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.repository.files.metadata_files import load_snapshot, load_transaction_log
from icechunk_format.repository.history.history import History, snapshots_after
from icechunk_format.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A node whose path changed."""

    from_path: NodePath
    to_path: NodePath


@shown_by("history.changes")
@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Differences of a snapshot from an older one.

    Attributes
    ----------
    new_groups, new_arrays
        Paths of created nodes, sorted.
    deleted_groups, deleted_arrays
        Paths of deleted nodes in the older snapshot, sorted.
    updated_groups, updated_arrays
        Paths of nodes with changed metadata, sorted; also new and deleted ones, if another commit
        changed them.
    updated_chunks
        Path of an array to the chunks that were written or deleted: uint32, shape (n, ndim), sorted
        and distinct. If an array was deleted and created again, those of the new one.
    moved_nodes
        Moves in the order of the commits.
    missing_logs
        Ids of snapshots without a log, whose changes are not included.
    """

    new_groups: tuple[NodePath, ...] = ()
    new_arrays: tuple[NodePath, ...] = ()
    deleted_groups: tuple[NodePath, ...] = ()
    deleted_arrays: tuple[NodePath, ...] = ()
    updated_groups: tuple[NodePath, ...] = ()
    updated_arrays: tuple[NodePath, ...] = ()
    updated_chunks: Mapping[NodePath, NDArray[np.uint32]] = field(default_factory=dict)
    moved_nodes: tuple[Move, ...] = ()
    missing_logs: tuple[str, ...] = ()


def changes_between(
    storage: Storage, history: History, older: SnapshotId, newer: SnapshotId
) -> Changes:
    """Return the changes between two existing snapshots; see ``RepositoryReader.diff``."""
    between = snapshots_after(older, history.ancestry(newer))
    if between is None:
        raise InvalidInputError(
            f"snapshot {older} is not an ancestor of {newer} in {storage.root_url}, so there is "
            "no chain of changes from one to the other; give them in the order of history",
            older=str(older),
            newer=str(newer),
        )
    logs: list[TransactionLog] = []
    missing: list[str] = []
    for info in reversed(between):
        for log_id in (*info.pruned_ancestor_tx_logs, info.id):
            try:
                logs.append(load_transaction_log(storage, log_id))
            except NotFoundError:
                missing.append(str(log_id))
    return add_up(
        logs,
        older=load_snapshot(storage, older),
        newer=load_snapshot(storage, newer),
        missing_logs=missing,
    )


def add_up(
    logs: Sequence[TransactionLog],
    *,
    older: Snapshot,
    newer: Snapshot,
    missing_logs: Iterable[str] = (),
) -> Changes:
    """Return the changes that ``logs`` (oldest first) made to ``older``, leading to ``newer``."""
    was_at = {node.id: node.path for node in older.nodes}
    is_at = {node.id: node.path for node in newer.nodes}
    # A node in both snapshots is listed under its newer path.
    path_of = was_at | is_at
    relocated = {node_id for log in logs for node_id in log.relocated_nodes}
    # A relocated node is not new if the older snapshot has it, nor deleted if the newer one does.
    unchanged = {"new": relocated & was_at.keys(), "deleted": relocated & is_at.keys()}

    def paths(name: str) -> tuple[NodePath, ...]:
        ids: set[NodeId] = {node_id for log in logs for node_id in getattr(log, name)}
        kind = name.partition("_")[0]
        ids -= unchanged.get(kind, set())
        path = is_at | was_at if kind == "deleted" else path_of
        return tuple(sorted(path[node_id] for node_id in ids if node_id in path))

    return Changes(
        **{name: paths(name) for name in NODE_LISTS},
        updated_chunks=_updated_chunks(logs, path_of, newer),
        moved_nodes=tuple(_moves(logs, was_at, is_at)),
        missing_logs=tuple(missing_logs),
    )


def _moves(
    logs: Sequence[TransactionLog],
    was_at: Mapping[NodeId, NodePath],
    is_at: Mapping[NodeId, NodePath],
) -> Iterator[Move]:
    """Yield all moves; those of relocated nodes are derived, since logs do not record them."""
    path_of = dict(was_at)
    for number, log in enumerate(logs):
        for move in log.moved_nodes:
            yield Move(from_path=move.from_path, to_path=move.to_path)
            path_of[move.node_id] = move.to_path
        for node_id in sorted(log.relocated_nodes & path_of.keys()):
            later = (m for after in logs[number + 1 :] for m in after.moved_nodes)
            left = (move.from_path for move in later if move.node_id == node_id)
            to_path = next(left, is_at.get(node_id))
            if to_path is not None and to_path != path_of[node_id]:
                yield Move(from_path=path_of[node_id], to_path=to_path)
                path_of[node_id] = to_path


def _updated_chunks(
    logs: Sequence[TransactionLog], path_of: Mapping[NodeId, NodePath], newer: Snapshot
) -> dict[NodePath, NDArray[np.uint32]]:
    parts: dict[NodeId, list[NDArray[np.uint32]]] = {}
    for log in logs:
        for node_id, coords in log.updated_chunks.items():
            if node_id in path_of:
                parts.setdefault(node_id, []).append(coords)
    # If another array has the path of a deleted one, only chunks of the newer array are listed;
    # the two may differ in dimensions.
    current = {node.id for node in newer.nodes}
    found: dict[NodePath, NDArray[np.uint32]] = {}
    for node_id in sorted(parts, key=lambda node_id: node_id in current):
        mine = parts[node_id]
        is_one = len(mine) == 1
        found[path_of[node_id]] = mine[0] if is_one else np.unique(np.concatenate(mine), axis=0)
    return dict(sorted(found.items()))
