"""Finds the commits of other writers during a write, and the labels and chunks they moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.part import ArrayTarget
from icechunk_format.dataset.writing.plan import WritePlan
from icechunk_format.dataset.writing.prepare import PreparedWrite
from icechunk_format.dataset.writing.replanning.conflicts import refused
from icechunk_format.dataset.writing.replanning.moves import (
    Landed,
    axis_moves,
    chunk_moves,
    targets_of,
)
from icechunk_format.grid.coordinates import CoordinateOrder
from icechunk_format.spec.ids import NodeId, SnapshotId
from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
from icechunk_format.spec.snapshot.file import NodeSnapshot, Snapshot

if TYPE_CHECKING:
    from icechunk_format.repository.changes.conflicts import TheirCommit

# Labels are inserted in order if at most this many chunks of other writers must move.
_MOST_MOVED_CHUNKS: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """The commits of other writers after ``base`` up to ``tip``."""

    base: Snapshot
    tip: Snapshot
    commits: tuple[TheirCommit, ...]

    @property
    def ids(self) -> list[SnapshotId]:
        """The snapshots of all commits."""
        return list(dict.fromkeys(commit.snapshot_id for commit in self.commits))

    def is_new(self, node_id: NodeId) -> bool:
        """Return True if an array was created since ``base``."""
        return node_id not in self._old_ids

    @cached_property
    def _old_ids(self) -> frozenset[NodeId]:
        return frozenset(node.id for node in self.base.nodes)

    def touched(self, node_id: NodeId, coords: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the chunks of an array that other writers may have written."""
        found = np.zeros(len(coords), np.bool_)
        for commit in self.commits:
            found |= _is_in(commit, node_id, coords)
        # Transaction logs of other libraries may not list the chunks of a new array.
        return np.ones_like(found) if self.is_new(node_id) else found

    def writers(self, coords: Mapping[NodeId, NDArray[Any]]) -> list[SnapshotId]:
        """Return the commits that wrote some of these chunks; all commits if none is found."""
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


def array_at(snapshot: Snapshot, path: str, node_id: NodeId | None = None) -> NodeSnapshot | None:
    """Return an array of a snapshot; None if the path has no array, or one with another id."""
    node = snapshot.node(path)
    if node is None or node.array is None or node_id not in (None, node.id):
        return None
    return node


def landed_indices(
    plan: WritePlan, now: WritePlan, rivals: Rivals, *, may_lack: bool = False
) -> dict[str, Landed]:
    """Return, by dimension, the index in the new plan of each index of base and tip.

    ``may_lack`` allows labels of the base that are missing in the tip; their index is -1.
    """
    found: dict[str, Landed] = {}
    for dim in plan.dimension_tables:
        sizes = [_size(snapshot, now, dim) for snapshot in (rivals.base, rivals.tip)]
        if sizes[1] < sizes[0] and not may_lack:
            raise refused(
                now,
                f"the dimension {dim!r} was shortened from {sizes[0]} to {sizes[1]} elements "
                "since this write was planned",
                snapshots=rivals.ids,
                dim=dim,
            )
        tip = now.moved.get(dim, np.arange(sizes[1], dtype=np.int64))
        ends = [1 + int(np.max(each, initial=-1)) for each in (tip, now.indices(dim))]
        at = _indices_of_labels(now, rivals, dim, sizes[0], may_lack=may_lack)
        base = np.where(at < 0, -1, np.append(tip, 0)[at])
        was = plan.moved.get(dim, np.arange(sizes[0], dtype=np.int64))
        found[dim] = Landed(was=was, base=base, tip=tip, size=max(sizes[1], *ends))
    return found


def _size(snapshot: Snapshot, prepared: PreparedWrite, dim: str) -> int:
    for node in snapshot.children(prepared.group):
        if node.array is not None:
            for name, size in Variable(node).dimensions:
                if name == dim:
                    return size
    return 0


def label_positions(old: NDArray[Any], new: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return the index in ``new`` of each label of ``old``; None if some are missing."""
    if np.array_equal(new[: len(old)], old):
        return np.arange(len(old), dtype=np.int64)
    order = np.argsort(new, kind="stable")
    at = np.minimum(np.searchsorted(new[order], old), len(new) - 1)
    if not len(new) or not np.array_equal(new[order][at], old):
        return None
    found: NDArray[np.int64] = order[at].astype(np.int64)
    return found


def _indices_of_labels(
    prepared: PreparedWrite, rivals: Rivals, dim: str, size: int, *, may_lack: bool
) -> NDArray[np.int64]:
    """Return the index in the tip of each label of the base, -1 for missing labels."""
    same = np.arange(size, dtype=np.int64)
    path = prepared.array_path(dim)
    before, after = array_at(rivals.base, path), array_at(rivals.tip, path)
    if before is None or after is None:
        return same
    old, new = (
        prepared.destination.reader(snapshot, node).read_all()
        for snapshot, node in ((rivals.base, before), (rivals.tip, after))
        if node.array is not None
    )
    found = label_positions(old, new)
    if found is None and may_lack:
        is_there = np.isin(old, new)
        some = label_positions(old[is_there], new)
        found = np.full(size, -1, np.int64)
        found[is_there] = some
    if found is None:
        raise refused(
            prepared,
            f"labels of the dimension {dim!r} were changed or removed since this write was planned",
            snapshots=rivals.ids,
            dim=dim,
        )
    return found


def can_move(now: WritePlan) -> bool:
    """Return True if stored chunks of other writers can move so that labels can be inserted."""
    # Arrays with read-only codecs, or of another size than their dimension, cannot move.
    chunks = 0
    for variable in now.kept.values():
        moved = [dim for dim in variable.dims if dim in now.moved]
        if not moved or variable.dims == (variable.name,):
            continue
        if variable.has_repeated_dimension or not variable.codecs.can_encode:
            return False
        for dim in moved:
            axis = variable.dims.index(dim)
            if variable.shape[axis] != len(now.moved[dim]):
                return False
            first = int(np.argmax(now.moved[dim] != np.arange(len(now.moved[dim]))))
            axes = variable.metadata.grid.axes
            counts = [each.count for each in axes]
            counts[axis] -= int(axes[axis].chunk_of(np.array([first]))[0])
            chunks += int(np.prod(counts, dtype=np.float64))
    return chunks <= _MOST_MOVED_CHUNKS


@dataclass(frozen=True, slots=True, kw_only=True)
class TheirChunks:
    """Chunks of the newest snapshot whose labels move."""

    refs: ChunkRefs
    """Unchanged chunks, at their new coordinates."""
    merged: NDArray[np.int64]
    """``(n, ndim)``: new coordinates of chunks that receive cells of split chunks."""
    left: NDArray[np.uint32]
    """``(m, ndim)``: old coordinates of all these chunks."""


def their_chunks(now: WritePlan, array: ArrayTarget, tip: Snapshot) -> TheirChunks | None:
    """Return the moves of stored chunks of an array; None if no chunk moves."""
    node = array_at(tip, array.path, array.node_id)
    if node is None or not now.moved.keys() & set(array.dims):
        return None
    reader = now.destination.reader(tip, node)
    grids = reader.metadata.grid, array.metadata.grid
    counts = grids[0].num_chunks
    axes, first = [], []
    for axis, (dim, size) in enumerate(zip(array.dims, reader.shape, strict=True)):
        same = np.arange(size, dtype=np.int64)
        indices = now.moved.get(dim, same)
        none = same[:0]
        landed = Landed(was=none, base=none, tip=indices, size=array.metadata.shape[axis])
        axes.append(axis_moves(grids, axis, (same, indices), landed=landed))
        has_moved = dim in now.moved
        at = grids[0].axes[axis].chunk_of(np.array([landed.still])) if has_moved else [0]
        first.append(int(at[0]) if has_moved else counts[axis])
    found = [ChunkRefs.empty(len(counts))]
    for axis, low in enumerate(first):
        # Chunks beyond ``first`` of an earlier axis were found along that axis.
        lower = (*(0,) * axis, low, *(0,) * (len(counts) - axis - 1))
        upper = (*first[:axis], *counts[axis:])
        found += [refs.take(rows) for refs, rows in reader.lookup.in_box(lower, upper)]
    refs = ChunkRefs.concat(found)
    is_moved, targets = chunk_moves(
        axes,
        refs.coords,
        lambda at: np.zeros(len(at), np.bool_),
        has_all_rows=True,
        is_same_array=True,
    )
    stays = is_moved & (targets == refs.coords).all(axis=1)
    split = [targets_of(axes, at) for at in refs.coords[~is_moved].tolist()]
    return TheirChunks(
        refs=refs.take(is_moved & ~stays).moved(targets[is_moved & ~stays]),
        merged=np.concatenate([np.zeros((0, len(counts)), np.int64), *split]),
        left=refs.coords[~stays],
    )
