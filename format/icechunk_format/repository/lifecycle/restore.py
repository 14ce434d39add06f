"""Restores an earlier snapshot by committing it again; later snapshots stay in history.

The new snapshot has the nodes and manifests of the old one, with their ids, so no chunk and no
manifest is written. Its transaction log lists the chunks that differ from the tip, so that diffs
are complete and other writers detect conflicts.

Rules of this file
------------------
1. The log is net, comparing nodes by id and chunks by reference. Manifests in both snapshots are
   not read; of the others, two boxes of about a million references are in memory.
2. Chunks outside of the restored grid are not logged, as for an array that was made smaller.
3. If nodes move and others change, the log lists the moved nodes as deleted and created with the
   same id (``relocated_nodes``). Existing libraries ignore other changes in a log with moves, and
   such a commit cannot be amended.
4. The branch must be at the snapshot that the log is relative to. If it moved, nothing is
   committed.
5. The old snapshot is protected from a concurrent garbage collection: see ``using_tip``.

Specification: "Snapshot Files", "Transaction Log Files".
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import inside_box
from icechunk_format.grid.coordinates import joined_coords
from icechunk_format.repository.changes.change_set import metadata_of
from icechunk_format.repository.changes.grid_checks import grid_of
from icechunk_format.repository.commit.assemble import manifest_files_of
from icechunk_format.repository.commit.commit import (
    CommitResult,
    Written,
    commit_metadata,
    new_snapshot_id,
    store_snapshot,
)
from icechunk_format.repository.files.bounded_reads import (
    ListedManifests,
    cut_into_boxes,
    manifest_keys,
    references_in,
)
from icechunk_format.repository.files.manifest_files import MAX_REFS_PER_MANIFEST, ManifestFormat
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.lifecycle.chunk_ref_comparison import changed_coords
from icechunk_format.repository.state import conflict_errors
from icechunk_format.repository.state.branch_tip import BranchTip
from icechunk_format.repository.state.using_tip import tip_using
from icechunk_format.spec.ids import NodeId, SnapshotId
from icechunk_format.spec.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.spec.snapshot.manifest_lists import ManifestRefs
from icechunk_format.spec.snapshot.nodes import Nodes
from icechunk_format.spec.transaction_log import MoveOperation, TransactionLog
from icechunk_format.storage.protocol import Storage


def restore_snapshot(
    storage: Storage,
    tip: BranchTip,
    format: ManifestFormat,
    seen: SnapshotId,
    old_id: SnapshotId,
    *,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> CommitResult:
    """Commit an old snapshot again on top of a branch.

    Parameters
    ----------
    seen
        The expected tip of the branch.

    Raises
    ------
    ConflictError
        The branch moved.
    InvalidInputError
        The branch has the same content.
    NotFoundError, FormatError
        A snapshot or manifest is missing or damaged, or the old snapshot was just collected.
    CommitOutcomeUnknownError, ReadOnlyError, StorageError
        As for commits.
    """
    branch = tip.branch
    current, old = load_snapshot(storage, seen), load_snapshot(storage, old_id)
    log = difference(storage, current, old, snapshot_id=new_snapshot_id())
    if log.is_empty:
        raise InvalidInputError(
            f"nothing to restore: branch {branch!r} of {storage.root_url} has the content of "
            f"snapshot {old_id}",
            branch=branch,
            snapshot=str(old_id),
        )
    tip = tip_using(tip, storage, old)
    stored = store_snapshot(
        storage,
        format,
        base=current,
        nodes=old.nodes,
        files=manifest_files_of(old.nodes, old),
        log=log,
        message=f"Restore snapshot {old_id}" if message is None else message,
        metadata=commit_metadata(metadata, spec_version=format.spec_version),
        written=Written(),
        beside=tip.copy_to_store(),
    )
    moved = tip.advance(stored.info)
    if moved is not None:
        raise conflict_errors.tip_moved(storage, moved, seen)
    return stored.result(branch)


# -- differences ----------------------------------------------------------------------------


def difference(
    storage: Storage, current: Snapshot, restored: Snapshot, *, snapshot_id: SnapshotId
) -> TransactionLog:
    """Return the log of replacing the nodes of ``current`` by those of ``restored``."""
    before, after = current.nodes, restored.nodes
    (before_ids, before_rows), (after_ids, after_rows) = before.rows_by_id(), after.rows_by_id()
    gone = before_rows[~np.isin(before_ids, after_ids)]
    new = after_rows[~np.isin(after_ids, before_ids)]
    was_rows = before_rows[np.isin(before_ids, after_ids)]
    node_rows = after_rows[np.isin(after_ids, before_ids)]
    differs = ~before.subset(was_rows).columns.equals(after.subset(node_rows).columns)
    was_rows, node_rows = was_rows[differs], node_rows[differs]
    both = list(zip(before.subset(was_rows), after.subset(node_rows), strict=True))
    updated = [metadata_of(was) != metadata_of(node) for was, node in both]
    is_moved = np.array([was.path != node.path for was, node in both], dtype=np.bool_)
    chunks: dict[NodeId, NDArray[np.uint32]] = {}
    filled = after.subset(new[after.columns.ref_counts[new] > 0])
    for was, node in chain(both, ((None, node) for node in filled)):
        coords = changed_chunks(storage, was, current, node, restored)
        if len(coords):
            chunks[node.id] = coords
    moved = [pair for pair, differs in zip(both, is_moved, strict=True) if differs]
    if moved and (len(new) or len(gone) or any(updated) or chunks):
        # One commit either moves nodes or changes them, so these are deleted and created.
        gone = np.concatenate([gone, was_rows[is_moved]])
        new = np.concatenate([new, node_rows[is_moved]])
        moved = []
    changed = node_rows[np.array(updated, dtype=np.bool_)]
    return TransactionLog(
        id=snapshot_id,
        new_groups=_ids(after, new, arrays=False),
        new_arrays=_ids(after, new, arrays=True),
        deleted_groups=_ids(before, gone, arrays=False),
        deleted_arrays=_ids(before, gone, arrays=True),
        updated_groups=_ids(after, changed, arrays=False),
        updated_arrays=_ids(after, changed, arrays=True),
        updated_chunks=chunks,
        moved_nodes=tuple(
            MoveOperation(
                from_path=was.path,
                to_path=node.path,
                node_id=node.id,
                is_array=node.array is not None,
            )
            for was, node in moved
        ),
    )


def _ids(nodes: Nodes, rows: NDArray[np.intp], *, arrays: bool) -> tuple[NodeId, ...]:
    chosen = rows[nodes.columns.is_array[rows] == arrays]
    return tuple(NodeId.many(nodes.columns.ids[chosen].tobytes()))


def changed_chunks(
    storage: Storage,
    was: NodeSnapshot | None,
    current: Snapshot,
    node: NodeSnapshot,
    restored: Snapshot,
) -> NDArray[np.uint32]:
    """Return the changed chunks of an array: uint32, (n, ndim), sorted."""
    if node.array is None:
        return np.empty((0, 0), dtype=np.uint32)
    new, ndim = node.array.manifests, node.array.manifests.ndim
    old = ManifestRefs.empty(ndim)
    if was is not None and was.array is not None and was.array.manifests.ndim == ndim:
        old = was.array.manifests
    if not len(old) and not len(new):
        return np.empty((0, ndim), dtype=np.uint32)
    only_old = ~np.isin(manifest_keys(old), manifest_keys(new))
    only_new = ~np.isin(manifest_keys(new), manifest_keys(old))
    before = ListedManifests.of(old, current.manifest_files).take(only_old)
    after = ListedManifests.of(new, restored.manifest_files).take(only_new)
    extents = np.concatenate([before.extents, after.extents])
    counts = np.concatenate([before.counts, after.counts])
    filled = (extents[:, :, 0] < extents[:, :, 1]).all(axis=1)
    found = []
    for part in cut_into_boxes(
        extents[filled], counts[filled], (1,) * ndim, 2 * MAX_REFS_PER_MANIFEST
    ):
        coords = changed_coords(
            references_in(storage, node.id, node.path, before, part.box),
            references_in(storage, node.id, node.path, after, part.box),
        )
        found.append(coords[inside_box(coords, grid_of(node))])
    return joined_coords(found, ndim)
