"""Reads blocks of several arrays of a table together, for the layouts ``cells`` and ``summary``.

An array may have fewer dimensions than the table, or another order; its values are broadcast to one
for each cell of the block, in C order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.groups import (
    DimSelection,
    cut_axes,
    leading_variable,
    product_coords,
    read_ahead,
)
from icechunk_format.tables.reading.layouts.batches import BlockRows
from icechunk_format.tables.reading.layouts.blocks import (
    Block,
    BlockArray,
    block_bytes,
    block_shape,
    cut_blocks,
)
from icechunk_format.tables.reading.scan import ScanContext, ScanTask, box_of_part
from icechunk_format.tables.table.table import Column

if TYPE_CHECKING:
    from icechunk_format.groups import ArrayReader, AxisPick, SnapshotArrays
    from icechunk_format.groups.array_reader import BlockRequest, FetchedBlock

# Most rows of the layout ``summary`` that a task holds, at about 60 bytes for each variable.
_MOST_BLOCKS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """The unit of reading: a block, or a slab of a block that is too large to be read at once.

    ``whole`` is the whole block; ``completes`` is True for its last slab.
    """

    block: Block
    whole: Block
    completes: bool = True
    requests: dict[str, BlockRequest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockColumns:
    """The columns of a slab."""

    slab: Slab
    values: dict[str, Any]
    """The result of ``convert`` for each array column, by the column's source."""
    stored: NDArray[np.bool_] | None = None
    """``bool`` of the shape of the slab: True for cells in a chunk of at least one variable. None
    if this holds for all, or if missing chunks are not skipped."""

    @property
    def block(self) -> Block:
        """The selected positions of the slab."""
        return self.slab.block


# The stored bytes of arrays to decode, and the chunks of other arrays that exist.
_Fetched = tuple["dict[str, FetchedBlock]", "list[tuple[str, list[AxisPick], NDArray[np.bool_]]]"]


class BlockReads:
    """Reads the blocks of one task.

    Parameters
    ----------
    columns
        The columns to read. Dimension columns are left to `TaskLabels`.
    convert
        Called on the decoding thread with a column, its stored values and the shape of the block.
        The values have the table's axes, with length 1 along axes that the array lacks.
    by_box
        Whether a whole box of the task is read in slabs, so that its cells are reduced together.
    """

    def __init__(
        self,
        context: ScanContext,
        arrays: SnapshotArrays,
        columns: Sequence[Column],
        convert: Callable[[Column, NDArray[Any], tuple[int, ...]], Any],
        *,
        by_box: bool = False,
    ) -> None:
        self._convert = convert
        self._by_box = by_box
        self._context = context
        self.dims = context.table.dims
        self.arrays = arrays
        self.dimensions = [column for column in columns if column.role == "dimension"]
        # The selection along each dimension of the table.
        self.selections = context.table.selections(context.selections)
        self._columns = [column for column in columns if column.role != "dimension"]
        self._readers: dict[str, ArrayReader] = {
            str(column.path): arrays.reader(str(column.path)) for column in self._columns
        }
        self._dims_of = {
            str(column.path): tuple(self.dims.index(dim) for dim in column.dims)
            for column in self._columns
        }
        # All variables of the table decide whether a cell is stored, not only the selected columns,
        # so that every projection has the same rows.
        self._counted: dict[str, tuple[int, ...]] = {}
        variables = [arrays.variable(path) for path in context.table.arrays]
        if context.skip_missing:
            for variable in variables:
                self._counted[variable.path] = tuple(map(self.dims.index, variable.dims))
                self._readers.setdefault(variable.path, arrays.reader(variable.path))
        lead = leading_variable(variables, arrays.snapshot.manifest_files)
        self.axes: list[ChunkAxis] = cut_axes(
            context.table.sizes_by_dim, variables, lead, context.table.block
        )
        # The option ``block`` allows blocks of any size; too large ones are read by chunks.
        self._finer = (
            cut_axes(context.table.sizes_by_dim, variables, lead) if context.table.block else None
        )
        self._most_grown = 0
        if self._finer is not None:
            # Blocks that share a chunk are read together, so that it is fetched once.
            self._most_grown = _MOST_BLOCKS * math.prod(axis.step for axis in self.axes)
        self._block_arrays = [
            BlockArray(
                dims=self._dims_of[path],
                axes=self._readers[path].axes,
                item_bytes=self._readers[path].item_bytes,
            )
            for path in self._dims_of
        ]

    def boxes(self, task: ScanTask) -> Iterator[tuple[DimSelection, ...]]:
        """Yield the selection of each box of the task along each dimension."""
        for part in task.parts:
            yield box_of_part(part, self.selections)

    def slabs(self, task: ScanTask) -> Iterator[Slab]:
        """Yield the blocks of the task in order; those that are too large, in slabs."""
        budget = self._context.read_ahead_bytes
        for box in self.boxes(task):
            if self._by_box:
                yield from self._cut(box, self.axes)
                continue
            for block in cut_blocks(
                box, self.axes, self._block_arrays, budget, most_grown=self._most_grown
            ):
                if self._finer is None or block_bytes(block, self._block_arrays) <= budget:
                    yield Slab(block=block, whole=block)
                else:
                    yield from self._cut(block, self._finer)

    def _cut(self, whole: Block, axes: Sequence[ChunkAxis]) -> Iterator[Slab]:
        cut = list(cut_blocks(whole, axes, self._block_arrays, self._context.read_ahead_bytes))
        for number, part in enumerate(cut, start=1):
            yield Slab(block=part, whole=whole, completes=number == len(cut))

    def requested_slabs(self, task: ScanTask) -> Iterator[Slab]:
        """Yield the slabs of a task with the chunks that each array needs, in order."""
        # Runs on the consumer's thread, so chunks are announced in the order of decoding.
        for slab in self.slabs(task):
            for path, dims in self._dims_of.items():
                selections = [slab.block[dim] for dim in dims]
                slab.requests[path] = self._readers[path].request(selections)
            yield slab

    def read(self, task: ScanTask) -> Generator[BlockColumns, None, None]:
        """Read all blocks of the task ahead of the caller, until the generator is closed."""
        return read_ahead(
            self.requested_slabs(task),
            fetch=self._fetch,
            decode=self._decode,
            cost=lambda slab: block_bytes(slab.block, self._block_arrays),
            max_bytes=self._context.read_ahead_bytes,
        )

    def reader(self, path: str) -> ArrayReader:
        """Return the reader of one of the arrays."""
        return self._readers[path]

    def looked_up(self, slab: Slab) -> Iterator[tuple[ArrayReader, NDArray[np.int64]]]:
        """Yield, array by array, the chunks of a slab that are only checked for existence."""
        for path, dims in self._counted.items():
            if path not in slab.requests:
                reader = self._readers[path]
                yield reader, product_coords(reader.picks([slab.block[dim] for dim in dims]))

    def stored_cells(self, slab: Slab) -> int:
        """Return the number of cells of a slab that have rows; no data are fetched."""
        shape = block_shape(slab.block)
        if not self._counted:
            return math.prod(shape)
        stored = np.zeros(shape, dtype=bool)
        for path, dims in self._counted.items():
            picks, present = self._readers[path].present([slab.block[dim] for dim in dims])
            _mark_stored(stored, picks, present, dims)
        return int(np.count_nonzero(stored))

    def _fetch(self, slab: Slab) -> _Fetched:
        arrays = {path: self._readers[path].fetch(one) for path, one in slab.requests.items()}
        others = [
            (path, *self._readers[path].present([slab.block[dim] for dim in dims]))
            for path, dims in self._counted.items()
            if path not in arrays
        ]
        return arrays, others

    def _decode(self, slab: Slab, fetched: _Fetched) -> BlockColumns:
        arrays, others = fetched
        shape = block_shape(slab.block)
        stored: NDArray[np.bool_] | None = None
        if self._counted:
            stored = np.zeros(shape, dtype=bool)
            for path, picks, present in others:
                _mark_stored(stored, picks, present, self._counted[path])
        values: dict[str, Any] = {}
        for path, dims in self._dims_of.items():
            request = slab.requests[path]
            decoded = self._readers[path].decode(request, arrays.pop(path))
            if stored is not None and path in self._counted:
                _mark_stored(stored, decoded.picks, decoded.present, dims)
            aligned = _aligned(decoded.values, dims, len(shape))
            for column in self._columns:
                if column.path == path:
                    values[column.source] = self._convert(column, aligned, shape)
        if stored is not None and stored.all():
            stored = None
        return BlockColumns(slab=slab, values=values, stored=stored)


class TaskLabels:
    """Labels of dimension columns, in the range that a task covers."""

    def __init__(self, reads: BlockReads, task: ScanTask) -> None:
        boxes = list(reads.boxes(task))
        # Positions of a dimension without labels, which may be very long, are made by block.
        self._labels: dict[int, tuple[str, DimSelection, pa.Array | None]] = {}
        for column in reads.dimensions:
            dim = reads.dims.index(column.source)
            held = [box[dim] for box in boxes]
            start, stop = min(s.start for s in held), max(s.stop for s in held)
            # The selected positions of the whole task; each block takes a slice.
            chosen = reads.selections[dim].within(start, stop)
            values = None
            if column.path is not None:
                values = column.labels(reads.arrays, chosen.size, chosen)
            self._labels[dim] = (column.source, chosen, values)

    def _of_block(self, block: Block) -> dict[int, tuple[str, pa.Array]]:
        """Return the names and labels of dimensions along a block, by dimension number."""
        found = {}
        for dim, (name, chosen, values) in self._labels.items():
            if values is None:
                found[dim] = (name, pa.array(block[dim].positions()))
                continue
            [first] = chosen.rank(np.array([block[dim].start])).tolist()
            found[dim] = (name, values.slice(first, block[dim].count))
        return found

    def take(self, block: Block, dim: int, numbers: NDArray[np.int64]) -> pa.Array:
        """Return labels of a block by their numbers along a dimension."""
        _, chosen, values = self._labels[dim]
        if values is None:
            return pa.array(block[dim].at(numbers))
        [first] = chosen.rank(np.array([block[dim].start])).tolist()
        return values.take(pa.array(first + numbers))

    @property
    def names(self) -> dict[int, str]:
        """The names of the dimensions, by number."""
        return {dim: name for dim, (name, _, _) in self._labels.items()}

    def rows(
        self,
        block: Block,
        values: Mapping[str, pa.Array],
        keep: pa.BooleanArray | None = None,
        names: Collection[str] | None = None,
    ) -> BlockRows:
        """Return the rows of a block with these values, and all or some labels."""
        labels = self._of_block(block)
        return BlockRows(
            shape=block_shape(block),
            labels={dim: own for dim, own in labels.items() if names is None or own[0] in names},
            keys=[(selection.start, selection.stop) for selection in block],
            values=values,
            keep=keep,
        )


def cell_reads(context: ScanContext) -> BlockReads:
    """Return the reads of a scan of cells, with one decoded value for each cell."""
    needed = context.table.needed(context.residual)
    return BlockReads(context, context.open_arrays(), needed, cell_column)


def cell_column(column: Column, values: NDArray[Any], shape: tuple[int, ...]) -> pa.Array:
    """Return one decoded value for each cell of a block, in C order."""
    assert column.decoder is not None
    # Decode before broadcasting, so that each stored value is decoded once.
    own = column.decoder.decode(values.reshape(-1))
    if values.shape == shape:
        return own
    index = np.arange(values.size, dtype=np.int64).reshape(values.shape)
    return own.take(pa.array(np.broadcast_to(index, shape).reshape(-1)))


def _aligned(values: NDArray[Any], dims: tuple[int, ...], ndim: int) -> NDArray[Any]:
    """Move the axes of an array to their positions among the dimensions of the table."""
    order = sorted(range(len(dims)), key=dims.__getitem__)
    wide = [1] * ndim
    for axis in order:
        wide[dims[axis]] = values.shape[axis]
    return np.ascontiguousarray(values.transpose(order)).reshape(wide)


def _mark_stored(
    stored: NDArray[np.bool_],
    picks: list[AxisPick],
    present: NDArray[np.bool_],
    dims: tuple[int, ...],
) -> None:
    """Mark the cells of a block that are in existing chunks of one array."""
    if present.all():
        stored[...] = True
        return
    cells = present.reshape([len(p.chunks) for p in picks])
    for axis, axis_pick in enumerate(picks):
        cells = cells.take(axis_pick.spread(), axis=axis)
    stored |= _aligned(cells, dims, stored.ndim)
