"""Yields the layout ``chunks``: one row for each chunk (under sharding, inner chunk), as bytes.

Spark moves a few large values instead of millions of small ones, so mapInArrow and
mapInPandas can work on whole chunks at array speed.

Rules of this file
------------------
1. Each chunk that holds a selected element is one row with all elements of the chunk; ``start`` and
   ``shape`` are its position and extent, clipped to the array.
2. Decoded data are C order, little endian. A missing chunk holds the fill value, or has no row when
   missing chunks are skipped.
3. With ``decoded=false`` a row holds the stored bytes, and a missing chunk has no row. ``shape`` is
   still clipped, although the bytes decode to the full chunk.
4. Data are not fetched if the column ``data`` is not selected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.grid.axes import RegularAxis
from icechunk_format.groups import (
    ArrayReader,
    SnapshotArrays,
    chunk_cells,
    chunk_selections,
    pick,
    product_coords,
    read_ahead,
)
from icechunk_format.tables.reading.layouts.blocks import BlockArray, cut_blocks
from icechunk_format.tables.reading.layouts.chunk_refs import coordinate_lists
from icechunk_format.tables.reading.scan import ScanContext, ScanTask, box_of_part
from icechunk_format.tables.table.table import data_type_name

# Bytes of a row without its data; limits blocks of tiny chunks.
_ROW_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBlock:
    """Some chunks of one array; coordinates ``int64 (m, ndim)``."""

    reader: ArrayReader
    coords: NDArray[np.int64]


# The positions of existing chunks if they were looked up, and their bytes if fetched.
_Fetched = tuple[NDArray[np.int64], "list[bytes] | None"]


def chunk_batches(context: ScanContext, task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task of the layout ``chunks``; raises the errors of ``run_scan``."""
    arrays = context.open_arrays()
    table = context.table
    sources = [column.source for column in table.columns]
    wants_data = "data" in sources
    stored_only = context.skip_missing or not table.decoded

    def fetch(block: ChunkBlock) -> _Fetched:
        if wants_data:
            return block.reader.payloads(block.coords)
        if stored_only:
            return block.reader.stored(block.coords), None
        return np.empty(0, dtype=np.int64), None

    def decode(block: ChunkBlock, fetched: _Fetched) -> pa.RecordBatch:
        positions, payloads = fetched
        rows = positions if stored_only else np.arange(len(block.coords))
        coords = block.coords[rows]
        bounds = np.empty((*coords.shape, 2), dtype=np.int64)
        for number, axis in enumerate(block.reader.axes):
            bounds[:, number, 0] = axis.start_of(coords[:, number])
            bounds[:, number, 1] = axis.start_of(coords[:, number] + 1)
        dtype = data_type_name(block.reader.metadata.data_type)
        columns: dict[str, pa.Array] = {
            "array": pa.repeat(pa.scalar(block.reader.path, pa.string()), len(rows)),
            "chunk": coordinate_lists(coords),
            "start": coordinate_lists(bounds[:, :, 0]),
            "shape": coordinate_lists(bounds[:, :, 1] - bounds[:, :, 0]),
            "dtype": pa.repeat(pa.scalar(dtype, pa.string()), len(rows)),
        }
        if payloads is not None:
            if table.decoded:
                found = dict(zip(positions.tolist(), payloads, strict=True))
                payloads = _decoded(block, found, rows, bounds[:, :, 1] - bounds[:, :, 0])
            columns["data"] = pa.array(payloads, type=pa.binary())
        return pa.RecordBatch.from_arrays(
            [columns[source] for source in sources], schema=context.arrow_schema
        )

    yield from read_ahead(
        blocks_of_chunks(context, arrays, task),
        fetch=fetch,
        decode=decode,
        cost=lambda block: 2 * len(block.coords) * _chunk_bytes(block.reader),
        max_bytes=context.read_ahead_bytes,
    )


def blocks_of_chunks(
    context: ScanContext, arrays: SnapshotArrays, task: ScanTask
) -> Iterator[ChunkBlock]:
    """Yield the selected chunks of a task in blocks, each of one array."""
    for part in task.parts:
        reader = arrays.reader(context.table.arrays[part[0]])
        variable = arrays.variable(reader.path)
        chosen = chunk_selections(variable, context.selections, reader.axes, context.chunks)
        box = box_of_part(part, chosen)
        axes = tuple(RegularAxis(selection.size, 1) for selection in box)
        shape = BlockArray(dims=tuple(range(len(axes))), axes=axes, item_bytes=_chunk_bytes(reader))
        for block in cut_blocks(box, axes, [shape], context.read_ahead_bytes):
            coords = product_coords(list(map(pick, axes, block)))
            yield ChunkBlock(reader=reader, coords=coords)


def _chunk_bytes(reader: ArrayReader) -> int:
    return chunk_cells(reader.axes) * reader.item_bytes + _ROW_BYTES


def _decoded(
    block: ChunkBlock,
    payloads: dict[int, bytes],
    rows: NDArray[np.int64],
    shapes: NDArray[np.int64],
) -> list[bytes]:
    fills: dict[tuple[int, ...], bytes] = {}
    data = []
    for row, shape in zip(rows.tolist(), map(tuple, shapes.tolist()), strict=True):
        payload = payloads.pop(row, None)
        if payload is None:
            if shape not in fills:
                fills[shape] = _little_endian(block.reader.metadata.fill_array(shape))
            data.append(fills[shape])
        else:
            chunk = block.reader.decode_chunk(block.coords[row], payload)
            data.append(_little_endian(chunk[tuple(slice(0, n) for n in shape)]))
    return data


def _little_endian(values: NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes(order="C")
