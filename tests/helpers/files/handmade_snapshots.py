"""Snapshot files written table by table, as this project would never write them."""

from __future__ import annotations

import struct
from typing import Any

from helpers.files.small_snapshots import MANIFEST, SNAPSHOT_ID

from icechunk_format.encoding.envelope import FileType, wrap
from icechunk_format.encoding.snapshot.decode_nodes import (
    ARRAY_DATA,
    DIMENSION_SHAPE_V2,
    GROUP_DATA,
    NODE_SNAPSHOT,
)
from icechunk_format.encoding.snapshot.file import SNAPSHOT
from icechunk_format.encoding.snapshot.manifest_lists import MANIFEST_REF
from icechunk_format.encoding.tables.writer import TableWriter


def wrapped(writer: TableWriter, root: int, spec_version: int = 2) -> bytes:
    """Finish a file of one root table."""
    return wrap(
        writer.finish(root), file_type=FileType.SNAPSHOT, spec_version=spec_version, level=1
    )


def made(*, spec_version: int = 2, **changes: Any) -> bytes:
    """Write a snapshot table by table; ``changes`` are fields, or functions of the writer."""
    writer = TableWriter()
    fields: dict[str, Any] = {
        "id": SNAPSHOT_ID.raw,
        "nodes": writer.offsets([]),
        "message": writer.string(""),
        "metadata": writer.offsets([]),
        "manifest_files": writer.records(b"", count=0),
        "manifest_files_v2": writer.offsets([]),
    }
    fields |= changes
    resolved = {name: v(writer) if callable(v) else v for name, v in fields.items()}
    return wrapped(writer, writer.table(SNAPSHOT, **resolved), spec_version)


def node_table(w: TableWriter, path: str = "/a", **changes: Any) -> int:
    """Write a group node; ``changes`` replace its fields."""
    fields: dict[str, Any] = {
        "id": b"12345678",
        "path": w.string(path),
        "user_data": w.blob(b"{}"),
        "node_data_type": 2,
        "node_data": w.table(GROUP_DATA),
    }
    return w.table(NODE_SNAPSHOT, **(fields | changes))


def with_array(spec_version: int = 2, **changes: Any) -> bytes:
    """Write a snapshot with one array of ten by two chunks; ``changes`` as in ``made``."""

    def nodes(w: TableWriter) -> int:
        dimensions = [
            w.table(DIMENSION_SHAPE_V2, array_length=100, num_chunks=10),
            w.table(DIMENSION_SHAPE_V2, array_length=8, num_chunks=2),
        ]
        fields: dict[str, Any] = {
            "shape": w.records(b"", count=0),
            "manifests": w.offsets([]),
            "shape_v2": w.offsets(dimensions),
        }
        fields |= {name: v(w) if callable(v) else v for name, v in changes.items()}
        array = w.table(ARRAY_DATA, **fields)
        return w.offsets([node_table(w, node_data_type=1, node_data=array)])

    return made(nodes=nodes, spec_version=spec_version)


def refs_table(w: TableWriter, *extents: tuple[int, int]) -> int:
    """Write a reference to ``MANIFEST``, with one extent per axis."""
    content = b"".join(struct.pack("<II", *extent) for extent in extents)
    return w.table(MANIFEST_REF, object_id=MANIFEST, extents=w.records(content, count=len(extents)))
