"""Reads the nodes of a snapshot file as columns.

Rules of this file
------------------
1. Every offset, length and count is checked, for all nodes together. Strings are only checked to be
   inside the file; `snapshot.nodes` decodes them on access.
2. Nodes may share their parts within the budget of the file (`tables.reader`).
3. Nodes out of order are sorted by the bytes of their paths. If several nodes have one path, the
   first is used.

Specification: "Snapshot Files", schema ``snapshot.fbs``. The writing side is `encode_nodes`.
"""

from __future__ import annotations

from itertools import islice
from operator import lt
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.snapshot.manifest_lists import read_manifest_refs
from icechunk_format.encoding.snapshot.node_columns import BytePool, NodeColumns
from icechunk_format.encoding.tables.bulk_reader import Tables, VectorReader
from icechunk_format.encoding.tables.reader import Table
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.errors import UnsupportedError

ARRAY: Final = 1
GROUP: Final = 2
_MAX_COORD: Final = 2**32 - 1
_TABLE_COST: Final = 64
_DIMENSION_SHAPE: Final = np.dtype([("array_length", "<u8"), ("chunk_length", "<u8")])

NODE_SNAPSHOT: Final = TableSchema(
    "NodeSnapshot",
    id="id8",
    path="offset",
    user_data="offset",
    node_data_type="u8",
    node_data="offset",
    extra="offset",
)
ARRAY_DATA: Final = TableSchema(
    "ArrayNodeData",
    shape="offset",
    dimension_names="offset",
    manifests="offset",
    shape_v2="offset",
)
GROUP_DATA: Final = TableSchema("GroupNodeData")
DIMENSION_SHAPE_V2: Final = TableSchema("DimensionShapeV2", array_length="u64", num_chunks="u32")
DIMENSION_NAME: Final = TableSchema("DimensionName", name="offset")

_DATA: Final = "nodes.node_data"

_Item = TypeVar("_Item", bound=np.generic)


def read_nodes(root: Table) -> tuple[NodeColumns, list[bytes]]:
    """Return the nodes sorted by path, and the paths that occur more than once."""
    span = root.vector("nodes", 4)
    if span is None:
        raise root.missing("nodes")
    root.charge("nodes", _TABLE_COST * span[1])
    reader = VectorReader(root.payload, object_key=root.object_key, file_type=root.file_type)
    tables = reader.tables_between(*span, NODE_SNAPSHOT, "nodes")
    tables.require("id", "path", "user_data")
    paths = tables.ranges("path")
    if int(paths.lengths.sum()) > reader.data.size:
        reader.fail("the paths take more bytes than the object has", "nodes.path")
    user_data = tables.ranges("user_data")
    root.charge("nodes.user_data", int(user_data.lengths.sum()))
    kinds = tables.column("node_data_type")
    targets = tables.targets("node_data")
    _check_kinds(root, kinds)
    is_array = kinds == ARRAY
    # The tables of groups are empty, but required.
    Tables(reader, targets[~is_array], GROUP_DATA, _DATA)
    arrays = Tables(reader, targets[is_array], ARRAY_DATA, _DATA)
    ndims, array_lengths, num_chunks = _read_dimensions(root, reader, arrays)
    has_names, name_starts, name_lengths = _read_names(root, reader, arrays, ndims)
    arrays.require("manifests")
    refs = arrays.ranges("manifests", 4)
    ref_ids, extents = read_manifest_refs(root, reader, refs, ndims=ndims, num_chunks=num_chunks)
    columns = NodeColumns(
        pool=BytePool([reader.data]),
        ids=tables.column("id"),
        path_starts=paths.starts,
        path_lengths=paths.lengths,
        user_data_starts=user_data.starts,
        user_data_lengths=user_data.lengths,
        is_array=is_array,
        has_names=_spread(has_names, is_array),
        ndims=_spread(ndims, is_array),
        ref_counts=_spread(refs.lengths, is_array),
        array_lengths=array_lengths,
        num_chunks=num_chunks,
        name_starts=name_starts,
        name_lengths=name_lengths,
        ref_ids=ref_ids,
        extents=extents,
    )
    return _in_order(columns)


def _check_kinds(root: Table, kinds: NDArray[np.uint8]) -> None:
    unknown = kinds[(kinds != ARRAY) & (kinds != GROUP)]
    if not unknown.size:
        return
    if not unknown.all():
        raise root.error(_DATA, "its kind is 0; a kind above 0 with a value is required")
    kind = int(unknown[0])
    raise UnsupportedError(
        f"{root.file_type} {root.object_key!r} has a node of the unknown kind {kind}; supported "
        f"are {ARRAY} (array) and {GROUP} (group); upgrade icechunk-spark",
        object_key=root.object_key,
        found=kind,
        allowed=(ARRAY, GROUP),
    )


def _spread(per_array: NDArray[_Item], is_array: NDArray[np.bool_]) -> NDArray[_Item]:
    """Expand one item per array to one per node, zero for groups."""
    spread = np.zeros(is_array.shape, dtype=per_array.dtype)
    spread[is_array] = per_array
    return spread


def _read_dimensions(
    root: Table, reader: VectorReader, arrays: Tables
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint32]]:
    """Return the number of dimensions of each array, and elements and chunks of each dimension.

    The list of spec version 2 is used if an array has it, else that of version 1.
    """
    field = f"{_DATA}.shape"
    is_new = arrays.has("shape_v2")
    if not (is_new | arrays.has("shape")).all():
        reader.fail("a required field is absent", field)
    new = arrays.ranges("shape_v2", 4)
    old = arrays.ranges("shape", _DIMENSION_SHAPE.itemsize)
    counts = np.where(is_new, new.lengths, old.lengths)
    total = int(counts.sum())
    root.charge(field, _TABLE_COST * total)
    array_lengths = np.zeros(total, dtype=np.uint64)
    num_chunks = np.zeros(total, dtype=np.uint32)
    is_new_dimension = np.repeat(is_new, counts)
    spans = new.take(np.flatnonzero(is_new))
    tables = reader.tables_of(spans, DIMENSION_SHAPE_V2, f"{field}_v2")
    array_lengths[is_new_dimension] = tables.column("array_length")
    num_chunks[is_new_dimension] = tables.column("num_chunks")
    cells = old.take(np.flatnonzero(~is_new)).cells(_DIMENSION_SHAPE.itemsize)
    records = reader.gather(cells, _DIMENSION_SHAPE.itemsize, field).view(_DIMENSION_SHAPE)
    lengths, chunks = records["array_length"], records["chunk_length"]
    if ((lengths > 0) & (chunks == 0)).any():
        reader.fail("an array has elements in chunks of 0 elements", field)
    grid = np.where(lengths > 0, (lengths - (lengths > 0)) // np.maximum(chunks, 1) + 1, 0)
    if (grid > _MAX_COORD).any():
        reader.fail(f"{int(grid.max())} chunks; coordinates end at {_MAX_COORD}", field)
    array_lengths[~is_new_dimension] = lengths
    num_chunks[~is_new_dimension] = grid
    return counts, array_lengths, num_chunks


def _read_names(
    root: Table, reader: VectorReader, arrays: Tables, ndims: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Return a mask of arrays with dimension names, and the range of each dimension's name.

    An absent or empty name means that the dimension is unnamed.
    """
    field = f"{_DATA}.dimension_names"
    has_names = arrays.has("dimension_names")
    spans = arrays.ranges("dimension_names", 4)
    is_odd = has_names & (spans.lengths != ndims)
    if is_odd.any():
        row = int(is_odd.argmax())
        reader.fail(f"{int(spans.lengths[row])} names for {int(ndims[row])} dimensions", field)
    root.charge(field, _TABLE_COST * int(spans.lengths.sum()))
    tables = reader.tables_of(spans.take(np.flatnonzero(has_names)), DIMENSION_NAME, field)
    names = tables.ranges("name")
    root.charge(field, int(names.lengths.sum()))
    is_named = np.repeat(has_names, ndims)
    return has_names, _spread(names.starts, is_named), _spread(names.lengths, is_named)


def _in_order(columns: NodeColumns) -> tuple[NodeColumns, list[bytes]]:
    paths = columns.paths()
    if all(map(lt, paths, islice(paths, 1, None))):
        return columns, []
    rows: dict[bytes, int] = {}
    duplicates: set[bytes] = set()
    for row, path in enumerate(paths):
        if rows.setdefault(path, row) != row:
            duplicates.add(path)
    order = [rows[path] for path in sorted(rows)]
    return columns.take(np.array(order, dtype=np.intp)), sorted(duplicates)
