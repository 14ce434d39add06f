"""Makes the ``zarr.json`` of new arrays and groups, as zarr-python writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icechunk_format.errors import IcechunkError, InvalidInputError, UnsupportedError
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.codecs.build import default_codecs, sharding_json
from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.fill_values import default_fill_value, encode_fill_value
from icechunk_format.zarr.zarr_json import (
    ArrayMetadata,
    GroupMetadata,
    dump_document,
    parse_array_metadata,
)


def build_array_metadata(
    *,
    shape: Sequence[int],
    data_type: DataType,
    chunk_shape: Sequence[int],
    shard_shape: Sequence[int] | None = None,
    fill_value: Any = None,
    codecs: Sequence[Any] | None = None,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    node_path: str = "/",
) -> ArrayMetadata:
    """Return the metadata of a new array, or raise InvalidInputError or UnsupportedError.

    Parameters
    ----------
    chunk_shape
        The shape of a chunk; with shards, of an inner chunk.
    shard_shape
        The shape of a shard, a multiple of ``chunk_shape``; ``None`` stores chunks without shards.
    fill_value
        Value of missing chunks; ``None`` for zero, empty or false.
    codecs
        JSON of the codecs of an (inner) chunk; ``None`` for zarr-python's default.
    node_path
        Path of the array, for messages.
    """
    fill_value = default_fill_value(data_type) if fill_value is None else fill_value
    chain = list(default_codecs(data_type) if codecs is None else codecs)
    if shard_shape is not None:
        chain = [sharding_json(chunk_shape, chain)]
    grid = ChunkGrid.regular(shape, chunk_shape if shard_shape is None else shard_shape)
    document: dict[str, Any] = {
        "shape": list(grid.shape),
        "data_type": data_type.to_json(),
        "chunk_grid": grid.to_json(),
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": encode_fill_value(fill_value, data_type),
        "codecs": chain,
        "attributes": dict(attributes or {}),
    }
    if dimension_names is not None:
        document["dimension_names"] = list(dimension_names)
    document |= {"zarr_format": 3, "node_type": "array", "storage_transformers": []}
    try:
        metadata = parse_array_metadata(dump_document(document), node_path=node_path)
        metadata.chunk_codecs()
    except (UnsupportedError, InvalidInputError):
        raise
    except IcechunkError as error:
        raise InvalidInputError(
            f"array {node_path!r} has invalid metadata: {error.message}", node_path=node_path
        ) from error
    return metadata


def build_group_metadata(
    *, attributes: Mapping[str, Any] | None = None, node_path: str = "/"
) -> GroupMetadata:
    """Return the metadata of a new group."""
    given = dict(attributes or {})
    document = {"attributes": given, "zarr_format": 3, "node_type": "group"}
    return GroupMetadata(node_path=node_path, attributes=given, raw=document)
