"""Ways to damage manifests and the references in them."""

from __future__ import annotations

import shutil
import struct

import flatbuffers
import numpy as np
import zstandard
from helpers.damage.planting import Damage, changed, planting, with_columns
from helpers.damage.repository import CHUNK_BYTES, LINES, SMALL, Damaged, refs_vector, swap_offsets

from icechunk_format.encoding.envelope import FileType, unwrap, wrap
from icechunk_format.encoding.ids import ChunkId, ManifestId, NodeId
from icechunk_format.encoding.manifest.chunk_refs import native_refs

DAMAGES: list[Damage] = []
damage = planting(DAMAGES)


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


@damage("ref-empty")
def reference_without_bytes(d: Damaged) -> None:
    with_columns(d, LINES, length=changed(d.refs(LINES).length, 3, 0))


@damage("ref-range", "chunk-too-short")
def reference_beyond_any_object(d: Damaged) -> None:
    with_columns(d, LINES, offset=changed(d.refs(LINES).offset, 3, 2**64 - 10))
