"""Writes the cells of one task: turns rows into chunks, and stores chunks and manifests.

Steps
-----
1. Rows are sorted by the number of their cell (``cell_numbers``), so units and blocks are
   consecutive. Rows of a block fill one array for each variable; a mask marks cells with a row.
2. At the end of a block its chunks are stored.
3. At the end of a unit its references are stored as one manifest for each array.

Rules of this file
------------------
1. Memory is one block of all variables and one batch of rows, independent of the row count.
2. Every step works on whole columns, never on single rows.
3. A second row for a cell is an error; it directly follows the first.
4. In a chunk with rows for some cells, the other cells keep their old values; if they are new or in
   a replaced region, they get the missing value. A chunk without rows is not stored.
5. Padding beyond the edge of the array is the fill value, as in other Zarr writers.
6. Objects have random names, so a task that fails or runs twice leaves only garbage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import TaskFiles, TaskReceipt, index_of_box
from icechunk_format.groups.changing.storing import chunks_in
from icechunk_format.tables.cf.column_types import missing_value_advice
from icechunk_format.tables.writing.cell_numbers import CELL
from icechunk_format.tables.writing.part import WritePart, WriteTarget

_MOST_SHOWN: Final = 3

_Bounds: TypeAlias = "tuple[list[int], list[int]]"


def write_batches(part: WritePart, batches: Iterable[pa.RecordBatch]) -> TaskReceipt:
    """Write the rows of one task: ``_cell`` (``int64``) and the variables, sorted by ``_cell``.

    Raises
    ------
    InvalidInputError
        Two rows have one cell, a value does not fit, a cell without a row has no missing value, or
        the rows are not sorted.
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

    def arrays(
        self,
    ) -> Iterator[tuple[WriteTarget, list[int], NDArray[Any], NDArray[np.bool_]]]:
        """Yield each array with its first index, its values, and a mask of the cells with a row.

        All are in the array's order of dimensions.
        """
        for array, values in zip(self._part.arrays, self._values, strict=True):
            order = [self._part.dims.index(dim) for dim in array.dims]
            start = [self.start[axis] for axis in order]
            yield array, start, self._clipped(values, order), self._clipped(self._seen, order)

    def _clipped(self, values: NDArray[Any], order: list[int]) -> NDArray[Any]:
        block = values.reshape(self._shape)
        clipped: NDArray[Any] = block[index_of_box(self.start, self.start, self.stop)]
        return clipped.transpose(order)


def _region(
    array: WriteTarget, lower: Sequence[int], upper: Sequence[int]
) -> tuple[NDArray[np.int64], ...]:
    """Return the indices, along each axis of a box, of the cells that the write replaces."""
    assert array.region is not None
    bounds = zip(array.region, lower, upper, strict=True)
    return np.ix_(*[chosen.within(low, high).positions() - low for chosen, low, high in bounds])


class _Task:
    def __init__(self, part: WritePart) -> None:
        assert part.numbers is not None, "cells are written with their numbers"
        self._part = part
        self._numbers = part.numbers
        self._shape = self._numbers.shape
        self._per_block = self._numbers.cells_per_block
        self._per_unit = self._numbers.cells_per_unit
        self._files = TaskFiles(part.destination, part.number)
        self._last = -1
        self._unit: int | None = None
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
        return self._files.receipt(self._rows)

    def _begin(self, number: int) -> None:
        self._end_block()
        unit = number * self._per_block // self._per_unit
        if unit != self._unit:
            self._files.end_unit()
            self._unit = unit
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
        for array, start, values, seen in block.arrays():
            self._files.write_chunks(array, self._chunks(array, start, values, seen))

    def _chunks(
        self,
        array: WriteTarget,
        start: Sequence[int],
        values: NDArray[Any],
        seen: NDArray[np.bool_],
    ) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
        """Yield the chunks of a block that have rows."""
        for at, lower, upper in chunks_in(array.metadata.grid, start, values.shape):
            inside = index_of_box(start, lower, upper)
            has_row = seen[inside]
            rows = int(np.count_nonzero(has_row))
            if not rows:
                continue
            cells = values[inside]
            if rows < has_row.size:
                cells = self._patched(array, cells, has_row, lower, upper)
            yield at, cells

    def _patched(
        self,
        array: WriteTarget,
        cells: NDArray[Any],
        has_row: NDArray[np.bool_],
        lower: Sequence[int],
        upper: Sequence[int],
    ) -> NDArray[Any]:
        """Fill cells without a row with their old value or the missing value."""
        assert array.encoder is not None
        if array.encoder.absent is None:
            covered = has_row.copy()
            end = array.old_end(lower, upper)
            if end is not None:
                covered[index_of_box(lower, lower, end)] = True
            if array.region is not None:
                at = _region(array, lower, upper)
                covered[at] = has_row[at]
            if not covered.all():
                raise no_row(self._part, array, covered, lower)
        result = array.encoder.blank(cells.shape, array.metadata.fill_value)
        self._files.read_into(result, array, lower, upper)
        if array.region is not None and array.encoder.absent is not None:
            result[_region(array, lower, upper)] = array.encoder.absent
        result[has_row] = cells[has_row]
        return result


def no_row(
    part: WritePart, array: WriteTarget, covered: NDArray[np.bool_], lower: Sequence[int]
) -> InvalidInputError:
    """Return the error for the first cell of a chunk without a row and without an old value."""
    gap = np.unravel_index(int(np.argmin(covered)), covered.shape)
    cell = part.cell(
        {dim: int(index) + low for dim, index, low in zip(array.dims, gap, lower, strict=True)}
    )
    assert array.encoder is not None
    data_type = array.metadata.data_type
    advice = missing_value_advice(array.name, data_type, array.encoder.decoder.arrow_type)
    return InvalidInputError(
        f"no row for the cell ({cell}) of {array.name}, and its array of {data_type.name} has no "
        f"missing value; add the rows, or create the array with one: {advice}",
        variable=array.name,
        cell=cell,
    )
