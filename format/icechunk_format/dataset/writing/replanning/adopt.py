"""Reuses the chunks and manifests that tasks stored, in a plan for a newer snapshot.

Long because one class holds the state that all steps share.

Rules of this file
------------------
1. A manifest whose chunks all keep their coordinates is reused unchanged. Other manifests are read,
   a bounded number at a time, and stored again with new coordinates; chunk objects do not change.
2. Chunks that cannot be reused are merged one by one with the newest snapshot.
3. Chunks of the layouts ``chunks`` and ``refs`` never move. A chunk that another writer wrote too
   is a conflict.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.reading.array_reader import ArrayReader
from icechunk_format.dataset.writing.part import ArrayTarget
from icechunk_format.dataset.writing.plan import WritePlan
from icechunk_format.dataset.writing.replanning.conflicts import cells_written_twice, refused
from icechunk_format.dataset.writing.replanning.landed import (
    Rivals,
    TheirChunks,
    array_at,
    landed_indices,
    their_chunks,
)
from icechunk_format.dataset.writing.replanning.merge import CellMerge, MovedArray
from icechunk_format.dataset.writing.replanning.moves import (
    AxisMoves,
    axis_moves,
    chunk_moves,
    targets_of,
)
from icechunk_format.dataset.writing.storing import store_in_batches
from icechunk_format.grid.boxes import overlapping_pairs
from icechunk_format.grid.coordinates import CoordinateOrder
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.commit.assemble import files_of_receipts, with_files
from icechunk_format.repository.commit.commit import Written
from icechunk_format.repository.files.manifest_files import ManifestReceipt, store_manifests
from icechunk_format.repository.files.metadata_files import load_manifests
from icechunk_format.spec.ids import NodeId
from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
from icechunk_format.spec.node_path import parse_node_path
from icechunk_format.spec.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.spec.snapshot.manifest_lists import ManifestRefs
from icechunk_format.storage.batches import sized_batches

_FILES_AT_ONCE: Final = 256
_REFS_AT_ONCE: Final = 500_000


# A manifest or references, a mask of the chunks that are reused, and their new coordinates.
_Moved = tuple["ManifestReceipt | ChunkRefs", "NDArray[np.bool_]", "NDArray[np.int64]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCommit:
    """A plan, the snapshot to commit on, and the manifests and deletions to commit."""

    plan: WritePlan
    base: Snapshot
    manifests: dict[str, list[ManifestReceipt]] = field(default_factory=dict)
    """By path of the array."""
    deleted: dict[str, NDArray[np.uint32]] = field(default_factory=dict)
    """By path of the array: chunks to delete, including those of other writers that move."""
    written: Written = field(default_factory=Written)
    """Files that were stored for merged and moved chunks."""


def adopt(
    plan: WritePlan,
    now: WritePlan,
    manifests: Mapping[str, Sequence[ManifestReceipt]],
    rivals: Rivals,
) -> PlannedCommit:
    """Reuse the chunks stored for the first plan in a new plan of the same rows.

    Raises
    ------
    ConflictError
        Other writers wrote cells of this write, and the option ``resolve`` is not set.
    """
    stored = {path: ChunkChanges(len(found[0].extents)) for path, found in manifests.items()}
    for path, changes in stored.items():
        changes.add_receipts(manifests[path])
    adoption = Adoption(plan, now, rivals)
    adoption.take_all(stored)
    if adoption.lost and now.options.resolve is None:
        writers = rivals.writers(adoption.lost_at)
        raise cells_written_twice(now, adoption.lost, writers)
    return adoption.commit


def disjoint_manifests(
    plan: WritePlan, manifests: Mapping[str, list[ManifestReceipt]]
) -> dict[str, list[ManifestReceipt]]:
    """Join the manifests of an array if their boxes overlap, which readers do not support."""
    destination = plan.destination
    storage = destination.open_storage()
    found = dict(manifests)
    for array in plan.arrays.values():
        receipts = found.get(array.path, [])
        boxes = np.array([receipt.extents for receipt in receipts], np.uint32)
        if len(receipts) < 2 or not any(len(p) for p in overlapping_pairs(boxes)):
            continue
        manifests_of = load_manifests(storage, [receipt.manifest_id for receipt in receipts])
        parts = []
        for manifest, receipt in zip(manifests_of, receipts, strict=True):
            entry = manifest.array(array.node_id)
            assert entry is not None, "a receipt names the manifest of its array"
            parts.append(receipt.pick(entry.refs))
        refs = [(array.node_id, [ChunkRefs.concat(parts)])]
        [found[array.path]] = store_manifests(storage, destination.manifest_format, refs)
    return found


def _others_that_move(now: WritePlan) -> Iterator[ArrayTarget]:
    """Yield the existing arrays that have dimensions with moving labels."""
    documents = dict(now.resized)
    for variable in now.kept.values():
        if now.moved.keys() & set(variable.dims) and variable.dims != (variable.name,):
            metadata = documents.get(variable.path, variable.metadata)
            yield ArrayTarget.of_existing(variable, metadata)


class Adoption:
    """Builds ``commit`` from chunks that tasks have stored, or that another branch has changed.

    Parameters
    ----------
    picked
        The snapshot of another branch with the changed arrays.
    dry_run
        Only find conflicts; store nothing.

    Attributes
    ----------
    lost
        By array: the dimensions, the indices along each, and the number of the cells that two
        writers wrote.
    lost_at
        By node id: the chunks of these cells.
    """

    def __init__(
        self,
        plan: WritePlan,
        now: WritePlan,
        rivals: Rivals,
        *,
        picked: Snapshot | None = None,
        dry_run: bool = False,
    ) -> None:
        self._plan, self._now = plan, now
        self._picked, self._dry_run = picked, dry_run
        self._rivals = rivals
        self._prepared = now
        self._destination = now.destination
        self._storage = self._destination.open_storage()
        self._landed = landed_indices(plan, now, rivals, may_lack=picked is not None)
        self.lost: dict[str, tuple[tuple[str, ...], Sequence[set[int]], int]] = {}
        self.lost_at: dict[NodeId, NDArray[Any]] = {}
        labels = [len(np.unique(plan.indices(dim))) for dim in plan.dimension_tables]
        self._has_all_rows = plan.row_count == math.prod(labels)
        self.commit = PlannedCommit(plan=now, base=rivals.tip)

    def take_all(self, stored: Mapping[str, ChunkChanges]) -> None:
        """Reuse the stored chunks of each array, given by path."""
        for name, array in self._now.arrays.items():
            found = stored.get(array.path) or ChunkChanges(len(array.dims))
            self._take(self._plan.arrays.get(name), array, found)
        for array in _others_that_move(self._now):
            if array.name not in self._now.arrays:
                self._take(None, array, ChunkChanges(len(array.dims)))

    def _take(self, old: ArrayTarget | None, new: ArrayTarget, changes: ChunkChanges) -> None:
        """Reuse the stored chunks of one array, and move those of other writers."""
        kept: list[ManifestReceipt] = []
        if self._prepared.options.layout != "cells":
            if old is None or not changes.receipts:
                return
            kept, refs = self._fixed(old, new, changes.receipts)
        else:
            kept, refs = self._cells(old, new, changes)
        if self._dry_run:
            deque(refs, maxlen=0)
            return
        [stored] = store_manifests(
            self._storage, self._destination.manifest_format, [(new.node_id, refs)]
        )
        self.commit.written.add("manifests", len(stored), sum(one.size_bytes for one in stored))
        kept += stored
        if kept:
            self.commit.manifests[new.path] = kept

    def _cells(
        self, old: ArrayTarget | None, new: ArrayTarget, changes: ChunkChanges
    ) -> tuple[list[ManifestReceipt], Iterator[ChunkRefs]]:
        theirs = their_chunks(self._now, new, self._rivals.tip)
        targets = [theirs.merged] if theirs is not None else []
        kept: list[ManifestReceipt] = []
        moved: list[_Moved] = []
        axes: list[AxisMoves] = []
        if old is not None and not changes.is_empty:
            axes = self._axes(old, new)
            is_same = old.node_id == new.node_id
            are_alike = _without_size(old) == _without_size(new)
            refs, deleted = changes.pending()
            # All cells of a deleted chunk have the fill value.
            targets += [targets_of(axes, at) for at in deleted.tolist()]
            pieces: list[ManifestReceipt | ChunkRefs] = [*changes.receipts, refs]
            for found in pieces:
                coords = found.coords if isinstance(found, ChunkRefs) else found.coords.coords()
                is_moved, moved_to = chunk_moves(
                    axes,
                    coords,
                    lambda at: self._touched(new, at),
                    has_all_rows=self._has_all_rows,
                    is_same_array=is_same and old.old_shape is not None,
                )
                stays = is_moved & are_alike
                is_kept = is_same and stays.all() and (moved_to == coords).all()
                if is_kept and isinstance(found, ManifestReceipt) and found.is_whole:
                    kept.append(found)
                    continue
                if stays.any():
                    moved.append((found, stays, moved_to))
                targets += [targets_of(axes, at) for at in coords[~stays].tolist()]
        merged = np.concatenate([np.zeros((0, len(new.dims)), np.int64), *targets])
        merged = np.unique(merged, axis=0)
        return kept, self._refs(old, new, axes, changes, moved, theirs, merged)

    def _refs(
        self,
        old: ArrayTarget | None,
        new: ArrayTarget,
        axes: Sequence[AxisMoves],
        changes: ChunkChanges,
        moved: Sequence[_Moved],
        theirs: TheirChunks | None,
        merged: NDArray[np.int64],
    ) -> Iterator[ChunkRefs]:
        """Yield the new references of an array, in disjoint batches."""
        if old is not None:
            yield from self._moved(old, moved)
        if theirs is not None:
            taken = [merged.astype(np.uint32)]
            taken += [targets[stays].astype(np.uint32) for _, stays, targets in moved]
            ours = np.unique(np.concatenate(taken), axis=0)
            refs = theirs.refs.take(CoordinateOrder(ours).find(theirs.refs.coords) < 0)
            if len(refs):
                yield refs
            final = [ours, refs.coords]
            there = np.unique(np.concatenate(final), axis=0)
            left = theirs.left[CoordinateOrder(there).find(theirs.left) < 0]
            self.commit.deleted[new.path] = left
        if len(merged):
            yield from self._merged(old, new, axes, changes, merged)

    def _touched(self, new: ArrayTarget, targets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of chunks of the new plan with cells that others wrote or moved."""
        found = self._rivals.touched(new.node_id, targets)
        for axis, dim in enumerate(new.dims):
            if dim in self._landed:
                along = new.metadata.grid.axes[axis]
                found |= along.start_of(targets[:, axis] + 1) > self._landed[dim].still
        return found

    def _written_by_others(self, new: ArrayTarget, coords: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the chunks of the newest snapshot that other writers have stored."""
        found = self._stored(new, coords)
        return found & self._rivals.touched(new.node_id, coords)

    def _stored(self, new: ArrayTarget, coords: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the chunks that exist in the newest snapshot."""
        node = array_at(self._rivals.tip, new.path, new.node_id)
        found = np.zeros(len(coords), np.bool_)
        if node is not None:
            lookup = self._destination.reader(self._rivals.tip, node).lookup
            found[lookup.find(coords.astype(np.uint32)).positions] = True
        return found

    def _axes(self, old: ArrayTarget, new: ArrayTarget) -> list[AxisMoves]:
        return [
            axis_moves(
                (old.metadata.grid, new.metadata.grid),
                axis,
                (self._plan.indices(dim), self._now.indices(dim)),
                landed=self._landed[dim].without(
                    base=old.old_shape is None, tip=new.old_shape is None
                ),
            )
            for axis, dim in enumerate(old.dims)
        ]

    # -- chunks that are used as they are ---------------------------------------------------

    def _moved(self, old: ArrayTarget, moved: Sequence[_Moved]) -> Iterator[ChunkRefs]:
        """Yield the references of moved chunks, those of each manifest together."""
        sized = []
        for found, stays, targets in moved:
            if isinstance(found, ChunkRefs):
                yield found.take(stays).moved(targets[stays])
            else:
                sized.append(((found, stays, targets), found.num_chunk_refs))
        for batch in sized_batches(sized, _FILES_AT_ONCE, _REFS_AT_ONCE):
            ids = [receipt.manifest_id for receipt, _, _ in batch]
            loaded = load_manifests(self._storage, ids)
            for manifest, (receipt, stays, targets) in zip(loaded, batch, strict=True):
                entry = manifest.array(old.node_id)
                assert entry is not None, "a receipt names the manifest of its array"
                yield receipt.pick(entry.refs).take(stays).moved(targets[stays])

    def _fixed(
        self, old: ArrayTarget, new: ArrayTarget, receipts: Sequence[ManifestReceipt]
    ) -> tuple[list[ManifestReceipt], Iterator[ChunkRefs]]:
        """Return manifests and references of chunks that never move, without overwritten ones."""
        resolve = self._prepared.options.resolve
        kept: list[ManifestReceipt] = []
        moved: list[_Moved] = []
        shared = []
        for receipt in receipts:
            coords = receipt.coords.coords()
            touched = self._rivals.touched(new.node_id, coords)
            if self._rivals.is_new(new.node_id):
                touched = self._stored(new, coords)
            shared.append(coords[touched])
            gives_way = touched & (resolve == "theirs")
            if old.node_id == new.node_id and not gives_way.any():
                kept.append(receipt)
            elif not gives_way.all():
                moved.append((receipt, ~gives_way, coords.astype(np.int64)))
        both = np.concatenate(shared)
        if len(both) and resolve is None:
            shown = ", ".join(str(at) for at in both[:4].tolist())
            raise refused(
                self._prepared,
                f"other writers wrote {len(both)} of the chunks of {new.path} that this write "
                f"has, such as {shown}",
                snapshots=self._rivals.writers({new.node_id: both}),
                variables=(new.name,),
            )
        return kept, self._moved(old, moved)

    # -- chunks that are merged -------------------------------------------------------------

    def _merged(
        self,
        old: ArrayTarget | None,
        new: ArrayTarget,
        axes: Sequence[AxisMoves],
        changes: ChunkChanges,
        targets: NDArray[np.int64],
    ) -> Iterator[ChunkRefs]:
        merge = CellMerge(
            array=new,
            axes=axes,
            ours=None if old is None or changes.is_empty else self._ours(old, changes.receipts),
            base=None
            if old is None
            else self._moved_array(old, self._rivals.base, self._plan.moved),
            base_now=self._moved_array(
                new, self._rivals.base, {dim: at.base for dim, at in self._landed.items()}
            ),
            tip=self._moved_array(
                new, self._rivals.tip, {dim: at.tip for dim, at in self._landed.items()}
            ),
            stored=changes,
            written_by_others=lambda at: self._written_by_others(new, at),
            has_all_rows=self._has_all_rows,
            may_agree=self._picked is not None,
            resolve=self._prepared.options.resolve,
            part=next((part for part in self._now.parts if new in part.arrays), None),
        )
        touched = self._touched(new, targets)
        chunks = merge.chunks(targets, touched)
        parts = [ChunkRefs.empty(len(new.dims))]
        if self._dry_run:
            deque(chunks, maxlen=0)
        else:
            parts += store_in_batches(self._destination, len(new.dims), chunks)
        refs = ChunkRefs.concat(parts)
        self.commit.written.add_chunks(refs)
        if merge.empty:
            left = [self.commit.deleted[new.path], np.array(merge.empty, np.uint32)]
            self.commit.deleted[new.path] = np.concatenate(left)
        if merge.cells_lost:
            self.lost[new.name] = new.dims, merge.lost, merge.cells_lost
            self.lost_at[new.node_id] = targets[touched]
        yield refs

    def _moved_array(
        self, new: ArrayTarget, snapshot: Snapshot, indices: Mapping[str, NDArray[np.int64]]
    ) -> MovedArray | None:
        node = array_at(snapshot, new.path, new.node_id)
        if node is None or node.array is None:
            return None
        own = [
            indices.get(dim, np.arange(size, dtype=np.int64))
            for dim, size in zip(new.dims, node.array.shape, strict=True)
        ]
        return MovedArray(self._destination.reader(snapshot, node), own, new.metadata.shape)

    def _ours(self, old: ArrayTarget, receipts: Sequence[ManifestReceipt]) -> ArrayReader:
        """Return a reader of the stored chunks of an array."""
        if self._picked is not None:
            picked = array_at(self._picked, old.path)
            assert picked is not None  # The changed chunks are in this snapshot.
            return self._destination.reader(self._picked, picked)
        none = ManifestRefs.empty(len(old.dims))
        grid = old.metadata.grid
        node = NodeSnapshot(
            id=old.node_id,
            path=parse_node_path(old.path),
            user_data=old.metadata.to_bytes(),
            array=ArrayNode(
                shape=grid.shape,
                num_chunks=grid.num_chunks,
                dimension_names=old.metadata.dimension_names,
                manifests=with_files(none, np.arange(0), receipts),
            ),
        )
        listed = files_of_receipts(receipts)
        snapshot = Snapshot(id=self._rivals.tip.id, flushed_at=0, message="", manifest_files=listed)
        return self._destination.reader(snapshot, node)


def _without_size(array: ArrayTarget) -> dict[str, Any]:
    """Return the metadata that determines the encoding of a chunk, without the chunk grid."""
    left_out = {"shape", "chunk_grid", "attributes"}
    return {key: value for key, value in array.metadata.raw.items() if key not in left_out}
