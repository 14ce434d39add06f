"""Datasets in memory, written with this project's own encoders.

Arrays of any grid; some chunks missing; references split over any boxes of manifests.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
from helpers.builder import new_location

from icechunk_format.encoding.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE, ChunkRefs
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.manifest.encode import encode as encode_manifest
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.object_keys import chunk_key, manifest_key, snapshot_key
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.storage.location import open_storage
from icechunk_format.tables import Dataset
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata

_numbers = itertools.count(1)


def new_id(kind):
    return kind(next(_numbers).to_bytes(kind.SIZE, "big"))


@dataclass(kw_only=True)
class ArrayToWrite:
    """An array; ``missing`` are coordinates of chunks (or shards) that are not written."""

    values: np.ndarray
    chunks: tuple[int, ...]
    dims: tuple[str | None, ...] | None
    shards: tuple[int, ...] | None = None
    fill_value: object = 0
    attributes: dict = field(default_factory=dict)
    missing: frozenset = frozenset()
    manifest_chunks: int | None = None  # chunks of a manifest along each axis; None: all in one
    codecs: list | None = None


def write_dataset(name, arrays, *, group="/", attributes=None):
    """Write arrays to ``memory://name`` and return the dataset of their group."""
    location = new_location()
    storage = open_storage(location)
    nodes, files = {}, []
    for path in sorted({"/", group}):
        data = build_group_metadata(attributes=attributes).to_bytes()
        nodes[path] = NodeSnapshot(id=new_id(NodeId), path=NodePath(path), user_data=data)
    prefix = "" if group == "/" else group
    for array_name, array in arrays.items():
        path = NodePath(f"{prefix}/{array_name}")
        nodes[path] = _write_array(storage, path, array, files)
    snapshot = Snapshot(
        id=new_id(SnapshotId),
        flushed_at=0,
        message="written by a test",
        nodes=tuple(nodes[path] for path in sorted(nodes)),
        manifest_files=ManifestFiles.of(
            np.array([list(i.raw) for i, _, _ in files], dtype=np.uint8).reshape(-1, 12),
            np.array([size for _, size, _ in files], dtype=np.uint64),
            np.array([count for _, _, count in files], dtype=np.uint32),
        ),
    )
    storage.put(snapshot_key(snapshot.id), snapshot_file.encode(snapshot))
    return dataset_of(snapshot, location, group=group)


def dataset_of(snapshot, location, *, group="/"):
    return Dataset(snapshot, NodePath(group), ChunkSource(location=location))


def _write_array(storage, path, array, files):
    metadata = build_array_metadata(
        shape=array.values.shape,
        # Objects stand for text here; NumPy does not say.
        data_type=data_type_from_numpy(
            "string" if array.values.dtype == object else array.values.dtype
        ),
        chunk_shape=array.chunks,
        shard_shape=array.shards,
        fill_value=array.fill_value,
        dimension_names=array.dims,
        attributes=array.attributes,
        codecs=array.codecs,
        node_path=path,
    )
    node_id = new_id(NodeId)
    grid, codecs = metadata.grid, metadata.chunk_codecs()
    split = array.manifest_chunks or max((1, *grid.num_chunks))
    boxes = {}
    for coords in itertools.product(*(range(n) for n in grid.num_chunks)):
        if coords in array.missing:
            continue
        chunk = metadata.fill_array(grid.full_chunk_shape(coords))
        lower, upper = grid.box_of(coords)
        inside = tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))
        chunk[tuple(slice(0, b - a) for a, b in zip(lower, upper, strict=True))] = array.values[
            inside
        ]
        data = codecs.encode(chunk)
        chunk_id = new_id(ChunkId)
        storage.put(chunk_key(chunk_id), data)
        boxes.setdefault(tuple(c // split for c in coords), []).append((coords, chunk_id, data))
    ids, extents = [], []
    for stored in boxes.values():
        coords = np.array([c for c, _, _ in stored], dtype=np.uint32).reshape(len(stored), -1)
        blank = ChunkRefs.blank(coords, KIND_NATIVE)
        refs = ChunkRefs(
            coords=coords,
            kind=blank.kind,
            chunk_id=np.array([list(i.raw) for _, i, _ in stored], dtype=np.uint8),
            offset=blank.offset,
            length=np.array([len(d) for _, _, d in stored], dtype=np.uint64),
            last_modified=blank.last_modified,
        )
        manifest_id = new_id(ManifestId)
        manifest = Manifest(id=manifest_id, arrays=(ArrayManifest(node_id=node_id, refs=refs),))
        data = encode_manifest(manifest)
        storage.put(manifest_key(manifest_id), data)
        files.append((manifest_id, len(data), len(stored)))
        ids.append(list(manifest_id.raw))
        extents.append(refs.extents())
    ndim = array.values.ndim
    return NodeSnapshot(
        id=node_id,
        path=path,
        user_data=metadata.to_bytes(),
        array=ArrayNode(
            shape=array.values.shape,
            num_chunks=grid.num_chunks,
            dimension_names=array.dims,
            manifests=ManifestRefs(
                ids=np.array(ids, dtype=np.uint8).reshape(-1, 12),
                extents=np.array(extents, dtype=np.uint32).reshape(len(ids), ndim, 2),
            ),
        ),
    )
