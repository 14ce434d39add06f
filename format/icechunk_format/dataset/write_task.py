"""What an executor does in a write of cells: rows to chunks, chunks to objects and a manifest.

Steps
-----
1. Rows come sorted by unit and block. Those of one block are scattered into one array for each
   variable, and a map of which cells have a row.
2. When the block ends, its chunks are stored: whole ones as they are, partial ones of existing
   arrays over what they held, and chunks without a row not at all.
3. When the unit ends, its references become one manifest for each array.

Rules of this file
------------------
1. Memory is one block of all variables and one batch of rows, whatever the row count.
2. Every step works on whole columns; no row is touched alone.
3. A second row for a cell is an error, and never the last one that wins.
4. Objects have random names: a task that runs twice or fails leaves garbage and nothing else.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from icechunk_format.dataset.write_blocks import BlockWriter
from icechunk_format.dataset.write_context import BLOCK, UNIT, TaskReceipt, index_name
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.manifest_files import store_manifests
from icechunk_format.spec.chunk_refs import ChunkRefs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from icechunk_format.dataset.write_context import WriteContext
    from icechunk_format.repository.manifest_files import ManifestReceipt

_MOST_SHOWN: Final = 3


def write_batches(context: WriteContext, batches: Iterable[pa.RecordBatch]) -> TaskReceipt:
    """Write the rows of one task.

    Parameters
    ----------
    context
        Of the part of the write.
    batches
        Columns ``_unit``, ``_block`` and one of indices for each dimension (``int64``), and the
        variables of the part; sorted by ``_unit`` and ``_block``.

    Raises
    ------
    InvalidInputError
        Two rows mean one cell, a value does not fit, a cell has no row and no missing value, or
        the rows are not sorted.
    StorageError, FormatError
        The store failed, or a chunk that had to be patched is damaged.
    """
    task = _Task(context)
    for batch in batches:
        task.add(batch)
    return task.finish()


class _Block:
    """The cells of one block, while rows come in."""

    def __init__(self, context: WriteContext, start: list[int], stop: list[int]) -> None:
        self.context = context
        self.start, self.stop = start, stop
        shape = [b - a for a, b in zip(start, stop, strict=True)]
        self.seen = np.zeros(shape, np.bool_)
        self.values = [
            np.zeros(
                [shape[context.dims.index(dim)] for dim in array.dims],
                array.metadata.data_type.numpy,
            )
            for array in context.arrays
        ]
        self.rows = 0

    def add(self, indices: list[NDArray[np.int64]], batch: pa.RecordBatch) -> None:
        """Put rows into their cells."""
        local = [index - low for index, low in zip(indices, self.start, strict=True)]
        for number, size in zip(local, self.seen.shape, strict=True):
            if len(number) and not 0 <= int(np.min(number)) <= int(np.max(number)) < size:
                raise InvalidInputError(
                    "rows of one _block lie in several blocks of chunks; number the blocks with "
                    "the dimension tables of the plan"
                )
        flat: dict[tuple[str, ...], NDArray[np.int64]] = {}
        own = self._flat(self.context.dims, local, batch.num_rows)
        flat[self.context.dims] = own
        self._mark(own)
        self.rows += batch.num_rows
        for array, values in zip(self.context.arrays, self.values, strict=True):
            if array.dims not in flat:
                flat[array.dims] = self._flat(array.dims, local, batch.num_rows)
            assert array.encoder is not None
            column = batch.column(batch.schema.get_field_index(array.name))
            values.reshape(-1)[flat[array.dims]] = array.encoder.encode(column)

    def _flat(
        self, dims: tuple[str, ...], local: list[NDArray[np.int64]], rows: int
    ) -> NDArray[np.int64]:
        places = [self.context.dims.index(dim) for dim in dims]
        found = np.zeros(rows, np.int64)
        for place in places:
            found *= self.seen.shape[place]
            found += local[place]
        return found

    def _mark(self, flat: NDArray[np.int64]) -> None:
        """Note which cells have a row; refuses a second one."""
        seen = self.seen.reshape(-1)
        again = seen[flat]
        twice = flat[again]
        if not len(twice):
            seen[flat] = True
            if self.rows + len(flat) == int(np.count_nonzero(seen)):
                return
            cells, counts = np.unique(flat, return_counts=True)
            twice = cells[counts > 1]
        shown = np.unique(twice)[:_MOST_SHOWN]
        cells_of = np.stack(np.unravel_index(shown, self.seen.shape), axis=1).reshape(
            len(shown), -1
        )
        texts = [
            self.context.cell(
                {
                    dim: int(index) + low
                    for dim, index, low in zip(
                        self.context.dims, cell.tolist(), self.start, strict=True
                    )
                }
            )
            for cell in cells_of
        ]
        names = ", ".join(array.name for array in self.context.arrays[:_MOST_SHOWN])
        where = "; ".join(f"({text})" for text in texts)
        raise InvalidInputError(
            f"more than one row for the cell {where} of {names}; a cell has one value. Remove the "
            "duplicates (dropDuplicates, or an aggregate over the dimensions) before writing",
            cells=tuple(texts),
        )


class _Task:
    def __init__(self, context: WriteContext) -> None:
        self._context = context
        self._storage = context.open_storage()
        self._writer = BlockWriter(context, self._storage)
        self._unit: int | None = None
        self._block_number: int | None = None
        self._block: _Block | None = None
        self._refs: list[list[ChunkRefs]] = [[] for _ in context.arrays]
        self._receipts: dict[str, list[ManifestReceipt]] = {a.path: [] for a in context.arrays}
        self._done: set[tuple[int, int]] = set()
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in sorted rows."""
        if not batch.num_rows:
            return
        units, blocks = _whole(batch, UNIT), _whole(batch, BLOCK)
        indices = [
            _whole(batch, index_name(number), dim) for number, dim in enumerate(self._context.dims)
        ]
        self.rows += batch.num_rows
        for start, stop in _runs(units, blocks):
            unit, number = int(units[start]), int(blocks[start])
            if (unit, number) != (self._unit, self._block_number):
                self._begin(unit, number, [int(index[start]) for index in indices])
            assert self._block is not None
            part = [index[start:stop] for index in indices]
            self._block.add(part, batch.slice(start, stop - start))

    def finish(self) -> TaskReceipt:
        """Store what is left and say what was written."""
        self._end_block()
        self._end_unit()
        return TaskReceipt(
            part=self._context.part,
            rows=self.rows,
            manifests={path: tuple(found) for path, found in self._receipts.items() if found},
        )

    def _begin(self, unit: int, number: int, first: list[int]) -> None:
        self._end_block()
        if unit != self._unit:
            self._end_unit()
        if (unit, number) in self._done:
            raise InvalidInputError(
                "the rows of a task are not sorted by _unit and _block; sort them within the "
                "partition"
            )
        self._unit, self._block_number = unit, number
        bounds = []
        for axis, index in zip(self._context.axes, first, strict=True):
            if not 0 <= index < axis.size:
                raise InvalidInputError(
                    f"a row has the index {index} along a dimension of {axis.size}; use the "
                    "dimension tables of the plan"
                )
            bounds.append(axis.bounds(int(axis.chunk_of(np.array([index]))[0])))
        self._block = _Block(self._context, [a for a, _ in bounds], [b for _, b in bounds])

    def _end_block(self) -> None:
        block = self._block
        if block is None:
            return
        assert self._unit is not None
        assert self._block_number is not None
        for refs, array, values in zip(self._refs, self._context.arrays, block.values, strict=True):
            refs += self._writer.store(array, values, block.seen, block.start)
        self._done.add((self._unit, self._block_number))
        self._block = None

    def _end_unit(self) -> None:
        """Store the references of a unit: one manifest for each array, or more where huge."""
        arrays = [
            (array, refs)
            for array, refs in zip(self._context.arrays, self._refs, strict=True)
            if refs
        ]
        parts = ((array.node_id, ChunkRefs.concat(refs)) for array, refs in arrays)
        stored = store_manifests(self._storage, self._context.manifest_format, parts)
        for (array, _), receipts in zip(arrays, stored, strict=True):
            self._receipts[array.path] += receipts
        self._refs = [[] for _ in self._context.arrays]
        # Should the unit come again all the same, the driver sees chunks that were written twice.
        self._done.clear()


def _whole(batch: pa.RecordBatch, name: str, dim: str | None = None) -> NDArray[np.int64]:
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        of = "" if dim is None else f" of dimension {dim!r}"
        raise InvalidInputError(
            f"a row has a value{of} that was not there when the write was planned: the source of "
            "the DataFrame changed meanwhile, or is not deterministic. Persist the DataFrame, and "
            "write again",
            dim=dim,
        )
    found: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return found


def _runs(units: NDArray[np.int64], blocks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    changes = np.flatnonzero((np.diff(units) != 0) | (np.diff(blocks) != 0)) + 1
    edges = [0, *changes.tolist(), len(units)]
    yield from pairwise(edges)
