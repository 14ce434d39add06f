"""A small sound repository, and copies of it that tests damage behind the back of every rule."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
from helpers.sessions.model import group_document

from icechunk_format.encoding.envelope import FileType, unwrap, wrap
from icechunk_format.encoding.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icechunk_format.encoding.manifest import decode as manifest_file
from icechunk_format.encoding.manifest import encode as manifest_encode
from icechunk_format.encoding.manifest.chunk_refs import virtual_refs
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.repository import Repository
from icechunk_format.zarr.codecs.bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = "/g/lines"
SHARDS = "/g/shards"
SMALL = "/small"
REMOTE = "/remote"
CHUNK_BYTES = 1024


def array_document(shape, chunks, codecs, names=None):
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
    }
    if names is not None:
        document["dimension_names"] = names
    return json.dumps(document).encode()


_CRC = [{"name": "bytes"}, {"name": "crc32c"}]
_SHARDED = [
    {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [1, 512],
            "codecs": [{"name": "bytes"}],
            "index_codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
            "index_location": "end",
        },
    }
]


def _with_crc(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


def _shard(seed: int) -> bytes:
    """Return a shard of two inner chunks of 512 bytes."""
    content = np.random.default_rng(seed).integers(0, 255, 1024, np.uint8).tobytes()
    index = np.array([[0, 512], [512, 512]], dtype="<u8").tobytes()
    return content + _with_crc(index)


def build_sound(path: Path) -> Repository:
    """Build a repository of spec version 2 with native, inline, sharded and virtual chunks."""
    files = path.parent / f"{path.name}-files"
    files.mkdir(parents=True)
    (files / "one.bin").write_bytes(bytes(4096))
    repository = Repository.create(str(path))
    repository.update_config(
        {
            "virtual_chunk_containers": {
                files.as_uri() + "/": {
                    "name": "files",
                    "url_prefix": files.as_uri() + "/",
                    "store": {"local_file_system": str(files)},
                }
            }
        }
    )
    chance = np.random.default_rng(5)
    session = repository.writable_session("main")
    session.create_group("/", group_document())
    session.create_group("/g", group_document())
    lines = array_document((4, 2048), (1, 1024), _CRC, ["y", "x"])
    session.create_array(
        LINES, lines, shape=(4, 2048), num_chunks=(4, 2), dimension_names=("y", "x")
    )
    session.create_array(
        SHARDS, array_document((2, 1024), (1, 1024), _SHARDED), shape=(2, 1024), num_chunks=(2, 1)
    )
    session.create_array(
        SMALL, array_document((6,), (2,), [{"name": "bytes"}]), shape=(6,), num_chunks=(3,)
    )
    session.create_array(
        REMOTE,
        array_document((4, 1024), (1, 1024), [{"name": "bytes"}]),
        shape=(4, 1024),
        num_chunks=(4, 1),
    )
    coords = np.argwhere(np.ones((4, 2)))
    chunks = [_with_crc(chance.integers(0, 255, CHUNK_BYTES, np.uint8).tobytes()) for _ in coords]
    session.set_chunks(LINES, coords, chunks)
    session.set_chunks(SHARDS, [[0, 0], [1, 0]], [_shard(1), _shard(2)])
    session.set_chunks(SMALL, [[0], [1], [2]], [b"ab", b"cd", b"ef"])
    session.set_refs(
        REMOTE,
        virtual_refs(
            [[0, 0], [1, 0], [2, 0]],
            [(files / "one.bin").as_uri(), (files / "one.bin").as_uri(), "vcc://files/one.bin"],
            [0, 1024, 2048],
            [1024] * 3,
            last_modified=[2**32 - 1] * 3,
        ),
    )
    first = session.commit("first", metadata={"by": "hand"}).snapshot_id
    session = repository.writable_session("main")
    session.set_chunk(LINES, (3, 1), _with_crc(bytes(CHUNK_BYTES)))
    session.commit("second")
    session = repository.writable_session("main")
    session.update_metadata("/g", group_document(2))
    session.commit("third")
    repository.create_tag("v1", first)
    repository.create_tag("gone", first)
    repository.delete_tag("gone")
    repository.create_branch("side", first)
    return repository


class Damaged:
    """A copy of the sound repository, with ways to change it behind the back of every rule."""

    def __init__(self, sound: Path, path: Path) -> None:
        shutil.copytree(sound, path)
        self.path = path
        self.repository = Repository.open(str(path))
        self.tip = self.repository.branches()["main"]
        self.first = self.repository.tags()["v1"]

    # -- files --------------------------------------------------------------------------------

    def file(self, key: str) -> Path:
        return self.path / key

    def flip(self, key: str, at: int) -> None:
        data = bytearray(self.file(key).read_bytes())
        data[at] ^= 0x10
        self.file(key).write_bytes(data)

    def truncate(self, key: str, size: int) -> None:
        self.file(key).write_bytes(self.file(key).read_bytes()[:size])

    def edit_payload(self, key: str, file_type: FileType, change: Callable[[bytearray], None]):
        envelope = unwrap(self.file(key).read_bytes(), file_type=file_type, object_key=key)
        payload = bytearray(envelope.payload)
        change(payload)
        data = wrap(bytes(payload), file_type=file_type, spec_version=envelope.spec_version)
        self.file(key).write_bytes(data)

    # -- repo -----------------------------------------------------------------------------------

    def edit_repo(self, change: Callable[[repo_info.RepoInfo], repo_info.RepoInfo]) -> None:
        info = repo_info.decode(self.file("repo").read_bytes())
        # The encoder refuses logs that others refuse; here they are wanted.
        with mock.patch.object(repo_info, "_writable_log", _whole_log):
            self.file("repo").write_bytes(repo_info.encode(change(info)))

    def edit_info(self, snapshot_id: SnapshotId, **changes) -> None:
        self.edit_repo(
            lambda info: replace(
                info,
                snapshots=dict(info.snapshots)
                | {snapshot_id: replace(info.snapshots[snapshot_id], **changes)},
            )
        )

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot(self, snapshot_id: SnapshotId) -> snapshot.Snapshot:
        data = self.file(f"snapshots/{snapshot_id}").read_bytes()
        return snapshot.decode(data, object_key=f"snapshots/{snapshot_id}")

    def edit_snapshot(self, **changes) -> None:
        """Replace fields of the newest snapshot."""
        found = replace(self.snapshot(self.tip), **changes)
        self.file(f"snapshots/{self.tip}").write_bytes(snapshot.encode(found))

    def node(self, path: str) -> snapshot.NodeSnapshot:
        found = self.snapshot(self.tip).node(path)
        assert found is not None
        return found

    def without(self, path: str):
        return tuple(node for node in self.snapshot(self.tip).nodes if node.path != path)

    def edit_node(self, path: str, **changes) -> None:
        node = replace(self.node(path), **changes)
        self.edit_snapshot(nodes=(*self.without(path), node))

    def edit_array(self, path: str, **changes) -> None:
        array = self.node(path).array
        assert array is not None
        self.edit_node(path, array=replace(array, **changes))

    # -- manifests ------------------------------------------------------------------------------

    def manifest_id(self, path: str) -> ManifestId:
        array = self.node(path).array
        assert array is not None
        return array.manifests.manifest_id(0)

    def manifest_key(self, path: str) -> str:
        return f"manifests/{self.manifest_id(path)}"

    def manifest(self, path: str) -> Manifest:
        return manifest_file.decode(self.file(self.manifest_key(path)).read_bytes())

    def refs(self, path: str):
        entry = self.manifest(path).array(self.node(path).id)
        assert entry is not None
        return entry.refs

    def set_refs(self, path: str, refs, node_id: NodeId | None = None) -> None:
        """Replace the references of an array in its newest manifest, listed with its new size."""
        entry = ArrayManifest(node_id=node_id or self.node(path).id, refs=refs)
        made = Manifest(id=self.manifest_id(path), arrays=(entry,) if refs is not None else ())
        self.put_manifest(path, manifest_encode.encode(made), 0 if refs is None else len(refs))

    def put_manifest(self, path: str, data: bytes, num_refs: int | None = None) -> None:
        self.file(self.manifest_key(path)).write_bytes(data)
        self.relist(path, size=len(data), num_refs=num_refs)

    def edit_manifest_payload(self, path: str, change: Callable[[bytearray], None]) -> None:
        self.edit_payload(self.manifest_key(path), FileType.MANIFEST, change)
        self.relist(path, size=self.file(self.manifest_key(path)).stat().st_size)

    def relist(self, path: str, *, size: int | None = None, num_refs: int | None = None) -> None:
        """Correct what all snapshots list about a manifest."""
        raw = np.frombuffer(self.manifest_id(path).raw, dtype=np.uint8)
        for file in self.file("snapshots").iterdir():
            found = self.snapshot(SnapshotId.parse(file.name))
            files = found.manifest_files
            is_it = (files.ids == raw).all(axis=1)
            if not is_it.any():
                continue
            sizes, counts = files.size_bytes.copy(), files.num_chunk_refs.copy()
            sizes[is_it] = sizes[is_it] if size is None else size
            counts[is_it] = counts[is_it] if num_refs is None else num_refs
            listed = ManifestFiles.of(files.ids, sizes, counts)
            file.write_bytes(snapshot.encode(replace(found, manifest_files=listed)))

    def chunk_key(self, path: str, row: int) -> str:
        return f"chunks/{ChunkId(self.refs(path).chunk_id[row].tobytes())}"

    def extents(self, path: str, *boxes) -> ManifestRefs:
        """Return references to the array's manifest, once for each of the boxes."""
        raw = self.manifest_id(path).raw * len(boxes)
        ids = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 12)
        return ManifestRefs(ids=ids, extents=np.array(boxes, dtype=np.uint32))


def _whole_log(info):
    return info.latest_updates, info.repo_before_updates


def swap_offsets(payload: bytearray, start: int, first: int = 0, second: int = 1) -> None:
    """Exchange two items of a vector of offsets that begins at ``start``."""
    places = [start + 4 * first, start + 4 * second]
    targets = [at + struct.unpack_from("<I", payload, at)[0] for at in places]
    for at, target in zip(places, reversed(targets), strict=True):
        struct.pack_into("<I", payload, at, target - at)


def swap_in(schema: TableSchema, field: str, first: int = 0, second: int = 1):
    def change(payload: bytearray) -> None:
        root = read_root(bytes(payload), schema, object_key="x", file_type="x")
        start, _ = root.vector(field, 4)
        swap_offsets(payload, start, first, second)

    return change


_MANIFEST = TableSchema("Manifest", id="id12", arrays="offset")
_ARRAY_MANIFEST = TableSchema("ArrayManifest", node_id="id8", refs="offset")


def refs_vector(payload: bytearray) -> int:
    root = read_root(bytes(payload), _MANIFEST, object_key="x", file_type="x")
    (array,) = root.children("arrays", _ARRAY_MANIFEST)
    start, _ = array.vector("refs", 4)
    return start


def replace_bytes(old: bytes, new: bytes):
    assert len(old) == len(new)

    def change(payload: bytearray) -> None:
        assert bytes(payload).count(old) >= 1
        payload[:] = bytes(payload).replace(old, new)

    return change
