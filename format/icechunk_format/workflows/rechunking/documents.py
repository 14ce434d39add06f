"""Derives the metadata of a rechunked array from its source, with other chunks and codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups import Variable, chunk_axes
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.codecs.build import sharding_json
from icechunk_format.zarr.codecs.bytes import BYTE_CODECS
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata

Sizes = Mapping[str, int] | Literal["auto"]

_AUTO_BYTES: Final = 100_000_000
_AUTO_INNER_BYTES: Final = 1_000_000
_SHARDING: Final = "sharding_indexed"
_LOSSLESS: Final = frozenset({"bytes", "transpose", "vlen-utf8", "vlen-bytes"})


def rechunked_document(
    variable: Variable,
    shape: tuple[int, ...],
    chunks: Sizes,
    shards: Mapping[str, int] | None,
    codecs: Sequence[Any] | None,
    path: str,
) -> ArrayMetadata:
    """Return the metadata of an array, or of its selected part of a `shape`, in other chunks."""
    metadata = variable.metadata
    inner = _inner_shape(variable)
    if chunks == "auto":
        nbytes = _AUTO_INNER_BYTES if shards else _AUTO_BYTES
        wanted = _auto(shape, nbytes // metadata.data_type.item_bytes)
    else:
        wanted = _sizes(variable, shape, chunks, inner, "chunks")
    chain = list(_inner_codecs(variable) if codecs is None else codecs)
    outer = wanted
    if shards is not None:
        outer = _sizes(variable, shape, shards, wanted, "shards")
        outer = tuple(-(-size // step) * step for size, step in zip(outer, wanted, strict=True))
        chain = [sharding_json(wanted, chain)]
    document = dict(metadata.raw) | {"shape": list(shape)}
    document["chunk_grid"] = ChunkGrid.regular(shape, outer).to_json()
    document["codecs"] = chain
    made = parse_array_metadata(dump_document(document), node_path=path)
    if not made.chunk_codecs().can_encode:
        raise UnsupportedError(
            f"array {variable.path} has a codec that cannot encode; set others with"
            f" encoding={{{variable.name!r}: {{'codecs': [...]}}}}",
            variable=variable.name,
        )
    return made


def is_lossless(codecs: Sequence[Any]) -> bool:
    """Return True if codecs of a document are known to store each value exactly."""
    for entry in codecs:
        name = entry.get("name") if isinstance(entry, dict) else entry
        if name == _SHARDING:
            if not is_lossless(entry["configuration"]["codecs"]):
                return False
        elif name not in _LOSSLESS and name not in BYTE_CODECS:
            return False
    return True


def _inner_shape(variable: Variable) -> tuple[int, ...]:
    """Return the shape of the first (inner) chunk."""
    return tuple(axis.full_size(0) for axis in chunk_axes(variable))


def _auto(shape: Sequence[int], elements: int) -> tuple[int, ...]:
    """Return a chunk shape of at most `elements`, by repeatedly halving the longest axis."""
    sizes = [max(1, size) for size in shape]
    while math.prod(sizes) > max(1, elements):
        longest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[longest] = -(-sizes[longest] // 2)
    return tuple(sizes)


def _sizes(
    variable: Variable,
    shape: Sequence[int],
    given: Mapping[str, int],
    kept: Sequence[int],
    option: str,
) -> tuple[int, ...]:
    sizes = []
    for dim, size, now in zip(variable.dims, shape, kept, strict=True):
        wanted = given.get(dim, now)
        if wanted != -1 and wanted < 1:
            raise InvalidInputError(
                f"{option}: {dim} is {wanted}; use a number of elements from 1, or -1 for all",
                option=option,
                dimension=dim,
            )
        sizes.append(max(1, size) if wanted == -1 else min(wanted, max(1, size, now)))
    return tuple(sizes)


def _inner_codecs(variable: Variable) -> list[Any]:
    """Return the codecs of an (inner) chunk."""
    chain = list(variable.metadata.raw["codecs"])
    names = [entry.get("name") if isinstance(entry, dict) else entry for entry in chain]
    if _SHARDING not in names:
        return chain
    if len(chain) > 1:
        raise UnsupportedError(
            f"array {variable.path} has codecs around its shards ({', '.join(map(str, names))});"
            f" set all of them with encoding={{{variable.name!r}: {{'codecs': [...]}}}}",
            variable=variable.name,
        )
    return list(chain[0]["configuration"]["codecs"])
