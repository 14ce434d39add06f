"""Describes an array from its ``zarr.json`` and its node in a snapshot, without manifests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from icechunk_format.display.chunk_picture import chunk_picture
from icechunk_format.display.markup import (
    attributes,
    brief,
    cut,
    escaped,
    facts,
    folded,
    more,
    quiet,
    soft,
)
from icechunk_format.display.plain_text import aligned, counted, one_line, safe, size
from icechunk_format.errors import IcechunkError
from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.zarr_json import ArrayMetadata, parse_array_metadata

MOST_ARRAYS: Final = 50
_MOST_DIMS: Final = 8
_TIMES: Final = " × "


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFacts:
    """Properties of an array that do not need manifests.

    Parameters
    ----------
    num_manifests
        None for an array that is not stored.
    chunks, shards
        Elements along each dimension; None if they vary or are unknown.
    nbytes
        Bytes of all elements in memory; None if elements have no fixed size.
    problem
        The error if ``zarr.json`` cannot be read.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    num_chunks: int
    num_manifests: int | None
    dtype: str = "?"
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codecs: str = "?"
    nbytes: int | None = None
    chunk_nbytes: int | None = None
    fill_value: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def dims_text(self) -> str:
        """The escaped names of the dimensions in parentheses."""
        names = [safe(cut(name, 40)) for name in self.dims[:_MOST_DIMS]]
        return f"({', '.join(names)}{', …' if len(self.dims) > _MOST_DIMS else ''})"


def facts_of(node: Any, name: str) -> ArrayFacts:
    """Describe an array node of a snapshot."""
    array = node.array
    names = array.dimension_names or (None,) * len(array.shape)
    known: dict[str, Any] = {
        "name": name,
        "dims": tuple(one or f"dim_{axis}" for axis, one in enumerate(names)),
        "shape": tuple(array.shape),
        "num_chunks": math.prod(array.num_chunks),
        "num_manifests": len(array.manifests.ids),
    }
    try:
        metadata = parse_array_metadata(node.user_data, node_path=node.path)
        known |= {
            "attributes": metadata.attributes,
            "codecs": codecs_text(metadata.codecs_json),
            "fill_value": metadata.raw.get("fill_value"),
        }
        return ArrayFacts(**known, **_stored(metadata))
    except IcechunkError as error:
        return ArrayFacts(**known, problem=one_line(cut(error.message, 300)))


def facts_of_document(metadata: ArrayMetadata, name: str) -> ArrayFacts:
    """Describe an array that is not stored yet, by its ``zarr.json``."""
    names = metadata.dimension_names or (None,) * metadata.ndim
    return ArrayFacts(
        name=name,
        dims=tuple(one or f"dim_{axis}" for axis, one in enumerate(names)),
        shape=tuple(metadata.shape),
        num_chunks=math.prod(metadata.grid.num_chunks),
        num_manifests=None,
        attributes=metadata.attributes,
        codecs=codecs_text(metadata.codecs_json),
        fill_value=metadata.raw.get("fill_value"),
        **_stored(metadata),
    )


def _stored(metadata: ArrayMetadata) -> dict[str, Any]:
    found: dict[str, Any] = {"dtype": shown_data_type(metadata.data_type)}
    itemsize = metadata.data_type.itemsize
    if itemsize:
        found["nbytes"] = math.prod(metadata.shape) * itemsize
    chunks = metadata.grid.chunk_shape
    sharding = metadata.chunk_codecs().sharding
    if sharding is not None:
        found["shards"], chunks = chunks, tuple(sharding.inner_shape)
    found["chunks"] = chunks
    if itemsize and chunks is not None:
        found["chunk_nbytes"] = math.prod(chunks) * itemsize
    return found


def shown_data_type(found: DataType) -> str:
    """Return the display name of a data type."""
    if found.fields:
        return f"struct({', '.join(name for name, _ in found.fields)})"
    kind = found.numpy.kind
    if kind == "O":
        return found.name
    return found.numpy.str.lstrip("<>|=") if kind in "USV" else str(found.numpy)


def codecs_text(codecs: Any) -> str:
    """Return the escaped names of codecs, with codecs inside sharding in parentheses."""
    if not isinstance(codecs, list):
        return "?"
    names = []
    for codec in codecs:
        name = codec.get("name") if isinstance(codec, dict) else codec
        configuration = codec.get("configuration") if isinstance(codec, dict) else None
        inner = configuration.get("codecs") if isinstance(configuration, dict) else None
        if name == "sharding_indexed" and isinstance(inner, list):
            # Only one level is displayed; --json has all.
            inner_names = [c.get("name") if isinstance(c, dict) else c for c in inner]
            names.append(f"sharding({', '.join(safe(item) for item in inner_names)})")
        else:
            names.append(safe(name))
    return ", ".join(names)


def _product(lengths: Sequence[int] | None) -> str:
    if lengths is None:
        return "unequal"
    shown = [f"{length:,}" for length in lengths[:_MOST_DIMS]]
    return _TIMES.join([*shown, *(["…"] if len(lengths) > _MOST_DIMS else [])])


def array_lines(found: Sequence[tuple[str, ArrayFacts]]) -> list[str]:
    """Return an aligned line for each array; each comes with a prefix of its name."""
    rows = [
        (before + safe(cut(one.name, 40)), one.dims_text, safe(cut(one.dtype, 30)), _line_end(one))
        for before, one in found
    ]
    return aligned(rows)


def _line_end(one: ArrayFacts) -> str:
    if one.problem is not None:
        return f"! {cut(one.problem, 80)}"
    if not one.shape:
        return "scalar"
    text = f"{_product(one.shape)} in chunks of {_product(one.chunks)}"
    return text if one.nbytes is None else f"{text}, {size(one.nbytes)}"


def arrays_html(found: Iterable[ArrayFacts], left_out: int = 0) -> str:
    """Return arrays as expandable HTML parts, each with a picture of its chunks."""
    return "".join(map(_array_html, found)) + quiet(more(left_out, "array"))


def _array_html(one: ArrayFacts) -> str:
    name = f"<b>{escaped(one.name, 60)}</b> {soft(escaped(one.dims_text, 400))}"
    end = escaped(_line_end(one)) if one.problem is None else ""
    summary = f"{name} {escaped(one.dtype, 60)} {soft(end)}"
    if one.problem is not None:
        return folded(summary, f"<div class='wrong'>{escaped(one.problem, 400)}</div>")
    in_shards = "" if one.shards is None else f" in shards of {_product(one.shards)}"
    per_chunk = "" if one.chunk_nbytes is None else f" ({size(one.chunk_nbytes)} each)"
    kind = "shard" if one.shards is not None else "chunk"
    stored = counted(one.num_chunks, kind)
    if one.num_manifests is not None:
        stored += f", listed by {counted(one.num_manifests, 'manifest')}"
    rows = [
        ("Shape", escaped(_product(one.shape) or "scalar")),
        ("Chunks", escaped(f"{_product(one.chunks)}{per_chunk}{in_shards}" if one.shape else "")),
        ("Grid", escaped(stored)),
        ("Size", "" if one.nbytes is None else escaped(f"{size(one.nbytes)}, not compressed")),
        ("Codecs", escaped(one.codecs)),
        ("Fill value", escaped(brief(one.fill_value, 60))),
    ]
    picture = chunk_picture(one.shape, one.chunks, one.shards)
    inside = f"<div class='array'>{facts(rows)}{picture}</div>{attributes(one.attributes)}"
    return folded(summary, inside)
