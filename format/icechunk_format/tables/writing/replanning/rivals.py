"""Finds the commits of other writers during a write, and the labels and chunks they moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.boxes import beyond, box_of_grid, inside_box
from icechunk_format.grid.chunk_moves import ChunkMoves, spread
from icechunk_format.grid.coordinates import CoordinateOrder
from icechunk_format.grid.index_maps import IndexMap
from icechunk_format.groups import ArrayReader, arrays_in
from icechunk_format.groups.variable import array_at
from icechunk_format.repository.files import ManifestReceipt
from icechunk_format.tables.writing.part import WriteTarget
from icechunk_format.tables.writing.plan import WritePlan
from icechunk_format.tables.writing.prepare import PreparedWrite
from icechunk_format.tables.writing.replanning.conflicts import refused
from icechunk_format.tables.writing.replanning.moves import DimMoves, grid_of

if TYPE_CHECKING:
    from icechunk_format.repository.changes import TheirCommit

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

    def has_updated(self, node_id: NodeId) -> bool:
        """Return True if a commit changed the document of an array."""
        return any(node_id in commit.log.updated_arrays for commit in self.commits)

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


def find_moves(plan: WritePlan, now: WritePlan, rivals: Rivals) -> dict[str, DimMoves]:
    """Return, by dimension, the moves of its elements to the new plan."""
    found: dict[str, DimMoves] = {}
    for dim in plan.dimension_tables:
        old, new = (_size(snapshot, now.group, dim) for snapshot in (rivals.base, rivals.tip))
        if new < old:
            raise refused(
                now,
                f"the dimension {dim!r} was shortened from {old} to {new} elements "
                "since this write was planned",
                snapshots=rivals.ids,
                dim=dim,
            )
        base, was, tip = np.arange(old), plan.moved.get(dim), now.moved.get(dim)
        was, tip = base if was is None else was, np.arange(new) if tip is None else tip
        own = plan.indices(dim), now.indices(dim)
        before, size = (
            1 + max(int(np.max(each, initial=-1)) for each in known)
            for known in ((base, was, own[0]), (np.arange(new), tip, own[1]))
        )
        rows = np.full(before, -1, np.int64)
        rows[own[0]] = own[1]
        theirs = _labels_moved(now, rivals, dim, (old, new))
        if len(theirs.gone):
            raise refused(
                now,
                f"labels of the dimension {dim!r} were changed or removed since this write was "
                "planned",
                snapshots=rivals.ids,
                dim=dim,
            )
        found[dim] = DimMoves.of(
            rows=IndexMap.of_indices(rows, size),
            was=IndexMap.of_indices(was, before),
            theirs=theirs,
            tip=IndexMap.of_indices(tip, size),
        )
    return found


def check_has_labels(plan: WritePlan, rivals: Rivals) -> None:
    """Raise ConflictError if a dimension has lost or got labels.

    Its values in rows would be positions instead of labels, or labels instead of positions.
    """
    for dim in plan.dims:
        path = plan.array_path(dim)
        before, after = array_at(rivals.base, path), array_at(rivals.tip, path)
        if (before is None) != (after is None) and _size(rivals.base, plan.group, dim):
            raise refused(
                plan,
                f"array {path} of the labels of dimension {dim!r} was "
                f"{'created' if before is None else 'removed'} since this write was planned",
                snapshots=rivals.ids,
                dim=dim,
            )


def check_labels_stay(
    now: WritePlan, array: WriteTarget, written: Sequence[ManifestReceipt], rivals: Rivals
) -> None:
    """Raise ConflictError if a label of written chunks, or one before them, has moved."""
    for axis, dim in enumerate(array.dims if written else ()):
        path = now.array_path(dim)
        before, after = array_at(rivals.base, path), array_at(rivals.tip, path)
        if before is None or after is None or not before.is_dimension_coordinate:
            continue
        found = _labels_moved(now, rivals, dim, (before.shape[0], after.shape[0]))
        last = max(receipt.extents[axis][1] for receipt in written)
        [end] = array.metadata.grid.axes[axis].start_of(np.array([last])).tolist()
        if found.still < min(end, found.before):
            raise refused(
                now,
                f"labels of the dimension {dim!r} were moved since this write of chunks of "
                f"{array.path} was planned",
                snapshots=rivals.ids,
                dim=dim,
            )


def _size(snapshot: Snapshot, group: str, dim: str) -> int:
    arrays = arrays_in(snapshot, group).values()
    return next((size for v in arrays for name, size in v.dimensions if name == dim), 0)


def _labels_moved(
    prepared: PreparedWrite, rivals: Rivals, dim: str, sizes: tuple[int, int]
) -> IndexMap:
    """Return the map of the labels of the base to those of the tip."""
    path, destination = prepared.array_path(dim), prepared.destination
    before, after = array_at(rivals.base, path), array_at(rivals.tip, path)
    if before is None or after is None:
        return IndexMap.resized(*sizes)
    old = destination.reader(rivals.base, before).read_all()
    return IndexMap.of_labels(old, destination.reader(rivals.tip, after).read_all())


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


def others_that_move(now: WritePlan) -> Iterator[WriteTarget]:
    """Yield the existing arrays without rows that have dimensions with moving labels."""
    documents = dict(now.resized)
    for variable in now.kept.values():
        has_moved = now.moved.keys() & set(variable.dims) and not variable.is_dimension_coordinate
        if has_moved and variable.name not in now.arrays:
            metadata = documents.get(variable.path, variable.metadata)
            yield WriteTarget.of_existing(variable, metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class TheirChunks:
    """Chunks of the newest snapshot whose labels move."""

    refs: ChunkRefs
    """Unchanged chunks, at their new coordinates."""
    merged: NDArray[np.int64]
    """``(n, ndim)``: new coordinates of chunks that receive cells of split chunks."""
    left: NDArray[np.uint32]
    """``(m, ndim)``: old coordinates of all these chunks."""


def their_chunks(
    reader: ArrayReader, after: Sequence[ChunkAxis], maps: Sequence[IndexMap]
) -> TheirChunks:
    """Return the moves of stored chunks of an array to its new axes."""
    before = reader.metadata.grid.axes
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
    # A smaller array drops the others.
    left = refs.coords[~stays]
    return TheirChunks(
        refs=refs.take(is_moved & ~stays).moved(targets[is_moved & ~stays]),
        merged=np.concatenate([np.zeros((0, len(counts)), np.int64), *split]),
        left=left[inside_box(left, box_of_grid(each.count for each in after))],
    )
