"""Designs the new array of a column: data type, chunks, codecs, attributes and fill value.

Rules of this file
------------------
1. Three sources, in this order: the options ``encoding``, ``chunks`` and ``shards``; the array that
   the column was read from, by field metadata; and defaults, which are xarray's.
2. A column that was read and not changed is written to an identical array: data type, chunks,
   codecs, attributes, CF encoding and fill value.
3. The fill value of the array is its missing value, so that unwritten cells read as NULL, also
   after the array has grown. Arrays of labels have no unwritten cells.
4. Default chunks have about 8 MiB and span the last dimensions, since rows are appended along the
   first.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.grid.cover import sides_from_last
from icechunk_format.repository.changes import MISSING, PACKING
from icechunk_format.tables.cf.calendars import CALENDAR_NAMES, canonical_calendar
from icechunk_format.tables.cf.column_types import (
    BOOLEAN_FLAGS,
    default_array_type,
    missing_value_advice,
)
from icechunk_format.tables.cf.decode import attribute_decoder
from icechunk_format.tables.cf.encode import (
    VariableEncoder,
    missing_value,
    variable_encoder,
)
from icechunk_format.tables.writing.columns.checks import CF_KEYS, bad_encoding
from icechunk_format.zarr.data_types import DataType, data_type_from_numpy, parse_data_type
from icechunk_format.zarr.fill_values import NON_FINITE, decode_fill_value, default_fill_value
from icechunk_format.zarr.new_nodes import build_array_metadata
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata

if TYPE_CHECKING:
    from icechunk_format.tables.writing.columns.source import SourceColumn

CHUNK_BYTES: Final = 8 * 2**20
_LEAST_LABELS: Final = 1024
_VARIABLE_ITEM_BYTES: Final = 64


class NewArray:
    """The new array of a column, without its shape and chunks."""

    def __init__(
        self, column: SourceColumn, *, path: str, dims: Sequence[str], given: Mapping[str, Any]
    ) -> None:
        self.column = column
        self.path = path
        self.dims = tuple(dims)
        self._given = given
        self._described: Mapping[str, Any] = column.described
        try:
            self.data_type, self.attributes, self.encoder = self._typed()
        except (InvalidInputError, UnsupportedError, FormatError):
            if not self._described:
                raise
            # The metadata no longer describes the column, so it is ignored.
            self._described = {}
            self.data_type, self.attributes, self.encoder = self._typed()

    @property
    def advice(self) -> str:
        """Advice on options that give the array a missing value."""
        return missing_value_advice(self.column.name, self.data_type, self.column.arrow_type)

    def _typed(self) -> tuple[DataType, dict[str, Any], VariableEncoder]:
        given, described, name = self._given, self._described, self.column.name
        data_type, defaults = default_array_type(self.column.arrow_type, name=name)
        attributes: dict[str, Any] = {}
        if "stored_dtype" in described:
            data_type = parse_data_type(described["stored_dtype"], node_path=self.path)
            attributes = _attributes_of(described)
            defaults = {}
        if given.get("dtype") is not None:
            data_type = named_type(given["dtype"], name)
            if data_type.kind in ("datetime", "timedelta", "string"):
                defaults = {}
            if data_type.numpy.kind in "iu" and self.column.arrow_type == "bool":
                has_missing = any(given.get(key) is not None for key in MISSING)
                defaults = dict(BOOLEAN_FLAGS) if has_missing else {"dtype": "bool"}
                attributes.pop("dtype", None)
        attributes = described_attributes(given, data_type, name, before={**defaults, **attributes})
        is_plain_float = data_type.kind == "float" and "stored_dtype" not in described
        if is_plain_float and "_FillValue" not in given:
            attributes.setdefault("_FillValue", _base64_double(math.nan))
        encoder = variable_encoder(
            data_type,
            attributes,
            self.column.arrow_type,
            # Numbers that were read with ``decodeCf=false`` are not encoded.
            decode_cf=not (described and self.column.is_raw),
            name=name,
        )
        return data_type, attributes, encoder

    @property
    def _has_described_type(self) -> bool:
        return bool(self._described.get("stored_dtype") == self.data_type.to_json())

    def metadata(
        self,
        shape: Sequence[int],
        *,
        chunks: Mapping[str, int],
        shards: Mapping[str, int],
        is_complete: bool,
    ) -> ArrayMetadata:
        """Return the document of the array; ``is_complete`` if every cell will be written."""
        chunk_shape, shard_shape, is_same = self._chunking(shape, chunks, shards)
        metadata = build_array_metadata(
            shape=shape,
            data_type=self.data_type,
            chunk_shape=chunk_shape,
            shard_shape=shard_shape,
            fill_value=self._fill_value(is_complete),
            codecs=self._codecs(),
            dimension_names=self.dims or None,
            attributes=self.attributes,
            node_path=self.path,
        )
        grid = self._described.get("chunk_grid")
        if is_same and grid is not None and list(shape) == self._described.get("shape"):
            raw = {**metadata.raw, "chunk_grid": grid}
            return parse_array_metadata(dump_document(raw), node_path=self.path)
        return metadata

    def _chunking(
        self, shape: Sequence[int], chunks: Mapping[str, int], shards: Mapping[str, int]
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None, bool]:
        is_label = self.dims == (self.column.name,)
        described = self._described if self.column.dims == self.dims else {}
        before: Any = described.get("chunks")
        before_shards = described.get("shards")
        default = default_chunks(shape, self.data_type)
        if is_label:
            # Labels are read whole, and usually grow by a few elements.
            default = (max(_LEAST_LABELS, min(shape[0], 2**20)),)

        def requested(key: str, by_dim: Mapping[str, int], base: Sequence[int]) -> Any:
            sizes = sizes_of(self._given.get(key), self.dims, key, self.column.name)
            if sizes is not None or is_label or by_dim.keys().isdisjoint(self.dims):
                return sizes
            return tuple(by_dim.get(dim, size) for dim, size in zip(self.dims, base, strict=True))

        own_chunks = requested("chunks", chunks, before or default)
        own_shards = requested("shards", shards, own_chunks or before or default)
        is_same = own_chunks is None and (before is None or own_shards is None)
        if is_same and before is not None and before_shards is not None:
            own_shards = tuple(before_shards)
        return tuple(own_chunks or before or default), own_shards, is_same

    def _codecs(self) -> list[Any] | None:
        if "compressors" in self._given:
            return codecs_of(self._given["compressors"], self.data_type, self.column.name)
        codecs = self._described.get("codecs")
        is_same = self._has_described_type and self.column.dims == self.dims
        if not isinstance(codecs, list) or not is_same:
            return None
        first = codecs[0] if len(codecs) == 1 else None
        if isinstance(first, dict) and first.get("name") == "sharding_indexed":
            inner = first.get("configuration", {}).get("codecs")
            return inner if isinstance(inner, list) else None
        return codecs

    def _fill_value(self, is_complete: bool) -> Any:
        given = encoded_fill(self._given.get("fill_value"), self.data_type, self.column.name)
        if given is not None:
            return given
        raw = self._described.get("fill_value") if self._has_described_type else None
        if raw is not None and (is_complete or self.encoder.absent is None):
            return decode_fill_value(raw, self.data_type, node_path=self.path)
        is_label = self.dims == (self.column.name,) and self.data_type.kind != "float"
        if self.encoder.absent is None or (is_complete and is_label):
            return default_fill_value(self.data_type)
        return self.encoder.absent


def default_chunks(shape: Sequence[int], data_type: DataType) -> tuple[int, ...]:
    """Return chunks of about 8 MiB that span the last dimensions and divide the first.

    A plane of the last two dimensions that is too large is cut into squares.
    """
    most = max(1, CHUNK_BYTES // data_type.item_bytes)
    sizes = [max(1, int(size)) for size in shape]
    if len(sizes) < 2 or math.prod(sizes[-2:]) <= most:
        return sides_from_last(sizes, most)
    height, width = sizes[-2:]
    side = min(height, math.isqrt(most))
    width = min(width, most // side)
    return (*(1 for _ in sizes[:-2]), min(height, most // width), width)


def _attributes_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the described array, including its CF encoding."""
    attributes = dict(described.get("attributes") or {})
    encoding = described.get("encoding") or {}
    data_type = parse_data_type(described["stored_dtype"])
    for key, value in encoding.items():
        if key == "dtype":
            if value == "bool" and data_type.kind != "bool":
                attributes["dtype"] = "bool"
            elif str(value).startswith("timedelta64") and data_type.kind != "timedelta":
                attributes["dtype"] = value
        elif key in MISSING:
            attributes[key] = _fill_attribute(value, data_type, key, "")
        else:
            attributes[key] = value
    return attributes


def described_attributes(
    given: Mapping[str, Any],
    data_type: DataType,
    name: str,
    *,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return attributes, updated by the option ``encoding``; None removes a CF attribute."""
    attributes = {**(before or {}), **(given.get("attributes") or {})}
    for key in CF_KEYS:
        if key not in given:
            continue
        value = given[key]
        if value is None:
            attributes.pop(key, None)
        elif key in MISSING:
            if data_type.numpy.kind == "b":
                advice = missing_value_advice(name, data_type, pa.bool_())
                problem = f"would make every real {str(bool(value)).lower()} a missing value"
                raise bad_encoding(name, key, value, f"{problem}; take {advice}")
            # xarray opens strings only if the attribute has this name.
            is_string = data_type.kind in ("string", "bytes")
            called = "missing_value" if is_string else key
            attributes[called] = _fill_attribute(value, data_type, called, name)
        else:
            attributes[key] = value
    _check_used(given, attributes, data_type, name)
    return attributes


def _check_used(
    given: Mapping[str, Any], attributes: Mapping[str, Any], data_type: DataType, name: str
) -> None:
    """Raise InvalidInputError for a CF attribute that readers of this data type ignore."""
    kind = data_type.numpy.kind
    for key in PACKING:
        wanted = "iu" if key == "_Unsigned" else "iuf"
        if given.get(key) is not None and kind not in wanted:
            raise bad_encoding(name, key, given[key], f"does not apply to {data_type.name}")
    calendar = given.get("calendar")
    if calendar is None:
        return
    if not isinstance(calendar, str) or canonical_calendar(calendar) is None:
        allowed = ", ".join(CALENDAR_NAMES)
        raise bad_encoding(name, "calendar", calendar, f"is unknown; allowed are {allowed}")
    if " since " not in str(attributes.get("units")):
        problem = "applies to times; give units such as 'hours since 1970-01-01' as well"
        raise bad_encoding(name, "calendar", calendar, problem)


def declared_missing(attributes: Mapping[str, Any], data_type: DataType, name: str) -> Any:
    """Return the stored missing value that CF attributes declare, or None."""
    decoder = attribute_decoder(attributes, data_type, name=name)
    if all(attributes.get(key) is None for key in MISSING):
        return None
    return missing_value(attributes, decoder, data_type)


def encoded_fill(given: Any, data_type: DataType, name: str) -> Any:
    """Return the ``fill_value`` of the option ``encoding``; None if not given."""
    if given is None:
        return None
    problem = f"is not a {data_type.name} value"
    try:
        value = decode_fill_value(given, data_type, node_path=name)
    except FormatError as error:
        raise bad_encoding(name, "fill_value", given, problem) from error
    is_float = data_type.kind == "float" and isinstance(given, int)
    if is_float and (not np.isfinite(value) or int(value) != given):
        raise bad_encoding(name, "fill_value", given, problem)
    return value


def _fill_attribute(value: Any, data_type: DataType, key: str, name: str) -> Any:
    """Return a missing value as xarray writes it: floats in base64, others unchanged."""
    if key == "missing_value" or data_type.kind != "float" or isinstance(value, list):
        return value
    if isinstance(value, str):
        if value not in NON_FINITE:
            return value
        value = NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_encoding(name, key, value, "is not a number")
    return _base64_double(float(value))


def _base64_double(value: float) -> str:
    return base64.b64encode(struct.pack("<d", value)).decode("ascii")


def named_type(given: Any, name: str) -> DataType:
    """Return the data type in the option ``encoding``, named as in NumPy or Zarr."""
    try:
        if isinstance(given, str):
            words = {"str": "string", "object": "string"}
            known = words.get(given, given)
            if known in ("string", "bytes"):
                return data_type_from_numpy(known)
            return data_type_from_numpy(np.dtype(known))
        return parse_data_type(given, node_path=name)
    except (TypeError, FormatError, UnsupportedError) as error:
        problem = (
            "is not a data type; use a name of NumPy, like float32, int16, datetime64[s] or string"
        )
        raise bad_encoding(name, "dtype", given, problem) from error


def sizes_of(given: Any, dims: Sequence[str], key: str, name: str) -> tuple[int, ...] | None:
    """Parse a chunk shape: a list in the order of the dimensions, or a mapping by dimension."""
    if given is None:
        return None
    if isinstance(given, dict) and set(given) == set(dims):
        given = [given[dim] for dim in dims]
    is_list = isinstance(given, list | tuple) and len(given) == len(dims)
    if not is_list or not all(type(size) is int and size >= 1 for size in given):
        problem = "must be a whole number of elements for each of the dimensions"
        raise bad_encoding(name, key, given, f"{problem} {', '.join(dims)}")
    return tuple(given)


def codecs_of(given: Any, data_type: DataType, name: str) -> list[Any]:
    """Return the codecs of a chunk: the codec of its elements, and the given compressors."""
    elements = build_array_metadata(shape=(), data_type=data_type, chunk_shape=()).codecs_json[0]
    if given is None:
        return [elements]
    listed = given if isinstance(given, list) else [given]
    for codec in listed:
        if not isinstance(codec, str) and not (isinstance(codec, dict) and "name" in codec):
            raise InvalidInputError(
                f"encoding of {name!r}: the compressor {codec!r} should read like "
                '{"name": "zstd", "configuration": {"level": 3, "checksum": false}}',
                variable=name,
            )
    return [elements, *({"name": c} if isinstance(c, str) else c for c in listed)]
