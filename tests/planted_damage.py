"""A small repository, and every way in which tests damage a copy of it.

``build_sound`` makes the repository; each function in ``DAMAGES`` changes one thing in a copy, by
our own encoders where what it wants can be written, and by bytes where no writer would write it.
Each says which kinds of findings it must lead to, and no error beside those.
"""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from unittest import mock

import flatbuffers
import numpy as np
import zstandard
from session_model import group_document

from icechunk_format.arrays.crc32c import crc32c
from icechunk_format.repository.repository import Repository
from icechunk_format.spec import manifest as manifest_file
from icechunk_format.spec import manifest_encode, repo_info, snapshot, transaction_log
from icechunk_format.spec.envelope import FileType, unwrap, wrap
from icechunk_format.spec.flexbuffers import encode_flexbuffer
from icechunk_format.spec.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icechunk_format.spec.manifest import ArrayManifest, Manifest
from icechunk_format.spec.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.spec.metadata_items import MetadataItems
from icechunk_format.spec.ref_columns import inline_refs, native_refs, virtual_refs
from icechunk_format.spec.table_schema import TableSchema
from icechunk_format.spec.tables import read_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = "/g/lines"
SHARDS = "/g/shards"
SMALL = "/small"
REMOTE = "/remote"
CHUNK_BYTES = 1024


def _array(shape, chunks, codecs, names=None):
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
    lines = _array((4, 2048), (1, 1024), _CRC, ["y", "x"])
    session.create_array(
        LINES, lines, shape=(4, 2048), num_chunks=(4, 2), dimension_names=("y", "x")
    )
    session.create_array(
        SHARDS, _array((2, 1024), (1, 1024), _SHARDED), shape=(2, 1024), num_chunks=(2, 1)
    )
    session.create_array(
        SMALL, _array((6,), (2,), [{"name": "bytes"}]), shape=(6,), num_chunks=(3,)
    )
    session.create_array(
        REMOTE,
        _array((4, 1024), (1, 1024), [{"name": "bytes"}]),
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


def _swap_offsets(payload: bytearray, start: int, first: int = 0, second: int = 1) -> None:
    """Exchange two items of a vector of offsets that begins at ``start``."""
    places = [start + 4 * first, start + 4 * second]
    targets = [at + struct.unpack_from("<I", payload, at)[0] for at in places]
    for at, target in zip(places, reversed(targets), strict=True):
        struct.pack_into("<I", payload, at, target - at)


def _swap_in(schema: TableSchema, field: str, first: int = 0, second: int = 1):
    def change(payload: bytearray) -> None:
        root = read_root(bytes(payload), schema, object_key="x", file_type="x")
        start, _ = root.vector(field, 4)
        _swap_offsets(payload, start, first, second)

    return change


_MANIFEST = TableSchema("Manifest", id="id12", arrays="offset")
_ARRAY_MANIFEST = TableSchema("ArrayManifest", node_id="id8", refs="offset")


def _refs_vector(payload: bytearray) -> int:
    root = read_root(bytes(payload), _MANIFEST, object_key="x", file_type="x")
    (array,) = root.children("arrays", _ARRAY_MANIFEST)
    start, _ = array.vector("refs", 4)
    return start


def _replace(old: bytes, new: bytes):
    assert len(old) == len(new)

    def change(payload: bytearray) -> None:
        assert bytes(payload).count(old) >= 1
        payload[:] = bytes(payload).replace(old, new)

    return change


@dataclass(frozen=True)
class Damage:
    """One way to damage a repository, and what must be found."""

    name: str
    apply: Callable[[Damaged], None]
    kinds: frozenset[str]
    deep: bool = False
    authorized: bool = False


DAMAGES: list[Damage] = []


def damage(*kinds: str, deep: bool = False, authorized: bool = False):
    """Register a way to damage a repository, with the kinds of errors and warnings it makes."""

    def register(function):
        name = function.__name__.strip("_")
        DAMAGES.append(Damage(name, function, frozenset(kinds), deep, authorized))
        return function

    return register


# -- repo ---------------------------------------------------------------------------------------


@damage("repo-damaged")
def repo_cut_short(d: Damaged) -> None:
    d.truncate("repo", 300)


@damage("repo-damaged")
def repo_of_another_type(d: Damaged) -> None:
    shutil.copy(d.file(f"snapshots/{d.tip}"), d.file("repo"))


@damage("repo-unsorted")
def repo_snapshots_out_of_order(d: Damaged) -> None:
    # Parents and refs are indices, so that two snapshots in exchanged places are two mixed up;
    # branches stand for themselves.
    d.edit_payload("repo", FileType.REPO_INFO, _swap_in(repo_info.REPO, "branches"))


@damage("main-missing")
def no_main(d: Damaged) -> None:
    d.edit_repo(lambda i: replace(i, branches={"trunk": d.tip, "side": d.first}))


@damage("history-cycle", "snapshot-time-reversed")
def history_in_a_circle(d: Damaged) -> None:
    d.edit_info(d.first, parent_id=d.tip)


@damage("tag-deleted-but-present")
def deleted_tag_that_is_there(d: Damaged) -> None:
    d.edit_repo(lambda i: replace(i, deleted_tags=(*i.deleted_tags, "v1")))


@damage("operations-log-invalid")
def newest_operation_with_a_backup(d: Damaged) -> None:
    name = next(u.backup_path for u in d.repository.operations() if u.backup_path)

    def change(info):
        newest, *older = info.latest_updates
        return replace(info, latest_updates=(replace(newest, backup_path=name), *older))

    d.edit_repo(change)


@damage("config-damaged")
def config_of_noise(d: Damaged) -> None:
    d.edit_repo(lambda i: replace(i, config=b"\xff\xff\xff"))


@damage("container-ignored", "virtual-container-unknown", "virtual-location-bad")
def container_without_slash(d: Damaged) -> None:
    container = {"url_prefix": "s3://bucket/x", "name": "x", "store": {"s3": {}}}
    config = encode_flexbuffer({"virtual_chunk_containers": {"s3://bucket/x": container}})
    d.edit_repo(lambda i: replace(i, config=config))


@damage("metadata-damaged")
def metadata_of_noise(d: Damaged) -> None:
    broken = MetadataItems.of({"a": "text"})
    items = replace(broken, items=tuple((name, b"\xff\xff\xff") for name, _ in broken.items))
    d.edit_repo(lambda i: replace(i, metadata_items=items))


@damage("backup-missing")
def backup_deleted(d: Damaged) -> None:
    next(d.file("overwritten").iterdir()).unlink()


@damage("backup-damaged")
def backup_cut_short(d: Damaged) -> None:
    name = sorted(p.name for p in d.file("overwritten").iterdir())[0]
    d.truncate(f"overwritten/{name}", 120)


# -- snapshots ----------------------------------------------------------------------------------


@damage("snapshot-time-reversed", "snapshot-differs-from-repo")
def time_runs_backwards(d: Damaged) -> None:
    d.edit_info(d.tip, flushed_at=1)


@damage("snapshot-missing")
def snapshot_deleted(d: Damaged) -> None:
    d.file(f"snapshots/{d.tip}").unlink()


@damage("snapshot-damaged")
def snapshot_cut_short(d: Damaged) -> None:
    d.truncate(f"snapshots/{d.tip}", 200)


@damage("snapshot-damaged")
def snapshot_header_flipped(d: Damaged) -> None:
    d.flip(f"snapshots/{d.tip}", 3)


@damage("snapshot-damaged")
def snapshot_of_a_newer_format(d: Damaged) -> None:
    d.flip(f"snapshots/{d.tip}", 36)


@damage("snapshot-id-mismatch")
def snapshot_over_another(d: Damaged) -> None:
    shutil.copy(d.file(f"snapshots/{d.first}"), d.file(f"snapshots/{d.tip}"))


@damage("snapshot-differs-from-repo")
def snapshot_of_another_time(d: Damaged) -> None:
    d.edit_snapshot(flushed_at=d.snapshot(d.tip).flushed_at + 1)


@damage("snapshot-unsorted")
def nodes_out_of_order(d: Damaged) -> None:
    change = _swap_in(snapshot.SNAPSHOT, "nodes", 1, 2)
    d.edit_payload(f"snapshots/{d.tip}", FileType.SNAPSHOT, change)


@damage("snapshot-unsorted")
def manifest_files_out_of_order(d: Damaged) -> None:
    change = _swap_in(snapshot.SNAPSHOT, "manifest_files_v2")
    d.edit_payload(f"snapshots/{d.tip}", FileType.SNAPSHOT, change)


@damage("node-path-duplicate")
def two_nodes_with_one_path(d: Damaged) -> None:
    twin = replace(d.node("/g"), id=NodeId(b"\1" * 8), path="/h")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, twin))
    # "/h" sorts last but one, so the renamed twin is also out of place; put it beside the other.
    key = f"snapshots/{d.tip}"
    paths = sorted(node.path for node in d.snapshot(d.tip).nodes)
    for at in range(paths.index("/h"), paths.index("/g") + 1, -1):
        d.edit_payload(key, FileType.SNAPSHOT, _swap_in(snapshot.SNAPSHOT, "nodes", at - 1, at))
    d.edit_payload(key, FileType.SNAPSHOT, _replace(b"\2\0\0\0/h\0", b"\2\0\0\0/g\0"))


@damage("node-id-duplicate")
def two_nodes_with_one_id(d: Damaged) -> None:
    twin = replace(d.node("/g"), path="/h")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, twin))


# The log of this version says that the group was changed.
@damage("node-parent-missing", "log-unknown-node")
def group_gone_from_under_its_arrays(d: Damaged) -> None:
    d.edit_snapshot(nodes=d.without("/g"))


@damage("node-parent-not-group")
def node_inside_an_array(d: Damaged) -> None:
    child = replace(d.node("/g"), id=NodeId(b"\1" * 8), path="/small/inner")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, child))


@damage("root-missing")
def no_root_group(d: Damaged) -> None:
    d.edit_snapshot(nodes=d.without("/"))


@damage("zarr-json-damaged")
def zarr_json_of_noise(d: Damaged) -> None:
    d.edit_node("/g", user_data=b"{ not json")


@damage("zarr-json-damaged")
def zarr_json_of_a_group_at_an_array(d: Damaged) -> None:
    d.edit_node(SMALL, user_data=group_document())


@damage("zarr-json-damaged")
def codecs_that_do_not_fit(d: Damaged) -> None:
    d.edit_node(SMALL, user_data=_array((6,), (2,), [{"name": "crc32c"}, {"name": "bytes"}]))


@damage("array-shape-mismatch")
def shapes_differ(d: Damaged) -> None:
    d.edit_array(SMALL, shape=(8,))


@damage("array-grid-mismatch")
def grids_differ(d: Damaged) -> None:
    d.edit_array(SMALL, num_chunks=(4,))


@damage("array-names-mismatch")
def dimension_names_differ(d: Damaged) -> None:
    d.edit_array(LINES, dimension_names=("y", "z"))


@damage("manifest-unlisted")
def manifest_not_listed(d: Damaged) -> None:
    files = d.snapshot(d.tip).manifest_files
    kept = (files.ids != np.frombuffer(d.manifest_id(SMALL).raw, np.uint8)).any(axis=1)
    listed = ManifestFiles.of(files.ids[kept], files.size_bytes[kept], files.num_chunk_refs[kept])
    d.edit_snapshot(manifest_files=listed)


@damage("extents-overlap", "ref-outside-extents")
def extents_overlap(d: Damaged) -> None:
    boxes = [[0, 3], [0, 2]], [[2, 4], [1, 2]]
    d.edit_array(LINES, manifests=d.extents(LINES, *boxes))


@damage("extents-not-tight", "extents-outside-grid")
def extents_beyond_the_grid(d: Damaged) -> None:
    d.edit_array(SMALL, manifests=d.extents(SMALL, [[0, 9]]))


@damage("ref-outside-extents")
def extents_too_narrow(d: Damaged) -> None:
    d.edit_array(SMALL, manifests=d.extents(SMALL, [[0, 2]]))


@damage("ref-outside-grid", "extents-outside-grid")
def references_beyond_the_grid(d: Damaged) -> None:
    d.edit_node(
        SMALL,
        user_data=_array((3,), (2,), [{"name": "bytes"}]),
        array=replace(d.node(SMALL).array, shape=(3,), num_chunks=(2,)),
    )


# -- transaction logs -----------------------------------------------------------------------------


@damage("log-missing")
def log_deleted(d: Damaged) -> None:
    d.file(f"transactions/{d.tip}").unlink()


@damage("log-damaged")
def log_cut_short(d: Damaged) -> None:
    d.truncate(f"transactions/{d.first}", 90)


@damage("log-id-mismatch")
def log_over_another(d: Damaged) -> None:
    shutil.copy(d.file(f"transactions/{d.first}"), d.file(f"transactions/{d.tip}"))


@damage("log-unknown-node")
def log_of_unknown_nodes(d: Damaged) -> None:
    log = transaction_log.TransactionLog(id=d.tip, new_groups=(NodeId(b"\7" * 8),))
    d.file(f"transactions/{d.tip}").write_bytes(transaction_log.encode(log))


@damage("log-unsorted")
def log_out_of_order(d: Damaged) -> None:
    schema = TableSchema(
        "TransactionLog", id="id12", new_groups="offset", new_arrays="offset", c="offset",
        d="offset", e="offset", f="offset", updated_chunks="offset",
    )  # fmt: skip
    change = _swap_in(schema, "updated_chunks")
    d.edit_payload(f"transactions/{d.first}", FileType.TRANSACTION_LOG, change)


# -- manifests ------------------------------------------------------------------------------------


@damage("manifest-missing")
def manifest_deleted(d: Damaged) -> None:
    d.file(d.manifest_key(LINES)).unlink()


@damage("manifest-damaged")
def manifest_cut_short(d: Damaged) -> None:
    d.truncate(d.manifest_key(LINES), 100)


@damage("manifest-damaged")
def manifest_with_a_wild_offset(d: Damaged) -> None:
    def change(payload: bytearray) -> None:
        struct.pack_into("<I", payload, _refs_vector(payload), 0x7FFFFFFF)

    d.edit_manifest_payload(LINES, change)


@damage("manifest-id-mismatch")
def manifest_over_another(d: Damaged) -> None:
    shutil.copy(d.file(d.manifest_key(SMALL)), d.file(d.manifest_key(LINES)))


@damage("manifest-size-mismatch")
def manifest_recompressed(d: Damaged) -> None:
    file = d.file(d.manifest_key(LINES))
    payload = unwrap(file.read_bytes(), file_type=FileType.MANIFEST, object_key="m").payload
    frame = zstandard.ZstdCompressor(level=0, write_checksum=True).compress(payload)
    file.write_bytes(file.read_bytes()[:39] + frame)


@damage("manifest-count-mismatch")
def manifest_listed_with_another_count(d: Damaged) -> None:
    d.relist(LINES, num_refs=5)


@damage("manifest-unsorted")
def references_out_of_order(d: Damaged) -> None:
    d.edit_manifest_payload(LINES, lambda p: _swap_offsets(p, _refs_vector(p), 2, 5))


@damage("ref-duplicate", "manifest-count-mismatch")
def reference_twice(d: Damaged) -> None:
    def change(payload: bytearray) -> None:
        start = _refs_vector(payload)
        (offset,) = struct.unpack_from("<I", payload, start + 4)
        struct.pack_into("<I", payload, start + 8, offset - 4)

    d.edit_manifest_payload(LINES, change)


@damage("manifest-lacks-array")
def manifest_of_another_array(d: Damaged) -> None:
    d.set_refs(SMALL, d.refs(SMALL), node_id=NodeId(b"\5" * 8))


@damage("manifest-lacks-array", "manifest-empty")
def manifest_without_references(d: Damaged) -> None:
    d.set_refs(SMALL, None)


@damage("ref-dimensions")
def references_of_other_dimensions(d: Damaged) -> None:
    refs = d.refs(LINES)
    flat = native_refs(np.arange(len(refs)).reshape(-1, 1), refs.chunk_id, refs.length, refs.offset)
    d.set_refs(LINES, flat)


# The version before uses the same manifest, and expects more references in it.
@damage("ref-ambiguous", "extents-not-tight")
def reference_with_two_payloads(d: Damaged) -> None:
    key = d.chunk_key(LINES, 0)
    d.edit_array(LINES, manifests=d.extents(LINES, [[0, 1], [0, 1]]))
    d.put_manifest(LINES, _two_payloads(d.manifest_id(LINES), d.node(LINES).id, key), 1)


def _two_payloads(manifest_id: ManifestId, node_id: NodeId, chunk_key: str) -> bytes:
    """Write a manifest with one reference that has a chunk id and inline bytes."""
    builder = flatbuffers.Builder(256)
    inline = builder.CreateByteVector(b"inline")
    builder.StartVector(4, 2, 4)
    builder.PrependUint32(0)
    builder.PrependUint32(0)
    index = builder.EndVector()
    builder.StartObject(10)
    builder.PrependUint64Slot(3, CHUNK_BYTES + 4, 0)
    builder.PrependUOffsetTRelativeSlot(0, index, 0)
    builder.PrependUOffsetTRelativeSlot(1, inline, 0)
    builder.PrependStructSlot(4, _raw(builder, ChunkId.parse(chunk_key[7:]).raw), 0)
    ref = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(ref)
    refs = builder.EndVector()
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(1, refs, 0)
    builder.PrependStructSlot(0, _raw(builder, node_id.raw), 0)
    array = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(array)
    arrays = builder.EndVector()
    builder.StartObject(5)
    builder.PrependUOffsetTRelativeSlot(1, arrays, 0)
    builder.PrependStructSlot(0, _raw(builder, manifest_id.raw), 0)
    builder.Finish(builder.EndObject(), file_identifier=b"Ichk")
    return wrap(bytes(builder.Output()), file_type=FileType.MANIFEST, spec_version=2)


def _raw(builder: flatbuffers.Builder, raw: bytes) -> int:
    builder.Prep(1, len(raw))
    for byte in reversed(raw):
        builder.PrependByte(byte)
    return builder.Offset()


def _with_columns(d: Damaged, path: str, **columns) -> None:
    refs = d.refs(path)
    made = {
        name: getattr(refs, name)
        for name in ("coords", "kind", "chunk_id", "offset", "length", "last_modified", "texts")
    }
    d.set_refs(path, type(refs)(**(made | columns)))


def _changed(column, row: int, value):
    changed = column.copy()
    changed[row] = value
    return changed


@damage("ref-empty")
def reference_without_bytes(d: Damaged) -> None:
    _with_columns(d, LINES, length=_changed(d.refs(LINES).length, 3, 0))


@damage("ref-range", "chunk-too-short")
def reference_beyond_any_object(d: Damaged) -> None:
    _with_columns(d, LINES, offset=_changed(d.refs(LINES).offset, 3, 2**64 - 10))


# -- chunks ---------------------------------------------------------------------------------------


@damage("chunk-missing")
def chunk_deleted(d: Damaged) -> None:
    d.file(d.chunk_key(LINES, 0)).unlink()


@damage("chunk-missing")
def chunk_renamed(d: Damaged) -> None:
    file = d.file(d.chunk_key(LINES, 7))
    file.rename(file.with_name(file.name.lower()))


@damage("chunk-too-short")
def chunk_cut_short(d: Damaged) -> None:
    d.truncate(d.chunk_key(LINES, 0), 1000)


@damage("chunk-too-short")
def reference_beyond_its_chunk(d: Damaged) -> None:
    _with_columns(d, LINES, offset=_changed(d.refs(LINES).offset, 2, 1))


@damage("chunk-undecodable", deep=True)
def chunk_flipped(d: Damaged) -> None:
    d.flip(d.chunk_key(LINES, 0), 500)


@damage("chunk-undecodable", deep=True)
def chunk_swapped_with_a_shard(d: Damaged) -> None:
    shutil.copy(d.file(d.chunk_key(SHARDS, 0)), d.file(d.chunk_key(LINES, 1)))


@damage("chunk-undecodable", deep=True)
def shard_index_flipped(d: Damaged) -> None:
    d.flip(d.chunk_key(SHARDS, 0), 1030)


@damage("chunk-undecodable", deep=True)
def inline_chunk_of_another_size(d: Damaged) -> None:
    d.set_refs(SMALL, inline_refs([[0], [1], [2]], [b"ab", b"cde", b"ef"]))


@damage("chunk-undecodable", deep=True)
def chunks_exchanged_with_another_codec(d: Damaged) -> None:
    document = json.loads(d.node(LINES).user_data)
    document["codecs"] = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 0}}]
    d.edit_node(LINES, user_data=json.dumps(document).encode())


# -- virtual chunks -------------------------------------------------------------------------------


def _set_locations(d: Damaged, locations) -> None:
    d.set_refs(
        REMOTE,
        virtual_refs([[0, 0], [1, 0], [2, 0]], locations, [0, 1024, 2048], [1024] * 3),
    )


def _one(d: Damaged) -> str:
    return d.repository.config.virtual_chunk_containers[0].url_prefix + "one.bin"


@damage("virtual-location-bad")
def location_that_leaves_its_folder(d: Damaged) -> None:
    _set_locations(d, [_one(d), _one(d).replace("one.bin", "../secret"), _one(d)])


@damage("virtual-location-bad")
def location_in_an_unknown_container(d: Damaged) -> None:
    _set_locations(d, [_one(d), "vcc://nowhere/one.bin", _one(d)])


@damage("virtual-container-unknown")
def location_outside_of_containers(d: Damaged) -> None:
    _set_locations(d, [_one(d), "s3://elsewhere/one.bin", "s3://elsewhere/two.bin"])


@damage("virtual-missing", authorized=True)
def virtual_file_missing(d: Damaged) -> None:
    _set_locations(d, [_one(d), _one(d).replace("one", "none"), _one(d)])


@damage("virtual-too-short", authorized=True)
def virtual_file_too_short(d: Damaged) -> None:
    d.set_refs(
        REMOTE, virtual_refs([[0, 0], [1, 0], [2, 0]], [_one(d)] * 3, [0, 1, 4000], [97] * 3)
    )


@damage("virtual-modified", authorized=True)
def virtual_file_changed(d: Damaged) -> None:
    d.set_refs(
        REMOTE,
        virtual_refs(
            [[0, 0], [1, 0], [2, 0]], [_one(d)] * 3, [0, 1, 2], [97] * 3, last_modified=[0, 9, 0]
        ),
    )


@damage("virtual-modified", authorized=True)
def virtual_file_of_another_etag(d: Damaged) -> None:
    d.set_refs(
        REMOTE,
        virtual_refs(
            [[0, 0], [1, 0], [2, 0]],
            [_one(d)] * 3,
            [0, 1, 2],
            [97] * 3,
            etags=[None, '"no-such-etag"', None],
        ),
    )
