"""Returns the codecs of new arrays: the defaults of zarr-python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from icechunk_format.arrays.data_types import DataType
from icechunk_format.arrays.named_configuration import named_configuration_json

LITTLE_ENDIAN: Final = named_configuration_json("bytes", {"endian": "little"})


def default_codecs(data_type: DataType) -> list[dict[str, Any]]:
    """Return the codecs that zarr-python gives a new array: the elements, then zstd."""
    if data_type.is_variable_length:
        name = "vlen-utf8" if data_type.kind == "string" else "vlen-bytes"
        elements = named_configuration_json(name, {})
    elif data_type.has_byte_order:
        elements = LITTLE_ENDIAN
    else:
        elements = named_configuration_json("bytes", None)
    return [elements, named_configuration_json("zstd", {"level": 0, "checksum": False})]


def sharding_json(
    inner_shape: Sequence[int], codecs: Sequence[Any], *, index_location: str = "end"
) -> dict[str, Any]:
    """Return a ``sharding_indexed`` codec with the usual index: little endian, with a checksum."""
    return named_configuration_json(
        "sharding_indexed",
        {
            "chunk_shape": [int(n) for n in inner_shape],
            "codecs": list(codecs),
            "index_codecs": [LITTLE_ENDIAN, {"name": "crc32c"}],
            "index_location": index_location,
        },
    )
