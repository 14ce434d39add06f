"""What changed between two versions, by node path, from transaction logs alone.

No manifest and no chunk is read: each snapshot has a log of the nodes and chunks that it changed,
and the logs between two snapshots add up.

Algorithm
---------
1. Walk from the newer snapshot to the older one, which must be an ancestor.
2. Add up the logs, with those of ancestors that expired in between. Some lists cancel one another:
   a node that was created and deleted again in between is in neither version.
3. Node ids become paths by the newer snapshot; deleted ones by the older.

Specification: "Transaction logs"; ``pruned_ancestor_tx_logs`` is of spec 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from icechunk_format.spec.ids import NodeId
    from icechunk_format.spec.node_path import NodePath
    from icechunk_format.spec.snapshot import Snapshot
    from icechunk_format.spec.transaction_log import TransactionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A node that lies elsewhere than before."""

    from_path: NodePath
    to_path: NodePath


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one version has that an older one has not.

    Attributes
    ----------
    new_groups, new_arrays
        Paths of created nodes, sorted.
    deleted_groups, deleted_arrays
        Paths that deleted nodes had in the older version, sorted.
    updated_groups, updated_arrays
        Paths of nodes with other metadata, sorted.
    updated_chunks
        Path of an array to the chunks that were written or deleted: uint32, shape (n, ndim),
        sorted and without repeats.
    moved_nodes
        Moves in the order in which they happened.
    missing_logs
        Ids of snapshots whose log is gone, so that changes may be missing here.
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


def add_up(
    logs: Sequence[TransactionLog],
    *,
    older: Snapshot,
    newer: Snapshot,
    missing_logs: Iterable[str] = (),
) -> Changes:
    """Return the changes that ``logs`` (oldest first) made to ``older``, leading to ``newer``."""
    before = {node.id: node.path for node in older.nodes}
    after = {node.id: node.path for node in newer.nodes}

    def paths(lists: Iterable[Iterable[NodeId]], by: Mapping[NodeId, NodePath]) -> list[NodePath]:
        ids = {node_id for nodes in lists for node_id in nodes}
        return sorted(by[node_id] for node_id in ids if node_id in by)

    created = after.keys() - before.keys()
    removed = before.keys() - after.keys()
    only_created = {node_id: after[node_id] for node_id in created}
    only_removed = {node_id: before[node_id] for node_id in removed}
    kept = {node_id: path for node_id, path in after.items() if node_id in before}
    return Changes(
        new_groups=tuple(paths((log.new_groups for log in logs), only_created)),
        new_arrays=tuple(paths((log.new_arrays for log in logs), only_created)),
        deleted_groups=tuple(paths((log.deleted_groups for log in logs), only_removed)),
        deleted_arrays=tuple(paths((log.deleted_arrays for log in logs), only_removed)),
        updated_groups=tuple(paths((log.updated_groups for log in logs), kept)),
        updated_arrays=tuple(paths((log.updated_arrays for log in logs), kept)),
        updated_chunks=_updated_chunks(logs, after),
        moved_nodes=tuple(
            Move(from_path=move.from_path, to_path=move.to_path)
            for log in logs
            for move in log.moved_nodes
        ),
        missing_logs=tuple(missing_logs),
    )


def _updated_chunks(
    logs: Sequence[TransactionLog], after: Mapping[NodeId, NodePath]
) -> dict[NodePath, NDArray[np.uint32]]:
    parts: dict[NodePath, list[NDArray[np.uint32]]] = {}
    for log in logs:
        for node_id, coords in log.updated_chunks.items():
            if node_id in after:
                parts.setdefault(after[node_id], []).append(coords)
    return {
        path: np.unique(np.concatenate(parts[path]), axis=0)
        if len(parts[path]) > 1
        else parts[path][0]
        for path in sorted(parts)
    }
