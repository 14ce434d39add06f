"""Reads and writes snapshot files, which list all groups and arrays of a snapshot.

Rules of this file
------------------
1. `Snapshot` serves both spec versions. On reading, whichever lists are present determine the form
   of shapes and manifest files, and the spec byte the encoding of metadata. On writing,
   ``spec_version`` determines both.
2. Nodes are sorted by the raw UTF-8 bytes of their paths (`encoding.node_path`); other files are
   sorted when read. Existing writers can store two nodes with one path: the first is used, and
   ``duplicate_paths`` lists the path. Nodes are columns (`snapshot.nodes`), so a commit copies
   unchanged nodes without making objects.
3. A missing parent group is not an error: existing writers can store such nodes.
4. ``user_data`` is opaque: its bytes are never parsed or changed.

Specification: "Snapshot Files", schema ``snapshot.fbs``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from icechunk_format.display import shown_by
from icechunk_format.encoding.envelope import (
    DEFAULT_LEVEL,
    SPEC_V1,
    SPEC_V2,
    FileType,
    unwrap,
    wrap_blocks,
)
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.node_path import NodePath, is_canonical
from icechunk_format.encoding.snapshot.decode_nodes import read_nodes
from icechunk_format.encoding.snapshot.encode_nodes import EncodedNodes
from icechunk_format.encoding.snapshot.manifest_lists import (
    ManifestFiles,
    ManifestRefs,
    read_manifest_files,
    write_manifest_files_v1,
    write_manifest_files_v2,
)
from icechunk_format.encoding.snapshot.nodes import ArrayNode, Nodes, NodeSnapshot
from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.encoding.values.metadata_items import (
    NO_ITEMS,
    MetadataItems,
    read_items,
    write_items,
)

__all__ = [
    "ArrayNode",
    "ManifestFiles",
    "ManifestRefs",
    "NodeSnapshot",
    "Nodes",
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


@shown_by("groups.snapshot")
@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Snapshot:
    """All nodes of one snapshot of a repository.

    Parameters
    ----------
    parent_id
        Id of the parent. Stored in spec version 1 only; version 2 records it in ``repo``.
    flushed_at
        Microseconds since 1970-01-01T00:00:00Z.
    metadata_items
        Commit metadata as stored; ``metadata`` decodes it.
    nodes
        Sorted by path, paths unique.
    duplicate_paths
        Paths that the file contains more than once.
    """

    id: SnapshotId
    parent_id: SnapshotId | None = None
    spec_version: int = SPEC_V2
    flushed_at: int
    message: str
    metadata_items: MetadataItems = NO_ITEMS
    nodes: Nodes = field(default_factory=lambda: Nodes.of(()))
    manifest_files: ManifestFiles = field(default_factory=ManifestFiles.empty)
    duplicate_paths: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", Nodes.of(self.nodes))

    @property
    def metadata(self) -> dict[str, Any]:
        """Commit metadata as JSON values; FormatError if a value is damaged."""
        return self.metadata_items.decode()

    def node(self, path: NodePath | str) -> NodeSnapshot | None:
        """Return the node at a path, or None."""
        return self.nodes.at(path)

    def children(self, path: NodePath | str) -> tuple[NodeSnapshot, ...]:
        """Return the nodes directly inside a group with canonical paths, sorted by path."""
        inside = self.nodes.take(self.nodes.children(path))
        return tuple(node for node in inside if is_canonical(node.path))

    def descendants(self, path: NodePath | str) -> tuple[NodeSnapshot, ...]:
        """Return all nodes inside a group at any depth, sorted by path, without the group."""
        return self.nodes.take(self.nodes.descendants(path))


def decode(data: bytes, *, object_key: str) -> Snapshot:
    """Read a snapshot file of either spec version."""
    envelope = unwrap(data, file_type=FileType.SNAPSHOT, object_key=object_key)
    root = read_root(
        envelope.payload, SNAPSHOT, object_key=object_key, file_type=FileType.SNAPSHOT.label
    )
    columns, duplicates = read_nodes(root)
    parent = root.optional_raw_id("parent_id")
    return Snapshot(
        id=SnapshotId(root.raw_id("id")),
        parent_id=None if parent is None else SnapshotId(parent),
        spec_version=envelope.spec_version,
        flushed_at=root.number("flushed_at"),
        message=root.string("message"),
        metadata_items=read_items(root, spec_version=envelope.spec_version),
        nodes=Nodes(columns, object_key=object_key),
        manifest_files=read_manifest_files(root),
        duplicate_paths=tuple(path.decode("utf-8", errors="replace") for path in duplicates),
    )


def encode(snapshot: Snapshot, *, level: int = DEFAULT_LEVEL) -> bytes:
    """Return a snapshot file of its ``spec_version``; version 2 omits ``parent_id``."""
    is_v1 = snapshot.spec_version == SPEC_V1
    nodes = EncodedNodes(snapshot.nodes, is_v1=is_v1)
    writer = TableWriter()
    nodes_at = writer.reserve(nodes.size)
    parent = snapshot.parent_id
    root = writer.table(
        SNAPSHOT,
        id=snapshot.id.raw,
        parent_id=parent.raw if parent is not None and is_v1 else None,
        nodes=nodes_at,
        flushed_at=snapshot.flushed_at,
        message=writer.string(snapshot.message),
        metadata=write_items(writer, snapshot.metadata_items, spec_version=snapshot.spec_version),
        manifest_files=write_manifest_files_v1(
            writer, snapshot.manifest_files if is_v1 else ManifestFiles.empty()
        ),
        manifest_files_v2=(
            None if is_v1 else write_manifest_files_v2(writer, snapshot.manifest_files)
        ),
    )
    head = writer.finish(root)
    return wrap_blocks(
        chain([head], nodes.blocks()),
        len(head) + nodes.size,
        file_type=FileType.SNAPSHOT,
        spec_version=snapshot.spec_version,
        level=level,
    )
