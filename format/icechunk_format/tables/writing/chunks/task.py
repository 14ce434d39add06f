"""Writes the rows of one task of the layouts ``chunks`` and ``refs``.

Rules of this file
------------------
1. References are handled as whole columns (``references``), chunks one by one.
2. Inner chunks replace those of the stored shard, and the shard is stored as one object.
3. Each row is checked against its array: coordinates, shape, data type, number of bytes. Encoded
   bytes are decoded once to check that they are readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.groups.changing import (
    ArrayTarget,
    TaskFiles,
    TaskReceipt,
    index_of_box,
    references,
)
from icechunk_format.groups.changing.reference_rows import array_names, check_coords, chunk_coords
from icechunk_format.groups.changing.storing import padded
from icechunk_format.storage.measures import timed
from icechunk_format.tables.table.table import data_type_name
from icechunk_format.tables.writing.part import BLOCK, UNIT, WritePart
from icechunk_format.tables.writing.plan import WritePlan
from icechunk_format.zarr.codecs.chain import ChunkCodecs

_BATCH_BYTES: Final = 32 * 2**20
_ROWS_PER_BATCH: Final = 65_536


def write_layout_batches(part: WritePart, batches: Iterable[pa.RecordBatch]) -> TaskReceipt:
    """Write the rows of one task.

    ``batches`` have the columns of the layout, ``_unit`` and ``_block``, sorted by ``_unit``,
    ``array`` and ``_block``.

    Raises
    ------
    InvalidInputError
        A row has no valid array or chunk, repeats a chunk, or has data of the wrong size or type.
    """
    task = _LayoutTask(part)
    for unit, table in _tables_of_units(batches):
        task.add(unit, table)
    return task.finish()


def write_layout_table(plan: WritePlan, table: pa.Table) -> TaskReceipt:
    """Write a table with all rows in this process."""
    [part] = plan.parts
    assert plan.array_table is not None
    numbered = number_rows(plan.array_table, table)
    return write_layout_batches(part, numbered.to_batches(_ROWS_PER_BATCH))


def number_rows(array_table: pa.Table, table: pa.Table) -> pa.Table:
    """Add ``_unit`` and ``_block`` to rows, sorted for tasks."""
    units = np.zeros(table.num_rows, np.int64)
    blocks = np.zeros(table.num_rows, np.int64)
    names = array_names(table.column("array").combine_chunks())
    for described in array_table.to_pylist():
        rows = np.flatnonzero(pc.equal(names, described["array"]).to_numpy(zero_copy_only=False))
        if not len(rows):
            continue
        chunk = table.column("chunk").take(pa.array(rows)).combine_chunks()
        coords = chunk_coords(chunk, len(described["per_block"]), described["array"])
        units[rows] = described["base"]
        for axis, per_block in enumerate(described["per_block"]):
            block = coords[:, axis] // per_block
            unit = block // described["blocks_per_unit"][axis]
            units[rows] += unit * described["unit_strides"][axis]
            blocks[rows] += block * described["block_strides"][axis]
    numbered = table.append_column(UNIT, pa.array(units)).append_column(BLOCK, pa.array(blocks))
    return numbered.sort_by([(UNIT, "ascending"), ("array", "ascending"), (BLOCK, "ascending")])


def _tables_of_units(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each unit in tables of bounded size that hold whole blocks."""
    waiting: list[pa.RecordBatch] = []
    unit, size = 0, 0
    for batch in batches:
        units = _numbers(batch, UNIT)
        edges = [0, *(np.flatnonzero(np.diff(units)) + 1).tolist(), len(units)]
        for start, stop in pairwise(edges):
            if start == stop:
                continue
            if waiting and int(units[start]) != unit:
                yield unit, pa.Table.from_batches(waiting)
                waiting, size = [], 0
            unit = int(units[start])
            rows = batch.slice(start, stop - start)
            if size + rows.nbytes >= _BATCH_BYTES:
                # The last block may continue in the next batch; earlier blocks are complete.
                last = _start_of_last_block(_numbers(rows, BLOCK))
                if last:
                    yield unit, pa.Table.from_batches([*waiting, rows.slice(0, last)])
                    waiting, size, rows = [], 0, rows.slice(last)
            waiting.append(rows)
            size += rows.nbytes
    if waiting:
        yield unit, pa.Table.from_batches(waiting)


def _start_of_last_block(blocks: NDArray[np.int64]) -> int:
    changes = np.flatnonzero(np.diff(blocks))
    return int(changes[-1]) + 1 if len(changes) else 0


def _numbers(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    column = pc.fill_null(batch.column(batch.schema.get_field_index(name)), 0)
    found: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return found


class _LayoutTask:
    def __init__(self, part: WritePart) -> None:
        self._part = part
        self._files = TaskFiles(part.destination, part.number)
        self._targets = {array.name: array for array in part.arrays}
        self._unit: int | None = None
        self._rows = 0
        self._prefixes: set[str] = set()

    def add(self, unit: int, table: pa.Table) -> None:
        """Store rows of one unit."""
        if unit != self._unit:
            self._files.end_unit()
            self._unit = unit
        self._rows += table.num_rows
        names = array_names(table.column("array"))
        if names.null_count:
            raise InvalidInputError("column 'array' is NULL in a row; it must name an array")
        for name in pc.unique(names).to_pylist():
            target = self._targets.get(name)
            if target is None:
                raise InvalidInputError(
                    f"a row names the array {name!r}, which is not in the group; arrays are "
                    f"{', '.join(self._targets)}. Describe new ones with the option encoding",
                    variable=name,
                )
            rows = table.filter(pc.equal(names, name)).combine_chunks()
            coords = chunk_coords(rows.column("chunk"), len(target.metadata.shape), name)
            if "kind" in rows.column_names:
                source = self._part.destination.chunk_source
                refs, prefixes = references(target, coords, rows, source)
                self._prefixes |= prefixes
                self._files.add(target, [refs])
            else:
                self._files.write_encoded(target, self._chunks(target, coords, rows))

    def finish(self) -> TaskReceipt:
        """Store the last unit and return the receipt."""
        return self._files.receipt(self._rows, self._prefixes)

    # -- chunks -----------------------------------------------------------------------------

    def _chunks(
        self, target: ArrayTarget, coords: NDArray[np.int64], rows: pa.Table
    ) -> Iterator[tuple[tuple[int, ...], bytes]]:
        codecs = self._files.codecs(target)
        grid = target.metadata.grid
        axes = codecs.chunk_axes(grid)
        check_coords(target, coords, tuple(axis.count for axis in axes))
        outer = np.empty_like(coords)
        for number, (inner, axis) in enumerate(zip(axes, grid.axes, strict=True)):
            outer[:, number] = axis.chunk_of(inner.start_of(coords[:, number]))
        _check_dtype(target, rows)
        data = rows.column("data").combine_chunks()
        for at, members in _by_chunk(outer):
            yield at, self._payload(target, codecs, at, coords, members, data)

    def _payload(
        self,
        target: ArrayTarget,
        codecs: ChunkCodecs,
        chunk: tuple[int, ...],
        coords: NDArray[np.int64],
        members: NDArray[np.int64],
        data: pa.Array,
    ) -> bytes:
        """Return the bytes to store of an outer chunk, from the rows ``members``."""
        grid, sharding = target.metadata.grid, codecs.sharding
        lower, upper = grid.box_of(chunk)
        if sharding is None:
            if len(members) > 1:
                raise _twice(target, chunk)
            raw = _bytes_at(target, data, members[0], chunk)
            if not self._part.decoded:
                self._check_stored(target, raw, codecs, grid.full_chunk_shape(chunk), chunk)
                return raw
            values = _values(target, raw, [b - a for a, b in zip(lower, upper, strict=True)], chunk)
            return timed("encode", codecs.encode, padded(target.metadata, values, chunk))
        shard = target.metadata.fill_array(grid.full_chunk_shape(chunk))
        self._files.read_into(shard, target, lower, upper)
        inner = sharding.inner_shape
        seen: set[tuple[int, ...]] = set()
        for member in members.tolist():
            at = tuple(coords[member].tolist())
            if at in seen:
                raise _twice(target, at)
            seen.add(at)
            raw = _bytes_at(target, data, member, at)
            first = [i * n for i, n in zip(at, inner, strict=True)]
            if self._part.decoded:
                shape = [
                    min(n, size - a)
                    for n, size, a in zip(inner, target.metadata.shape, first, strict=True)
                ]
                values = _values(target, raw, shape, at)
            else:
                values = self._check_stored(target, raw, sharding.inner, inner, at)
            last = [a + n for a, n in zip(first, values.shape, strict=True)]
            shard[index_of_box(lower, first, last)] = values
        return timed("encode", codecs.encode, shard)

    def _check_stored(
        self, target: ArrayTarget, raw: bytes, codecs: Any, shape: Any, chunk: Any
    ) -> NDArray[Any]:
        try:
            found: NDArray[Any] = codecs.decode(raw, tuple(shape))
        except FormatError as error:
            raise InvalidInputError(
                f"the data of chunk {list(chunk)} of array {target.name!r} are not stored bytes of "
                f"the array: {error.facts['problem']}; decoded values need decoded=true",
                variable=target.name,
                chunk=tuple(chunk),
                problem=error.facts["problem"],
            ) from error
        return found


def _by_chunk(outer: NDArray[np.int64]) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """Yield each outer chunk with its rows, in order of first appearance."""
    if not outer.shape[1]:
        yield (), np.arange(len(outer))
        return
    chunks, inverse = np.unique(outer, axis=0, return_inverse=True)
    order = np.argsort(inverse.reshape(-1), kind="stable")
    edges = np.searchsorted(inverse.reshape(-1)[order], np.arange(len(chunks) + 1))
    for number, chunk in enumerate(chunks.tolist()):
        yield tuple(chunk), order[edges[number] : edges[number + 1]]


def _check_dtype(target: ArrayTarget, rows: pa.Table) -> None:
    """Raise InvalidInputError if rows have another data type than the array."""
    if "dtype" not in rows.column_names:
        return
    wanted = data_type_name(target.metadata.data_type)
    for found in pc.unique(rows.column("dtype")).to_pylist():
        if found is not None and found != wanted:
            raise InvalidInputError(
                f"a row of array {target.name!r} has the dtype {found!r}, and the array stores "
                f"{wanted!r}; convert the data, or write them to another array",
                variable=target.name,
                found=found,
                wanted=wanted,
            )


def _bytes_at(target: ArrayTarget, data: pa.Array, row: Any, chunk: tuple[int, ...]) -> bytes:
    value = data[int(row)]
    if not value.is_valid:
        raise InvalidInputError(
            f"the data of chunk {list(chunk)} of array {target.name!r} are NULL",
            variable=target.name,
        )
    found: bytes = value.as_py()
    return found


def _values(
    target: ArrayTarget, raw: bytes, shape: list[int], chunk: tuple[int, ...]
) -> NDArray[Any]:
    """Return the values of a decoded chunk: C order, little endian, clipped to the array."""
    dtype = target.metadata.data_type.numpy
    if dtype.hasobject:
        raise UnsupportedError(
            f"array {target.name!r} holds {target.metadata.data_type.name} values, which have no "
            "fixed size; write them with layout=cells, or stored chunks with decoded=false",
            variable=target.name,
        )
    stored = dtype.newbyteorder("<")
    wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(raw) != wanted:
        raise InvalidInputError(
            f"chunk {list(chunk)} of array {target.name!r} has {len(raw)} bytes of data, and "
            f"{shape} elements of {dtype} have {wanted}; chunks at the edge are clipped to the "
            "array",
            variable=target.name,
            chunk=chunk,
        )
    return np.frombuffer(raw, stored).reshape(shape).astype(dtype, copy=False)


def _twice(target: ArrayTarget, chunk: tuple[int, ...]) -> InvalidInputError:
    return InvalidInputError(
        f"more than one row has the chunk {list(chunk)} of array {target.name!r}; keep one",
        variable=target.name,
        chunk=chunk,
    )
