"""Taking over what tasks have stored for a plan, into a plan for a newer version.

Rules of this file
------------------
1. A manifest whose chunks all stay is used as it is. Others are read and stored again with new
   coordinates, a bounded number at a time; their chunks are not touched.
2. Chunks that cannot be used as they are get merged one by one, and stored in batches.
3. Chunks of the layouts ``chunks`` and ``refs`` have absolute places: they never move, and one that
   others wrote as well is a conflict.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icechunk_format.dataset.array_reader import ArrayReader
from icechunk_format.dataset.variable import Variable
from icechunk_format.dataset.write_conflicts import cells_written_twice, refused
from icechunk_format.dataset.write_merge import CellMerge
from icechunk_format.dataset.write_moves import AxisMoves, axis_moves, chunk_moves
from icechunk_format.repository.chunk_changes import ChunkChanges
from icechunk_format.repository.chunk_files import store_chunks
from icechunk_format.repository.manifest_files import store_manifests
from icechunk_format.repository.objects import load_manifests
from icechunk_format.spec.chunk_refs import ChunkRefs
from icechunk_format.spec.coordinate_order import CoordinateOrder
from icechunk_format.spec.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.spec.node_path import parse_node_path
from icechunk_format.spec.snapshot import ArrayNode, NodeSnapshot, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icechunk_format.dataset.write_context import ArrayTarget, WriteContext
    from icechunk_format.dataset.write_plan import WritePlan
    from icechunk_format.repository.conflicts import TheirCommit
    from icechunk_format.repository.manifest_files import ManifestReceipt
    from icechunk_format.spec.ids import NodeId, SnapshotId
    from icechunk_format.spec.snapshot import Snapshot as AnySnapshot

_REFS_AT_ONCE: Final = 500_000
_BATCH_BYTES: Final = 32 * 2**20
_BATCH_CHUNKS: Final = 1024
_MOST_LOST_CHUNKS: Final = 16


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """What others committed between two versions.

    Parameters
    ----------
    base, tip
        The versions.
    commits
        The commits after ``base`` up to ``tip``.
    """

    base: AnySnapshot
    tip: AnySnapshot
    commits: tuple[TheirCommit, ...]

    @property
    def ids(self) -> list[SnapshotId]:
        """The snapshots of all commits."""
        return list(dict.fromkeys(commit.snapshot_id for commit in self.commits))

    @cached_property
    def _old_ids(self) -> frozenset[NodeId]:
        return frozenset(node.id for node in self.base.nodes)

    def touched(self, node_id: NodeId, coords: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which chunks of an array others may have written."""
        found = np.zeros(len(coords), np.bool_)
        for commit in self.commits:
            found |= _is_in(commit, node_id, coords)
        # Logs of other libraries need not list the chunks of an array that they created.
        return found if node_id in self._old_ids else np.ones_like(found)

    def writers(self, coords: Mapping[NodeId, NDArray[Any]]) -> list[SnapshotId]:
        """Return the commits that wrote some of these chunks; all of them where none says so."""
        found = [
            commit.snapshot_id
            for commit in self.commits
            if any(_is_in(commit, node_id, at).any() for node_id, at in coords.items())
        ]
        return list(dict.fromkeys(found)) or self.ids


def _is_in(commit: TheirCommit, node_id: NodeId, coords: NDArray[Any]) -> NDArray[np.bool_]:
    theirs = commit.log.updated_chunks.get(node_id)
    if theirs is None or not len(theirs):
        return np.zeros(len(coords), np.bool_)
    return CoordinateOrder(theirs).find(coords.astype(np.uint32)) >= 0


def adopt(
    plan: WritePlan,
    now: WritePlan,
    manifests: Mapping[str, Sequence[ManifestReceipt]],
    rivals: Rivals,
) -> dict[str, list[ManifestReceipt]]:
    """Return the manifests to commit for a new plan.

    Parameters
    ----------
    plan, manifests
        What was planned first, and what tasks stored for it.
    now
        The plan for the newest version, of the same rows.
    rivals
        What others committed in between.

    Raises
    ------
    ConflictError
        Others have written cells of this write, and the options do not say who wins.
    """
    return _Adoption(plan, now, manifests, rivals).run()


class _Adoption:
    def __init__(
        self,
        plan: WritePlan,
        now: WritePlan,
        manifests: Mapping[str, Sequence[ManifestReceipt]],
        rivals: Rivals,
    ) -> None:
        self._plan, self._now = plan, now
        self._manifests = manifests
        self._rivals = rivals
        self._prepared = now.prepared
        self._storage = now.parts[0].context.open_storage()
        self._lost: dict[str, tuple[tuple[str, ...], Sequence[set[int]], int]] = {}
        self._lost_at: dict[NodeId, NDArray[Any]] = {}
        self._has_all_rows = plan.row_count == _product_of_labels(plan)

    def run(self) -> dict[str, list[ManifestReceipt]]:
        before = {a.name: a for part in self._plan.parts for a in part.context.arrays}
        found: dict[str, list[ManifestReceipt]] = {}
        for part in self._now.parts:
            for array in part.context.arrays:
                receipts = self._manifests.get(array.path)
                if receipts:
                    found[array.path] = self._array(
                        before[array.name], array, receipts, part.context
                    )
        if self._lost:
            writers = self._rivals.writers(self._lost_at)
            contexts = [part.context for part in self._now.parts]
            raise cells_written_twice(self._prepared, contexts, self._lost, writers)
        return found

    def _array(
        self,
        old: ArrayTarget,
        new: ArrayTarget,
        receipts: Sequence[ManifestReceipt],
        context: WriteContext,
    ) -> list[ManifestReceipt]:
        if self._prepared.options.layout != "cells":
            return self._fixed(old, new, receipts)
        axes = self._axes(old, new)
        is_same = old.node_id == new.node_id
        are_alike = _without_size(old) == _without_size(new)
        kept: list[ManifestReceipt] = []
        moved: list[tuple[ManifestReceipt, NDArray[np.bool_], NDArray[np.int64]]] = []
        targets: list[NDArray[np.int64]] = []
        for receipt in receipts:
            coords = receipt.coords.coords()
            found = chunk_moves(
                axes,
                coords,
                lambda at: self._rivals.touched(new.node_id, at),
                has_all_rows=self._has_all_rows,
                is_same_array=is_same and old.old_shape is not None,
            )
            stays = found.is_moved & are_alike
            if is_same and stays.all() and (found.targets == coords).all():
                kept.append(receipt)
                continue
            if stays.any():
                moved.append((receipt, stays, found.targets))
            targets += [_targets_of(axes, at) for at in coords[~stays].tolist()]
        parts = self._moved(old, moved)
        if targets:
            parts = self._and_merged(parts, old, new, axes, receipts, np.concatenate(targets))
        stored = store_manifests(
            self._storage, context.manifest_format, ((new.node_id, refs) for refs in parts)
        )
        return [*kept, *(receipt for found in stored for receipt in found)]

    def _axes(self, old: ArrayTarget, new: ArrayTarget) -> list[AxisMoves]:
        grids = old.metadata.grid, new.metadata.grid
        nothing = (0,) * len(old.dims)
        bases = zip(old.old_shape or nothing, new.old_shape or nothing, strict=True)
        return [
            axis_moves(
                grids,
                axis,
                (_places(self._plan, dim), _places(self._now, dim)),
                sizes,
            )
            for axis, (dim, sizes) in enumerate(zip(old.dims, bases, strict=True))
        ]

    # -- chunks that are used as they are ---------------------------------------------------

    def _moved(
        self,
        old: ArrayTarget,
        moved: Sequence[tuple[ManifestReceipt, NDArray[np.bool_], NDArray[np.int64]]],
    ) -> Iterator[ChunkRefs]:
        """Yield the references of chunks at their new places, those of each manifest together."""
        batch: list[tuple[ManifestReceipt, NDArray[np.bool_], NDArray[np.int64]]] = []
        refs = 0
        for item in moved:
            batch.append(item)
            refs += item[0].num_chunk_refs
            if refs >= _REFS_AT_ONCE:
                yield from self._moved_together(old, batch)
                batch, refs = [], 0
        yield from self._moved_together(old, batch)

    def _moved_together(
        self,
        old: ArrayTarget,
        batch: Sequence[tuple[ManifestReceipt, NDArray[np.bool_], NDArray[np.int64]]],
    ) -> Iterator[ChunkRefs]:
        ids = [receipt.manifest_id for receipt, _, _ in batch]
        loaded = load_manifests(self._storage, ids, [r.size_bytes for r, _, _ in batch])
        for manifest, (_, stays, targets) in zip(loaded, batch, strict=True):
            entry = manifest.array(old.node_id)
            assert entry is not None, "a receipt names the manifest of its array"
            taken = entry.refs.take(stays)
            yield ChunkRefs(
                coords=targets[stays].astype(np.uint32),
                kind=taken.kind,
                chunk_id=taken.chunk_id,
                offset=taken.offset,
                length=taken.length,
                last_modified=taken.last_modified,
                texts=taken.texts,
            ).sorted()

    def _fixed(
        self, old: ArrayTarget, new: ArrayTarget, receipts: Sequence[ManifestReceipt]
    ) -> list[ManifestReceipt]:
        """Return the manifests of chunks with absolute places, without those that others keep."""
        resolve = self._prepared.options.resolve
        kept: list[ManifestReceipt] = []
        moved = []
        shared = []
        for receipt in receipts:
            coords = receipt.coords.coords()
            touched = self._rivals.touched(new.node_id, coords)
            if new.node_id not in {node.id for node in self._rivals.base.nodes}:
                touched = self._stored_there(new, coords)
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
                f"others have written {len(both)} of the chunks of {new.path} that this write "
                f"has, such as {shown}",
                snapshots=self._rivals.writers({new.node_id: both}),
                variables=(new.name,),
            )
        parts = self._moved(old, moved)
        pairs = ((new.node_id, refs) for refs in parts)
        stored = store_manifests(self._storage, self._prepared.manifest_format, pairs)
        return [*kept, *(receipt for found in stored for receipt in found)]

    def _stored_there(self, new: ArrayTarget, coords: NDArray[Any]) -> NDArray[np.bool_]:
        found = np.zeros(len(coords), np.bool_)
        reader = self._reader(self._rivals.tip, new.node_id, new)
        if reader is not None:
            found[reader.lookup.find(coords).positions] = True
        return found

    # -- chunks that are merged -------------------------------------------------------------

    def _and_merged(
        self,
        parts: Iterator[ChunkRefs],
        old: ArrayTarget,
        new: ArrayTarget,
        axes: Sequence[AxisMoves],
        receipts: Sequence[ManifestReceipt],
        targets: NDArray[np.int64],
    ) -> Iterator[ChunkRefs]:
        yield from parts
        stored = ChunkChanges(len(axes))
        stored.add_receipts(receipts)
        merge = CellMerge(
            new,
            axes,
            ours=self._reader_of_ours(old, receipts),
            base=self._reader(self._rivals.base, old.node_id, new),
            tip=self._reader(self._rivals.tip, new.node_id, new),
            stored=stored,
            has_all_rows=self._has_all_rows,
            resolve=self._prepared.options.resolve,
        )
        targets = np.unique(targets, axis=0)
        touched = self._rivals.touched(new.node_id, targets)
        found: list[ChunkRefs] = []
        coords: list[list[int]] = []
        payloads: list[bytes] = []
        waiting = lost = 0
        for at, is_touched in zip(targets.tolist(), touched.tolist(), strict=True):
            before = merge.cells_lost
            payloads.append(merge.encoded(at, is_touched=is_touched))
            coords.append(at)
            waiting += len(payloads[-1])
            lost += merge.cells_lost > before
            if lost >= _MOST_LOST_CHUNKS:
                break
            if waiting >= _BATCH_BYTES or len(payloads) >= _BATCH_CHUNKS:
                found.append(self._stored(coords, payloads))
                coords, payloads, waiting = [], [], 0
        if merge.cells_lost:
            self._lost[new.name] = new.dims, merge.lost, merge.cells_lost
            self._lost_at[new.node_id] = targets[touched]
            return
        if payloads:
            found.append(self._stored(coords, payloads))
        yield ChunkRefs.concat(found)

    def _stored(self, coords: list[list[int]], payloads: list[bytes]) -> ChunkRefs:
        at = np.array(coords, np.int64).reshape(len(coords), -1)
        threshold = self._prepared.manifest_format.config.inline_chunk_threshold_bytes
        return store_chunks(self._storage, at, payloads, inline_threshold=threshold)

    def _reader_of_ours(self, old: ArrayTarget, receipts: Sequence[ManifestReceipt]) -> ArrayReader:
        """Return a reader of what tasks have stored of an array, which no version has yet."""
        ids = np.frombuffer(b"".join(r.manifest_id.raw for r in receipts), np.uint8).reshape(
            len(receipts), -1
        )
        manifests = ManifestRefs(
            ids=ids,
            extents=np.array([r.extents for r in receipts], np.uint32).reshape(
                len(receipts), len(old.dims), 2
            ),
        )
        listed = ManifestFiles.of(
            ids,
            np.array([r.size_bytes for r in receipts], np.uint64),
            np.array([r.num_chunk_refs for r in receipts], np.uint32),
        )
        grid = old.metadata.grid
        node = NodeSnapshot(
            id=old.node_id,
            path=parse_node_path(old.path),
            user_data=old.metadata.to_bytes(),
            array=ArrayNode(
                shape=grid.shape,
                num_chunks=grid.num_chunks,
                dimension_names=old.metadata.dimension_names,
                manifests=manifests,
            ),
        )
        version = Snapshot(id=self._rivals.tip.id, flushed_at=0, message="", manifest_files=listed)
        return self._reader_at(version, node)

    def _reader(
        self, version: AnySnapshot, node_id: NodeId, array: ArrayTarget
    ) -> ArrayReader | None:
        node = version.node(array.path)
        if node is None or node.array is None or node.id != node_id:
            return None
        return self._reader_at(version, node)

    def _reader_at(self, version: AnySnapshot, node: NodeSnapshot) -> ArrayReader:
        return ArrayReader(
            storage=self._storage,
            snapshot=version,
            variable=Variable(node),
            chunk_source=self._prepared.chunk_source,
        )


def _targets_of(axes: Sequence[AxisMoves], source: Sequence[int]) -> NDArray[np.int64]:
    """Return the chunks of now that the cells of a chunk of before come to lie in."""
    along = [
        np.unique(moves.targets[moves.from_source(at)])
        for moves, at in zip(axes, source, strict=True)
    ]
    grids = np.meshgrid(*along, indexing="ij")
    return np.stack([grid.reshape(-1) for grid in grids], axis=1) if axes else np.zeros((1, 0), int)


def _places(plan: WritePlan, dim: str) -> NDArray[np.int64]:
    found: NDArray[np.int64] = plan.dimension_tables[dim].column("place").to_numpy()
    return found


def _product_of_labels(plan: WritePlan) -> int:
    cells = 1
    for dim in plan.dimension_tables:
        cells *= len(np.unique(_places(plan, dim)))
    return cells


def _without_size(array: ArrayTarget) -> dict[str, Any]:
    """Return what decides the bytes of a chunk, but for the chunk grid."""
    left_out = {"shape", "chunk_grid", "attributes"}
    return {key: value for key, value in array.metadata.raw.items() if key not in left_out}
