"""Finds the boxes of an array in which elements may differ between two versions.

An array that was created meanwhile, took the place of another one, or is read in another way now
(data type, codecs, fill value, chunk grid, CF encoding) differs everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.table.table import Column
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.cover import Boxes, merge_adjacent
from icechunk_format.workflows.changes.axis_changes import slabs

if TYPE_CHECKING:
    from icechunk_format.workflows.changes.steps import TouchedNodes

# Members of ``zarr.json`` that decide what stored bytes mean.
_MEANING: Final = ("data_type", "fill_value", "codecs", "storage_transformers")


def changed_boxes(target: Variable, other: Variable | None, touched: TouchedNodes) -> Boxes:
    """Return the boxes of elements of ``target`` in which it may differ from ``other``.

    Parameters
    ----------
    target
        The array in one version.
    other
        The array at its path in the other version, or None.
    touched
        What happened between the two.

    Returns
    -------
    Boxes
        ``int64 (n, ndim, 2)``, of any order; they may overlap.
    """
    sizes = target.shape
    floor = None if other is None else _floor(target, other, touched)
    if floor is None:
        return slabs([], sizes) if 0 in sizes else _whole(sizes)
    beyond = [
        np.array([(low, size)] if low < size else [], dtype=np.int64).reshape(-1, 2)
        for low, size in zip(floor, sizes, strict=True)
    ]
    coords = touched.chunks.get(target.node.id)
    parts = [slabs(beyond, sizes)]
    if coords is not None:
        parts.append(_elements(coords.astype(np.int64), target.metadata.grid.axes))
    return np.concatenate(parts)


def reads_alike(left: Column | None, right: Column | None) -> bool:
    """Whether stored values become the same values of two columns."""
    if left is None or right is None or left.decoder is None or right.decoder is None:
        return True
    return (left.arrow_type, left.decoder.encoding) == (right.arrow_type, right.decoder.encoding)


def in_table(boxes: Boxes, dims: Sequence[str], table_dims: Sequence[str], sizes: Boxes) -> Boxes:
    """Return boxes of an array as boxes of a table: whole along dimensions that the array lacks.

    Parameters
    ----------
    sizes
        ``int64 (ndim,)``: the lengths of the table's dimensions.
    """
    found = np.zeros((len(boxes), len(table_dims), 2), dtype=np.int64)
    found[:, :, 1] = sizes
    for axis, dim in enumerate(dims):
        found[:, table_dims.index(dim)] = boxes[:, axis]
    return found


def in_chunks(boxes: Boxes, axes: Sequence[ChunkAxis]) -> Boxes:
    """Return boxes of elements as boxes of the chunks that hold any of them."""
    found = np.empty_like(boxes)
    for number, axis in enumerate(axes):
        found[:, number, 0] = axis.chunk_of(boxes[:, number, 0])
        found[:, number, 1] = axis.chunk_of(boxes[:, number, 1] - 1) + 1
    return found


def clipped_chunks(target: Sequence[ChunkAxis], other: Sequence[ChunkAxis]) -> Boxes:
    """Return the chunks of an array that shrank which have fewer elements than before."""
    runs = []
    for mine, theirs in zip(target, other, strict=True):
        last = mine.count - 1
        is_cut = mine.count and theirs.size > mine.size and theirs.bounds(last) != mine.bounds(last)
        runs.append(np.array([(last, last + 1)] if is_cut else [], dtype=np.int64).reshape(-1, 2))
    return slabs(runs, [axis.count for axis in target])


def _whole(sizes: Sequence[int]) -> Boxes:
    return np.array([(0, size) for size in sizes], dtype=np.int64).reshape(1, -1, 2)


def _floor(target: Variable, other: Variable, touched: TouchedNodes) -> tuple[int, ...] | None:
    """Return the smallest shape between two versions, or None where all elements may differ."""
    if target.node.id != other.node.id or target.dims != other.dims:
        return None
    mine, theirs = target.metadata.raw, other.metadata.raw
    if any(mine.get(name) != theirs.get(name) for name in _MEANING):
        return None
    floor = tuple(map(min, target.shape, other.shape))
    smallest = touched.smallest.get(target.node.id)
    if smallest is not None:
        if len(smallest) != len(floor):
            return None
        floor = tuple(map(min, floor, smallest))
    axes = zip(target.metadata.grid.axes, other.metadata.grid.axes, floor, strict=True)
    return floor if all(_is_same_grid(*axis) for axis in axes) else None


def _is_same_grid(left: ChunkAxis, right: ChunkAxis, size: int) -> bool:
    """Whether two axes have the same chunk edges below an element."""
    if left.edges is None and right.edges is None:
        return left.step == right.step

    def edges(axis: ChunkAxis) -> NDArray[np.int64]:
        found = axis.start_of(np.arange(axis.count, dtype=np.int64))
        return found[found < size]

    return np.array_equal(edges(left), edges(right))


def _elements(coords: NDArray[np.int64], axes: Sequence[ChunkAxis]) -> Boxes:
    """Return chunks as boxes of elements, few where they touch; chunks outside are left out."""
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
