"""Reads and checks the ``zarr.json`` of arrays and groups.

Rules of this file
------------------
1. Shapes, names and sizes are checked on reading. A data type, grid or codec that is valid but not
   supported raises only when it is used, so that other arrays stay usable.
2. Documents are untrusted. Their size and the number of dimensions are limited, and no number in
   them determines an allocation.
3. Documents are written as zarr-python writes them: the same members in the same order.

Spec: Zarr v3 core, "Metadata".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, Self, TypeVar

import numpy as np

from icechunk_format.errors import IcechunkError, UnsupportedError
from icechunk_format.zarr.chunk_grid import ChunkGrid, parse_chunk_grid
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.data_types import DataType, parse_data_type
from icechunk_format.zarr.fill_values import decode_fill_value, fill_array
from icechunk_format.zarr.named_configuration import (
    INT64_MAX,
    Member,
    is_integer,
    parse_named_configuration,
    shortened,
)

MAX_DOCUMENT_NBYTES: Final = 2**25
MAX_NDIM: Final = 64

_ARRAY_MEMBERS: Final = frozenset(
    {
        "zarr_format",
        "node_type",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "attributes",
        "dimension_names",
        "storage_transformers",
    }
)
_GROUP_MEMBERS: Final = frozenset(
    {"zarr_format", "node_type", "attributes", "consolidated_metadata"}
)

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetadata:
    """The ``zarr.json`` of a node; ``raw`` is the whole document."""

    node_path: str
    attributes: dict[str, Any]
    raw: dict[str, Any]

    def with_attributes(self, attributes: Mapping[str, Any]) -> Self:
        """Return the node with other attributes; the rest of the document is kept."""
        raw = {**self.raw, "attributes": dict(attributes)}
        return replace(self, attributes=dict(attributes), raw=raw)

    def to_bytes(self) -> bytes:
        """Return the document."""
        return dump_document(self.raw)


class GroupMetadata(NodeMetadata):
    """The ``zarr.json`` of a group."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMetadata(NodeMetadata):
    """The ``zarr.json`` of an array.

    ``data_type``, ``grid``, ``fill_value`` and ``chunk_codecs()`` raise ``UnsupportedError`` if the
    array uses a feature that is not supported.
    """

    shape: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None
    """A name or ``None`` per dimension (``None`` for an empty name); ``None`` if there are no
    names."""
    codecs_json: list[Any]
    """The ``codecs`` member, not yet checked."""
    refusal: UnsupportedError | None = field(repr=False)
    """The error for a feature that makes the whole array unusable."""
    _data_type: DataType | IcechunkError = field(repr=False)
    _grid: ChunkGrid | IcechunkError = field(repr=False)
    _fill_value: Any = field(repr=False)

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""
        return len(self.shape)

    @property
    def data_type(self) -> DataType:
        """Type of the elements."""
        return self._used(self._data_type)

    @property
    def grid(self) -> ChunkGrid:
        """Grid of the chunks, or of the shards of a sharded array."""
        return self._used(self._grid)

    @property
    def fill_value(self) -> Any:
        """Value of missing chunks: a NumPy scalar, ``str`` or ``bytes``."""
        return self._used(self._fill_value)

    def chunk_codecs(self) -> ChunkCodecs:
        """Make the codecs of the chunks. This takes about 50 us, so callers keep the result.

        Raises FormatError if the codecs do not fit together or the array.
        """
        codecs = ChunkCodecs(
            self.codecs_json,
            self.data_type,
            self.fill_value,
            ndim=self.ndim,
            node_path=self.node_path,
        )
        if codecs.sharding is not None:
            for axis, inner in enumerate(codecs.sharding.inner_shape):
                for size in self.grid.axes[axis].distinct_sizes():
                    if size % inner:
                        raise Member(self.node_path, "codecs[0].configuration.chunk_shape").error(
                            f"shards of {size} along axis {axis} are not made of whole inner "
                            f"chunks of {inner}"
                        )
        return codecs

    def fill_array(self, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return a new, writable array of fill values, the content of a missing chunk."""
        return fill_array(self.data_type, self.fill_value, shape)

    def with_shape(self, shape: Sequence[int]) -> ArrayMetadata:
        """Return the array with another shape; existing chunks keep their positions."""
        grid = self.grid.resized(shape)
        raw = {**self.raw, "shape": [int(n) for n in shape], "chunk_grid": grid.to_json()}
        return replace(self, shape=grid.shape, _grid=grid, raw=raw)

    def _used(self, value: _Value | IcechunkError) -> _Value:
        for error in (self.refusal, value):
            if isinstance(error, IcechunkError):
                # Raising one error repeatedly grows its traceback, so a new one is raised.
                raise UnsupportedError(error.message, **error.facts)
        assert not isinstance(value, IcechunkError)
        return value


def parse_array_metadata(user_data: bytes, *, node_path: str) -> ArrayMetadata:
    """Read the ``zarr.json`` of an array; unsupported features raise when they are used."""
    document = _load(user_data, "array", node_path)
    shape = _parse_shape(document, node_path)
    dimension_names = _parse_dimension_names(document, len(shape), node_path)
    attributes = _parse_attributes(document, node_path)
    codecs_json = document.get("codecs")
    if not isinstance(codecs_json, list) or not codecs_json:
        raise Member(node_path, "codecs").error(
            f"expected a list of codecs, found {shortened(codecs_json)}"
        )
    data_type: DataType | IcechunkError
    fill_value: Any
    if "data_type" not in document or "fill_value" not in document:
        missing = "data_type" if "data_type" not in document else "fill_value"
        raise Member(node_path, missing).error("the member is missing")
    try:
        data_type = parse_data_type(document["data_type"], node_path=node_path)
        fill_value = decode_fill_value(document["fill_value"], data_type, node_path=node_path)
    except UnsupportedError as error:
        data_type = fill_value = error
    grid: ChunkGrid | IcechunkError
    try:
        grid = parse_chunk_grid(
            document.get("chunk_grid"), shape, unit=_inner_shape(codecs_json), node_path=node_path
        )
    except UnsupportedError as error:
        grid = error
    return ArrayMetadata(
        node_path=node_path,
        shape=shape,
        dimension_names=dimension_names,
        attributes=attributes,
        codecs_json=codecs_json,
        raw=document,
        refusal=_find_refusal(document, node_path),
        _data_type=data_type,
        _grid=grid,
        _fill_value=fill_value,
    )


def parse_group_metadata(user_data: bytes, *, node_path: str) -> GroupMetadata:
    """Read the ``zarr.json`` of a group."""
    document = _load(user_data, "group", node_path)
    unknown = _must_understand(document, _GROUP_MEMBERS)
    if unknown:
        raise UnsupportedError(
            f"group {node_path!r} has the unknown member {shortened(unknown[0])}, which a reader "
            f"must understand",
            node_path=node_path,
            member=unknown[0],
        )
    return GroupMetadata(
        node_path=node_path, attributes=_parse_attributes(document, node_path), raw=document
    )


def _load(user_data: bytes, node_type: str, node_path: str) -> dict[str, Any]:
    def refuse(problem: str, member: str) -> NoReturn:
        raise Member(node_path, member).error(problem)

    if len(user_data) > MAX_DOCUMENT_NBYTES:
        refuse(
            f"it has {len(user_data)} bytes, at most {MAX_DOCUMENT_NBYTES} are allowed", "document"
        )
    try:
        document = json.loads(user_data)
    except (ValueError, RecursionError) as error:
        refuse(f"it is not JSON: {error}", "document")
    if not isinstance(document, dict):
        refuse(f"expected an object, found {shortened(document)}", "document")
    if document.get("zarr_format") != 3 or not is_integer(document["zarr_format"]):
        raise UnsupportedError(
            f"node {node_path!r} has zarr_format {shortened(document.get('zarr_format'))}; only "
            f"format 3 is read",
            node_path=node_path,
        )
    if node_path == "/" and node_type == "group" and document.get("node_type") == "array":
        raise UnsupportedError(
            "the root of the repository is an array, and only arrays in groups are read; open it "
            "with zarr.open_array, or store it below the root, such as at /data",
            node_path=node_path,
        )
    if document.get("node_type") != node_type:
        refuse(f"expected {node_type!r}, found {shortened(document.get('node_type'))}", "node_type")
    return document


def dump_document(document: Mapping[str, Any]) -> bytes:
    """Return a document as zarr-python writes it, including NaN in attributes."""
    return json.dumps(document, indent=2).encode()


def _parse_shape(document: dict[str, Any], node_path: str) -> tuple[int, ...]:
    shape = document.get("shape")
    if not isinstance(shape, list) or len(shape) > MAX_NDIM:
        raise Member(node_path, "shape").error(
            f"expected a list of at most {MAX_NDIM} sizes, found {shortened(shape)}"
        )
    for axis, size in enumerate(shape):
        if not is_integer(size) or not 0 <= size <= INT64_MAX:
            raise Member(node_path, f"shape[{axis}]").error(
                f"a size must be an integer from 0 to {INT64_MAX}, found {shortened(size)}"
            )
    return tuple(shape)


def _parse_dimension_names(
    document: dict[str, Any], ndim: int, node_path: str
) -> tuple[str | None, ...] | None:
    names = document.get("dimension_names")
    if names is None:
        return None
    if (
        not isinstance(names, list)
        or len(names) != ndim
        or not all(name is None or isinstance(name, str) for name in names)
    ):
        raise Member(node_path, "dimension_names").error(
            f"expected {ndim} names or nulls, found {shortened(names)}"
        )
    return tuple(name or None for name in names)


def _parse_attributes(document: dict[str, Any], node_path: str) -> dict[str, Any]:
    attributes = document.get("attributes")
    if attributes is None:
        return {}
    if not isinstance(attributes, dict):
        raise Member(node_path, "attributes").error(
            f"expected an object, found {shortened(attributes)}"
        )
    return attributes


def _inner_shape(codecs_json: list[Any]) -> list[int] | None:
    """Return the inner chunk shape if the first codec is a valid sharding codec."""
    first = codecs_json[0]
    if isinstance(first, dict) and first.get("name") == "sharding_indexed":
        configuration = first.get("configuration")
        if isinstance(configuration, dict):
            sizes = configuration.get("chunk_shape")
            if isinstance(sizes, list) and all(is_integer(n) for n in sizes):
                return sizes
    return None


def _must_understand(document: dict[str, Any], known: frozenset[str]) -> list[str]:
    return [
        member
        for member, value in document.items()
        if member not in known
        and not (isinstance(value, dict) and value.get("must_understand") is False)
    ]


def _find_refusal(document: dict[str, Any], node_path: str) -> UnsupportedError | None:
    """Return the error for a feature that makes the whole array unusable, or None."""
    transformers = document.get("storage_transformers")
    if transformers is not None and not isinstance(transformers, list):
        raise Member(node_path, "storage_transformers").error(
            f"expected a list, found {shortened(transformers)}"
        )
    problem = None
    unknown = _must_understand(document, _ARRAY_MEMBERS)
    encoding = parse_named_configuration(
        document.get("chunk_key_encoding", "default"), Member(node_path, "chunk_key_encoding")
    )
    if unknown:
        problem = f"has the unknown member {shortened(unknown[0])}, which a reader must understand"
    elif transformers:
        problem = f"has storage transformers, {shortened(transformers)}; none is supported"
    elif encoding.name != "default" or encoding.configuration.get("separator", "/") != "/":
        problem = (
            f"has chunk key encoding {shortened(encoding.name)} with "
            f"{shortened(encoding.configuration)}; only 'default' with separator '/' is supported"
        )
    if problem is None:
        return None
    return UnsupportedError(f"array {node_path!r} {problem}", node_path=node_path)
