"""Nodes and chunk references of the draft with numbered branch files, by their schemas.

Specification: drafts, "numbered refs": ``NodeSnapshot``, ``ZarrArrayMetadata``, ``ChunkPayload``.
What the draft leaves open is decided at the head of ``numbered_refs``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icechunk_format.drafts.model import DraftChunks, DraftNode
from icechunk_format.drafts.zarr_documents import array_document, group_document, json_float
from icechunk_format.errors import IcechunkError, InvalidInputError, UnsupportedError
from icechunk_format.spec.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.spec.node_path import parse_node_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_format.drafts.records import Record
    from icechunk_format.spec.node_path import NodePath

_ID_SIZE: Final = 16
_MAX_U32: Final = 2**32 - 1
_MAX_NDIM: Final = 64
_DIGITS: Final = re.compile(r"[0-9]+")
# What may stand between the numbers of a key; a letter or sign would be another kind of number.
_BETWEEN: Final = r"[^0-9A-Za-z+\-]"
_CHUNK_KEY: Final = re.compile(
    rf"{_BETWEEN}{{0,8}}[0-9]{{1,20}}(?:{_BETWEEN}{{1,8}}[0-9]{{1,20}})*{_BETWEEN}{{0,8}}"
)
_FLOATS: Final = ("Float16", "Float32", "Float64")
_COMPLEX: Final = ("Complex64", "Complex128")
_CHUNK_KEY_ENCODINGS: Final = ("Slash", "Dot", "Default")


def read_node(record: Record, path: str, manifest_key: Callable[[bytes], str]) -> DraftNode:
    """Read one node.

    Raises
    ------
    FormatError
        It breaks the schema, or is listed under another path than its own.
    UnsupportedError
        It uses what the draft does not describe.
    """
    own = record.text("path")
    if own != path:
        raise record.error(f"the node is listed as {path!r} and says {own!r}", "path")
    try:
        node_path = parse_node_path(own)
    except InvalidInputError as error:
        raise record.error(error.message, "path") from error
    number = record.integer("id", 0, _MAX_U32)
    attributes = _attributes(record, node_path)
    data = record.field("node_data")
    if data == "Group":
        return DraftNode(id=number, path=node_path, user_data=group_document(attributes))
    parts = record.at(data, "node_data").items("Array")
    if len(parts) != 2 or not isinstance(parts[1], list):
        raise record.error("an array is its metadata and a list of manifests", "node_data.Array")
    fields = record.at(parts[0], "node_data.Array[0]")
    user_data, metadata = _array(fields, node_path, attributes)
    manifests = []
    for place, value in enumerate(parts[1]):
        ref = record.at(value, f"node_data.Array[1][{place}]")
        ref.items("extents")
        manifests.append(manifest_key(ref.raw_bytes(ref.field("object_id"), "object_id", _ID_SIZE)))
    return DraftNode(
        id=number, path=node_path, user_data=user_data, array=metadata, manifests=tuple(manifests)
    )


def _attributes(record: Record, path: NodePath) -> dict[str, Any]:
    if not record.has("user_attributes"):
        return {}
    found = record.below("user_attributes")
    if found.has("Inline"):
        return found.mapping("Inline")
    raise UnsupportedError(
        f"the attributes of node {path!r} are in a file of their own, whose form the draft does "
        "not describe; store them with the node first",
        node_path=path,
    )


def _array(fields: Record, path: NodePath, attributes: dict[str, Any]) -> tuple[bytes, Any]:
    if fields.field("chunk_key_encoding") not in _CHUNK_KEY_ENCODINGS:
        raise fields.error("Slash, Dot or Default is expected", "chunk_key_encoding")
    if fields.items("storage_transformers", optional=True):
        raise UnsupportedError(
            f"array {path!r} has storage transformers, which no reader of chunks knows",
            node_path=path,
        )
    data_type = fields.field("data_type")
    if isinstance(data_type, dict):
        bits = fields.below("data_type").integer("rawbits", 8, 8 * _MAX_U32)
        data_type = f"r{bits}"
    elif not isinstance(data_type, str):
        raise fields.error("the name of a type is expected", "data_type")
    names = fields.items("dimension_names", optional=True)
    codecs = []
    for codec in fields.records("codecs"):
        entry: dict[str, Any] = {"name": codec.text("name")}
        if codec.has("configuration"):
            entry["configuration"] = codec.mapping("configuration")
        codecs.append(entry)
    shape = _sizes(fields, "shape", 0)
    chunk_shape = _sizes(fields, "chunk_shape", 1)
    if len(shape) != len(chunk_shape):
        raise fields.error(f"{len(chunk_shape)} sizes for {len(shape)} dimensions", "chunk_shape")
    try:
        return array_document(
            path=path,
            shape=shape,
            data_type=data_type,
            chunk_shape=chunk_shape,
            fill_value=_fill_value(fields, data_type),
            codecs=codecs,
            dimension_names=names if fields.has("dimension_names") else None,
            attributes=attributes,
        )
    except UnsupportedError:
        raise
    except IcechunkError as error:
        raise fields.error(error.message) from error


def _sizes(fields: Record, name: str, low: int) -> list[int]:
    found = fields.items(name)
    if len(found) > _MAX_NDIM:
        raise fields.error(f"{len(found)} dimensions; {_MAX_NDIM} are allowed", name)
    return [fields.as_integer(size, name, low, 2**63 - 1) for size in found]


def _fill_value(fields: Record, data_type: str) -> Any:
    """Return the fill value as Zarr's JSON; its tag must be the type of the array."""
    tagged = fields.below("fill_value")
    if len(tagged.value) != 1:
        raise tagged.error("one value with its type is expected")
    ((tag, value),) = tagged.value.items()
    if tag == "RawBits":
        expected = data_type.startswith("r")
        value = list(tagged.raw_bytes(value, tag))
    else:
        expected = tag.lower() == data_type
    if not expected:
        raise tagged.error(f"a fill value {tag!r} does not fit the data type {data_type!r}")
    if tag in _FLOATS:
        return json_float(value)
    if tag in _COMPLEX:
        if not isinstance(value, list) or len(value) != 2:
            raise tagged.error("a pair of numbers is expected", tag)
        return [json_float(part) for part in value]
    return value


def read_chunk_map(
    record: Record, node: DraftNode, chunk_key: Callable[[bytes], str]
) -> DraftChunks:
    """Read the references of one array in a manifest, whose other arrays are passed over.

    Raises
    ------
    FormatError
        A reference of the array breaks the schema.
    """
    assert node.array is not None
    ndim = node.array.ndim
    chunks = record.below("chunks")
    coords: list[list[int]] = []
    kinds: list[int] = []
    payloads: list[bytes] = []
    ranges: list[tuple[int, int]] = []
    for key, value in chunks.value.items():
        if len(key) > 2000 or not _CHUNK_KEY.fullmatch(key):
            raise chunks.error(f"{key[:80]!r} is no node number with the coordinates of a chunk")
        numbers = [int(digits) for digits in _DIGITS.findall(key)]
        if numbers[:1] != [node.id]:
            continue
        at = numbers[1:]
        if len(at) != ndim or max(at, default=0) > _MAX_U32:
            raise chunks.error(
                f"{key!r} names no chunk of {node.path!r}, which has {ndim} dimensions"
            )
        kind, payload, offset, length = _payload(chunks.at(value, f"[{key}]"), chunk_key)
        coords.append(at)
        kinds.append(kind)
        payloads.append(payload)
        ranges.append((offset, length))
    spans = np.array(ranges, dtype=np.uint64).reshape(-1, 2)
    return DraftChunks(
        coords=np.array(coords, dtype=np.uint32).reshape(len(kinds), ndim),
        kind=np.array(kinds, dtype=np.uint8),
        payload=pa.array(payloads, type=pa.large_binary()),
        offset=spans[:, 0],
        length=spans[:, 1],
    )


def _payload(tagged: Record, chunk_key: Callable[[bytes], str]) -> tuple[int, bytes, int, int]:
    """Return kind, payload, offset and length of one reference."""
    if len(tagged.value) != 1:
        raise tagged.error("one of Inline, Virtual and Ref is expected")
    ((tag, value),) = tagged.value.items()
    if tag == "Inline":
        data = tagged.raw_bytes(value, tag)
        found = KIND_INLINE, data, 0, len(data)
    elif tag == "Virtual":
        ref = tagged.at(value, tag)
        location = ref.text("location")
        if not location:
            raise ref.error("a virtual chunk needs a location", "location")
        found = KIND_VIRTUAL, location.encode(), ref.integer("offset"), ref.integer("length")
    elif tag == "Ref":
        ref = tagged.at(value, tag)
        key = chunk_key(ref.raw_bytes(ref.field("id"), "id", _ID_SIZE))
        found = KIND_NATIVE, key.encode(), ref.integer("offset"), ref.integer("length")
    else:
        raise tagged.error(f"{tag!r} is none of Inline, Virtual and Ref")
    if found[3] == 0:
        raise tagged.error("a chunk of 0 bytes cannot be read", tag)
    return found
