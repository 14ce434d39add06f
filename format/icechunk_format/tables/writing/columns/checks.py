"""Checks the options and columns of a write before any row is read.

Rules of this file
------------------
1. The only I/O is the check that the location of a new repository is empty.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups import Variable
from icechunk_format.names import check_names, unknown
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.changes import MISSING, PACKING
from icechunk_format.tables.table.table import CHUNKS_FIELDS, REFS_FIELDS

if TYPE_CHECKING:
    from icechunk_format.tables.writing.columns.source import SourceColumn

CF_KEYS: Final = (*MISSING, *PACKING, "units", "calendar")
"""Keys of the option ``encoding`` that become CF attributes."""

ENCODING_KEYS: Final = (
    "dtype",
    "chunks",
    "shards",
    "compressors",
    "codecs",
    "fill_value",
    *CF_KEYS,
    "attributes",
    "order",
    "shape",
    "dims",
)
"""Keys of the option ``encoding``; the last two are for the layouts of chunks."""


_OF_CHUNKS: Final = ("codecs", "shape", "dims")


def check_options(options: WriteOptions) -> None:
    """Raise InvalidInputError before the write for metadata and encodings that cannot be stored."""
    MetadataItems.of(options.metadata)
    for name, encoding in options.encoding.items():
        for key in encoding:
            if key not in ENCODING_KEYS:
                raise InvalidInputError(
                    f"encoding of {name!r}: {unknown('key', str(key), ENCODING_KEYS)}",
                    variable=name,
                    key=key,
                )
        if encoding.get("codecs") is not None and encoding.get("compressors") is not None:
            problem = "contains the compressors; leave compressors out"
            raise bad_encoding(name, "codecs", encoding["codecs"], problem)
        for key in encoding:
            _check_encoding(name, key, encoding[key], options.layout)


def _check_encoding(name: str, key: str, value: Any, layout: str) -> None:
    """Raise InvalidInputError for a value that would be ignored or make all values infinite."""
    if value is None:
        return
    if key in _OF_CHUNKS and layout == "cells":
        advice = "compressors" if key == "codecs" else "the columns and the option dims"
        raise bad_encoding(
            name, key, value, f"applies to layout=chunks and refs; in layout=cells, use {advice}"
        )
    problem = ""
    if key == "order" and layout != "cells":
        problem = "applies to layout=cells; leave it out"
    elif key == "_Unsigned" and str(value).lower() not in ("true", "false"):
        problem = 'must be "true" or "false"'
    elif key == "order" and not isinstance(value, list):
        if value not in ("ascending", "descending", "unsorted"):
            problem = "must be ascending, descending or unsorted"
    elif key in ("scale_factor", "add_offset"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            problem = "must be a finite number"
        elif key == "scale_factor" and abs(value) < sys.float_info.min:
            problem = "is 0 or too small to divide by; leave it out if values are not packed"
    if problem:
        raise bad_encoding(name, key, value, problem)


def bad_encoding(name: str, key: str, value: object, problem: str) -> InvalidInputError:
    """Return the error for a value in the option ``encoding`` of an array."""
    return InvalidInputError(
        f"encoding of {name!r}: {key}={value!r} {problem}", variable=name, key=key
    )


def check_index_type(column: SourceColumn) -> None:
    """Raise InvalidInputError if a column of indices is not of integers."""
    string = str(column.arrow_type)
    if not string.startswith(("int", "uint")):
        raise InvalidInputError(
            f"the dimension {column.name!r} has no labels, so its column must be BIGINT (indices "
            f"from 0); found {string}",
            dim=column.name,
        )


def check_existing(
    variable: Variable,
    column: SourceColumn,
    dims: Sequence[str],
    options: WriteOptions,
    *,
    others: Collection[str],
) -> None:
    """Raise if a column does not fit its array.

    ``others`` are columns without an array, of which one may be a renamed dimension.
    """
    name = column.name
    if name in dims:
        return
    if not variable.codecs.can_encode:
        raise UnsupportedError(
            f"array {variable.path} has codecs that are only read ({_codec_names(variable)}); "
            f"leave the column {name!r} out, or write it under another name",
            variable=name,
        )
    absent = [dim for dim in variable.dims if dim not in dims]
    if absent or variable.has_repeated_dimension:
        hidden = [other for other in sorted(others) if other not in dims]
        hint = ""
        if absent and hidden:
            hint = (
                f": there is no column {absent[0]!r}. If {' or '.join(map(repr, hidden))} is that "
                f"dimension, rename it: df.withColumnRenamed({hidden[0]!r}, {absent[0]!r})"
            )
        raise InvalidInputError(
            f"array {variable.path} has the dimensions ({', '.join(variable.dims)}), and the "
            f"DataFrame ({', '.join(dims)}); each dimension of the array needs a column{hint}",
            variable=name,
            dims=variable.dims,
        )
    if options.encoding.get(name):
        raise InvalidInputError(
            f"array {variable.path} exists, and an append keeps its encoding; leave encoding of "
            f"{name!r} out, or write with mode=overwrite",
            variable=name,
        )
    chunks = variable.metadata.grid.chunk_shape
    if variable.codecs.sharding is not None:
        chunks = variable.codecs.sharding.inner_shape
    for dim, size in (options.chunks or {}).items():
        if chunks is None or (dim in variable.dims and chunks[variable.dims.index(dim)] != size):
            raise InvalidInputError(
                f"array {variable.path} exists with chunks of {chunks}, and an append keeps them; "
                f"leave chunks={dim}={size} out, or write with mode=overwrite",
                variable=name,
            )


def _codec_names(variable: Variable) -> str:
    codecs = variable.metadata.raw["codecs"]
    return ", ".join(str(c.get("name") if isinstance(c, dict) else c) for c in codecs)


def check_case(new: Iterable[str], kept: Mapping[str, Variable]) -> None:
    """Raise if the name of a new array or dimension differs from another in case alone.

    Spark does not distinguish such columns, so the group could not be read as a table.
    """
    existing = {name for v in kept.values() for name in (v.name, *v.dims)}
    seen = {name.casefold(): name for name in existing}
    for name in new:
        other = seen.setdefault(name.casefold(), name)
        if name != other and name not in existing:
            raise InvalidInputError(
                f"the column {name!r} differs from {other!r} in case alone, and Spark compares"
                f" names without case; write it as {other!r}, or choose another name",
                column=name,
                existing=other,
            )


def check_named(
    options: WriteOptions, columns: Mapping[str, SourceColumn], dims: Sequence[str]
) -> None:
    """Raise InvalidInputError if options name unknown columns or dimensions."""
    check_names("encoding", "column", options.encoding, columns)
    check_names("chunks", "dimension", options.chunks or (), dims)
    check_names("shards", "dimension", options.shards or (), dims)
    check_names("order", "dimension", options.order or (), dims)
    for name, given in options.encoding.items():
        if given.get("order") is not None and name not in dims:
            problem = (
                f"sorts labels, and {name!r} is not a dimension ({', '.join(dims)}); leave it out"
            )
            raise bad_encoding(name, "order", given["order"], problem)


def check_layout_columns(schema: pa.Schema, layout: str) -> None:
    """Raise if columns of a layout of chunks are missing, unknown or of the wrong type."""
    is_refs = layout == "refs"
    fields = REFS_FIELDS if is_refs else CHUNKS_FIELDS
    needed = ("array", "chunk", "kind" if is_refs else "data")
    types = dict(fields) | {"data": dict(CHUNKS_FIELDS)["data"]}
    for column in schema:
        if column.name not in types:
            raise InvalidInputError(
                f"layout={layout} has no column {column.name!r}; its columns are "
                f"{', '.join(name for name, _ in fields)}",
                column=column.name,
                allowed=tuple(name for name, _ in fields),
            )
        wanted = types[column.name]
        if str(column.type).replace("large_", "") != str(wanted) and not (
            str(wanted).startswith("list") and str(column.type).startswith("list")
        ):
            raise InvalidInputError(
                f"column {column.name!r} of layout={layout} is {column.type}, and must be {wanted}",
                column=column.name,
            )
    for name in needed:
        if name not in schema.names:
            raise InvalidInputError(
                f"layout={layout} needs the columns {', '.join(needed)}; {name!r} is missing",
                column=name,
                needed=tuple(needed),
            )
