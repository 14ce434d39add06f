"""Chains of codecs as tests write them, and the data types whose elements are the hardest."""

from __future__ import annotations

from typing import Any

from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.data_types import DataType, parse_data_type
from icechunk_format.zarr.fill_values import default_fill_value

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
U3 = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}}
PAIR = {
    "name": "struct",
    "configuration": {
        "fields": [
            {"name": "a", "data_type": "bool"},
            {"name": "b", "data_type": U3},
            {
                "name": "c",
                "data_type": {
                    "name": "struct",
                    "configuration": {"fields": [{"name": "d", "data_type": "bool"}]},
                },
            },
        ]
    },
}


def named(name: str, **configuration: Any) -> dict[str, Any]:
    """Return the entry of a codec in ``zarr.json``."""
    return {"name": name, "configuration": configuration}


def chain(codecs: list[Any], data_type: Any = "int32", ndim: int = 1, **more: Any) -> ChunkCodecs:
    """Return the chain of an array ``/a`` with ``ndim`` dimensions and the default fill value."""
    of = data_type if isinstance(data_type, DataType) else parse_data_type(data_type)
    return ChunkCodecs(codecs, of, default_fill_value(of), ndim=ndim, node_path="/a", **more)
