"""Cuts a write into blocks of whole chunks that several variables share.

A *block* is the smallest box of cells that consists of whole chunks of every variable; a task holds
one block at a time. A *unit* is a box of blocks. One task writes a unit, with one manifest per
array, so the manifests of a write cover disjoint boxes (``cell_numbers``).

Rules of this file
------------------
1. Variables share blocks if the common block is not much larger than their chunks. Other variables
   form a separate part of the write, with a separate shuffle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import numpy as np

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.grid.axes import ChunkAxis, RegularAxis, RunAxis, listed_edges

# A common block has at most this many times the cells of a chunk.
_MOST_GROWTH: Final = 4


def common_axes(
    dims: Sequence[str], arrays: Sequence[tuple[tuple[str, ...], ArrayMetadata]]
) -> tuple[ChunkAxis, ...]:
    """Return the axes of the blocks that hold whole chunks of all arrays."""
    found = []
    for dim in dims:
        axes = [metadata.grid.axes[own.index(dim)] for own, metadata in arrays]
        found.append(reduce(_joined, axes))
    return tuple(found)


def _joined(one: ChunkAxis, other: ChunkAxis) -> ChunkAxis:
    if one.edges is None and other.edges is None:
        # Limit a block to the size of the array.
        step = min(math.lcm(one.step, other.step), max(one.step, other.step, one.size))
        return RegularAxis(one.size, max(1, step))
    return RunAxis.of_edges(np.intersect1d(listed_edges(one), listed_edges(other)))


def cells_of_block(axes: Sequence[ChunkAxis]) -> int:
    """Return the number of cells of the largest block."""
    return math.prod(axis.largest for axis in axes)


def group_arrays(
    arrays: Mapping[str, tuple[tuple[str, ...], ArrayMetadata]],
) -> list[tuple[str, ...]]:
    """Group arrays with the same dimensions so that each group shares blocks; return the names."""
    groups: list[list[str]] = []
    for name, (dims, metadata) in arrays.items():
        own = cells_of_block(metadata.grid.axes)
        for group in groups:
            members = [arrays[other] for other in group]
            largest = max(own, *(cells_of_block(grid.grid.axes) for _, grid in members))
            axes = common_axes(dims, [(dims, metadata), *members])
            if cells_of_block(axes) <= _MOST_GROWTH * largest:
                group.append(name)
                break
        else:
            groups.append([name])
    return [tuple(group) for group in groups]
