"""Implements the array-to-bytes codecs: ``bytes``, ``vlen-utf8``, ``vlen-bytes`` and numcodecs'.

Rules of this file
------------------
1. ``decode`` returns the requested shape in native byte order, C order and aligned memory. The
   result may be a read-only view of the input.
2. Bytes that NumPy accepts but handles wrongly are refused or corrected: code points beyond
   Unicode, and booleans other than 0 and 1.

Spec: Zarr v3 codec ``bytes``; the registered ``vlen-utf8``, ``vlen-bytes``, ``numcodecs.pcodec``,
``numcodecs.zfpy``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numcodecs.vlen import VLenBytes, VLenUTF8

from icechunk_format.zarr.codecs.bytes import make_numcodec
from icechunk_format.zarr.codecs.grib import Grib
from icechunk_format.zarr.codecs.registered import import_optional
from icechunk_format.zarr.codecs.steps import (
    Array,
    Buffer,
    CodecSpec,
    ConfigurationError,
    ElementCodec,
    Shape,
    as_buffer,
    as_elements,
    compressed_bound,
)
from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.named_configuration import shortened

_MAX_CODE_POINT: Final = 0x10FFFF


class Bytes:
    """The ``bytes`` codec: elements stored consecutively."""

    name = "bytes"
    is_fixed_size = True

    def __init__(self, spec: CodecSpec) -> None:
        data_type, endian = spec.data_type, spec.configuration.get("endian")
        if endian not in (None, "little", "big"):
            raise ConfigurationError(f"endian must be 'little' or 'big', found {shortened(endian)}")
        if data_type.is_variable_length:
            raise ConfigurationError(
                f"elements of type {data_type.name} have no fixed size; use vlen-utf8 or vlen-bytes"
            )
        if endian is None and data_type.has_byte_order and not data_type.fields:
            raise ConfigurationError(
                f"endian is required for {data_type.name}, whose elements have several bytes"
            )
        order = "little" if endian is None else endian
        self._dtype = data_type.numpy
        self._itemsize = data_type.numpy.itemsize
        self._stored = data_type.numpy
        if order != sys.byteorder and data_type.has_byte_order:
            self._stored = data_type.numpy.newbyteorder("<" if order == "little" else ">")
        self._is_swapped = self._stored != self._dtype
        self._sanitize = _SANITIZERS.get(data_type.kind)
        if data_type.fields and _holds_string_or_bool(data_type):
            self._sanitize = _sanitize_struct

    def decode(self, data: Buffer, shape: Shape) -> Array:
        expected = math.prod(shape) * self._itemsize
        if len(data) != expected:
            raise ValueError(f"the elements take {expected} bytes, found {len(data)}")
        if not isinstance(data, bytes):
            # A slice of a shard may start at any byte, but consumers need aligned elements.
            array = np.frombuffer(data, dtype=self._stored)
            if not array.flags.aligned:
                array = array.copy()
        else:
            array = np.frombuffer(data, dtype=self._stored) if data else np.empty(0, self._stored)
        array = array.reshape(shape)
        if self._is_swapped:
            array = array.astype(self._dtype)
        if self._sanitize is not None:
            array = self._sanitize(array)
        return array

    def encode(self, array: Array) -> Buffer:
        stored = array.astype(self._stored) if self._is_swapped else array
        return memoryview(stored.reshape(-1).view(np.uint8))

    def encoded_bound(self, shape: Shape) -> int:
        return math.prod(shape) * self._itemsize


class VariableLength:
    """The codecs ``vlen-utf8`` and ``vlen-bytes``: each element is preceded by its length."""

    is_fixed_size = False

    def __init__(self, spec: CodecSpec) -> None:
        data_type = spec.data_type
        self.name = spec.name
        self._is_string = spec.name == "vlen-utf8"
        if not data_type.is_variable_length or (data_type.kind == "string") != self._is_string:
            wanted = "string" if self._is_string else "variable_length_bytes"
            raise ConfigurationError(f"it stores {wanted}, not {data_type.name}")
        self._codec = VLenUTF8() if self._is_string else VLenBytes()

    def decode(self, data: Buffer, shape: Shape) -> Array:
        count = int.from_bytes(data[:4], "little") if len(data) >= 4 else -1
        expected = math.prod(shape)
        if count != expected or len(data) < 4 + 4 * count:
            raise ValueError(
                f"it holds {count} elements in {len(data)} bytes, expected {expected} elements of "
                f"at least 4 bytes"
            )
        array: Array = self._codec.decode(data)
        return array.reshape(shape)

    def encode(self, array: Array) -> Buffer:
        wanted = str if self._is_string else bytes
        flat = array.reshape(-1)
        if not all(issubclass(kind, wanted) for kind in set(map(type, flat))):
            raise TypeError(f"every element must be {wanted.__name__}")
        return as_buffer(self._codec.encode(flat))

    def encoded_bound(self, shape: Shape) -> int | None:
        return None


class NumcodecsElements:
    """A numcodecs codec from arrays to bytes: ``zfpy``, or any registered one."""

    is_fixed_size = False

    def __init__(self, spec: CodecSpec, codec: Any) -> None:
        if spec.data_type.is_variable_length:
            raise ConfigurationError(f"it does not store elements of type {spec.data_type.name}")
        self.name = spec.name
        self._codec = codec
        self._dtype = spec.data_type.numpy

    def decode(self, data: Buffer, shape: Shape) -> Array:
        return as_elements(self._codec.decode(bytes(data)), shape, self._dtype)

    def encode(self, array: Array) -> Buffer:
        return as_buffer(self._codec.encode(array))

    def encoded_bound(self, shape: Shape) -> int | None:
        return compressed_bound(math.prod(shape) * self._dtype.itemsize)


class PCodec(NumcodecsElements):
    """``numcodecs.pcodec``, decoded into memory of the expected size.

    The library itself would allocate as many elements as the stream records.
    """

    def __init__(self, spec: CodecSpec) -> None:
        library = import_optional("pcodec", spec)
        super().__init__(spec, make_numcodec(spec.name, spec.configuration))
        self._standalone = library.standalone

    def decode(self, data: Buffer, shape: Shape) -> Array:
        out = np.empty(math.prod(shape), dtype=self._dtype)
        progress = self._standalone.simple_decompress_into(bytes(data), out)
        if progress.n_processed != out.size or not progress.finished:
            raise ValueError(f"it does not decode to {out.size} elements")
        return out.reshape(shape)


def _sanitize_bool(array: Array) -> Array:
    as_bytes: Any = array.view(np.uint8)
    if as_bytes.size and as_bytes.max() > 1:
        # Every value except zero is true; NumPy sums bytes other than 0 and 1 wrongly.
        result: Array = as_bytes != 0
        return result
    return array


def _sanitize_string(array: Array) -> Array:
    if array.size:
        points: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        highest = points.max()
        if highest >= 0xD800 and (
            highest > _MAX_CODE_POINT or bool(((points >= 0xD800) & (points <= 0xDFFF)).any())
        ):
            raise ValueError("an element holds a number that is not a Unicode character")
    return array


def _sanitize_struct(array: Array) -> Array:
    assert array.dtype.names is not None
    for name in array.dtype.names:
        field: Any = array[name]
        if field.dtype.names is not None:
            _sanitize_struct(field)
        elif field.dtype.kind == "U":
            _sanitize_string(field)
        elif field.dtype.kind == "b" and field.size and field.view(np.uint8).max() > 1:
            raise ValueError(f"field {name!r} holds a boolean that is neither 0 nor 1")
    return array


def _holds_string_or_bool(data_type: DataType) -> bool:
    if data_type.fields:
        return any(_holds_string_or_bool(field) for _, field in data_type.fields)
    return data_type.kind in ("bool", "string")


_SANITIZERS: Final = {"bool": _sanitize_bool, "string": _sanitize_string}


def _zfpy(spec: CodecSpec) -> ElementCodec:
    import_optional("zfpy", spec)
    return NumcodecsElements(spec, make_numcodec(spec.name, spec.configuration))


def _grib(spec: CodecSpec) -> ElementCodec:
    library = import_optional("gribberish", spec)
    return Grib(spec.configuration, spec.data_type, library)


ELEMENT_CODECS: Final[dict[str, Callable[[CodecSpec], ElementCodec]]] = {
    "bytes": Bytes,
    "endian": Bytes,
    "vlen-utf8": VariableLength,
    "vlen-bytes": VariableLength,
    "numcodecs.pcodec": PCodec,
    "numcodecs.zfpy": _zfpy,
    "gribberish": _grib,
}
"""Makers of the array-to-bytes codecs by name, except ``sharding_indexed``, which contains chains.

They raise ``ConfigurationError``, and ``UnsupportedError`` if a package is not installed.
"""
