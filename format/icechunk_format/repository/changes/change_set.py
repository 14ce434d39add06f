"""``ChangeSet``: the nodes and chunks that a session changed since its base snapshot.

Rules of this file
------------------
1. Pure: nothing is read or written here, and a change set can be pickled. Node ids are arguments.
2. Changes are net: creating and deleting a node, restoring metadata to the bytes of the base, and
   moving a node away and back leave no change.
3. Changes are keyed by node id, which updates and moves keep, so a change set can be applied to a
   later snapshot than its base.
4. A session contains either moves or other changes, since existing libraries interpret a commit as
   one or the other. A merge may contain both; its log lists moved nodes as deleted and created.

Specification: "Transaction Log Files".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import NodeSnapshot
from icechunk_format.encoding.transaction_log import MoveOperation, TransactionLog
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.changes.touched_chunks import TouchedChunks


@dataclass(slots=True, kw_only=True)
class ChangeSet:
    """Changes by node id.

    Parameters
    ----------
    created
        Nodes that the base does not have; their arrays have no manifests.
    updated
        Nodes of the base with another metadata document or shape. Manifests of these arrays are
        ignored; those of the base apply.
    deleted
        Deleted nodes of the base.
    moved
        Nodes of the base with another path, children of moved groups included.
    chunks
        Changed chunks of created arrays and arrays of the base.
    """

    created: dict[NodeId, NodeSnapshot] = field(default_factory=dict)
    updated: dict[NodeId, NodeSnapshot] = field(default_factory=dict)
    deleted: dict[NodeId, NodeSnapshot] = field(default_factory=dict)
    moved: dict[NodeId, MoveOperation] = field(default_factory=dict)
    chunks: dict[NodeId, ChunkChanges] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if a commit would change nothing."""
        return not (self.has_edits or self.moved)

    @property
    def has_edits(self) -> bool:
        """True if there are changes other than moves."""
        return bool(
            self.created
            or self.updated
            or self.deleted
            or any(not changes.is_empty for changes in self.chunks.values())
        )

    def transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """Return the transaction log of these changes, without the chunks of ``touched``."""
        created, updated, deleted = self.created.items(), self.updated.items(), self.deleted.items()
        relocated = self.moved if self.has_edits else {}
        groups = tuple(i for i, move in relocated.items() if not move.is_array)
        arrays = tuple(i for i, move in relocated.items() if move.is_array)
        return TransactionLog(
            id=snapshot_id,
            new_groups=(*(i for i, node in created if node.array is None), *groups),
            new_arrays=(*(i for i, node in created if node.array is not None), *arrays),
            deleted_groups=(*(i for i, node in deleted if node.array is None), *groups),
            deleted_arrays=(*(i for i, node in deleted if node.array is not None), *arrays),
            updated_groups=tuple(i for i, node in updated if node.array is None),
            updated_arrays=tuple(i for i, node in updated if node.array is not None),
            moved_nodes=() if relocated else tuple(self.moved.values()),
        )

    def touched(self) -> dict[NodeId, TouchedChunks]:
        """Return the set and deleted chunks of each array that has any."""
        found = {
            node_id: changes.touched()
            for node_id, changes in self.chunks.items()
            if not changes.is_empty
        }
        return {node_id: chunks for node_id, chunks in found.items() if chunks.count}


def metadata_of(node: NodeSnapshot) -> tuple[Any, ...]:
    """Return the stored data of a node except id, path and chunks, for comparisons."""
    array = node.array
    if array is None:
        return (node.user_data,)
    return (node.user_data, array.shape, array.num_chunks, array.dimension_names)


def move_of(node: NodeSnapshot, from_path: NodePath, to_path: NodePath) -> MoveOperation:
    """Return the move of a node."""
    return MoveOperation(
        from_path=from_path, to_path=to_path, node_id=node.id, is_array=node.array is not None
    )


def joined_logs(earlier: TransactionLog, later: TransactionLog) -> TransactionLog:
    """Combine the logs of two commits, for a commit that replaces the first.

    Chunks are omitted: see ``joined_chunks``. The result is net: a node that the first commit
    created and the second deleted is in neither list.
    """
    new_groups = {*earlier.new_groups, *later.new_groups}
    new_arrays = {*earlier.new_arrays, *later.new_arrays}
    known = earlier.relocated_nodes
    gone_groups, gone_arrays = {*later.deleted_groups}, {*later.deleted_arrays}
    moves = {move.node_id: move for move in earlier.moved_nodes}
    for move in later.moved_nodes:
        first = moves.get(move.node_id, move)
        moves[move.node_id] = replace(move, from_path=first.from_path)
    return TransactionLog(
        id=later.id,
        new_groups=tuple(new_groups - gone_groups),
        new_arrays=tuple(new_arrays - gone_arrays),
        deleted_groups=tuple({*earlier.deleted_groups} | (gone_groups - {*earlier.new_groups})),
        deleted_arrays=tuple({*earlier.deleted_arrays} | (gone_arrays - {*earlier.new_arrays})),
        updated_groups=tuple(
            {*earlier.updated_groups, *later.updated_groups} - gone_groups - (new_groups - known)
        ),
        updated_arrays=tuple(
            {*earlier.updated_arrays, *later.updated_arrays} - gone_arrays - (new_arrays - known)
        ),
        moved_nodes=tuple(m for m in moves.values() if m.from_path != m.to_path),
    )


def joined_chunks(
    earlier: TransactionLog, later: TransactionLog, touched: Mapping[NodeId, TouchedChunks]
) -> dict[NodeId, TouchedChunks]:
    """Combine the changed chunks of two commits; ``touched`` are those of the later one."""
    joined = dict(touched)
    for node_id, coords in earlier.updated_chunks.items():
        if node_id not in later.deleted_arrays:
            found = joined.get(node_id) or TouchedChunks.of([], coords[:0])
            joined[node_id] = found.joined(coords)
    return joined
