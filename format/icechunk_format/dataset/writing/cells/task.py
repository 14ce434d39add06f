"""Writes the cells of one task: turns rows into chunks, and stores chunks and manifests.

Steps
-----
1. Rows are sorted by the number of their cell (``cell_numbers``), so units and blocks are
   consecutive. Rows of a block fill one array for each variable; a mask marks cells with a row.
2. At the end of a block its chunks are stored (``blocks``).
3. At the end of a unit its references are stored as one manifest for each array.

Rules of this file
------------------
1. Memory is one block of all variables and one batch of rows, independent of the row count.
2. Every step works on whole columns, never on single rows.
3. A second row for a cell is an error; it directly follows the first.
4. Objects have random names, so a task that fails or runs twice leaves only garbage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.dataset.writing.cell_numbers import CELL
from icechunk_format.dataset.writing.cells.blocks import BlockWriter
from icechunk_format.dataset.writing.part import ArrayTarget, TaskReceipt, WritePart
from icechunk_format.dataset.writing.storing import UnitFiles
from icechunk_format.errors import InvalidInputError

_MOST_SHOWN: Final = 3

_Bounds: TypeAlias = "tuple[list[int], list[int]]"


def write_batches(part: WritePart, batches: Iterable[pa.RecordBatch]) -> TaskReceipt:
    """Write the rows of one task: ``_cell`` (``int64``) and the variables, sorted by ``_cell``.

    Raises
    ------
    InvalidInputError
        Two rows have one cell, a value does not fit, a cell without a row has no missing value, or
        the rows are not sorted.
    StorageError, FormatError
        Storage failed, or an old chunk to patch is damaged.
    """
    task = _Task(part)
    for batch in batches:
        task.add(batch)
    return task.finish()


class _Block:
    """The cells of one block, in the order of the part's dimensions.

    Arrays have the shape of the largest block, which cell numbers are based on.
    """

    def __init__(self, part: WritePart, shape: tuple[int, ...], bounds: _Bounds) -> None:
        self._part = part
        self.start, self.stop = bounds
        self._shape = shape
        self._seen = np.zeros(math.prod(shape), np.bool_)
        self._values = [
            np.zeros(math.prod(shape), array.metadata.data_type.numpy) for array in part.arrays
        ]

    def add(self, cells: NDArray[np.int64], batch: pa.RecordBatch) -> None:
        """Add rows; ``cells`` are ascending numbers within the block."""
        first, last = int(cells[0]), int(cells[-1])
        # Rows usually have no gaps; a slice is then faster.
        at = slice(first, last + 1) if last - first + 1 == len(cells) else cells
        self._seen[at] = True
        for array, values in zip(self._part.arrays, self._values, strict=True):
            assert array.encoder is not None
            column = batch.column(batch.schema.get_field_index(array.name))
            values[at] = array.encoder.encode(column)

    @property
    def seen(self) -> NDArray[np.bool_]:
        """A mask of the cells that have a row."""
        return self._clipped(self._seen)

    def values(self) -> Iterator[tuple[ArrayTarget, NDArray[Any]]]:
        """Yield each array with its values, in the array's order of dimensions."""
        dims = self._part.dims
        for array, values in zip(self._part.arrays, self._values, strict=True):
            order = [dims.index(dim) for dim in array.dims]
            yield array, self._clipped(values).transpose(order)

    def _clipped(self, values: NDArray[Any]) -> NDArray[Any]:
        block = values.reshape(self._shape)
        # Axis by axis: an empty index of an array without axes would return a scalar.
        for axis, (low, high) in enumerate(zip(self.start, self.stop, strict=True)):
            block = block[(slice(None),) * axis + (slice(0, high - low),)]
        return block


class _Task:
    def __init__(self, part: WritePart) -> None:
        assert part.numbers is not None, "cells are written with their numbers"
        self._part = part
        self._numbers = part.numbers
        self._shape = self._numbers.shape
        self._per_block = self._numbers.cells_per_block
        self._per_unit = self._numbers.cells_per_unit
        self._writer = BlockWriter(part)
        self._unit_files = UnitFiles(part.destination, part.number)
        self._last = -1
        self._block_number: int | None = None
        self._block: _Block | None = None
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add sorted rows, and store the blocks that they complete."""
        if not batch.num_rows:
            return
        cells = self._cells(batch)
        self._rows += batch.num_rows
        start = 0
        while start < len(cells):
            number = int(cells[start]) // self._per_block
            if number != self._block_number:
                self._begin(number)
            assert self._block is not None
            first = number * self._per_block
            stop = int(np.searchsorted(cells, first + self._per_block))
            self._block.add(cells[start:stop] - first, batch.slice(start, stop - start))
            start = stop

    def _cells(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the cell numbers of a batch; raise if they are null, unsorted or repeated."""
        column = batch.column(batch.schema.get_field_index(CELL))
        if column.null_count:
            raise InvalidInputError(
                f"a row has a value of {' or '.join(map(repr, self._part.dims))} that did not "
                "exist when the write was planned: the source of the DataFrame changed or is not "
                "deterministic; persist the DataFrame, and write again",
                dims=self._part.dims,
            )
        cells: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
        steps = np.diff(cells, prepend=self._last)
        lowest = int(steps.min())
        if lowest < 0 or int(cells[0]) < 0:
            raise InvalidInputError(
                "the rows of a task are not sorted by _cell; sort them within the partition"
            )
        if not lowest:
            self._refuse_twice(np.unique(cells[steps == 0])[:_MOST_SHOWN])
        self._last = int(cells[-1])
        return cells

    def _refuse_twice(self, cells: NDArray[np.int64]) -> None:
        part, found = self._part, []
        for cell in cells.tolist():
            block, within = divmod(cell, self._per_block)
            bounds = self._numbers.block_bounds(block)
            assert bounds is not None
            at = np.unravel_index(within, self._shape)
            pairs = zip(part.dims, bounds[0], at, strict=True)
            found.append(part.cell({dim: low + int(index) for dim, low, index in pairs}))
        names = ", ".join(array.name for array in part.arrays[:_MOST_SHOWN])
        shown = "; ".join(f"({cell})" for cell in found)
        if part.is_distinct:
            raise InvalidInputError(
                f"more than one value for the cell {shown} of {names}, which was read from an "
                f"array over ({', '.join(part.dims)}), but differs along other dimensions of this "
                f"write ({', '.join(part.table_dims)}); write a computed column, such as "
                f"{names} + 0, to store it over all",
                cells=tuple(found),
            )
        dims = ", ".join(part.dims)
        raise InvalidInputError(
            f"more than one row for the cell {shown} of {names}; a cell has one value. The "
            f"dimensions of this write are ({dims}): if another column distinguishes such rows, "
            f"name it as a dimension, too, with the option dims={dims.replace(' ', '')},... Remove "
            "duplicates with df.dropDuplicates(), or aggregate over the dimensions",
            cells=tuple(found),
        )

    def finish(self) -> TaskReceipt:
        """Store the last block and return the receipt."""
        self._end_block()
        return self._unit_files.receipt(self._rows)

    def _begin(self, number: int) -> None:
        self._end_block()
        unit = number * self._per_block // self._per_unit
        if self._block_number is not None and (
            unit != self._block_number * self._per_block // self._per_unit
        ):
            self._unit_files.end_unit()
        bounds = self._numbers.block_bounds(number)
        if bounds is None:
            raise InvalidInputError(
                f"a row has a cell of the unknown block {number}; number cells with the dimension "
                "tables of the plan"
            )
        self._block_number = number
        self._block = _Block(self._part, self._shape, bounds)

    def _end_block(self) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        for array, values in block.values():
            refs = self._writer.store(array, values, block.seen, block.start)
            self._unit_files.add(array, refs)
