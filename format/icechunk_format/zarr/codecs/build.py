"""Builds a chain of codecs from its JSON, after checking names and order; returns default chains.

The name of a codec determines its part of the chain. An unknown name may be a codec of another
installed package; then its position determines the part.

Spec: Zarr v3 core, "Codecs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from icechunk_format.zarr.codecs.array import ARRAY_CODECS, NumcodecsFilter
from icechunk_format.zarr.codecs.bytes import BYTE_CODECS, Numcodec
from icechunk_format.zarr.codecs.elements import ELEMENT_CODECS, NumcodecsElements
from icechunk_format.zarr.codecs.registered import find_registered_codec
from icechunk_format.zarr.codecs.steps import (
    ArrayCodec,
    ByteCodec,
    CodecSpec,
    ConfigurationError,
    ElementCodec,
)
from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.named_configuration import Member, parse_named_configuration, shortened

_MAX_CODECS: Final = 64

_SHARDING: Final = "sharding_indexed"

LITTLE_ENDIAN: Final[dict[str, Any]] = {"name": "bytes", "configuration": {"endian": "little"}}


def build_chain(
    codecs_json: Sequence[Any],
    data_type: DataType,
    fill_value: Any,
    *,
    ndim: int,
    where: Member,
    make_sharding: Callable[[CodecSpec], ElementCodec],
) -> tuple[list[ArrayCodec], ElementCodec, list[ByteCodec]]:
    """Make the codecs of a chain: array codecs, element codec and byte codecs, in encoding order.

    ``data_type``, ``fill_value`` and ``ndim`` are those of the decoded chunks. ``make_sharding``
    makes ``sharding_indexed``, which contains chains.
    """
    if not 1 <= len(codecs_json) <= _MAX_CODECS:
        raise where.error(f"expected 1 to {_MAX_CODECS} codecs, found {len(codecs_json)}")
    named = [
        parse_named_configuration(value, where.at(f"[{i}]")) for i, value in enumerate(codecs_json)
    ]
    at_elements = _find_element_codec([codec.name for codec in named], where)
    array_codecs: list[ArrayCodec] = []
    elements: list[ElementCodec] = []
    byte_codecs: list[ByteCodec] = []
    for i, (name, configuration) in enumerate(named):
        member = where.at(f"[{i}]")
        spec = CodecSpec(name, configuration, data_type, fill_value, ndim, member)
        try:
            if i < at_elements:
                codec = _array_codec(spec)
                array_codecs.append(codec)
                fill_value = _encoded_fill(codec, fill_value)
                data_type = codec.encoded
                ndim = len(codec.encoded_shape((1,) * ndim))
            elif i > at_elements:
                byte_codecs.append(_byte_codec(spec))
            elif name == _SHARDING:
                elements.append(make_sharding(spec))
            else:
                elements.append(_element_codec(spec))
        except ConfigurationError as error:
            raise member.error(f"codec {shortened(name)}: {error}") from error
    return array_codecs, elements[0], byte_codecs


def _find_element_codec(names: list[str], where: Member) -> int:
    """Return the index of the array-to-bytes codec, after checking the order of all codecs."""
    positions = [i for i, name in enumerate(names) if name in ELEMENT_CODECS or name == _SHARDING]
    if not positions:
        # The first codec that is neither an array nor a byte codec may be of another package.
        others = [n not in ARRAY_CODECS and n not in BYTE_CODECS for n in names]
        positions = [others.index(True)] if any(others) else []
    if len(positions) == 1:
        at = positions[0]
        early, late = BYTE_CODECS.keys() & names[:at], ARRAY_CODECS.keys() & names[at + 1 :]
        if not early and not late:
            return at
    raise where.error(
        "codecs must be array codecs, then exactly one array-to-bytes codec, then byte "
        f"codecs; found {shortened(names)}"
    )


def _array_codec(spec: CodecSpec) -> ArrayCodec:
    if spec.data_type.is_variable_length and spec.name != "transpose":
        raise ConfigurationError(f"elements of type {spec.data_type.name} have no fixed size")
    if spec.name in ARRAY_CODECS:
        return ARRAY_CODECS[spec.name](spec)
    return NumcodecsFilter(spec, find_registered_codec(spec))


def _element_codec(spec: CodecSpec) -> ElementCodec:
    if spec.name in ELEMENT_CODECS:
        return ELEMENT_CODECS[spec.name](spec)
    return NumcodecsElements(spec, find_registered_codec(spec))


def _byte_codec(spec: CodecSpec) -> ByteCodec:
    if spec.name in BYTE_CODECS:
        return BYTE_CODECS[spec.name](spec)
    return Numcodec(spec.name, find_registered_codec(spec), extra=None)


def _encoded_fill(codec: ArrayCodec, fill_value: Any) -> Any:
    try:
        return codec.encoded_fill(fill_value)
    except (ValueError, OverflowError, TypeError) as error:
        raise ConfigurationError(f"it cannot store the fill value: {error}") from error


def default_codecs(data_type: DataType) -> list[dict[str, Any]]:
    """Return zarr-python's default codecs for a new array: the element codec, then zstd."""
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
