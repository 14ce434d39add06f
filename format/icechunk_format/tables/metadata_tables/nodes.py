"""Makes the rows of the metadata tables about nodes: groups and variables.

Rules of this file
------------------
1. A node that cannot be read has a row with its error, since users look here when a read fails.
2. The task that makes an array's row counts its stored chunks, only if such a column is selected.
3. Chunks outside of the array's extents are not counted, since readers do not find them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding import node_path
from icechunk_format.encoding.manifest.chunk_refs import KIND_VIRTUAL
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import FormatError, IcechunkError, UnsupportedError
from icechunk_format.groups import Variable
from icechunk_format.groups.dimension_sets import default_columns
from icechunk_format.groups.variable import coordinate_names
from icechunk_format.options.metadata_tables import STORED_COLUMNS
from icechunk_format.storage.protocol import Storage
from icechunk_format.tables.metadata_tables.history import (
    LARGEST,
    Row,
    fitting,
    json_string,
    valid_string,
)
from icechunk_format.tables.metadata_tables.manifests import Part, found_refs
from icechunk_format.zarr.zarr_json import parse_group_metadata

# Errors of damaged or unsupported documents; any other error is a defect of this library.
_UNREADABLE: Final = (FormatError, UnsupportedError)


def group_rows(snapshot: Snapshot, numbers: Sequence[int]) -> Iterator[Row]:
    """Yield the rows of ``groups`` for the groups among some nodes."""
    arrays = Counter(node_path.parent(n.path) for n in snapshot.nodes if n.array is not None)
    groups = Counter(node_path.parent(n.path) for n in snapshot.nodes if n.array is None)
    for number in numbers:
        node = snapshot.nodes[number]
        if node.array is not None:
            continue
        row = {
            "path": str(node.path),
            "name": node_path.name(node.path),
            "array_count": arrays[node.path],
            "group_count": groups[node.path],
        }
        try:
            metadata = parse_group_metadata(node.user_data, node_path=node.path)
        except _UNREADABLE as error:
            yield {**row, "problem": _one_line(error)}
        else:
            yield {**row, "attributes": json_string(dict(metadata.attributes))}


def variable_rows(
    storage: Storage, snapshot: Snapshot, parts: Sequence[Part], wanted: Collection[str]
) -> Iterator[Row]:
    """Yield the rows of ``variables`` for the arrays of a task.

    Manifests are opened only if a column of ``wanted`` needs them.
    """
    roles: dict[str, tuple[frozenset[str], frozenset[str] | None]] = {}
    for part in parts:
        variable = Variable(snapshot.nodes[part[0]])
        group = str(node_path.parent(variable.node.path) or node_path.ROOT)
        row = _described(variable)
        row["group"] = group
        if not _ROLES.isdisjoint(wanted):
            if group not in roles:
                roles[group] = _roles(snapshot, group)
            coordinates, columns = roles[group]
            row["is_coordinate"] = variable.is_dimension_coordinate or variable.name in coordinates
            row["is_column"] = None if columns is None else variable.name in columns
        if not STORED_COLUMNS.isdisjoint(wanted):
            row.update(_stored(storage, snapshot, part))
        yield row


def _described(variable: Variable) -> Row:
    array = variable.array
    row: Row = {
        "path": variable.path,
        "name": variable.name,
        "dims": list(variable.dims),
        "shape": [fitting(size) for size in variable.shape],
        "total_chunks": fitting(math.prod(array.num_chunks)),
        "manifest_count": len(np.unique(array.manifests.ids, axis=0)),
    }
    try:
        metadata = variable.metadata
    except _UNREADABLE as error:
        return {**row, "problem": _one_line(error)}
    raw = metadata.raw
    return {
        **row,
        **_grid(variable),
        "dtype": _string(raw.get("data_type")),
        "codecs": json_string(raw.get("codecs")),
        "fill_value": json_string(raw.get("fill_value")),
        **{name: _string(metadata.attributes.get(name)) for name in _NAMED_ATTRIBUTES},
        "attributes": json_string(dict(metadata.attributes)),
        "problem": _problem(variable),
    }


_NAMED_ATTRIBUTES: Final = ("units", "standard_name", "long_name")


def _string(value: Any) -> str | None:
    if value is None:
        return None
    return valid_string(value) if isinstance(value, str) else json_string(value)


def _problem(variable: Variable) -> str | None:
    """Return the reason why an array cannot be read, or None."""
    try:
        _ = variable.metadata.grid, variable.codecs
    except _UNREADABLE as error:
        return _one_line(error)
    return None


def _grid(variable: Variable) -> Row:
    """Return the columns ``chunks`` and ``shards``; NULL for an unsupported grid."""
    metadata = variable.metadata
    try:
        outer = metadata.grid.chunk_shape
    except _UNREADABLE:
        return {}
    try:
        sharding = variable.codecs.sharding
        inner = None if sharding is None else list(sharding.inner_shape)
    except _UNREADABLE:
        inner = _inner_chunks(metadata.codecs_json[0])
    chunks = None if outer is None else list(outer)
    return {"chunks": chunks} if inner is None else {"chunks": inner, "shards": chunks}


def _inner_chunks(codec: Any) -> list[int] | None:
    """Return the inner chunk shape of an unsupported sharding codec."""
    if not isinstance(codec, dict) or codec.get("name") != "sharding_indexed":
        return None
    configuration = codec.get("configuration")
    shape = configuration.get("chunk_shape") if isinstance(configuration, dict) else None
    if isinstance(shape, list) and all(type(n) is int and 0 < n <= LARGEST for n in shape):
        return shape
    return None


_ROLES: Final = frozenset({"is_coordinate", "is_column"})


def _roles(snapshot: Snapshot, group: str) -> tuple[frozenset[str], frozenset[str] | None]:
    """Return the coordinate arrays of a group, and the columns of its default table."""
    readable = []
    for node in snapshot.children(group):
        if node.array is None:
            continue
        variable = Variable(node)
        try:
            _ = variable.metadata
        except _UNREADABLE:
            continue
        readable.append(variable)
    holder = snapshot.node(group)
    attributes: dict[str, Any] = {}
    if holder is not None:
        try:
            parsed = parse_group_metadata(holder.user_data, node_path=group)
            attributes = dict(parsed.attributes)
        except _UNREADABLE:
            attributes = {}
    return coordinate_names(readable, attributes), default_columns(readable, attributes)


def _stored(storage: Storage, snapshot: Snapshot, part: Part) -> Row:
    grid = np.array(Variable(snapshot.nodes[part[0]]).array.num_chunks, dtype=np.int64)
    chunks = in_grid = virtual = own_bytes = virtual_bytes = 0
    for _, refs, rows in found_refs(storage, snapshot, part):
        is_virtual = refs.kind[rows] == KIND_VIRTUAL
        lengths = refs.length[rows]
        chunks += len(rows)
        in_grid += int((refs.coords[rows] < grid).all(axis=1).sum())
        virtual += int(is_virtual.sum())
        own_bytes += _sum(lengths[~is_virtual])
        virtual_bytes += _sum(lengths[is_virtual])
    return {
        "stored_chunks": chunks,
        "virtual_chunks": virtual,
        "missing_chunks": fitting(math.prod(grid.tolist()) - in_grid),
        "stored_bytes": fitting(own_bytes),
        "virtual_bytes": fitting(virtual_bytes),
    }


def _sum(values: NDArray[np.uint64]) -> int:
    """Add up lengths without overflow, even those of a damaged manifest."""
    high, low = values >> np.uint64(32), values & np.uint64(2**32 - 1)
    return (int(high.sum()) << 32) + int(low.sum())


def _one_line(error: IcechunkError) -> str:
    lines = (line.strip() for line in valid_string(error.message).splitlines())
    return "; ".join(line for line in lines if line)
