"""Finds the arrays and chunks that the source of a merge changed, by the labels of the source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.part import Destination
from icechunk_format.dataset.writing.replanning.merge import MovedArray, differs
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.merging.sides import Sides
from icechunk_format.spec.ids import NodeId
from icechunk_format.workflows.merging.labels import CannotMerge, DimLabels

# References of a side that inserted labels, which this process holds.
_MOST_MOVED_CHUNKS: Final = 1_000_000


def changed_arrays(sides: Sides) -> set[NodeId]:
    """Return the arrays that the source created, updated or wrote to, moved ones included."""
    log = sides.ours
    return {*log.new_arrays, *log.updated_arrays, *log.updated_chunks}


def chunks_changed(
    sides: Sides, destination: Destination, source: Variable, dims: Mapping[str, DimLabels]
) -> ChunkChanges:
    """Return the changed chunks of an array; all from the first label on that the source moved."""
    found = sides.chunks_changed(source.node.id)
    reader = destination.reader(sides.source, source.node)
    for axis, dim in enumerate(source.dims):
        moved = np.flatnonzero(dims[dim].base != np.arange(len(dims[dim].base)))
        if source.node.id in sides.ours.new_arrays or not len(moved):
            continue
        low, counts = [0] * len(source.dims), source.metadata.grid.num_chunks
        low[axis] = int(source.metadata.grid.axes[axis].chunk_of(moved[:1])[0])
        sizes = [count - start for count, start in zip(counts, low, strict=True)]
        if math.prod(sizes) > _MOST_MOVED_CHUNKS:
            raise CannotMerge
        boxed = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
        coords = (boxed + low).astype(np.uint32)
        found.yield_to_others(coords)
        found.delete(coords)
        for refs, rows in reader.lookup.in_box(low, counts):
            found.set_refs(refs.take(rows))
    return found


def edits_lacking_labels(
    sides: Sides,
    destination: Destination,
    source: Variable,
    base: Variable,
    dims: Mapping[str, DimLabels],
    changes: ChunkChanges,
) -> bool:
    """Return True if the source changed cells at labels that the target does not have."""
    axes = [(axis, dims[dim].lacking) for axis, dim in enumerate(source.dims)]
    axes = [(axis, lacking) for axis, lacking in axes if len(lacking)]
    if source.is_dimension_coordinate or not axes:
        return False
    reader = destination.reader(sides.source, source.node)
    before = MovedArray(
        destination.reader(sides.base, base.node),
        [dims[dim].base for dim in source.dims],
        source.shape,
    )
    refs, deleted = changes.pending()
    stored = [receipt.coords.coords() for receipt in changes.receipts]
    for at in np.concatenate([*stored, refs.coords, deleted]).tolist():
        lower, upper = source.metadata.grid.box_of(at)
        is_lacking = np.zeros([b - a for a, b in zip(lower, upper, strict=True)], np.bool_)
        for axis, lacking in axes:
            inside = lacking[(lacking >= lower[axis]) & (lacking < upper[axis])] - lower[axis]
            is_lacking[(slice(None),) * axis + (inside,)] = True
        if not is_lacking.any():
            continue
        values = reader.read_box(lower, upper)
        old = values.copy()
        before.read_into(old, lower, upper)
        if (differs(values, old) & is_lacking).any():
            return True
    return False
