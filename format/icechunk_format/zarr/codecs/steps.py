"""Defines the interfaces of the three kinds of codecs in a chain.

A step may raise any exception; the chain converts it to ``FormatError`` or ``InvalidInputError``
with the codec's name. Invalid parameters raise ``ConfigurationError`` when the step is made. The
methods are documented here and not repeated in the codecs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.named_configuration import Member, is_integer, shortened

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Buffer = bytes | memoryview


class ConfigurationError(ValueError):
    """A codec has an invalid parameter, named in the message."""


class CodecSpec(NamedTuple):
    """A codec as described in the metadata, and the elements that it encodes."""

    name: str
    configuration: dict[str, Any]
    data_type: DataType
    fill_value: Any
    ndim: int
    where: Member


class ArrayCodec(Protocol):
    """A codec from arrays to arrays, as a step of a chain."""

    name: str
    encoded: DataType

    def decode(self, array: Array, shape: Shape) -> Array:
        """Return the decoded array of the given shape, in any memory order."""
        ...

    def encode(self, array: Array) -> Array:
        """Return the encoded array of type ``encoded``, in any memory order."""
        ...

    def encoded_shape(self, shape: Shape) -> Shape:
        """Return the shape after encoding."""
        return shape

    def encoded_fill(self, fill_value: Any) -> Any:
        """Return the encoded fill value."""
        return fill_value


class ElementCodec(Protocol):
    """A codec from an array to bytes, as the middle step of a chain."""

    name: str
    is_fixed_size: bool

    def decode(self, data: Buffer, shape: Shape) -> Array:
        """Return the array in C order and native byte order; it may be read-only."""
        ...

    def encode(self, array: Array) -> Buffer:
        """Return the bytes of a C-contiguous array of the data type."""
        ...

    def encoded_bound(self, shape: Shape) -> int | None:
        """Return the largest size in bytes, exact if ``is_fixed_size``; ``None`` if unbounded."""
        ...


class ByteCodec(Protocol):
    """A codec from bytes to bytes, as a step of a chain."""

    name: str
    is_fixed_size: bool

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """Return the decoded bytes; the chain accepts ``limit`` of them, fewer unless ``exact``."""
        ...

    def encode(self, data: Buffer) -> Buffer:
        """Return the encoded bytes."""
        ...

    def encoded_bound(self, nbytes: int) -> int:
        """Return the largest encoded size of ``nbytes``, exact if ``is_fixed_size``."""
        ...


def compressed_bound(nbytes: int) -> int:
    """Return a size that no compressor exceeds for ``nbytes`` of input."""
    return nbytes + nbytes // 16 + 65536


def check_size(size: int, limit: int, exact: bool) -> None:
    """Raise ValueError unless a step may decode to ``size`` bytes."""
    if size > limit or (exact and size != limit):
        raise ValueError(
            f"it decodes to {size} bytes, expected {'' if exact else 'at most '}{limit}"
        )


def as_buffer(result: Any) -> Buffer:
    """Return the result of a numcodecs codec as bytes, or as a flat view of bytes."""
    if isinstance(result, bytes):
        return result
    if isinstance(result, np.ndarray):
        return memoryview(np.ascontiguousarray(result).reshape(-1).view(np.uint8))
    return memoryview(result).cast("B")


def as_elements(result: Any, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return what a library made as an array of a shape and type, or raise ValueError."""
    array = np.asarray(result)
    if array.dtype.hasobject or array.size != math.prod(shape):
        raise ValueError(
            f"it returns {array.size} elements of type {array.dtype}, expected "
            f"{math.prod(shape)} of type {dtype}"
        )
    return np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(shape)


def integer_parameter(
    configuration: dict[str, Any], key: str, default: Any, lo: int, hi: int
) -> int:
    """Return an integer parameter of a codec or its default, or raise ConfigurationError."""
    value = configuration.get(key, default)
    if not is_integer(value) or not lo <= value <= hi:
        raise ConfigurationError(
            f"{key} must be an integer from {lo} to {hi}, found {shortened(value)}"
        )
    return int(value)
