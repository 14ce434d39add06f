"""Finds the differences of two snapshots: nodes by id, and chunks by reference.

Rules of this file
------------------
1. The result is a net transaction log, as a commit would write it. Manifests in both snapshots are
   not read; of the others, two boxes of about a million references are in memory.
2. Chunks outside of the new grid are not listed, as for an array that was made smaller.
3. If nodes move and others change, the log lists the moved nodes as deleted and created with the
   same id (``relocated_nodes``). Existing libraries ignore other changes in a log with moves, and
   such a commit cannot be amended.
4. Two references are equal if their kind, object, range, inline bytes, location and recorded state
   of the object (entity tag, time) are equal. Compression of locations is ignored.

Specification: "Transaction Log Files", "ChunkRef".
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.manifest.strings import RefStrings
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.encoding.snapshot.nodes import Nodes
from icechunk_format.encoding.tables.byte_ranges import byte_windows, length_groups
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.grid.boxes import inside_box
from icechunk_format.grid.coordinates import joined_coords
from icechunk_format.repository.changes.change_set import metadata_of, move_of
from icechunk_format.repository.changes.grid_checks import grid_of
from icechunk_format.repository.files.bounded_reads import (
    ListedManifests,
    cut_into_boxes,
    manifest_keys,
    references_in,
)
from icechunk_format.repository.files.manifest_files import MAX_REFS_PER_MANIFEST
from icechunk_format.storage.protocol import Storage

_BYTES_AT_ONCE: Final = 1 << 25


def difference(
    storage: Storage, current: Snapshot, restored: Snapshot, *, snapshot_id: SnapshotId
) -> TransactionLog:
    """Return the log of replacing the nodes of ``current`` by those of ``restored``."""
    before, after = current.nodes, restored.nodes
    (before_ids, before_rows), (after_ids, after_rows) = before.rows_by_id(), after.rows_by_id()
    # Not a table, which NumPy 2.0.0 cannot make of large integers.
    gone = before_rows[~np.isin(before_ids, after_ids, kind="sort")]
    new = after_rows[~np.isin(after_ids, before_ids, kind="sort")]
    was_rows = before_rows[np.isin(before_ids, after_ids, kind="sort")]
    node_rows = after_rows[np.isin(after_ids, before_ids, kind="sort")]
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
        moved_nodes=tuple(move_of(node, was.path, node.path) for was, node in moved),
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
    only_old = ~np.isin(manifest_keys(old), manifest_keys(new), kind="sort")
    only_new = ~np.isin(manifest_keys(new), manifest_keys(old), kind="sort")
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


def changed_coords(old: ChunkRefs, new: ChunkRefs) -> NDArray[np.uint32]:
    """Return the coordinates at which references of one array differ: uint32 (n, ndim), sorted."""
    rows = new.find(old.coords)
    in_both = rows >= 0
    is_kept = np.zeros(len(new), dtype=np.bool_)
    is_kept[rows[in_both]] = True
    shared = old.take(in_both)
    is_other = ~same_references(shared, new.take(rows[in_both]))
    parts = [old.coords[~in_both], shared.coords[is_other], new.coords[~is_kept]]
    return joined_coords(parts, old.ndim)


def same_references(left: ChunkRefs, right: ChunkRefs) -> NDArray[np.bool_]:
    """Return a mask of the rows in which two lists are equal, apart from coordinates."""
    same: NDArray[np.bool_] = left.kind == right.kind
    for name in ("offset", "length", "last_modified"):
        same &= getattr(left, name) == getattr(right, name)
    same &= (left.chunk_id == right.chunk_id).all(axis=1)
    if left.strings is None and right.strings is None:
        return same
    sides = [
        RefStrings.none(len(side)) if side.strings is None else side.strings.plain()
        for side in (left, right)
    ]
    strings = [(side.buffer, side.starts, side.lengths.astype(np.int64)) for side in sides]
    etags = [(side.buffer, *side.etag_ranges()) for side in sides]
    same &= (etags[0][1] < 0) == (etags[1][1] < 0)
    return same & _same_bytes(*strings) & _same_bytes(*etags)


_Ranges = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]


def _same_bytes(left: _Ranges, right: _Ranges) -> NDArray[np.bool_]:
    """Return a mask of the rows in which two ranges have the same bytes."""
    same: NDArray[np.bool_] = left[2] == right[2]
    rows = np.flatnonzero(same & (left[2] > 0))
    for length, group in length_groups(left[2][rows]):
        chosen = rows[group]
        step = max(1, _BYTES_AT_ONCE // length)
        for begin in range(0, len(chosen), step):
            some = chosen[begin : begin + step]
            mine = byte_windows(left[0], length)[left[1][some]]
            theirs = byte_windows(right[0], length)[right[1][some]]
            same[some] = mine == theirs
    return same
