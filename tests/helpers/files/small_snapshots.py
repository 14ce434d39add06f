"""A small snapshot of every kind of node, and lists of manifests from plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import (
    ArrayNode,
    ManifestFiles,
    ManifestRefs,
    NodeSnapshot,
    Snapshot,
)
from icechunk_format.encoding.values.metadata_items import MetadataItems

SNAPSHOT_ID = SnapshotId(b"s" * 12)
MANIFEST = b"m" * 12


def refs_of(ids: list[bytes], extents: Any, ndim: int) -> ManifestRefs:
    """Make references to manifests of an array, from ids and extents."""
    return ManifestRefs(
        ids=np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 12),
        extents=np.asarray(extents, dtype=np.uint32).reshape(len(ids), ndim, 2),
    )


def files_of(*files: tuple[bytes, int, int]) -> ManifestFiles:
    """Make a list of manifest files, of id, size in bytes and number of references each."""
    return ManifestFiles.of(
        np.frombuffer(b"".join(f[0] for f in files), dtype=np.uint8).reshape(-1, 12),
        np.array([f[1] for f in files], dtype=np.uint64),
        np.array([f[2] for f in files], dtype=np.uint32),
    )


def small_snapshot(spec_version: int = 2) -> Snapshot:
    """Build a group with two arrays beside a scalar; three manifests in all."""
    return Snapshot(
        id=SNAPSHOT_ID,
        parent_id=SnapshotId(b"p" * 12) if spec_version == 1 else None,
        spec_version=spec_version,
        flushed_at=1_700_000_000_000_000,
        message="grün",
        metadata_items=MetadataItems.of({"author": "someone"}, spec_version=spec_version),
        nodes=(
            NodeSnapshot(id=NodeId(b"node---1"), path=NodePath("/"), user_data=b"{}"),
            NodeSnapshot(id=NodeId(b"node---2"), path=NodePath("/foo"), user_data=b"{}"),
            NodeSnapshot(id=NodeId(b"node---3"), path=NodePath("/foo-x"), user_data=b"{}"),
            NodeSnapshot(
                id=NodeId(b"node---4"),
                path=NodePath("/foo/a"),
                user_data=b'{"zarr_format": 3}' * 20,
                array=ArrayNode(
                    shape=(100, 7),
                    num_chunks=(10, 1),
                    dimension_names=("time", None),
                    manifests=refs_of(
                        [b"a" * 12, MANIFEST], [[[0, 4], [0, 1]], [[4, 10], [0, 1]]], 2
                    ),
                ),
            ),
            NodeSnapshot(
                id=NodeId(b"node---5"),
                path=NodePath("/foo/a/deep"),
                user_data=b"",
                array=ArrayNode(shape=(0,), num_chunks=(0,), manifests=ManifestRefs.empty(1)),
            ),
            NodeSnapshot(
                id=NodeId(b"node---6"),
                path=NodePath("/scalar"),
                user_data=b"{}",
                array=ArrayNode(
                    shape=(),
                    num_chunks=(),
                    dimension_names=(),
                    manifests=refs_of([b"z\0" * 6], [], 0),
                ),
            ),
        ),
        manifest_files=files_of((MANIFEST, 500, 6), (b"a" * 12, 0, 4), (b"z\0" * 6, 7, 1)),
    )
