"""Converts the changes of one snapshot relative to a base to changes of another snapshot.

Rules of this file
------------------
1. Identical changes of both sides (metadata, references, paths) are not changes.
2. Chunks are references: no chunk is read. Manifests with only changed chunks are reused as files;
   references of other manifests are set individually.
3. Nodes keep their ids, so that later merges recognize them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.grid.boxes import overlapping_pairs
from icechunk_format.grid.coordinates import CoordinateOrder, without
from icechunk_format.groups.changing import emptied
from icechunk_format.repository.changes import (
    ChangeSet,
    ChunkChanges,
    Conflict,
    ConflictKind,
    metadata_of,
    move_of,
)
from icechunk_format.repository.files import (
    MAX_REFS_PER_MANIFEST,
    ListedManifests,
    ManifestReceipt,
    cut_into_boxes,
    load_manifests,
    manifest_keys,
    references_in,
    refs_of_array,
)
from icechunk_format.repository.lifecycle.difference import changed_chunks
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.protocol import Storage
from icechunk_format.workflows.merging.documents import joined_metadata

_FILES_AT_ONCE = 256


def changes_onto(
    storage: Storage, base: Snapshot, source: Snapshot, target: Snapshot, log: TransactionLog
) -> tuple[ChangeSet, list[Conflict]]:
    """Return the changes of ``source`` that ``target`` lacks, and conflicts about nodes.

    ``log`` is the difference of ``source`` from ``base``.
    """
    changes, taken = ChangeSet(), []
    relocated = log.relocated_nodes
    for node_id in (*log.deleted_groups, *log.deleted_arrays):
        gone = base.nodes.with_id(node_id)
        if gone is not None and node_id not in relocated:
            changes.deleted[node_id] = gone
    for node_id in (*log.new_groups, *log.new_arrays):
        node = _existing(source, node_id)
        there = target.nodes.with_id(node_id)
        if node_id in relocated:
            continue
        if there is None:
            changes.created[node_id] = _without_manifests(node)
            if node.array is not None:
                changes.chunks[node_id] = ChunkChanges(len(node.array.shape))
        elif (there.path, metadata_of(there)) != (node.path, metadata_of(node)):
            kind = ConflictKind.NODE_EXISTS
            taken.append(Conflict(kind=kind, path=node.path, node_id=node_id))
    for node_id in (*(move.node_id for move in log.moved_nodes), *sorted(relocated)):
        node, was = _existing(source, node_id), _existing(base, node_id)
        there = target.nodes.with_id(node_id)
        if there is None or there.path != node.path:
            changes.moved[node_id] = move_of(node, was.path, node.path)
    for node_id in (*log.updated_groups, *log.updated_arrays):
        node, there = _existing(source, node_id), target.nodes.with_id(node_id)
        was = _existing(base, node_id)
        node = node if there is None else joined_metadata(was, node, there) or node
        if there is None or metadata_of(there) != metadata_of(node):
            changes.updated[node_id] = node
            _clip(changes, was, node)
    for node_id, coords in log.updated_chunks.items():
        node = _existing(source, node_id)
        known = base.nodes.with_id(node_id)
        left = _not_yet(storage, coords, node, source, known, target)
        if len(left):
            found = changes.chunks.setdefault(node_id, ChunkChanges(coords.shape[1]))
            _take_chunks(storage, found, left, node, source, known)
    return changes, taken


def chunks_changed(
    storage: Storage, base: Snapshot, source: Snapshot, log: TransactionLog, node_id: NodeId
) -> ChunkChanges:
    """Return all chunks of an array that the source changed."""
    node = _existing(source, node_id)
    assert node.array is not None  # Only arrays have chunks.
    found = ChunkChanges(len(node.array.shape))
    coords = log.updated_chunks.get(node_id)
    if coords is not None:
        _take_chunks(storage, found, coords, node, source, base.nodes.with_id(node_id))
    return found


def _existing(snapshot: Snapshot, node_id: NodeId) -> NodeSnapshot:
    found = snapshot.nodes.with_id(node_id)
    assert found is not None  # The log was computed from these snapshots.
    return found


def _without_manifests(node: NodeSnapshot) -> NodeSnapshot:
    if node.array is None:
        return node
    none = ManifestRefs.empty(len(node.array.shape))
    return replace(node, array=replace(node.array, manifests=none))


def _clip(changes: ChangeSet, was: NodeSnapshot, node: NodeSnapshot) -> None:
    """Remove chunks outside of an array that became smaller."""
    if node.array is None or was.array is None or len(was.array.shape) != len(node.array.shape):
        return
    grids = zip(node.array.num_chunks, was.array.num_chunks, strict=True)
    if any(new < old for new, old in grids):
        found = changes.chunks.setdefault(node.id, ChunkChanges(len(node.array.shape)))
        found.clip = node.array.num_chunks


def _not_yet(
    storage: Storage,
    coords: NDArray[np.uint32],
    node: NodeSnapshot,
    source: Snapshot,
    known: NodeSnapshot | None,
    target: Snapshot,
) -> NDArray[np.uint32]:
    """Return the changed chunks that the target lacks."""
    there = target.nodes.with_id(node.id)
    if there is None or there.array is None or there.array.manifests.ndim != coords.shape[1]:
        return coords
    if known is not None and known.array is not None:
        keys = [set(manifest_keys(n.manifests).tolist()) for n in (known.array, there.array)]
        if keys[0] == keys[1]:
            return coords
    differs = CoordinateOrder(changed_chunks(storage, there, target, node, source))
    return coords[differs.find(coords) >= 0]


def _take_chunks(
    storage: Storage,
    changes: ChunkChanges,
    coords: NDArray[np.uint32],
    node: NodeSnapshot,
    source: Snapshot,
    known: NodeSnapshot | None,
) -> None:
    """Copy the state of chunks at some coordinates from the source."""
    assert node.array is not None
    manifests = node.array.manifests
    is_new = np.ones(len(manifests), dtype=np.bool_)
    if known is not None and known.array is not None and known.array.manifests.ndim == changes.ndim:
        is_new = ~np.isin(manifest_keys(manifests), manifest_keys(known.array.manifests))
    listed = ListedManifests.of(manifests, source.manifest_files)
    wanted = CoordinateOrder(coords)
    receipts, is_whole = [], np.zeros(len(listed), dtype=np.bool_)
    for row, receipt in _whole_files(storage, listed, source.manifest_files, is_new, wanted, node):
        receipts.append(receipt)
        is_whole[row] = True
    changes.add_receipts(receipts)
    rest = coords
    if receipts:
        rest = without(coords, (receipt.coords.coords() for receipt in receipts))
    if not len(rest):
        return
    others, left = listed.take(is_new & ~is_whole), CoordinateOrder(rest)
    found = []
    for part in cut_into_boxes(
        others.extents, others.counts, (1,) * changes.ndim, MAX_REFS_PER_MANIFEST
    ):
        refs = references_in(storage, node.id, node.path, others, part.box)
        found.append(refs.take(left.find(refs.coords) >= 0))
    refs = ChunkRefs.concat(found or [ChunkRefs.empty(changes.ndim)])
    changes.set_refs(refs)
    changes.delete(emptied(rest, [refs]))


def _whole_files(
    storage: Storage,
    listed: ListedManifests,
    files: ManifestFiles,
    is_new: NDArray[np.bool_],
    wanted: CoordinateOrder,
    node: NodeSnapshot,
) -> Iterator[tuple[int, ManifestReceipt]]:
    """Yield manifests that contain only wanted chunks and do not overlap other manifests."""
    alone = is_new.copy()
    for pairs in overlapping_pairs(listed.extents):
        alone[pairs.reshape(-1)] = False
    rows = np.flatnonzero(alone)
    counts = enumerate(listed.counts[rows].tolist())
    for batch in sized_batches(counts, _FILES_AT_ONCE, MAX_REFS_PER_MANIFEST):
        some = rows[batch]
        ids = [ManifestId(listed.ids[row].tobytes()) for row in some]
        sizes = files.sizes_of(listed.ids[some]).tolist()
        for row, manifest_id, size, manifest in zip(
            some.tolist(), ids, sizes, load_manifests(storage, ids), strict=True
        ):
            refs = refs_of_array(manifest, node.id, node.path, listed.extents.shape[1])
            if refs is None or not len(refs) or len(refs) != int(listed.counts[row]):
                continue
            if (wanted.find(refs.coords) < 0).any():
                continue
            yield row, ManifestReceipt.of(manifest_id, size, refs.coords)
