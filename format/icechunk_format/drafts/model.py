"""Defines the model of both drafts: snapshots, nodes, and chunk references as columns.

A node has the ``zarr.json`` of a released repository, with the default encoding of chunk keys. A
missing fill value becomes zero, since Zarr requires one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.drafts.records import MAX_U32, Field
from icechunk_format.encoding.ids import ChunkId
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
    inline_refs,
    native_refs,
    virtual_refs,
)
from icechunk_format.encoding.node_path import NodePath, parse_node_path
from icechunk_format.errors import FormatError, IcechunkError, UnsupportedError
from icechunk_format.grid.coordinates import sorting_rows
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.fill_values import default_fill_value, encode_fill_value
from icechunk_format.zarr.named_configuration import shortened
from icechunk_format.zarr.new_nodes import build_group_metadata
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata

DraftChunk = tuple["Sequence[int]", int, bytes, int, int]
"""A chunk reference: the columns of ``DraftChunks``, in order."""

_COLUMNS: Final = ("coords", "kind", "offset", "length")
_GROUP: Final = build_group_metadata().raw


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSnapshot:
    """One snapshot; ``written_at`` is in microseconds since 1970-01-01T00:00:00Z."""

    id: str
    parent_id: str | None
    written_at: int
    message: str
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftNode:
    """A group or an array; ``user_data`` is its ``zarr.json``, and ``array`` the parsed metadata.

    ``manifests`` are keys of objects; the first of several references of a chunk is used.
    """

    id: int
    path: NodePath
    user_data: bytes
    array: ArrayMetadata | None = None
    manifests: tuple[str, ...] = ()


def make_node(
    record: Field,
    attributes: Any,
    array: Mapping[str, Any] | None = None,
    manifests: Sequence[str] = (),
) -> DraftNode:
    """Return the node of a record with an ``id`` and a ``path``.

    ``attributes`` is None if they are in another file. ``array`` is the result of
    ``array_document``.
    """
    path = record["path"].of(str)
    if attributes is None:
        raise UnsupportedError(
            f"the attributes of node {path!r} are in a separate file, whose form the draft does "
            "not describe; store them with the node first",
            node_path=path,
        )
    if not isinstance(attributes, dict):
        raise record.error(f"attributes must be an object, found {shortened(attributes)}")
    try:
        user_data = dump_document({**(array or _GROUP), "attributes": attributes})
        metadata = None if array is None else parse_array_metadata(user_data, node_path=path)
        if metadata is not None:
            # Parse now, so that unsupported features raise for the node, not for its chunks.
            _ = metadata.grid, metadata.fill_value
        return DraftNode(
            id=record["id"].integer(0, MAX_U32),
            path=parse_node_path(path),
            user_data=user_data,
            array=metadata,
            manifests=tuple(dict.fromkeys(manifests)),
        )
    except UnsupportedError:
        raise
    except (IcechunkError, TypeError, ValueError, RecursionError) as error:
        raise record.error(f"the node is invalid: {error}") from error


def array_document(
    fields: Field, data_type: Any, chunk_shape: Field, fill_value: Any
) -> dict[str, Any]:
    """Return the ``zarr.json`` of an array without attributes, in the order of zarr-python.

    ``fields`` have the same names in both drafts. ``fill_value`` is JSON, or bytes: of one
    little-endian element, or else of JSON text.
    """
    try:
        known = parse_data_type(data_type, node_path=fields.path)
        if fill_value is None:
            fill_value = encode_fill_value(default_fill_value(known), known)
        elif isinstance(fill_value, bytes) and len(fill_value) == known.itemsize:
            element = np.frombuffer(fill_value, dtype=known.numpy.newbyteorder("<"))
            fill_value = encode_fill_value(element.astype(known.numpy)[0], known)
        elif isinstance(fill_value, bytes):
            fill_value = json.loads(fill_value)
    except (FormatError, ValueError, RecursionError) as error:
        raise fields.error(f"bad data type or fill value: {error}") from error
    codecs = []
    for codec in fields["codecs"].items():
        codecs.append({"name": codec["name"].of(str)})
        configuration = codec.get("configuration").json()
        if configuration is not None:
            codecs[-1]["configuration"] = configuration
    sizes = [size.integer(1) for size in chunk_shape.items()]
    names = fields.get("dimension_names").value
    return {
        "shape": fields["shape"].value,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": sizes}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": {},
        **({} if names is None else {"dimension_names": names}),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": fields.get("storage_transformers", []).value,
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftChunks:
    """Chunk references of one array as columns: shape (n,), coordinates (n, ndim).

    The payload is the object key of a native chunk, the bytes of an inline chunk, or the URL of a
    virtual chunk; offset and length are the byte range in the object.
    """

    coords: NDArray[np.uint32]
    kind: NDArray[np.uint8]
    payload: pa.LargeBinaryArray
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def of_rows(cls, rows: Sequence[DraftChunk], ndim: int) -> DraftChunks:
        """Convert rows to columns; raises ValueError or OverflowError if they are invalid."""
        coords, kinds, payloads, offsets, lengths = zip(*rows, strict=True) if rows else [()] * 5
        if not all(payloads) or not all(lengths):
            raise ValueError("a chunk has 0 bytes or no location")
        return cls(
            coords=np.array(coords, dtype=np.uint32).reshape(len(rows), ndim),
            kind=np.array(kinds, dtype=np.uint8),
            payload=pa.array(payloads, type=pa.large_binary()),
            offset=np.array(offsets, dtype=np.uint64),
            length=np.array(lengths, dtype=np.uint64),
        )

    def take(self, rows: NDArray[np.intp]) -> DraftChunks:
        """Select rows by index."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return DraftChunks(**columns, payload=self.payload.take(pa.array(rows)))

    @classmethod
    def joined(cls, parts: Sequence[DraftChunks], ndim: int) -> DraftChunks:
        """Join parts, sorted by coordinates; keep the first of equal coordinates."""
        parts = [cls.of_rows([], ndim), *parts]
        columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS}
        whole = cls(**columns, payload=pa.concat_arrays([part.payload for part in parts]))
        return whole.take(sorting_rows(whole.coords))

    def converted(self) -> ChunkRefs:
        """Convert to references of the released format, sorted.

        A native chunk becomes a separate object. Its id is a digest of the reference, so equal
        references share an object, and a repeated import writes the same objects.
        """
        native, inline, virtual = (
            self.take(np.flatnonzero(self.kind == kind))
            for kind in (KIND_NATIVE, KIND_INLINE, KIND_VIRTUAL)
        )
        spans = np.stack([native.offset, native.length], axis=1)
        ids = b"".join(
            hashlib.blake2b(key, digest_size=ChunkId.SIZE, salt=span.tobytes()).digest()
            for key, span in zip(native.payload.to_pylist(), spans, strict=True)
        )
        chunk_ids = np.frombuffer(ids, dtype=np.uint8).reshape(-1, ChunkId.SIZE)
        locations = virtual.payload.cast(pa.large_string()).to_pylist()
        return ChunkRefs.concat(
            [
                native_refs(native.coords, chunk_ids, native.length),
                inline_refs(inline.coords, inline.payload.to_pylist()),
                virtual_refs(virtual.coords, locations, virtual.offset, virtual.length),
            ]
        )
