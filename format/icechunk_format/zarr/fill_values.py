"""Reads and writes fill values as JSON, and makes arrays of them.

Rules of this file
------------------
1. A decoded fill value is a NumPy scalar of the data type, or ``str``/``bytes`` for variable
   lengths. Its bits are kept: a NaN written in hexadecimal keeps its payload.
2. The JSON form is compatible with zarr-python's in both directions.

Spec: Zarr v3 core, "Fill value".
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.named_configuration import Member, is_integer, shortened

MAX_CHUNK_NBYTES: Final = 2**34
"""Limit on the decoded bytes of a chunk; larger chunks are refused before allocation."""

NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Zarr's names for floats that JSON cannot represent."""

_HEX_FLOAT_DTYPES: Final = {4: ">f2", 8: ">f4", 16: ">f8"}
_FLOAT_BITS: Final = {2: ("u2", 0x7E00), 4: ("u4", 0x7FC00000), 8: ("u8", 0x7FF8000000000000)}


def decode_fill_value(
    value: object, data_type: DataType, *, node_path: str = "/", field: str = "fill_value"
) -> Any:
    """Read the ``fill_value`` member of a ``zarr.json``, or raise FormatError.

    Returns a NumPy scalar of ``data_type.numpy``, or ``str`` or ``bytes`` for variable lengths.
    """
    try:
        return _decode(value, data_type)
    except (ValueError, OverflowError, TypeError) as error:
        raise Member(node_path, field).error(
            f"{shortened(value)} is not a value of data type {data_type.name}: {error}"
        ) from error


def encode_fill_value(value: Any, data_type: DataType) -> Any:
    """Return the JSON form of a fill value, as zarr-python writes it, or raise InvalidInputError.

    A NaN with other bits than the standard NaN is written in hexadecimal.
    """
    try:
        scalar = cast_scalar(value, data_type)
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidInputError(
            f"fill value {shortened(value)} is not a value of data type {data_type.name}: {error}",
            data_type=data_type.name,
        ) from error
    return _encode(scalar, data_type)


def default_fill_value(data_type: DataType) -> Any:
    """Return zero, ``False``, the empty string or empty bytes: zarr-python's default."""
    if data_type.is_variable_length:
        return "" if data_type.kind == "string" else b""
    return np.zeros((), dtype=data_type.numpy)[()]


def cast_scalar(value: Any, data_type: DataType) -> Any:
    """Return a Python or NumPy value as a scalar of the data type.

    Raises ValueError, TypeError or OverflowError if it does not fit.
    """
    if data_type.is_variable_length:
        wanted = str if data_type.kind == "string" else bytes
        if not isinstance(value, wanted):
            raise TypeError(f"expected {wanted.__name__}")
        return value
    if data_type.kind in ("int", "uint"):
        # NumPy would wrap or truncate without an error.
        return _integer(value.item() if isinstance(value, np.generic) else value, data_type)
    if data_type.kind in ("datetime", "timedelta") and is_integer(value):
        return _time(value, data_type)
    with np.errstate(over="ignore"):
        scalar = np.array(value, dtype=data_type.numpy)[()]
    if data_type.kind == "float" and np.isinf(scalar) and not np.isinf(value):
        raise ValueError("it is out of range")
    return scalar


def fill_array(data_type: DataType, fill_value: Any, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return a new, writable C-contiguous array of fill values."""
    check_array_size(data_type, shape)
    if data_type.is_variable_length:
        out = np.empty(tuple(shape), dtype=object)
        out.fill(fill_value)
        return out
    scalar = np.asarray(fill_value, dtype=data_type.numpy)
    if not any(scalar.tobytes()):
        # The operating system provides zeroed pages without writing them.
        return np.zeros(tuple(shape), dtype=data_type.numpy)
    out = np.empty(tuple(shape), dtype=data_type.numpy)
    out[...] = scalar
    return out


def check_array_size(data_type: DataType, shape: Sequence[int]) -> int:
    """Return the bytes of an array in memory; raise UnsupportedError above ``MAX_CHUNK_NBYTES``."""
    nbytes = math.prod(shape) * data_type.numpy.itemsize
    if nbytes > MAX_CHUNK_NBYTES:
        raise UnsupportedError(
            f"a chunk of shape {shortened(tuple(shape))} and type {data_type.name} takes "
            f"{shortened(nbytes)} bytes in memory; at most {MAX_CHUNK_NBYTES} are allowed",
            nbytes=nbytes,
            limit=MAX_CHUNK_NBYTES,
        )
    return nbytes


def is_all_fill(array: np.ndarray[Any, Any], fill_value: Any) -> bool:
    """Return True if every element has exactly the bits of the fill value.

    Bits are compared, not values: -0.0 differs from 0.0, so that an omitted chunk reads back
    unchanged.
    """
    if array.dtype.kind == "O":
        return bool(np.all(array == fill_value))
    if array.size == 0:
        return True
    bits = f"u{array.dtype.itemsize}" if array.dtype.itemsize in (1, 2, 4, 8) else None
    fill = np.asarray(fill_value, dtype=array.dtype)
    if bits is not None and array.dtype.names is None:
        return bool((array.view(bits) == fill.view(bits)).all())
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
    return bool((flat == np.frombuffer(fill.tobytes(), dtype=np.uint8)).all())


def differs(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the elements that differ in any bit; for strings, in any character."""
    if one.dtype.hasobject or not one.dtype.itemsize:
        return np.asarray(one != other, np.bool_)
    raw = (*one.shape, one.dtype.itemsize)
    mine, theirs = (
        np.frombuffer(np.ascontiguousarray(v).tobytes(), np.uint8).reshape(raw)
        for v in (one, other)
    )
    found: NDArray[np.bool_] = (mine != theirs).any(axis=-1)
    return found


def _decode(value: object, data_type: DataType) -> Any:
    kind, dtype = data_type.kind, data_type.numpy
    if kind == "bool":
        if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
            return np.bool_(value)
        raise ValueError("expected true or false")
    if kind in ("int", "uint"):
        return _integer(value, data_type)
    if kind == "float":
        return _float(value, dtype)
    if kind == "complex":
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("expected a pair of numbers")
        pair = np.empty(2, dtype=f"f{dtype.itemsize // 2}")
        pair[0], pair[1] = _float(value[0], pair.dtype), _float(value[1], pair.dtype)
        return pair.view(dtype)[0]
    if kind in ("datetime", "timedelta"):
        return _time(value, data_type)
    if kind == "struct":
        return _struct(value, data_type)
    if kind == "string":
        return _string(value, data_type)
    return _bytes(value, data_type)


def _integer(value: object, data_type: DataType) -> Any:
    if isinstance(value, float):
        value = int(value) if value.is_integer() else value
    elif isinstance(value, str) and len(value) <= 32:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("expected an integer")
    limits = np.iinfo(data_type.numpy)
    if not limits.min <= value <= limits.max:
        raise ValueError(f"it is outside {limits.min} to {limits.max}")
    return data_type.numpy.type(value)


def _float(value: object, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, str):
        if value.startswith("0x"):
            stored = _HEX_FLOAT_DTYPES.get(len(value) - 2)
            if stored is None:
                raise ValueError("expected 4, 8 or 16 hexadecimal digits")
            scalar = np.frombuffer(bytes.fromhex(value[2:]), dtype=stored)
            if scalar.dtype.itemsize == dtype.itemsize:
                # Swapping bytes keeps the payload of a NaN; a conversion may not.
                return scalar.byteswap().view(dtype)[0] if not scalar.dtype.isnative else scalar[0]
            value = float(scalar[0])
        elif value in NON_FINITE:
            value = NON_FINITE[value]
        elif len(value) <= 400:
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number, 'NaN', 'Infinity', '-Infinity' or hexadecimal bits")
    with np.errstate(over="ignore"):
        return np.array(float(value)).astype(dtype)[()]


def _time(value: object, data_type: DataType) -> Any:
    if value == "NaT":
        value = -(2**63)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError("expected a 64-bit integer or 'NaT'")
    return np.array([value], dtype=np.int64).view(data_type.numpy)[0]


def _string(value: object, data_type: DataType) -> Any:
    if data_type.is_variable_length:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError("expected a string")
        return str(value)
    if not isinstance(value, str):
        raise ValueError("expected a string")
    return np.array(value, dtype=data_type.numpy)[()]


def _bytes(value: object, data_type: DataType) -> Any:
    if isinstance(value, str):
        try:
            raw = base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError("expected base64") from error
    elif isinstance(value, list) and all(is_integer(v) and 0 <= v <= 255 for v in value):
        raw = bytes(value)
    else:
        raise ValueError("expected base64 or a list of integers from 0 to 255")
    if data_type.is_variable_length:
        return raw
    size = data_type.numpy.itemsize
    if len(raw) > size or (data_type.numpy.kind == "V" and len(raw) != size):
        raise ValueError(f"it has {len(raw)} bytes, but an element has {size}")
    return np.array(raw, dtype=data_type.numpy)[()]


def _struct(value: object, data_type: DataType) -> Any:
    dtype = data_type.numpy
    if isinstance(value, str):
        raw = base64.b64decode(value, validate=True)
        if len(raw) != dtype.itemsize:
            raise ValueError(f"it has {len(raw)} bytes, but an element has {dtype.itemsize}")
        # The specification does not define the byte order; zarr-python writes little endian.
        return np.frombuffer(raw, dtype=dtype.newbyteorder("<")).astype(dtype)[0]
    if not isinstance(value, dict):
        raise ValueError("expected an object with the fields, or base64")
    out = np.zeros(1, dtype=dtype)
    for name, field in data_type.fields:
        if name in value:
            out[name][0] = _decode(value[name], field)
    return out[0]


def _encode(scalar: Any, data_type: DataType) -> Any:
    kind = data_type.kind
    if kind == "bool":
        return bool(scalar)
    if kind in ("int", "uint"):
        return int(scalar)
    if kind == "float":
        return _encode_float(scalar)
    if kind == "complex":
        return [_encode_float(scalar.real), _encode_float(scalar.imag)]
    if kind in ("datetime", "timedelta"):
        return int(scalar.view(np.int64))
    if kind == "struct":
        return {name: _encode(scalar[name], field) for name, field in data_type.fields}
    if kind == "string":
        return str(scalar)
    raw = scalar if isinstance(scalar, bytes) else scalar.tobytes()
    return base64.b64encode(raw).decode("ascii")


def _encode_float(scalar: Any) -> float | str:
    if np.isnan(scalar):
        size = scalar.dtype.itemsize
        unsigned, standard = _FLOAT_BITS[size]
        bits = int(np.asarray(scalar).reshape(1).view(unsigned)[0])
        return "NaN" if bits == standard else f"0x{bits:0{2 * size}x}"
    found: float | str = json_safe(float(scalar))
    return found


def json_safe(value: Any) -> Any:
    """Return JSON for strict parsers: floats that are not finite become Zarr's names for them."""
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
