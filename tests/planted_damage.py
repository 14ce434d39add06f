"""Every way in which tests damage a copy of the small sound repository.

Each function in ``DAMAGES`` changes one thing, by our own encoders where what it wants can be
written, and by bytes where no writer would write it. Each says which kinds of findings it must lead
to, and no error beside those. One list, however long, is easiest to look over in one file.
"""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import flatbuffers
import numpy as np
import zstandard
from session_model import group_document

from icechunk_format.spec import repo_info, snapshot, transaction_log
from icechunk_format.spec.envelope import FileType, unwrap, wrap
from icechunk_format.spec.flexbuffers import encode_flexbuffer
from icechunk_format.spec.ids import ChunkId, ManifestId, NodeId
from icechunk_format.spec.manifest_lists import ManifestFiles
from icechunk_format.spec.metadata_items import MetadataItems
from icechunk_format.spec.ref_columns import inline_refs, native_refs, virtual_refs
from icechunk_format.spec.table_schema import TableSchema

if TYPE_CHECKING:
    from collections.abc import Callable


from damaged_repository import (
    CHUNK_BYTES,
    LINES,
    REMOTE,
    SHARDS,
    SMALL,
    Damaged,
    array_document,
    refs_vector,
    replace_bytes,
    swap_in,
    swap_offsets,
)


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
    d.edit_payload("repo", FileType.REPO_INFO, swap_in(repo_info.REPO, "branches"))


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
    change = swap_in(snapshot.SNAPSHOT, "nodes", 1, 2)
    d.edit_payload(f"snapshots/{d.tip}", FileType.SNAPSHOT, change)


@damage("snapshot-unsorted")
def manifest_files_out_of_order(d: Damaged) -> None:
    change = swap_in(snapshot.SNAPSHOT, "manifest_files_v2")
    d.edit_payload(f"snapshots/{d.tip}", FileType.SNAPSHOT, change)


@damage("node-path-duplicate")
def two_nodes_with_one_path(d: Damaged) -> None:
    twin = replace(d.node("/g"), id=NodeId(b"\1" * 8), path="/h")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, twin))
    # "/h" sorts last but one, so the renamed twin is also out of place; put it beside the other.
    key = f"snapshots/{d.tip}"
    paths = sorted(node.path for node in d.snapshot(d.tip).nodes)
    for at in range(paths.index("/h"), paths.index("/g") + 1, -1):
        d.edit_payload(key, FileType.SNAPSHOT, swap_in(snapshot.SNAPSHOT, "nodes", at - 1, at))
    d.edit_payload(key, FileType.SNAPSHOT, replace_bytes(b"\2\0\0\0/h\0", b"\2\0\0\0/g\0"))


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
    d.edit_node(
        SMALL, user_data=array_document((6,), (2,), [{"name": "crc32c"}, {"name": "bytes"}])
    )


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
        user_data=array_document((3,), (2,), [{"name": "bytes"}]),
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
    change = swap_in(schema, "updated_chunks")
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
        struct.pack_into("<I", payload, refs_vector(payload), 0x7FFFFFFF)

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
    d.edit_manifest_payload(LINES, lambda p: swap_offsets(p, refs_vector(p), 2, 5))


@damage("ref-duplicate", "manifest-count-mismatch")
def reference_twice(d: Damaged) -> None:
    def change(payload: bytearray) -> None:
        start = refs_vector(payload)
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
