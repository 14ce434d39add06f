"""Reads and writes MessagePack, the encoding of metadata values in files of spec version 1.

Version 2 has FlexBuffers instead. The spec version of the file determines the encoding, so callers
choose the pair of functions.

Rules of this file
------------------
1. The decoder raises only ``FormatError``, and the encoder only ``InvalidInputError``.
2. Types that JSON lacks are refused in both directions.
3. Lengths are bounded by the size of the input.

Spec: "MetadataItem".
"""

from __future__ import annotations

from typing import Any

import msgpack

from icechunk_format.errors import FormatError
from icechunk_format.spec.values.flexbuffers import (
    MAX_DEPTH,
    MAX_VALUES,
    decode_flexbuffer,
    encode_flexbuffer,
)

__all__ = ["decode_flexbuffer", "decode_msgpack", "encode_flexbuffer", "encode_msgpack"]


def decode_msgpack(
    data: bytes, *, object_key: str = "<bytes>", field: str = "value", file_type: str = "object"
) -> Any:
    """Read exactly one MessagePack value of JSON types, or raise FormatError."""
    where = {"object_key": object_key, "field": field, "file_type": file_type}
    # No length may exceed the input, so the library allocates no more.
    limit = min(len(data), MAX_VALUES)
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=False,
            max_str_len=limit,
            max_array_len=limit,
            max_map_len=limit,
            max_bin_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        # ValueError covers truncation, trailing bytes, limits, nesting and bad UTF-8; TypeError is
        # a map key that cannot be hashed.
        raise FormatError(
            f"not one MessagePack value of JSON types ({error or type(error).__name__}); "
            "the value is damaged",
            **where,
        ) from error
    problem = _json_problem(value)
    if problem:
        raise FormatError(f"{problem}; only JSON types are allowed here", **where)
    return value


def encode_msgpack(value: Any) -> bytes:
    """Return a JSON value as MessagePack, or raise InvalidInputError."""
    # Refuses values that are not JSON or that an upgrade of the repository could not keep.
    encode_flexbuffer(value)
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _json_problem(value: Any) -> str | None:
    """Return the first problem of a value that is not JSON; walks without recursion."""
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"values are nested deeper than {MAX_DEPTH}"
        if isinstance(item, dict):
            for key, child in item.items():
                if not isinstance(key, str):
                    return f"a map key is a {type(key).__name__}, not a string"
                pending.append((child, depth + 1))
        elif isinstance(item, list | tuple):
            pending.extend((child, depth + 1) for child in item)
        elif not (item is None or isinstance(item, bool | int | float | str)):
            return f"found a {type(item).__name__}"
    return None
