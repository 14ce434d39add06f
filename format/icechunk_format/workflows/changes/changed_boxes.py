"""Finds the boxes of an array in which elements may differ between two snapshots.

All elements differ if the array was created or replaced between the snapshots, or if its data type,
codecs or fill value changed, or the first chunk has another size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.axes import ChunkAxis, chunk_ranges
from icechunk_format.grid.cover import Boxes, merge_adjacent
from icechunk_format.groups import Variable
from icechunk_format.repository.changes import same_aspects
from icechunk_format.workflows.changes.axis_changes import slabs, whole_box

if TYPE_CHECKING:
    from icechunk_format.workflows.changes.steps import TouchedNodes


def changed_boxes(variable: Variable, other: Variable | None, touched: TouchedNodes) -> Boxes:
    """Return the boxes of elements of an array that may differ from the other snapshot.

    `other` is None if the other snapshot does not have the array. Boxes are in any order and may
    overlap.
    """
    sizes = variable.shape
    floor = _floor(variable, other, touched)
    if floor is None:
        return slabs([], sizes) if 0 in sizes else whole_box(sizes)
    beyond = [
        np.array([(low, size)] if low < size else [], dtype=np.int64).reshape(-1, 2)
        for low, size in zip(floor, sizes, strict=True)
    ]
    coords = touched.chunks.get(variable.node.id)
    found = [slabs(beyond, sizes)]
    if coords is not None:
        found.append(_elements(coords.astype(np.int64), variable.metadata.grid.axes))
    return np.concatenate(found)


def why_another_array(variable: Variable, other: Variable | None) -> str | None:
    """Return a reason why all elements may differ; None if the logs show the changes."""
    if other is None or variable.node.id != other.node.id:
        return f"{variable.path} is another array than before"
    if variable.dims != other.dims:
        return f"{variable.path} has other dimensions"
    axes = zip(variable.metadata.grid.axes, other.metadata.grid.axes, strict=True)
    if not same_aspects(variable.metadata.raw, other.metadata.raw) or any(
        min(now.size, was.size) and not _same_start(now, was) for now, was in axes
    ):
        return f"{variable.path} has other chunks, codecs or another fill value"
    return None


def in_table(boxes: Boxes, dims: Sequence[str], table_dims: Sequence[str], sizes: Boxes) -> Boxes:
    """Extend boxes of an array to boxes of a table, whole along dimensions that the array lacks."""
    found = np.zeros((len(boxes), len(table_dims), 2), dtype=np.int64)
    found[:, :, 1] = sizes
    for axis, dim in enumerate(dims):
        found[:, table_dims.index(dim)] = boxes[:, axis]
    return found


def in_chunks(boxes: Boxes, axes: Sequence[ChunkAxis]) -> Boxes:
    """Convert boxes of elements to boxes of the chunks that overlap them."""
    found = np.empty_like(boxes)
    for number, axis in enumerate(axes):
        found[:, number] = chunk_ranges(axis, boxes[:, number])
    return found


def clipped_chunks(axes: Sequence[ChunkAxis], older: Sequence[ChunkAxis]) -> Boxes:
    """Return the edge chunks of a shrunk array, which have fewer elements than before."""
    runs = []
    for now, was in zip(axes, older, strict=True):
        last = now.count - 1
        is_cut = now.count and was.size > now.size and was.bounds(last) != now.bounds(last)
        runs.append(np.array([(last, last + 1)] if is_cut else [], dtype=np.int64).reshape(-1, 2))
    return slabs(runs, [axis.count for axis in axes])


def _floor(
    variable: Variable, other: Variable | None, touched: TouchedNodes
) -> tuple[int, ...] | None:
    """Return the shape of the elements that logs describe; None if all elements may differ."""
    if other is None or why_another_array(variable, other) is not None:
        return None
    floor = tuple(map(_same_start, variable.metadata.grid.axes, other.metadata.grid.axes))
    smallest = touched.smallest.get(variable.node.id, floor)
    if len(smallest) != len(floor):
        return None
    # Unequal chunks of a smaller array in between may have had other edges.
    axes = zip(floor, smallest, variable.metadata.grid.axes, strict=True)
    return tuple(
        0 if least < size and axis.edges is not None else min(least, size)
        for size, least, axis in axes
    )


def _same_start(left: ChunkAxis, right: ChunkAxis) -> int:
    """Return the number of elements up to the first chunk with other edges on the other axis."""
    shorter = min(left.size, right.size)
    if left.edges is None and right.edges is None:
        return shorter if left.step == right.step else 0

    starts = (axis.start_of(np.arange(axis.count, dtype=np.int64)) for axis in (left, right))
    mine, former = (found[found < shorter] for found in starts)
    count = min(len(mine), len(former))
    same = int(np.argmax(np.append(mine[:count] != former[:count], True)))
    if same == len(mine) == len(former):
        return shorter
    return int(mine[same - 1]) if same else 0


def _elements(coords: NDArray[np.int64], axes: Sequence[ChunkAxis]) -> Boxes:
    """Convert chunks to boxes of elements, merged where they touch and clipped to the array."""
    inside = np.ones(len(coords), dtype=bool)
    for number, axis in enumerate(axes):
        inside &= coords[:, number] < axis.count
    chunks = coords[inside][: None if axes else 1]
    boxes = np.stack([chunks, chunks + 1], axis=-1)
    merged = merge_adjacent(boxes)
    found = np.empty_like(merged)
    for number, axis in enumerate(axes):
        found[:, number] = axis.start_of(merged[:, number])
    return found
