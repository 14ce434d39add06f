"""Numbers the cells of a write so that integer division gives the unit (task) and the block.

The number is a sum of one term for each dimension, so Spark computes it from small tables. Rows
sorted by this integer are in order of units, blocks and cells, and rows of the same cell are
adjacent.

Numbers follow C order: units, then blocks of a unit, then cells of a block. Every block has as many
numbers as the largest block, so numbers of cells beyond the edge of the grid are unused.

Rules of this file
------------------
1. Only blocks with rows are numbered, so numbers grow with the size of the write, not of the array.
2. A ``CellNumbers`` holds no labels, since every task receives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import UnsupportedError
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.cover import sides_from_last

CELL: Final = "_cell"
"""The column that holds the numbers."""

_LARGEST: Final = 2**62
_MOST_BLOCKS_PER_UNIT: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellNumbers:
    """Numbering of the cells of a part."""

    axes: tuple[ChunkAxis, ...]
    """By dimension: the extents of the blocks."""
    touched: tuple[range | NDArray[np.int64], ...]
    """By dimension: the block indices along the axis that have rows, ascending."""
    blocks_per_unit: tuple[int, ...]
    """By dimension: the number of touched blocks in a unit."""

    def __post_init__(self) -> None:
        if self.units * self.cells_per_unit > _LARGEST:
            raise UnsupportedError(
                f"the write spans {self.units} units of {self.cells_per_unit} cells, more than one "
                "write can number; write it in several parts",
                units=self.units,
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the largest block."""
        return tuple(axis.largest for axis in self.axes)

    @property
    def cells_per_block(self) -> int:
        """Number of cells of a block."""
        return math.prod(self.shape)

    @property
    def cells_per_unit(self) -> int:
        """Number of cells of a unit; a cell's number divided by it is the unit's number."""
        return math.prod(self.blocks_per_unit) * self.cells_per_block

    @property
    def unit_counts(self) -> tuple[int, ...]:
        """Number of units along each dimension."""
        return tuple(
            max(1, -(-len(touched) // taken))
            for touched, taken in zip(self.touched, self.blocks_per_unit, strict=True)
        )

    @property
    def units(self) -> int:
        """Number of units."""
        return math.prod(self.unit_counts)

    def terms(self, axis: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the terms of indices along a dimension; the indices are in touched blocks."""
        lines = self.axes[axis]
        blocks = lines.chunk_of(indices)
        ranks = np.searchsorted(np.asarray(self.touched[axis], np.int64), blocks)
        within = indices - lines.start_of(blocks)
        unit, inner = np.divmod(ranks, self.blocks_per_unit[axis])
        after = slice(axis + 1, None)
        terms: NDArray[np.int64] = (
            unit * (math.prod(self.unit_counts[after]) * self.cells_per_unit)
            + inner * (math.prod(self.blocks_per_unit[after]) * self.cells_per_block)
            + within * math.prod(self.shape[after])
        )
        return terms

    def block_bounds(self, block: int) -> tuple[list[int], list[int]] | None:
        """Return start and end of a block, whose number is that of a cell // ``cells_per_block``.

        None if no block has this number.
        """
        per_unit = math.prod(self.blocks_per_unit)
        if not 0 <= block < self.units * per_unit:
            return None
        unit, inner = divmod(block, per_unit)
        start, stop = [], []
        for axis in reversed(range(len(self.axes))):
            unit, own_unit = divmod(unit, self.unit_counts[axis])
            inner, own_inner = divmod(inner, self.blocks_per_unit[axis])
            rank = own_unit * self.blocks_per_unit[axis] + own_inner
            if rank >= len(self.touched[axis]):
                return None
            low, high = self.axes[axis].bounds(int(self.touched[axis][rank]))
            start.append(low)
            stop.append(high)
        return start[::-1], stop[::-1]


def number_cells(
    axes: Sequence[ChunkAxis],
    indices: Sequence[NDArray[np.int64]],
    *,
    row_count: int | None,
    rows_per_unit: int,
) -> CellNumbers:
    """Return the numbering of the cells of a part, from its indices along each dimension.

    If ``row_count`` is None, the grid is assumed to be full.
    """
    touched = [np.unique(axis.chunk_of(own)) for axis, own in zip(axes, indices, strict=True)]
    counts = [max(1, len(found)) for found in touched]
    total = math.prod(counts)
    cells = math.prod(max(1, len(own)) for own in indices)
    rows = cells if row_count is None else min(row_count, cells)
    wanted = max(1, min(_MOST_BLOCKS_PER_UNIT, rows_per_unit * total // max(1, rows)))
    return CellNumbers(
        axes=tuple(axes),
        touched=tuple(_compact(found) for found in touched),
        blocks_per_unit=sides_from_last(counts, wanted),
    )


def _compact(numbers: NDArray[np.int64]) -> range | NDArray[np.int64]:
    """Return ascending numbers as a small ``range`` if they have no gaps."""
    if len(numbers) and int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers):
        return range(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
