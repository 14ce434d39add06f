"""Reuses the chunks and manifests that tasks stored, in a plan for a newer snapshot.

Rules of this file
------------------
1. A manifest whose chunks all keep their coordinates is reused unchanged. Other manifests are read,
   a bounded number at a time, and stored again with new coordinates; chunk objects do not change.
2. Chunks that cannot be reused are merged one by one with the newest snapshot.
3. Chunks of the layouts ``chunks`` and ``refs`` never move. A chunk that another writer wrote too
   is a conflict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.node_path import parse_node_path
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.grid.coordinates import CoordinateOrder, joined_coords, without
from icechunk_format.grid.index_maps import IndexMap
from icechunk_format.groups import ArrayReader, Variable
from icechunk_format.groups.changing import emptied
from icechunk_format.groups.changing.storing import store_in_batches
from icechunk_format.groups.variable import array_at
from icechunk_format.repository.changes import ChunkChanges
from icechunk_format.repository.commit.assemble import files_of_receipts, with_files
from icechunk_format.repository.commit.commit import Written
from icechunk_format.repository.files import ManifestReceipt, load_manifests, store_manifests
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.protocol import Storage
from icechunk_format.tables.writing.part import WriteTarget
from icechunk_format.tables.writing.plan import WritePlan
from icechunk_format.tables.writing.replanning.conflicts import refused
from icechunk_format.tables.writing.replanning.merge import CellMerge, MovedArray
from icechunk_format.tables.writing.replanning.moves import (
    AxisMoves,
    DimMoves,
    chunk_moves,
    targets_of,
)
from icechunk_format.tables.writing.replanning.rivals import (
    Rivals,
    TheirChunks,
    check_labels_stay,
    others_that_move,
    their_chunks,
)

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


def stored_refs(
    storage: Storage, node_id: NodeId, receipts: Sequence[ManifestReceipt]
) -> Iterator[ChunkRefs]:
    """Load manifests of an array, and yield the references of each that are used."""
    loaded = load_manifests(storage, [receipt.manifest_id for receipt in receipts])
    for manifest, receipt in zip(loaded, receipts, strict=True):
        entry = manifest.array(node_id)
        assert entry is not None, "a receipt names the manifest of its array"
        yield receipt.pick(entry.refs)


class Adoption:
    """Builds ``commit`` from chunks that tasks have stored, or that another branch has changed.

    ``before`` are the arrays of the first plan, and ``picked`` is the snapshot of that branch. A
    dry run finds conflicts, and stores nothing.
    """

    def __init__(
        self,
        before: Mapping[str, WriteTarget],
        now: WritePlan,
        rivals: Rivals,
        moves: Mapping[str, DimMoves],
        *,
        has_all_rows: bool = False,
        picked: Snapshot | None = None,
        dry_run: bool = False,
    ) -> None:
        self.before, self.now, self.rivals, self.moves = before, now, rivals, moves
        self.has_all_rows, self.picked, self.dry_run = has_all_rows, picked, dry_run
        # By array: dimensions, indices along each, and number of the cells that two writers wrote.
        self.lost: dict[str, tuple[tuple[str, ...], Sequence[set[int]], int]] = {}
        # By node id: the chunks of these cells.
        self.lost_at: dict[NodeId, NDArray[Any]] = {}
        self.commit = PlannedCommit(plan=now, base=rivals.tip)

    def take_all(self, stored: Mapping[str, ChunkChanges]) -> None:
        """Reuse the stored chunks of each array, given by path."""
        for name, array in self.now.arrays.items():
            changes = stored.get(array.path) or ChunkChanges(len(array.dims))
            _ArrayAdoption(self, self.before.get(name), array, changes).take()
        for array in others_that_move(self.now):
            _ArrayAdoption(self, None, array, ChunkChanges(len(array.dims))).take()


class _ArrayAdoption:
    """Reuses the stored chunks of one array, and moves those of other writers.

    ``old`` and ``new`` are the array in the first plan, if it has the array, and in the new one.
    """

    def __init__(
        self, whole: Adoption, old: WriteTarget | None, new: WriteTarget, changes: ChunkChanges
    ) -> None:
        self._whole, self._old, self._new, self._changes = whole, old, new, changes
        self._rivals, self._moves = whole.rivals, whole.moves
        self._options = whole.now.options
        self._destination = whole.now.destination
        self._storage = self._destination.open_storage()
        self._axes: list[AxisMoves] = []

    def take(self) -> None:
        """Add the manifests of the array to the commit."""
        kept, refs = self._cells() if self._options.layout == "cells" else self._fixed()
        if self._whole.dry_run:
            deque(refs, maxlen=0)
            return
        commit, parts = self._whole.commit, [(self._new.node_id, refs)]
        [stored] = store_manifests(self._storage, self._destination.manifest_format, parts)
        commit.written.add("manifests", len(stored), sum(one.size_bytes for one in stored))
        if kept or stored:
            commit.manifests[self._new.path] = kept + stored

    def _cells(self) -> tuple[list[ManifestReceipt], Iterator[ChunkRefs]]:
        """Return the manifests that are reused unchanged, and the other references."""
        old, new = self._old, self._new
        theirs = self._their_chunks()
        targets = [np.zeros((0, len(new.dims)), np.int64)]
        if theirs is not None:
            targets.append(theirs.merged)
        kept: list[ManifestReceipt] = []
        moved: list[_Moved] = []
        reused: list[NDArray[np.uint32]] = []
        if old is not None and not self._changes.is_empty:
            self._axes = self._moves_along(old)
            is_same = old.node_id == new.node_id
            are_alike = _without_size(old) == _without_size(new)
            refs, deleted = self._changes.pending()
            # All cells of a deleted chunk have the fill value.
            targets += [targets_of(self._axes, at) for at in deleted.tolist()]
            stored: list[ManifestReceipt | ChunkRefs] = [*self._changes.receipts, refs]
            for found in stored:
                coords = found.coords if isinstance(found, ChunkRefs) else found.coords.coords()
                is_moved, moved_to = chunk_moves(
                    self._axes,
                    coords,
                    self._touched,
                    has_all_rows=self._whole.has_all_rows,
                    is_same_array=is_same and old.old_shape is not None,
                )
                stays = is_moved & are_alike
                reused.append(moved_to[stays].astype(np.uint32))
                is_kept = is_same and stays.all() and (moved_to == coords).all()
                if is_kept and isinstance(found, ManifestReceipt) and found.is_whole:
                    kept.append(found)
                    continue
                if stays.any():
                    moved.append((found, stays, moved_to))
                targets += [targets_of(self._axes, at) for at in coords[~stays].tolist()]
        # A chunk of the newest snapshot that loses labels has other ones in a reused chunk.
        merged = without(np.unique(np.concatenate(targets), axis=0).astype(np.uint32), reused)
        taken = joined_coords([merged, *reused], len(new.dims))
        return kept, self._refs(moved, theirs, merged, taken)

    def _refs(
        self,
        moved: Sequence[_Moved],
        theirs: TheirChunks | None,
        merged: NDArray[np.uint32],
        ours: NDArray[np.uint32],
    ) -> Iterator[ChunkRefs]:
        """Yield the new references of the array, in disjoint batches."""
        yield from self._moved(moved)
        if theirs is not None:
            refs = theirs.refs.take(CoordinateOrder(ours).find(theirs.refs.coords) < 0)
            if len(refs):
                yield refs
            self._clear(without(theirs.left, [ours, refs.coords]))
        if len(merged):
            yield self._merged(merged.astype(np.int64))

    def _touched(self, targets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of chunks of the new plan with cells that others wrote or moved."""
        found = self._changed_by_others(targets)
        for axis, dim in enumerate(self._new.dims):
            if dim in self._moves:
                along = self._new.metadata.grid.axes[axis]
                found |= along.start_of(targets[:, axis] + 1) > self._moves[dim].still
        return found

    def _written_by_others(self, coords: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the chunks of the newest snapshot that other writers have stored."""
        return self._stored(coords) & self._rivals.touched(self._new.node_id, coords)

    def _changed_by_others(self, coords: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of chunks that other writers may have written or dropped.

        Transaction logs do not list chunks that a smaller array drops.
        """
        found = self._rivals.touched(self._new.node_id, coords)
        if self._rivals.has_updated(self._new.node_id):
            found |= self._stored(coords, self._rivals.base) & ~self._stored(coords)
        return found

    def _stored(self, coords: NDArray[Any], snapshot: Snapshot | None = None) -> NDArray[np.bool_]:
        """Return a mask of the chunks that exist in a snapshot, by default the newest one."""
        snapshot = snapshot or self._rivals.tip
        array = array_at(snapshot, self._new.path, self._new.node_id)
        found = np.zeros(len(coords), np.bool_)
        if array is not None:
            lookup = self._destination.reader(snapshot, array).lookup
            found[lookup.find(coords.astype(np.uint32)).positions] = True
        return found

    def _moves_along(self, old: WriteTarget) -> list[AxisMoves]:
        lacks = {"base": old.old_shape is None, "tip": self._new.old_shape is None}
        axes = (array.metadata.grid.axes for array in (old, self._new))
        return [
            AxisMoves(old=before, new=now, along=self._moves[dim].without(**lacks))
            for before, now, dim in zip(*axes, old.dims, strict=True)
        ]

    def _their_chunks(self) -> TheirChunks | None:
        """Return the moves of the chunks in the newest snapshot; None if no chunk moves."""
        new, tip = self._new, self._rivals.tip
        stored = array_at(tip, new.path, new.node_id)
        if stored is None or not self._whole.now.moved.keys() & set(new.dims):
            return None
        maps = self._maps(stored, "tip", new.metadata.shape)
        return their_chunks(self._destination.reader(tip, stored), new.metadata.grid.axes, maps)

    def _maps(
        self, array: Variable, state: Literal["was", "base", "tip"], shape: Sequence[int]
    ) -> list[IndexMap]:
        """Return the moves along the axes of an array of an older state, which gets a shape."""
        known = {dim: getattr(moves, state) for dim, moves in self._moves.items()}
        same = map(IndexMap.resized, array.shape, shape)
        return [
            known[dim] if dim in known and known[dim].before == each.before else each
            for dim, each in zip(array.dims, same, strict=True)
        ]

    # -- chunks that are used as they are ---------------------------------------------------

    def _moved(self, moved: Sequence[_Moved]) -> Iterator[ChunkRefs]:
        """Yield the references of moved chunks, those of each manifest together."""
        sized = []
        for found, stays, targets in moved:
            if isinstance(found, ChunkRefs):
                yield found.take(stays).moved(targets[stays])
            else:
                sized.append(((found, stays, targets), found.num_chunk_refs))
        for batch in sized_batches(sized, _FILES_AT_ONCE, _REFS_AT_ONCE):
            assert self._old is not None, "it has stored chunks"
            receipts = [receipt for receipt, _, _ in batch]
            stored = stored_refs(self._storage, self._old.node_id, receipts)
            for refs, (_, stays, targets) in zip(stored, batch, strict=True):
                yield refs.take(stays).moved(targets[stays])

    def _fixed(self) -> tuple[list[ManifestReceipt], Iterator[ChunkRefs]]:
        """Return manifests and references of chunks that never move, without overwritten ones."""
        old, new, resolve = self._old, self._new, self._options.resolve
        kept: list[ManifestReceipt] = []
        moved: list[_Moved] = []
        shared = [np.zeros((0, len(new.dims)), np.uint32)]
        for receipt in self._changes.receipts:
            coords = receipt.coords.coords()
            touched = self._changed_by_others(coords)
            if self._rivals.is_new(new.node_id):
                touched = self._stored(coords)
            shared.append(coords[touched])
            gives_way = touched & (resolve == "theirs")
            is_same = old is not None and old.node_id == new.node_id
            if is_same and not gives_way.any():
                kept.append(receipt)
            elif not gives_way.all():
                moved.append((receipt, ~gives_way, coords.astype(np.int64)))
        check_labels_stay(self._whole.now, new, self._changes.receipts, self._rivals)
        both = np.concatenate(shared)
        if len(both) and resolve is None:
            shown = ", ".join(str(at) for at in both[:4].tolist())
            raise refused(
                self._whole.now,
                f"other writers wrote {len(both)} of the chunks of {new.path} that this write "
                f"has, such as {shown}",
                snapshots=self._rivals.writers({new.node_id: both}),
                variables=(new.name,),
            )
        return kept, self._moved(moved)

    # -- chunks that are merged -------------------------------------------------------------

    def _merged(self, targets: NDArray[np.int64]) -> ChunkRefs:
        """Merge and store chunks of the new plan; return their references."""
        whole, old, new = self._whole, self._old, self._new
        is_written = old is not None and not self._changes.is_empty
        merge = CellMerge(
            array=new,
            axes=self._axes,
            ours=self._ours(old) if old is not None and is_written else None,
            base=None if old is None else self._moved_array(old, self._rivals.base, "was"),
            base_now=self._moved_array(new, self._rivals.base, "base"),
            tip=self._moved_array(new, self._rivals.tip, "tip"),
            stored=self._changes,
            written_by_others=self._written_by_others,
            has_all_rows=whole.has_all_rows,
            may_agree=whole.picked is not None,
            resolve=self._options.resolve,
            part=next((part for part in whole.now.parts if new in part.arrays), None),
        )
        touched = self._touched(targets)
        chunks = merge.chunks(targets, touched)
        parts = [ChunkRefs.empty(len(new.dims))]
        if whole.dry_run:
            deque(chunks, maxlen=0)
        else:
            parts += store_in_batches(self._destination, len(new.dims), chunks)
        stored = ChunkRefs.concat(parts)
        whole.commit.written.add_chunks(stored)
        self._clear(emptied(targets, [stored]))
        if merge.cells_lost:
            whole.lost[new.name] = new.dims, merge.lost, merge.cells_lost
            whole.lost_at[new.node_id] = targets[touched]
        return stored

    def _clear(self, coords: NDArray[np.uint32]) -> None:
        """Delete chunks in the commit."""
        if len(coords):
            deleted = self._whole.commit.deleted
            before = deleted.get(self._new.path, coords[:0])
            deleted[self._new.path] = np.concatenate([before, coords])

    def _moved_array(
        self, target: WriteTarget, snapshot: Snapshot, state: Literal["was", "base", "tip"]
    ) -> MovedArray | None:
        array = array_at(snapshot, target.path, target.node_id)
        if array is None:
            return None
        maps = self._maps(array, state, target.metadata.shape)
        return MovedArray(self._destination.reader(snapshot, array), maps)

    def _ours(self, old: WriteTarget) -> ArrayReader:
        """Return a reader of the stored chunks of the array."""
        if self._whole.picked is not None:
            picked = array_at(self._whole.picked, old.path)
            assert picked is not None  # The changed chunks are in this snapshot.
            return self._destination.reader(self._whole.picked, picked)
        receipts, grid = self._changes.receipts, old.metadata.grid
        none = ManifestRefs.empty(len(old.dims))
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
        return self._destination.reader(snapshot, Variable(node))


def _without_size(array: WriteTarget) -> dict[str, Any]:
    """Return the metadata that determines the encoding of a chunk, without the chunk grid."""
    left_out = {"shape", "chunk_grid", "attributes"}
    return {key: value for key, value in array.metadata.raw.items() if key not in left_out}
