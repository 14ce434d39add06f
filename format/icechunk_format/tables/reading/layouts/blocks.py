"""Cuts the box of a task into blocks, which are fetched, decoded and turned into rows as a unit.

Rules of this file
------------------
1. A block is whole chunks of the leading variable, clipped to the box and the selection.
2. Small chunks are joined up to about a million cells or 16 MiB, so that ten thousand tiny chunks
   need few batches of requests. A larger chunk is a block by itself.
3. If another variable has longer chunks along the axis that is cut, blocks grow to their length,
   within half of the budget, so that these chunks are decoded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.cover import steps_along
from icechunk_format.groups import DimSelection

MOST_CELLS = 1 << 20
MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockArray:
    """The chunks of one array that is read by blocks.

    ``dims`` maps each axis of the array to the number of a dimension of the table.
    """

    dims: tuple[int, ...]
    axes: tuple[ChunkAxis, ...]
    item_bytes: int


Block = tuple[DimSelection, ...]
"""The positions of a block along each dimension of the table."""


def block_shape(block: Block) -> tuple[int, ...]:
    """Return the number of selected elements along each dimension."""
    return tuple(selection.count for selection in block)


def cut_blocks(
    box: Sequence[DimSelection],
    axes: Sequence[ChunkAxis],
    arrays: Sequence[BlockArray],
    budget: int,
    *,
    most_grown: int = 0,
) -> Iterator[Block]:
    """Cut the selected cells of a box into blocks, in C order of the blocks.

    Parameters
    ----------
    box
        The selection of the task along each dimension, not empty.
    axes
        Edges along which blocks may be cut.
    arrays
        The arrays that are read for each block.
    budget
        Bytes that the task may hold.
    most_grown
        Cells to which a block may grow beyond the budget if it is read in slabs.
    """
    per_cell = sum(array.item_bytes for array in arrays) + 8
    cells = max(1, min(MOST_CELLS, MOST_BYTES // per_cell, budget // 4 // per_cell))
    chunks = [
        axis.chunk_range(selection.start, selection.stop)
        for axis, selection in zip(axes, box, strict=True)
    ]
    rows = math.prod(selection.count for selection in box)
    steps = steps_along([last - first for first, last in chunks], rows, cells)
    _grow(steps, box, axes, arrays, chunks, max(budget // 2 // per_cell, most_grown))
    pieces = [
        _pieces(selection, axis, first, last, step)
        for selection, axis, (first, last), step in zip(box, axes, chunks, steps, strict=True)
    ]
    return product(*pieces)


def block_bytes(block: Block, arrays: Sequence[BlockArray]) -> int:
    """Estimate the memory of reading a block: its cells, and the chunks that hold them."""
    cells = math.prod(block_shape(block))
    total = 0
    for array in arrays:
        decoded = 1
        for dim, axis in zip(array.dims, array.axes, strict=True):
            first, last = axis.chunk_range(block[dim].start, block[dim].stop)
            if axis.edges is None:
                elements = (last - first) * axis.step
            else:
                elements = int(axis.edges[last] - axis.edges[first])
            # Chunks without a selected index are skipped, so each index costs at most one chunk.
            decoded *= min(elements, block[dim].count * max(axis.step, 1) or elements)
        total += (decoded + cells) * array.item_bytes
    return total


def _grow(
    steps: list[int],
    box: Sequence[DimSelection],
    axes: Sequence[ChunkAxis],
    arrays: Sequence[BlockArray],
    chunks: Sequence[tuple[int, int]],
    most_cells: int,
) -> None:
    """Lengthen the first axis that is cut to the chunks of the arrays that are read."""
    for dim, ((first, last), axis) in enumerate(zip(chunks, axes, strict=True)):
        if steps[dim] >= last - first or axis.edges is not None:
            continue
        wanted = steps[dim]
        for array in arrays:
            for own, other in zip(array.dims, array.axes, strict=True):
                if own == dim and other.edges is None and other.step > axis.step:
                    ratio = -(-other.step // axis.step)
                    wanted = -(-wanted // ratio) * ratio
        # From here on, blocks span the following axes as in ``steps``.
        cells = wanted * axis.step
        for later in range(dim + 1, len(steps)):
            span = chunks[later][1] - chunks[later][0]
            cells *= -(-box[later].count * steps[later] // max(1, span))
        if cells <= most_cells:
            steps[dim] = min(wanted, last)
        return


def _pieces(
    selection: DimSelection, axis: ChunkAxis, first: int, last: int, step: int
) -> list[DimSelection]:
    # Edges are multiples of the step from the start of the array, as are the chunk edges of other
    # arrays.
    starts = np.arange(first - first % step, last, step, dtype=np.int64)
    edges = axis.start_of(np.append(starts, min(int(starts[-1]) + step, axis.count)))
    parts = [
        selection.within(low, high)
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return [part for part in parts if part.count]
