"""Returns the codecs of new arrays: the defaults of zarr-python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from icechunk_format.arrays.data_types import DataType

LITTLE_ENDIAN: Final[dict[str, Any]] = {"name": "bytes", "configuration": {"endian": "little"}}


def default_codecs(data_type: DataType) -> list[dict[str, Any]]:
    """Return the codecs that zarr-python gives a new array: the elements, then zstd."""
    elements: dict[str, Any] = {"name": "bytes"}
    if data_type.is_variable_length:
        name = "vlen-utf8" if data_type.kind == "string" else "vlen-bytes"
        elements = {"name": name, "configuration": {}}
    elif data_type.has_byte_order:
        elements = LITTLE_ENDIAN
    return [elements, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}]


def sharding_json(inner_shape: Sequence[int], codecs: Sequence[Any]) -> dict[str, Any]:
    """Return a ``sharding_indexed`` codec with the usual index: little endian, with a checksum."""
    configuration = {
        "chunk_shape": [int(n) for n in inner_shape],
        "codecs": list(codecs),
        "index_codecs": [LITTLE_ENDIAN, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {"name": "sharding_indexed", "configuration": configuration}
