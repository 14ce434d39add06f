"""Manifests written with the flatbuffers library, as other writers may have made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flatbuffers
from helpers.files.manifest_rows import NODE

from icechunk_format.encoding.manifest import decode as manifest

if TYPE_CHECKING:
    from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs


def library_manifest(
    refs: list[dict[str, Any]],
    *,
    algorithm: int | None = None,
    dictionary: bytes | None = None,
) -> bytes:
    """Write one array with the flatbuffers library; a reference is a map of field to value."""
    builder = flatbuffers.Builder(256)
    tables = []
    for ref in refs:
        vectors = {
            name: builder.CreateByteVector(ref[name])
            for name in ("inline", "compressed_location")
            if name in ref
        }
        vectors |= {
            name: builder.CreateString(ref[name])
            for name in ("location", "checksum_etag")
            if name in ref
        }
        if "index" in ref:
            builder.StartVector(4, len(ref["index"]), 4)
            for value in reversed(ref["index"]):
                builder.PrependUint32(value)
            vectors["index"] = builder.EndVector()
        builder.StartObject(10)
        for slot, name in enumerate(
            ("index", "inline", "", "", "", "location", "checksum_etag", "", "compressed_location")
        ):
            if name in vectors:
                builder.PrependUOffsetTRelativeSlot(slot, vectors[name], 0)
        builder.PrependUint64Slot(2, ref.get("offset", 0), 0)
        builder.PrependUint64Slot(3, ref.get("length", 0), 0)
        if "chunk_id" in ref:
            builder.Prep(1, 12)
            for byte in reversed(ref["chunk_id"]):
                builder.PrependByte(byte)
            builder.PrependStructSlot(4, builder.Offset(), 0)
        builder.PrependUint32Slot(7, ref.get("last_modified", 0), 0)
        tables.append(builder.EndObject())
    dictionary_at = builder.CreateByteVector(dictionary) if dictionary is not None else None
    vector = offset_vector(builder, tables)
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(1, vector, 0)
    struct_slot(builder, 0, NODE.raw)
    array = builder.EndObject()
    arrays = offset_vector(builder, [array])
    builder.StartObject(5)
    struct_slot(builder, 0, b"manifest-id!")
    builder.PrependUOffsetTRelativeSlot(1, arrays, 0)
    if dictionary_at is not None:
        builder.PrependUOffsetTRelativeSlot(2, dictionary_at, 0)
    if algorithm is not None:
        builder.PrependUint8Slot(3, algorithm, 1)
    builder.Finish(builder.EndObject(), file_identifier=b"Ichk")
    return bytes(builder.Output())


def offset_vector(builder: Any, positions: list[int]) -> int:
    """Write a vector of tables, and return its place."""
    builder.StartVector(4, len(positions), 4)
    for position in reversed(positions):
        builder.PrependUOffsetTRelative(position)
    return builder.EndVector()


def struct_slot(builder: Any, slot: int, raw: bytes) -> None:
    """Write an id into a slot of the table that is being built."""
    builder.Prep(1, len(raw))
    for byte in reversed(raw):
        builder.PrependByte(byte)
    builder.PrependStructSlot(slot, builder.Offset(), 0)


def decoded(*refs: dict[str, Any], **options: Any) -> ChunkRefs:
    """Read the references of a manifest that the library wrote."""
    return manifest.decode_payload(library_manifest(list(refs), **options)).arrays[0].refs
