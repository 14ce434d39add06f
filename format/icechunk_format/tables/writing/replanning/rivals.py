"""Finds the commits of other writers during a write, and the labels and chunks they moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.grid.boxes import beyond
from icechunk_format.grid.chunk_moves import ChunkMoves, spread
from icechunk_format.grid.coordinates import CoordinateOrder
from icechunk_format.grid.index_maps import IndexMap
from icechunk_format.groups import arrays_in
from icechunk_format.groups.changing import ArrayTarget
from icechunk_format.groups.variable import array_at
from icechunk_format.tables.writing.plan import WritePlan
from icechunk_format.tables.writing.prepare import PreparedWrite
from icechunk_format.tables.writing.replanning.conflicts import refused
from icechunk_format.tables.writing.replanning.moves import NewIndices, grid_of

if TYPE_CHECKING:
    from icechunk_format.repository.changes.conflicts import TheirCommit

# Labels are inserted in order if at most this many chunks of other writers must move.
_MOST_MOVED_CHUNKS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
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
        return not self.base.nodes.has_id(node_id)

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


def find_new_indices(
    plan: WritePlan, now: WritePlan, rivals: Rivals, *, may_lack: bool = False
) -> dict[str, NewIndices]:
    """Return, by dimension, the index in the new plan of each index of base and tip.

    ``may_lack`` allows labels of the base that are missing in the tip; their index is -1.
    """
    found: dict[str, NewIndices] = {}
    for dim in plan.dimension_tables:
        sizes = [_size(snapshot, now.group, dim) for snapshot in (rivals.base, rivals.tip)]
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
        found[dim] = NewIndices(was=was, base=base, tip=tip, size=max(sizes[1], *ends))
    return found


def _size(snapshot: Snapshot, group: str, dim: str) -> int:
    arrays = arrays_in(snapshot, group).values()
    return next((size for v in arrays for name, size in v.dimensions if name == dim), 0)


def label_positions(old: NDArray[Any], new: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index in ``new`` of each label of ``old``; -1 for missing labels."""
    if np.array_equal(new[: len(old)], old):
        return np.arange(len(old), dtype=np.int64)
    found = np.full(len(old), -1, np.int64)
    if len(new):
        order = np.argsort(new, kind="stable")
        at = np.minimum(np.searchsorted(new[order], old), len(new) - 1)
        is_there = np.asarray(new[order][at] == old, np.bool_)
        found[is_there] = order[at[is_there]]
    return found


def _indices_of_labels(
    prepared: PreparedWrite, rivals: Rivals, dim: str, size: int, *, may_lack: bool
) -> NDArray[np.int64]:
    """Return the index in the tip of each label of the base, -1 for missing labels."""
    path = prepared.array_path(dim)
    before, after = array_at(rivals.base, path), array_at(rivals.tip, path)
    if before is None or after is None:
        return np.arange(size, dtype=np.int64)
    destination = prepared.destination
    old = destination.reader(rivals.base, before).read_all()
    new = destination.reader(rivals.tip, after).read_all()
    found = label_positions(old, new)
    if not may_lack and (found < 0).any():
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
    stored = array_at(tip, array.path, array.node_id)
    if stored is None or not now.moved.keys() & set(array.dims):
        return None
    reader = now.destination.reader(tip, stored)
    before, after = reader.metadata.grid.axes, array.metadata.grid.axes
    maps = [
        IndexMap.resized(axis.size, size)
        if dim not in now.moved
        else IndexMap.of_indices(now.moved[dim], size)
        for axis, size, dim in zip(before, array.metadata.shape, array.dims, strict=True)
    ]
    counts = reader.metadata.grid.num_chunks
    still = [
        int(axis.chunk_of(np.array([each.still]))[0]) if each.still < axis.size else axis.count
        for axis, each in zip(before, maps, strict=True)
    ]
    found = [ChunkRefs.empty(len(counts))]
    for _, low, high in beyond(still, counts):
        found += [refs.take(rows) for refs, rows in reader.lookup.in_box(low, high)]
    refs = ChunkRefs.concat(found)
    is_moved, targets = ChunkMoves.of(before, after, maps).placed(refs.coords)
    stays = is_moved & (targets == refs.coords).all(axis=1)
    split = [
        grid_of([*map(spread, before, after, maps, at)]) for at in refs.coords[~is_moved].tolist()
    ]
    return TheirChunks(
        refs=refs.take(is_moved & ~stays).moved(targets[is_moved & ~stays]),
        merged=np.concatenate([np.zeros((0, len(counts)), np.int64), *split]),
        left=refs.coords[~stays],
    )
