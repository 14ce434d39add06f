"""Writes the nodes of a snapshot file from columns.

Rules of this file
------------------
1. The tables of all nodes are a few structured arrays (`tables.bulk_writer`). Paths and metadata
   documents are copied block by block while the file is compressed.
2. Lists of the other spec version are absent or empty, because readers use whichever is present.

Specification: "Snapshot Files", schema ``snapshot.fbs``. The reading side is `decode_nodes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.snapshot.decode_nodes import (
    ARRAY,
    ARRAY_DATA,
    DIMENSION_NAME,
    DIMENSION_SHAPE_V2,
    GROUP,
    GROUP_DATA,
    NODE_SNAPSHOT,
)
from icechunk_format.encoding.snapshot.manifest_lists import MANIFEST_REF
from icechunk_format.encoding.snapshot.nodes import Nodes
from icechunk_format.encoding.tables.bulk_writer import Assembly, OffsetVector, TableLayout
from icechunk_format.encoding.tables.byte_ranges import starts_of
from icechunk_format.errors import InvalidInputError

_NODE: Final = TableLayout(NODE_SNAPSHOT)
_GROUP: Final = TableLayout(GROUP_DATA)
_DIMENSION: Final = TableLayout(DIMENSION_SHAPE_V2)
_NAME: Final = TableLayout(DIMENSION_NAME)
_NO_NAME: Final = TableLayout(DIMENSION_NAME, ())


@lru_cache(maxsize=4)
def _array_layout(*, has_names: bool, is_v1: bool) -> TableLayout:
    fields = ["shape", "manifests"]
    if has_names:
        fields.append("dimension_names")
    if not is_v1:
        fields.append("shape_v2")
    return TableLayout(ARRAY_DATA, fields)


@lru_cache(maxsize=64)
def _ref_layout(ndim: int) -> TableLayout:
    """Return the layout of a manifest reference, followed by its ranges of two numbers each."""
    return TableLayout(MANIFEST_REF, embedded=2 * ndim)


class EncodedNodes:
    """The vector of nodes of a snapshot file, with all tables and strings that it refers to."""

    def __init__(self, nodes: Nodes, *, is_v1: bool) -> None:
        self._made = Assembly(
            "the list of nodes of a snapshot", remedy="use several repositories", is_part=True
        )
        self._columns = nodes.columns
        count = len(nodes)
        _, cells = self._made.offset_vector(count)
        if count:
            shapes_v1 = _shapes_v1(nodes) if is_v1 else None
            self._write(cells, shapes_v1)
        self._made.reserve(0, 8)

    @property
    def size(self) -> int:
        """Size in bytes, a multiple of 8; the buffer begins with the vector of nodes."""
        return self._made.size

    def blocks(self) -> Iterator[memoryview]:
        """Yield the bytes; each block may reuse the memory of the previous one."""
        return self._made.blocks()

    def _write(self, cells: OffsetVector, shapes_v1: NDArray[np.uint64] | None) -> None:
        made, columns = self._made, self._columns
        nodes = made.records(_NODE, len(columns))
        cells.point(slice(None), nodes.positions)
        nodes.rows["id"] = columns.ids
        nodes.rows["node_data_type"] = np.where(columns.is_array, ARRAY, GROUP)
        groups = np.flatnonzero(~columns.is_array)
        data_at = np.zeros(len(columns), dtype=np.int64)
        data_at[groups] = made.records(_GROUP, len(groups)).positions
        arrays = np.flatnonzero(columns.is_array)
        if arrays.size:
            data_at[arrays] = self._write_arrays(arrays, shapes_v1)
        nodes.point("node_data", data_at)
        nodes.point("path", self._write_strings(columns.path_starts, columns.path_lengths))
        nodes.point(
            "user_data", self._write_strings(columns.user_data_starts, columns.user_data_lengths)
        )

    def _write_strings(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        pool = self._columns.pool

        def copy(rows: slice, target: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
            pool.copy(starts[rows], lengths[rows], target, positions)

        return self._made.streamed_byte_vectors(lengths, copy)

    def _write_arrays(
        self, rows: NDArray[np.intp], shapes_v1: NDArray[np.uint64] | None
    ) -> NDArray[np.int64]:
        """Write the tables of arrays; return their positions."""
        made, columns = self._made, self._columns
        has_names, is_v1 = columns.has_names[rows], shapes_v1 is not None
        tables = []
        positions = np.zeros(len(rows), dtype=np.int64)
        for named in (True, False):
            chosen = np.flatnonzero(has_names == named)
            if chosen.size:
                records = made.records(_array_layout(has_names=named, is_v1=is_v1), len(chosen))
                positions[chosen] = records.positions
                tables.append((chosen, records))
        ndims = columns.ndims[rows]
        targets = {
            "manifests": self._write_refs(ndims, columns.ref_counts[rows]),
            "dimension_names": self._write_names(np.where(has_names, ndims, 0)),
        }
        if shapes_v1 is None:
            # The list of version 1 is required, so all arrays share an empty one.
            _, empty = made.reserve(12, 8)
            empty[:] = 0
            targets["shape"] = np.full(len(rows), made.size - 8, dtype=np.int64)
            targets["shape_v2"] = self._write_dimensions(ndims)
        else:
            targets["shape"] = made.struct_vectors(ndims, shapes_v1.view(np.uint8))
        for chosen, records in tables:
            for name in records.layout.offsets:
                if name in targets:
                    records.point(name, targets[name][chosen])
        return positions

    def _write_dimensions(self, ndims: NDArray[np.int64]) -> NDArray[np.int64]:
        made, columns = self._made, self._columns
        positions, cells = made.offset_vectors(ndims)
        dimensions = made.records(_DIMENSION, len(columns.num_chunks))
        dimensions.rows["array_length"] = columns.array_lengths
        dimensions.rows["num_chunks"] = columns.num_chunks
        cells.point(slice(None), dimensions.positions)
        return positions

    def _write_names(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Write the names of the dimensions of all arrays."""
        made, columns = self._made, self._columns
        positions, cells = made.offset_vectors(counts)
        all_counts = columns.ndims[columns.is_array]
        dimensions = np.flatnonzero(np.repeat(counts > 0, all_counts))
        is_named = columns.name_lengths[dimensions] > 0
        unnamed = np.flatnonzero(~is_named)
        cells.point(unnamed, made.records(_NO_NAME, len(unnamed)).positions)
        named = np.flatnonzero(is_named)
        tables = made.records(_NAME, len(named))
        cells.point(named, tables.positions)
        chosen = dimensions[named]
        tables.point(
            "name", self._write_strings(columns.name_starts[chosen], columns.name_lengths[chosen])
        )
        return positions

    def _write_refs(self, ndims: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        made, columns = self._made, self._columns
        positions, cells = made.offset_vectors(counts)
        ndim_of_ref = np.repeat(ndims, counts)
        first_extent = starts_of(ndim_of_ref)
        for ndim in np.unique(ndim_of_ref).tolist():
            chosen = np.flatnonzero(ndim_of_ref == ndim)
            layout = _ref_layout(ndim)
            refs = made.records(layout, len(chosen))
            cells.point(chosen, refs.positions)
            refs.rows["object_id"] = columns.ref_ids[chosen]
            refs.rows["extents"] = layout.offsets["embedded_length"] - layout.offsets["extents"]
            refs.rows["embedded_length"] = ndim
            extents = columns.extents[first_extent[chosen][:, None] + np.arange(ndim)]
            refs.rows["embedded"] = extents.reshape(len(chosen), 2 * ndim)
        return positions


def _shapes_v1(nodes: Nodes) -> NDArray[np.uint64]:
    """Return length and chunk length of each dimension, as spec version 1 stores them.

    Version 1 stores a chunk length instead of a number of chunks. A length that yields this number
    exists for regular grids only; other grids raise InvalidInputError.
    """
    columns = nodes.columns
    lengths, counts = columns.array_lengths, columns.num_chunks.astype(np.uint64)
    one = np.uint64(1)
    is_chunked = (lengths > 0) & (counts > 0)
    chunks = np.where(is_chunked, (lengths - is_chunked) // np.maximum(counts, one) + one, one)
    grid = np.where(lengths > 0, (lengths - (lengths > 0)) // chunks + one, np.uint64(0))
    is_bad = grid != counts
    if is_bad.any():
        at = int(is_bad.argmax())
        row = int(np.searchsorted(np.cumsum(columns.ndims), at, side="right"))
        axis = at - int(starts_of(columns.ndims)[row])
        raise InvalidInputError(
            f"array {nodes[row].path!r} has {int(lengths[at])} elements in {int(counts[at])} "
            f"chunks along axis {axis}, which is not a regular grid; spec version 1 has only "
            "regular grids, use version 2",
            found=(int(lengths[at]), int(counts[at])),
            allowed="a regular chunk grid",
        )
    return np.stack([lengths, chunks], axis=1)
