"""Snapshot files: every group and array of one version of a repository.

Rules of this file
------------------
1. One value for both spec versions. On reading, the lists that are present tell how shapes and
   manifest files are stored, and the spec byte tells how metadata is encoded. On writing, the
   snapshot's ``spec_version`` decides all of it.
2. Nodes are sorted by the raw UTF-8 bytes of their paths (``spec.node_path``). Files sorted in
   another way are read and sorted; of two nodes with one path, which a known defect of existing
   writers can leave behind, the first counts and ``duplicate_paths`` names it.
3. A missing parent group is no error: existing writers can leave such orphans behind.
4. ``user_data`` is opaque here. Its bytes are never parsed or changed.

Specification: "Snapshot Files", schema ``snapshot.fbs``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.spec.envelope import (
    DEFAULT_LEVEL,
    DEFAULT_MAX_SIZE,
    SPEC_V1,
    SPEC_V2,
    FileType,
    unwrap,
    wrap,
)
from icechunk_format.spec.ids import NodeId, SnapshotId
from icechunk_format.spec.manifest_lists import (
    ManifestFiles,
    ManifestRefs,
    RefsSpan,
    read_manifest_files,
    read_manifest_refs,
    write_manifest_files_v1,
    write_manifest_files_v2,
    write_manifest_refs,
)
from icechunk_format.spec.metadata_items import NO_ITEMS, MetadataItems, read_items, write_items
from icechunk_format.spec.node_path import ROOT, NodePath, is_canonical, stored_node_path
from icechunk_format.spec.table_schema import TableSchema
from icechunk_format.spec.table_writer import TableWriter
from icechunk_format.spec.tables import read_root

if TYPE_CHECKING:
    from icechunk_format.spec.tables import Table

__all__ = [
    "ArrayNode",
    "ManifestFiles",
    "ManifestRefs",
    "NodeSnapshot",
    "Snapshot",
    "decode",
    "encode",
]

SNAPSHOT = TableSchema(
    "Snapshot",
    id="id12",
    parent_id="id12",
    nodes="offset",
    flushed_at="u64",
    message="offset",
    metadata="offset",
    manifest_files="offset",
    manifest_files_v2="offset",
    extra="offset",
)
NODE_SNAPSHOT = TableSchema(
    "NodeSnapshot",
    id="id8",
    path="offset",
    user_data="offset",
    node_data_type="u8",
    node_data="offset",
    extra="offset",
)
ARRAY_NODE_DATA = TableSchema(
    "ArrayNodeData",
    shape="offset",
    dimension_names="offset",
    manifests="offset",
    shape_v2="offset",
)
GROUP_NODE_DATA = TableSchema("GroupNodeData")
DIMENSION_NAME = TableSchema("DimensionName", name="offset")
DIMENSION_SHAPE_V2 = TableSchema("DimensionShapeV2", array_length="u64", num_chunks="u32")
_DIMENSION_SHAPE = np.dtype([("array_length", "<u8"), ("chunk_length", "<u8")])

_ARRAY, _GROUP = 1, 2
_MAX_COORD = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayNode:
    """What a snapshot knows about an array besides its ``zarr.json``.

    Parameters
    ----------
    shape
        Elements per dimension; empty for a scalar.
    num_chunks
        Chunks per dimension of the (outer) chunk grid.
    dimension_names
        One name or None per dimension; None when the array names none.
    manifests
        Where its chunk references are.
    """

    shape: tuple[int, ...]
    num_chunks: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None = None
    manifests: ManifestRefs


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """One node: an array, or a group when ``array`` is None.

    Parameters
    ----------
    id
        Id of the node, kept over updates and moves.
    path
        Its absolute path.
    user_data
        The bytes of its ``zarr.json``.
    array
        Facts about the array; None for a group.
    """

    id: NodeId
    path: NodePath
    user_data: bytes
    array: ArrayNode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All nodes of one version of a repository.

    Parameters
    ----------
    id
        Id of the snapshot.
    parent_id
        Id of the parent. Stored in spec version 1 only; version 2 keeps it in ``repo``.
    spec_version
        Spec version of the file.
    flushed_at
        Microseconds since 1970-01-01T00:00:00Z.
    message
        Commit message.
    metadata_items
        Commit metadata as stored; ``metadata`` decodes it.
    nodes
        All nodes, sorted by path, paths unique.
    manifest_files
        Every manifest file that any array refers to.
    duplicate_paths
        Paths that the file held more than once.
    """

    id: SnapshotId
    parent_id: SnapshotId | None = None
    spec_version: int = SPEC_V2
    flushed_at: int
    message: str
    metadata_items: MetadataItems = NO_ITEMS
    nodes: tuple[NodeSnapshot, ...] = ()
    manifest_files: ManifestFiles = field(default_factory=ManifestFiles.empty)
    duplicate_paths: tuple[NodePath, ...] = field(default=(), compare=False)

    @property
    def metadata(self) -> dict[str, Any]:
        """Commit metadata as JSON values; raises FormatError when a value is damaged."""
        return self.metadata_items.decode()

    def node(self, path: NodePath | str) -> NodeSnapshot | None:
        """Return the node at a path, None when there is none."""
        at = self._first_not_before(path)
        if at < len(self.nodes) and self.nodes[at].path == path:
            return self.nodes[at]
        return None

    def children(self, path: NodePath | str) -> tuple[NodeSnapshot, ...]:
        """Return the nodes directly inside a group, sorted by path, that can be named."""
        start = 1 if path == ROOT else len(path) + 1
        return tuple(
            node
            for node in self.descendants(path)
            if "/" not in node.path[start:] and is_canonical(node.path)
        )

    def descendants(self, path: NodePath | str) -> tuple[NodeSnapshot, ...]:
        """Return all nodes inside a group at any depth, sorted by path, without the group."""
        prefix = "/" if path == ROOT else f"{path}/"
        # "0" is the character after "/", so these two keys enclose exactly that prefix.
        first, last = self._first_not_before(prefix), self._first_not_before(prefix[:-1] + "0")
        found = self.nodes[first:last]
        return found[1:] if path == ROOT and found and found[0].path == ROOT else found

    def _first_not_before(self, key: str) -> int:
        return bisect_left(self.nodes, key, key=lambda node: node.path)


def decode(data: bytes, *, object_key: str, max_size: int = DEFAULT_MAX_SIZE) -> Snapshot:
    """Read a snapshot file of either spec version.

    Raises
    ------
    FormatError
        When the bytes are damaged or contradict themselves.
    UnsupportedError
        When the file has a newer spec version or holds a kind of node that is not known.
    """
    envelope = unwrap(data, file_type=FileType.SNAPSHOT, object_key=object_key, max_size=max_size)
    root = read_root(
        envelope.payload, SNAPSHOT, object_key=object_key, file_type=FileType.SNAPSHOT.label
    )
    nodes, duplicates = _read_nodes(root)
    parent = root.optional_raw_id("parent_id")
    return Snapshot(
        id=SnapshotId(root.raw_id("id")),
        parent_id=None if parent is None else SnapshotId(parent),
        spec_version=envelope.spec_version,
        flushed_at=root.number("flushed_at"),
        message=root.text("message"),
        metadata_items=read_items(root, "metadata", spec_version=envelope.spec_version),
        nodes=nodes,
        manifest_files=read_manifest_files(root),
        duplicate_paths=duplicates,
    )


@dataclass(slots=True, kw_only=True)
class _ArrayParts:
    """An array before its manifest references, which are read for all arrays together."""

    shape: tuple[int, ...]
    num_chunks: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None
    span: RefsSpan


def _read_nodes(root: Table) -> tuple[tuple[NodeSnapshot, ...], tuple[NodePath, ...]]:
    """Return the nodes sorted by path, and the paths that were there more than once."""
    parts: dict[NodePath, tuple[NodeId, bytes, _ArrayParts | None]] = {}
    duplicates: set[NodePath] = set()
    for table in root.children("nodes", NODE_SNAPSHOT):
        path = _read_path(table)
        part = (NodeId(table.raw_id("id")), table.blob("user_data"), _read_node_data(table))
        if path in parts:
            duplicates.add(path)
        else:
            parts[path] = part
    arrays = [array for _, _, array in parts.values() if array is not None]
    refs = iter(read_manifest_refs(root, [array.span for array in arrays]))
    nodes = [
        NodeSnapshot(
            id=node_id,
            path=path,
            user_data=user_data,
            array=None
            if array is None
            else ArrayNode(
                shape=array.shape,
                num_chunks=array.num_chunks,
                dimension_names=array.dimension_names,
                manifests=next(refs),
            ),
        )
        for path, (node_id, user_data, array) in parts.items()
    ]
    nodes.sort(key=lambda node: node.path)
    return tuple(nodes), tuple(sorted(duplicates))


def _read_path(table: Table) -> NodePath:
    try:
        return stored_node_path(table.text("path"))
    except InvalidInputError as error:
        raise table.error("path", error.message) from error


def _read_node_data(table: Table) -> _ArrayParts | None:
    """Read what makes a node an array; None for a group."""
    kind = table.union_kind("node_data")
    if kind == _GROUP:
        table.child("node_data", GROUP_NODE_DATA)
        return None
    if kind != _ARRAY:
        raise UnsupportedError(
            f"{table.file_type} {table.object_key!r} holds a node of kind {kind}, but this library "
            f"knows {_ARRAY} (array) and {_GROUP} (group); upgrade icechunk-spark",
            object_key=table.object_key,
            found=kind,
            allowed=(_ARRAY, _GROUP),
        )
    array = table.child("node_data", ARRAY_NODE_DATA)
    shape, num_chunks = _read_shape(array)
    names = _read_dimension_names(array, len(shape))
    span = array.vector("manifests", 4)
    if span is None:
        raise array.missing("manifests")
    return _ArrayParts(
        shape=shape,
        num_chunks=num_chunks,
        dimension_names=names,
        span=RefsSpan(*span, num_chunks),
    )


def _read_shape(array: Table) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return elements and chunks per dimension."""
    dimensions = array.optional_children("shape_v2", DIMENSION_SHAPE_V2)
    if dimensions is not None:
        pairs = [(d.number("array_length"), d.number("num_chunks")) for d in dimensions]
        return tuple(length for length, _ in pairs), tuple(count for _, count in pairs)
    records = array.records("shape", _DIMENSION_SHAPE)
    lengths: list[int] = records["array_length"].tolist()
    chunks: list[int] = records["chunk_length"].tolist()
    counts = []
    for axis, (length, chunk) in enumerate(zip(lengths, chunks, strict=True)):
        if length and not chunk:
            raise array.error(f"shape[{axis}]", f"{length} elements in chunks of 0 elements")
        count = -(-length // chunk) if length else 0
        if count > _MAX_COORD:
            raise array.error(f"shape[{axis}]", f"{count} chunks; coordinates end at {_MAX_COORD}")
        counts.append(count)
    return tuple(lengths), tuple(counts)


def _read_dimension_names(array: Table, ndim: int) -> tuple[str | None, ...] | None:
    children = array.optional_children("dimension_names", DIMENSION_NAME)
    if children is None:
        return None
    # Writers store an unnamed dimension without a name; an empty name means the same.
    names = tuple(child.optional_text("name") or None for child in children)
    if len(names) != ndim:
        raise array.error("dimension_names", f"{len(names)} names for {ndim} dimensions")
    return names


def encode(snapshot: Snapshot, *, level: int = DEFAULT_LEVEL) -> bytes:
    """Write a snapshot file in the flavour of its ``spec_version``.

    ``parent_id`` is left out in version 2, as the format demands.

    Raises
    ------
    InvalidInputError
        When two nodes have one path, an array's parts have different numbers of dimensions, or
        a grid cannot be expressed in spec version 1.
    """
    writer = TableWriter()
    nodes = sorted(snapshot.nodes, key=lambda node: node.path)
    for left, right in pairwise(nodes):
        if left.path == right.path:
            raise InvalidInputError(
                f"two nodes have the path {left.path!r}; paths are unique",
                found=left.path,
                allowed="unique paths",
            )
    is_v1 = snapshot.spec_version == SPEC_V1
    parent = snapshot.parent_id
    root = writer.table(
        SNAPSHOT,
        id=snapshot.id.raw,
        parent_id=parent.raw if parent is not None and is_v1 else None,
        nodes=writer.offsets([_write_node(writer, node, is_v1=is_v1) for node in nodes]),
        flushed_at=snapshot.flushed_at,
        message=writer.text(snapshot.message),
        metadata=write_items(writer, snapshot.metadata_items, spec_version=snapshot.spec_version),
        manifest_files=write_manifest_files_v1(
            writer, snapshot.manifest_files if is_v1 else ManifestFiles.empty()
        ),
        manifest_files_v2=(
            None if is_v1 else write_manifest_files_v2(writer, snapshot.manifest_files)
        ),
    )
    return wrap(
        writer.finish(root),
        file_type=FileType.SNAPSHOT,
        spec_version=snapshot.spec_version,
        level=level,
    )


def _write_node(writer: TableWriter, node: NodeSnapshot, *, is_v1: bool) -> int:
    if node.array is None:
        kind, data = _GROUP, writer.table(GROUP_NODE_DATA)
    else:
        kind, data = _ARRAY, _write_array(writer, node.path, node.array, is_v1=is_v1)
    return writer.table(
        NODE_SNAPSHOT,
        id=node.id.raw,
        path=writer.text(stored_node_path(node.path)),
        user_data=writer.blob(node.user_data),
        node_data_type=kind,
        node_data=data,
    )


def _write_array(writer: TableWriter, path: NodePath, array: ArrayNode, *, is_v1: bool) -> int:
    names = array.dimension_names
    ndims = {len(array.shape), len(array.num_chunks), array.manifests.ndim}
    if names is not None:
        ndims.add(len(names))
    if len(ndims) != 1:
        raise InvalidInputError(
            f"array {path!r} has {len(array.shape)} dimensions in its shape, "
            f"{len(array.num_chunks)} in its chunk grid, {array.manifests.ndim} in its manifests "
            f"and {'none' if names is None else len(names)} in its names; they must agree",
            found=sorted(ndims),
            allowed=len(array.shape),
        )
    shape_v2 = None
    if not is_v1:
        shape_v2 = writer.offsets(
            [
                writer.table(DIMENSION_SHAPE_V2, array_length=length, num_chunks=count)
                for length, count in zip(array.shape, array.num_chunks, strict=True)
            ]
        )
    dimension_names = None
    if names is not None:
        dimension_names = writer.offsets(
            [
                writer.table(DIMENSION_NAME, name=writer.text(name) if name else None)
                for name in names
            ]
        )
    return writer.table(
        ARRAY_NODE_DATA,
        shape=_write_shape_v1(writer, path, array if is_v1 else None),
        dimension_names=dimension_names,
        manifests=write_manifest_refs(writer, array.manifests),
        shape_v2=shape_v2,
    )


def _write_shape_v1(writer: TableWriter, path: NodePath, array: ArrayNode | None) -> int:
    """Write the shape of spec version 1; empty in version 2.

    Version 1 stores a chunk length where the value has a number of chunks. For every regular grid
    the length computed here gives that number back; for other grids there is none.
    """
    if array is None:
        return writer.records(b"", count=0, alignment=8)
    content = []
    for axis, (length, count) in enumerate(zip(array.shape, array.num_chunks, strict=True)):
        chunk = -(-length // count) if length and count else 1
        if (-(-length // chunk) if length else 0) != count or not 0 <= length < 2**64:
            raise InvalidInputError(
                f"array {path!r} has {length} elements in {count} chunks along axis {axis}, which "
                "no regular grid has; spec version 1 knows regular grids only, use version 2",
                found=(length, count),
                allowed="a regular chunk grid",
            )
        content.append(struct.pack("<QQ", length, chunk))
    return writer.records(b"".join(content), count=len(content), alignment=8)
