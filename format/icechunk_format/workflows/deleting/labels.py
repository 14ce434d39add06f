"""Removes labels of a dimension from all arrays of a group with this dimension.

Algorithm
---------
1. If the labels are the last ones, arrays shrink in place. Only chunks at the new end are
   rewritten, or deleted if they become empty, so that removed values do not reappear when the array
   grows.
2. Otherwise each array is replaced by a new array. A new chunk with exactly the elements of one old
   chunk gets a reference to the same object; other chunks are read and written.
3. An array that has the dimension several times, such as a covariance matrix, shrinks along all of
   these axes. It is always replaced, and all of its chunks are written.

Rules of this file
------------------
1. The driver holds chunk positions along one axis, never references.
2. A task holds the references of its box, or the values of one row of its chunks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.axes import ChunkAxis, RegularAxis, RunAxis
from icechunk_format.grid.boxes import coords_of_boxes
from icechunk_format.grid.cover import steps_along
from icechunk_format.repository.files.bounded_reads import ListedManifests, references_in
from icechunk_format.tables.selection.positions import DimSelection
from icechunk_format.tables.table.variable import Variable
from icechunk_format.tables.writing.cells.regions import CellReceipt, emptied
from icechunk_format.tables.writing.part import ArrayTarget, Destination
from icechunk_format.tables.writing.storing import TaskFiles
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata

# References that a task moves, and bytes of values that it holds in memory.
_TASK_REFS: Final = 100_000
_TASK_BYTES: Final = 64 * 2**20

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First chunks of the new grid, and chunks after the last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShrunkArray:
    """The removal of labels from an array.

    Parameters
    ----------
    target
        The array after the deletion; it has ``old_shape`` if it shrinks in place.
    source
        Path of the array before the deletion.
    axes
        The axes of the dimension, usually one.
    kept
        Positions of the kept labels.
    """

    target: ArrayTarget
    source: str
    axes: tuple[int, ...]
    kept: DimSelection

    @property
    def axis(self) -> int:
        """The first axis of the dimension, along which tasks divide the chunks."""
        return self.axes[0]

    @property
    def in_place(self) -> bool:
        """True if the array shrinks at its end, so that no chunk moves."""
        return self.target.old_shape is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelDeletion:
    """The context of all tasks; picklable."""

    destination: Destination
    arrays: Mapping[str, ShrunkArray]


def shrunk(variable: Variable, dim: str, labels: DimSelection) -> ShrunkArray:
    """Return the removal of labels of a dimension from an array."""
    axes = tuple(axis for axis, name in enumerate(variable.dims) if name == dim)
    mask = np.ones(labels.size, np.bool_)
    mask[labels.positions()] = False
    kept = DimSelection.of_mask(mask)
    in_place = labels.stop == labels.size and labels.indices is None and len(axes) == 1
    metadata = variable.metadata
    for axis in axes:
        metadata = _without(metadata, axis, kept, in_place=in_place)
    if in_place:
        target = ArrayTarget.of_existing(variable, metadata)
    else:
        target = ArrayTarget.of_new(metadata)
    return ShrunkArray(target=target, source=variable.path, axes=axes, kept=kept)


def _without(
    metadata: ArrayMetadata, axis: int, kept: DimSelection, *, in_place: bool
) -> ArrayMetadata:
    shape = list(metadata.shape)
    shape[axis] = kept.count
    old = metadata.grid.axes[axis]
    is_sharded = metadata.chunk_codecs().sharding is not None
    if in_place or isinstance(old, RegularAxis) or is_sharded or not kept.count:
        return metadata.with_shape(shape)
    # Irregular chunks shrink by their own labels only, so that all other chunks stay whole.
    edges = np.unique(np.searchsorted(kept.positions(), old.edges))
    axes: list[ChunkAxis] = list(metadata.grid.axes)
    axes[axis] = RunAxis.of_edges(edges.astype(np.int64))
    document = {**metadata.raw, "shape": shape, "chunk_grid": ChunkGrid(axes).to_json()}
    return parse_array_metadata(dump_document(document), node_path=metadata.node_path)


def _sources(array: ShrunkArray, old: ArrayMetadata) -> NDArray[np.int64]:
    """Return the old chunk of each new chunk along the axis, or -1 for chunks to write."""
    new = array.target.metadata.grid.axes[array.axis]
    if len(array.axes) > 1:
        return np.full(new.count, -1, np.int64)
    return old_chunks(old.grid.axes[array.axis], new, array.kept)


def old_chunks(old: ChunkAxis, new: ChunkAxis, kept: DimSelection) -> NDArray[np.int64]:
    """Return, for each new chunk along an axis, the old chunk with the same elements, or -1."""
    if not new.count:
        return np.empty(0, np.int64)
    chunks = np.arange(new.count, dtype=np.int64)
    low, high = new.start_of(chunks), new.start_of(chunks + 1)
    positions = kept.positions()
    first, last = positions[low], positions[high - 1]
    found = old.chunk_of(first)
    is_same = (
        (last - first == high - low - 1)
        & (first == old.start_of(found))
        & (last + 1 == old.start_of(found + 1))
    )
    if not (isinstance(old, RegularAxis) and isinstance(new, RegularAxis)):
        is_same &= np.array(
            [
                old.full_size(a) == new.full_size(b)
                for a, b in zip(found.tolist(), chunks.tolist(), strict=True)
            ],
            np.bool_,
        )
    return np.where(is_same, found, -1)


def label_tasks(array: ShrunkArray, old: ArrayMetadata) -> list[tuple[str, Box]]:
    """Divide the chunks to move or write into tasks, each a path and a box."""
    grid = array.target.metadata.grid
    counts, axis = list(grid.num_chunks), array.axis
    if 0 in counts:
        return []
    sources = _sources(array, old)
    nbytes = math.prod(each.largest for each in grid.axes) * old.data_type.item_bytes
    weight = min(_TASK_REFS, max(1, _TASK_REFS * nbytes // _TASK_BYTES))
    first = 0
    if array.in_place:
        first = len(sources) - 1
        if sources[first] == first:
            return []
    cost = np.where(sources[first:] < 0, weight, 1).astype(np.int64)
    cost *= math.prod(counts[:axis] + counts[axis + 1 :])
    before = np.cumsum(cost) - cost
    starts = np.flatnonzero(np.diff(before // _TASK_REFS, prepend=-1)) + first
    tasks = []
    for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(sources)], strict=True):
        held = int(cost[low - first : high - first].sum())
        tasks += [(array.target.path, box) for box in _cut(counts, axis, low, high, held)]
    return tasks


def _cut(counts: Sequence[int], axis: int, low: int, high: int, cost: int) -> Iterator[Box]:
    """Divide the chunks ``[low, high)`` of an axis along the other axes."""
    others = [*counts[:axis], *counts[axis + 1 :]]
    steps = steps_along(others, cost, _TASK_REFS)
    ranges = [
        [(at, min(at + step, count)) for at in range(0, count, step)]
        for count, step in zip(others, steps, strict=True)
    ]
    ranges.insert(axis, [(low, high)])
    for box in itertools.product(*ranges):
        first, last = zip(*box, strict=True)
        yield first, last


def move_labels(work: LabelDeletion, task: tuple[str, Box]) -> CellReceipt:
    """Move or write the chunks of a box; those that become empty in place are to be deleted."""
    path, (low, high) = task
    array = work.arrays[path]
    base = work.destination.open_base()
    variable, reader = base.variable(array.source), base.reader(array.source)
    blocks = TaskFiles(work.destination)
    grid, axis = array.target.metadata.grid, array.axis
    own = grid.axes[axis]
    sources = _sources(array, variable.metadata)
    held = sources[low[axis] : high[axis]]
    moved = held[held >= 0]
    if len(moved):
        box = np.array(list(zip(low, high, strict=True)), np.int64)
        box[axis] = moved[0], moved[-1] + 1
        manifests = ListedManifests.of(variable.array.manifests, base.snapshot.manifest_files)
        storage = work.destination.open_storage()
        refs = references_in(storage, variable.node.id, variable.path, manifests, box)
        at = np.minimum(np.searchsorted(moved, refs.coords[:, axis]), len(moved) - 1)
        stays = moved[at] == refs.coords[:, axis]
        places = refs.coords[stays].astype(np.int64)
        places[:, axis] = (low[axis] + np.flatnonzero(held >= 0))[at[stays]]
        blocks.add(array.target, [refs.take(stays).moved(places)])
    positions = array.kept.positions()
    cleared = [np.empty((0, len(grid.axes)), np.uint32)]
    for chunk in (low[axis] + np.flatnonzero(held < 0)).tolist():
        start, stop = own.bounds(chunk)
        lower = [a.bounds(n)[0] for a, n in zip(grid.axes, low, strict=True)]
        upper = [a.bounds(n - 1)[1] for a, n in zip(grid.axes, high, strict=True)]
        lower[axis], upper[axis] = start, stop
        chosen = [
            DimSelection.span(size, a, b)
            for size, a, b in zip(variable.shape, lower, upper, strict=True)
        ]
        for each in array.axes:
            held_here = positions[lower[each] : upper[each]]
            chosen[each] = DimSelection.of_indices(variable.shape[each], held_here)
        written = blocks.write(array.target, lower, reader.read(chosen))
        if array.in_place:
            box = np.array(list(zip(low, high, strict=True)), np.int64)
            box[axis] = chunk, chunk + 1
            cleared.append(emptied(reader, coords_of_boxes(box[None]), written))
    return CellReceipt(task=blocks.receipt(), cleared={path: np.concatenate(cleared)})
