"""Removes labels of a dimension from all arrays of a group with this dimension.

Algorithm
---------
1. Chunks before the first removed label stay. A later chunk with exactly the elements of one stored
   chunk gets a reference to the same object; other chunks are read and written.
2. An array keeps its node id if its cells can be followed by labels, or only the last ones are
   removed. Otherwise it is replaced: the cells of its later positions are other cells.
3. Chunks that become empty are deleted, so that removed values do not reappear when the array
   grows.
4. An array that has the dimension several times, such as a covariance matrix, shrinks along all of
   these axes.

Rules of this file
------------------
1. The driver holds chunk positions along the axes, never references.
2. A task holds the references of its box, or the values of one row of its chunks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from icechunk_format.grid.axes import ChunkAxis, RegularAxis, RunAxis
from icechunk_format.grid.boxes import beyond, coords_of_boxes, inside_box
from icechunk_format.grid.chunk_moves import ChunkMoves
from icechunk_format.grid.cover import steps_along
from icechunk_format.grid.index_maps import IndexMap
from icechunk_format.groups import DimSelection, Variable
from icechunk_format.groups.changing import ArrayTarget, Destination, TaskFiles, TaskReceipt
from icechunk_format.repository.files import ListedManifests, references_in
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata

# References that a task moves, and bytes of values that it holds in memory.
_TASK_REFS: Final = 100_000
_TASK_BYTES: Final = 64 * 2**20

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First chunks of the new grid, and chunks after the last."""

Task = tuple[str, int, Box]
"""Path of an array, the axis along which rows of chunks are moved or written, and their box."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShrunkArray:
    """The removal of labels from an array."""

    target: ArrayTarget
    """The array after the deletion."""
    axes: tuple[int, ...]
    """The axes of the dimension, usually one."""
    indices: IndexMap
    """The new index of each label."""

    @property
    def in_place(self) -> bool:
        """True if the array keeps its node id."""
        return self.target.old_shape is not None

    def moves(self, old: ArrayMetadata) -> ChunkMoves:
        """Return the moves of the chunks, given the document before the deletion."""
        maps = [
            self.indices if axis in self.axes else IndexMap.resized(size, size)
            for axis, size in enumerate(old.shape)
        ]
        return ChunkMoves.of(old.grid.axes, self.target.metadata.grid.axes, maps)

    def still(self, old: ArrayMetadata) -> tuple[int, ...]:
        """Return the number of chunks along each axis that stay as they are."""
        return tuple(
            count if self.in_place or axis not in self.axes else 0
            for axis, count in enumerate(self.moves(old).still)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelDeletion:
    """The context of all tasks; picklable."""

    destination: Destination
    arrays: Mapping[str, ShrunkArray]


def shrunk(variable: Variable, dim: str, labels: DimSelection, *, has_labels: bool) -> ShrunkArray:
    """Return the removal of labels, or of positions without labels, from an array."""
    axes = tuple(axis for axis, name in enumerate(variable.dims) if name == dim)
    indices = IndexMap.dropped(labels.size, labels.runs())
    metadata = variable.metadata
    for axis in axes:
        metadata = _without(metadata, axis, indices)
    target = ArrayTarget.of_new(metadata)
    if has_labels or indices.still == indices.after:  # only the last labels are removed
        target = ArrayTarget.of_existing(variable, metadata)
    return ShrunkArray(target=target, axes=axes, indices=indices)


def _without(metadata: ArrayMetadata, axis: int, indices: IndexMap) -> ArrayMetadata:
    shape = list(metadata.shape)
    shape[axis] = indices.after
    old = metadata.grid.axes[axis]
    is_sharded = metadata.chunk_codecs().sharding is not None
    if indices.still == indices.after or isinstance(old, RegularAxis) or is_sharded:
        return metadata.with_shape(shape)
    # Irregular chunks shrink by their own labels only, so that all other chunks stay whole.
    edges = np.unique(indices.kept_before(old.edges))
    axes: list[ChunkAxis] = list(metadata.grid.axes)
    axes[axis] = RunAxis.of_edges(edges)
    document = {**metadata.raw, "shape": shape, "chunk_grid": ChunkGrid(axes).to_json()}
    return parse_array_metadata(dump_document(document), node_path=metadata.node_path)


def label_tasks(array: ShrunkArray, old: ArrayMetadata) -> list[Task]:
    """Divide the chunks to move or write into tasks."""
    moves = array.moves(old)
    largest = math.prod(each.largest for each in array.target.metadata.grid.axes)
    nbytes = largest * old.data_type.item_bytes
    weight = min(_TASK_REFS, max(1, _TASK_REFS * nbytes // _TASK_BYTES))
    tasks: list[Task] = []
    for axis, low, high in beyond(array.still(old), array.target.metadata.grid.num_chunks):
        row = math.prod(b - a for n, (a, b) in enumerate(zip(low, high, strict=True)) if n != axis)
        cost = np.where(moves.rows_taken(axis, low, high), 1, weight).astype(np.int64) * row
        before = np.cumsum(cost) - cost
        starts = np.flatnonzero(np.diff(before // _TASK_REFS, prepend=-1)).tolist()
        for first, last in pairwise([*starts, len(cost)]):
            held = int(cost[first:last].sum())
            low_here, high_here = list(low), list(high)
            low_here[axis], high_here[axis] = low[axis] + first, low[axis] + last
            boxes = _cut(low_here, high_here, axis, held)
            tasks += [(array.target.path, axis, box) for box in boxes]
    return tasks


def _cut(low: Sequence[int], high: Sequence[int], axis: int, cost: int) -> Iterator[Box]:
    """Divide a box of chunks along the axes other than ``axis``."""
    sizes = [b - a for a, b in zip(low, high, strict=True)]
    others = [*sizes[:axis], *sizes[axis + 1 :]]
    steps = steps_along(others, cost, _TASK_REFS)
    steps.insert(axis, sizes[axis])
    ranges = [
        [(at, min(at + step, stop)) for at in range(start, stop, step)]
        for start, stop, step in zip(low, high, steps, strict=True)
    ]
    for box in itertools.product(*ranges):
        first, last = zip(*box, strict=True)
        yield first, last


def _kept_in(back: IndexMap, size: int, start: int, stop: int) -> DimSelection:
    """Return the old positions of a range of new ones."""
    first, last = back.of(np.array([start, stop - 1])).tolist()
    if last - first == stop - 1 - start:
        return DimSelection.span(size, first, last + 1)
    return DimSelection.of_indices(size, back.of(np.arange(start, stop)))


def move_labels(work: LabelDeletion, task: Task) -> TaskReceipt:
    """Move or write the chunks of a box, and delete those that become empty."""
    path, axis, (low, high) = task
    array = work.arrays[path]
    files = TaskFiles(work.destination)
    base, reader = files.base, files.base.reader(path)
    variable = base.variable(path)
    moves, grid = array.moves(variable.metadata), array.target.metadata.grid
    box = np.stack([low, high], axis=1).astype(np.int64)
    is_taken = moves.rows_taken(axis, low, high)
    if is_taken.any():
        manifests = ListedManifests.of(variable.array.manifests, base.snapshot.manifest_files)
        storage, sources = work.destination.open_storage(), moves.source_box(box)
        refs = references_in(storage, variable.node.id, path, manifests, sources)
        is_used, targets = moves.placed(refs.coords)
        is_used &= inside_box(targets, box)
        is_used[is_used] = is_taken[targets[is_used, axis] - low[axis]]
        moved = refs.take(is_used).moved(targets[is_used])
        files.add(array.target, [moved])
        if array.in_place:
            coords = coords_of_boxes(box[None])
            files.clear(array.target, coords[is_taken[coords[:, axis] - low[axis]]], [moved])
    back = array.indices.inverse
    for chunk in (low[axis] + np.flatnonzero(~is_taken)).tolist():
        box[axis] = chunk, chunk + 1
        bounds = [each.start_of(at) for each, at in zip(grid.axes, box, strict=True)]
        chosen = [
            _kept_in(back, size, *at.tolist())
            if number in array.axes
            else DimSelection.span(size, *at.tolist())
            for number, (size, at) in enumerate(zip(variable.shape, bounds, strict=True))
        ]
        lower = [int(at[0]) for at in bounds]
        files.write(array.target, lower, reader.read(chosen))
    return files.receipt()
