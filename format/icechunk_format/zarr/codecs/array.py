"""Implements the array-to-array codecs: ``transpose``, ``scale_offset`` and numcodecs filters.

Rules of this file
------------------
1. A codec is made for one data type, and provides the data type and fill value of its encoded array
   to the next codec.
2. Arithmetic uses the stored data type. A value that does not fit raises an error; no value is
   wrapped or rounded.
3. Between the codecs of a chain, elements are in native byte order. A byte order in a parameter of
   a filter (``astype=">i4"``) has no effect: the ``bytes`` codec determines the stored order.

Spec: Zarr v3 codec ``transpose``; the registered ``scale_offset`` and ``numcodecs.*``.
``cast_value`` is in its own file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.zarr.codecs.bytes import make_numcodec
from icechunk_format.zarr.codecs.cast_value import CastValue
from icechunk_format.zarr.codecs.steps import (
    Array,
    ArrayCodec,
    CodecSpec,
    ConfigurationError,
    Shape,
    as_elements,
)
from icechunk_format.zarr.data_types import DataType, data_type_from_numpy
from icechunk_format.zarr.fill_values import decode_fill_value
from icechunk_format.zarr.named_configuration import is_integer, shortened


class Transpose(ArrayCodec):
    """The ``transpose`` codec."""

    name = "transpose"

    def __init__(self, spec: CodecSpec) -> None:
        order, ndim = spec.configuration.get("order"), spec.ndim
        if order in ("C", "F"):
            # Drafts of the specification allowed these two words.
            order = list(range(ndim)) if order == "C" else list(range(ndim))[::-1]
        if (
            not isinstance(order, list)
            or not all(is_integer(axis) for axis in order)
            or sorted(order) != list(range(ndim))
        ):
            raise ConfigurationError(
                f"order must name each of the {ndim} axes once, found {shortened(order)}"
            )
        self.encoded = spec.data_type
        self._order = tuple(order)
        self._inverse = tuple(int(axis) for axis in np.argsort(self._order))

    def decode(self, array: Array, shape: Shape) -> Array:
        return array.transpose(self._inverse)

    def encode(self, array: Array) -> Array:
        return array.transpose(self._order)

    def encoded_shape(self, shape: Shape) -> Shape:
        return tuple(shape[axis] for axis in self._order)


class ScaleOffset(ArrayCodec):
    """``(x - offset) * scale``, and back ``x / scale + offset``, in the type of the array.

    For integers the result must be exact and in range. The extremes decide both: the formulas are
    monotonic, and if the extremes fit, wrapping arithmetic is exact.
    """

    name = "scale_offset"

    def __init__(self, spec: CodecSpec) -> None:
        configuration, data_type = spec.configuration, spec.data_type
        if data_type.kind not in ("int", "uint", "float"):
            raise ConfigurationError(f"elements of type {data_type.name} cannot be scaled")
        self.encoded = data_type
        self._dtype = data_type.numpy
        self._offset = _scalar(configuration, "offset", 0, data_type)
        self._scale = _scalar(configuration, "scale", 1, data_type)
        if self._scale == 0:
            raise ConfigurationError("scale must not be 0")
        self._is_integer = data_type.kind != "float"

    def decode(self, array: Array, shape: Shape) -> Array:
        if not self._is_integer:
            with np.errstate(all="ignore"):
                result: Array = array / self._scale
                result += self._offset
            return result
        if array.size == 0:
            return array
        scale, offset = int(self._scale), int(self._offset)
        if scale not in (1, -1) and bool((array % self._scale).any()):
            raise ValueError(f"an element is not a multiple of the scale {scale}")
        self._check_range(int(array.min()) // scale + offset, int(array.max()) // scale + offset)
        # The division is exact. Division by -1 is done by subtraction, which wraps if // would
        # fail.
        if scale == -1:
            quotient: Array = np.subtract(self._dtype.type(0), array)
        else:
            quotient = array // self._scale
        quotient += self._offset
        return quotient

    def encode(self, array: Array) -> Array:
        if not self._is_integer:
            with np.errstate(all="ignore"):
                result: Array = array - self._offset
                result *= self._scale
            return result
        if array.size == 0:
            return array
        scale, offset = int(self._scale), int(self._offset)
        self._check_range((int(array.min()) - offset) * scale, (int(array.max()) - offset) * scale)
        difference: Array = array - self._offset
        difference *= self._scale
        return difference

    def encoded_fill(self, fill_value: Any) -> Any:
        return self.encode(np.asarray(fill_value, dtype=self._dtype).reshape(1))[0]

    def _check_range(self, a: int, b: int) -> None:
        limits = np.iinfo(self._dtype)
        lowest, highest = min(a, b), max(a, b)
        if lowest < limits.min or highest > limits.max:
            raise ValueError(
                f"a result from {lowest} to {highest} does not fit type {self._dtype.name}"
            )


class PackBits(ArrayCodec):
    """Codec that packs eight booleans per byte, after a byte with the number of padding bits."""

    name = "numcodecs.packbits"

    def __init__(self, spec: CodecSpec) -> None:
        if spec.data_type.kind != "bool":
            raise ConfigurationError(f"it packs bool, not {spec.data_type.name}")
        self.encoded = data_type_from_numpy(np.dtype(np.uint8))

    def decode(self, array: Array, shape: Shape) -> Array:
        size = math.prod(shape)
        if int(array[0]) != -size % 8:
            raise ValueError(f"found {array[0]} bits of padding, expected {-size % 8}")
        return np.unpackbits(array[1:], count=size).view(np.bool_).reshape(shape)

    def encode(self, array: Array) -> Array:
        padding = np.array([-array.size % 8], dtype=np.uint8)
        return np.concatenate([padding, np.packbits(array.reshape(-1))])

    def encoded_shape(self, shape: Shape) -> Shape:
        return (1 + -(-math.prod(shape) // 8),)

    def encoded_fill(self, fill_value: Any) -> Any:
        # As in zarr-python, the fill value is not packed.
        return np.uint8(bool(fill_value))


class NumcodecsFilter(ArrayCodec):
    """A numcodecs codec that keeps the shape and may change the data type."""

    def __init__(self, spec: CodecSpec, codec: Any, encoded: DataType | None = None) -> None:
        self.name = spec.name
        self.encoded = spec.data_type if encoded is None else encoded
        self._codec = codec
        self._dtype = spec.data_type.numpy

    def decode(self, array: Array, shape: Shape) -> Array:
        with np.errstate(all="ignore"):
            return as_elements(self._codec.decode(np.ascontiguousarray(array)), shape, self._dtype)

    def encode(self, array: Array) -> Array:
        with np.errstate(all="ignore"):
            result = np.asarray(self._codec.encode(np.ascontiguousarray(array)))
        wanted = self.encoded.numpy
        if result.dtype.newbyteorder("=") != wanted:
            # bitround returns the bits of floats as integers; they are stored unchanged.
            if result.dtype.itemsize != wanted.itemsize:
                raise ValueError(f"it returns elements of type {result.dtype}, expected {wanted}")
            result = result.astype(result.dtype.newbyteorder("="), copy=False).view(wanted)
        return as_elements(result, array.shape, wanted)

    def encoded_fill(self, fill_value: Any) -> Any:
        return np.asarray(fill_value).astype(self.encoded.numpy)[()]


def _scalar(configuration: dict[str, Any], key: str, default: int, data_type: DataType) -> Any:
    value = configuration.get(key, default)
    try:
        return decode_fill_value(value, data_type, field=key)
    except FormatError as error:
        raise ConfigurationError(f"{key} must be a {data_type.name}: {error.message}") from error


def _bitround(spec: CodecSpec) -> ArrayCodec:
    return NumcodecsFilter(spec, make_numcodec(spec.name, spec.configuration))


def _typed_filter(spec: CodecSpec) -> ArrayCodec:
    decoded_key, encoded_key = _TYPE_PARAMETERS[spec.name]
    config = {key: value for key, value in spec.configuration.items() if value is not None}
    config.setdefault(decoded_key, spec.data_type.numpy.str)
    types = {key: _type_parameter(config, key) for key in (decoded_key, encoded_key)}
    # Rule 3: with a byte order, numcodecs would swap the bytes of native elements.
    config |= {key: given.numpy.str for key, given in types.items() if given is not None}
    # zarr-python stores the result of quantize in the array's own type.
    encoded = None if spec.name == "numcodecs.quantize" else types[encoded_key]
    return NumcodecsFilter(spec, make_numcodec(spec.name, config), encoded)


def _type_parameter(config: dict[str, Any], key: str) -> DataType | None:
    value = config.get(key)
    if value is None:
        return None
    try:
        given = data_type_from_numpy(np.dtype(value))
    except (TypeError, ValueError, InvalidInputError) as error:
        raise ConfigurationError(f"{key} {shortened(value)} is not a data type") from error
    if given.is_variable_length:
        raise ConfigurationError(f"{key} {shortened(value)} has no fixed size")
    return given


# The parameters for the data types of decoded and of encoded elements.
_TYPE_PARAMETERS: Final = {
    "numcodecs.delta": ("dtype", "astype"),
    "numcodecs.fixedscaleoffset": ("dtype", "astype"),
    "numcodecs.quantize": ("dtype", "astype"),
    "numcodecs.astype": ("decode_dtype", "encode_dtype"),
}

ARRAY_CODECS: Final[dict[str, Callable[[CodecSpec], ArrayCodec]]] = {
    "transpose": Transpose,
    "scale_offset": ScaleOffset,
    "cast_value": CastValue,
    "numcodecs.packbits": PackBits,
    "numcodecs.bitround": _bitround,
    **dict.fromkeys(_TYPE_PARAMETERS, _typed_filter),
}
"""Makers of the array-to-array codecs by name; they raise ``ConfigurationError``."""
