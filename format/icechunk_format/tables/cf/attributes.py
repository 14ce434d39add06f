"""Reads the values of CF attributes from JSON: numbers, lists and base64 strings.

A missing value may be a number, a list of numbers, the word ``NaN`` or the base64 of eight bytes;
it becomes a scalar of the stored type, so that stored values can be compared with it.

CF conventions, sections 2.5.1 "Missing data" and 8.1 "Packed Data"; ``_FillValue`` in base64 is how
xarray stores it in Zarr v3.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from icechunk_format.errors import InvalidInputError
from icechunk_format.zarr.fill_values import NON_FINITE, json_safe


def numeric_missing(
    given: Mapping[str, Any],
    stored: np.dtype[Any],
    dtype: np.dtype[Any],
    encoding: dict[str, Any],
    name: str,
) -> tuple[tuple[Any, ...], bool]:
    """Return the missing values as scalars of ``dtype``, and whether NaN was the only one given."""
    found: dict[Any, Any] = {}
    saw_nan = saw_number = False
    for attribute, raw in given.items():
        if raw is None:
            continue
        numbers = [_missing_number(item, stored, attribute, name) for item in _as_list(raw)]
        if len(numbers) == 1 and numbers[0] is not None:
            encoding[attribute] = json_safe(numbers[0])
        for number in numbers:
            if number is None:
                continue
            if number != number:
                saw_nan = saw_nan or dtype.kind == "f"
                continue
            saw_number = True
            fitting = _fit(number, stored, dtype)
            if fitting is not None:
                found[fitting.item()] = fitting
    return tuple(found.values()), saw_nan and not saw_number


def _fit(number: int | float, stored: np.dtype[Any], dtype: np.dtype[Any]) -> Any:
    """Return a missing value as a scalar of the stored type; None if no stored value equals it.

    A number that ``float32`` cannot hold equals no ``float32``, as in xarray.
    """
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            scalar = dtype.type(number)
        return scalar if float(scalar) == float(number) else None
    if dtype.kind == "b":
        return np.bool_(number) if number in (0, 1) else None
    if not math.isfinite(number) or number != int(number):
        return None
    whole = int(number)
    if stored != dtype and np.iinfo(stored).min <= whole <= np.iinfo(stored).max:
        return np.array(whole, stored).view(dtype)[()]
    if np.iinfo(dtype).min <= whole <= np.iinfo(dtype).max:
        return dtype.type(whole)
    return None


def _missing_number(
    value: Any, dtype: np.dtype[Any], attribute: str, name: str
) -> int | float | None:
    """Read one missing value; None if it is a string that is not a number."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        if value in NON_FINITE:
            return NON_FINITE[value]
        if dtype.kind == "f":
            number = _float_of_base64(value)
            if number is not None:
                return number
        if attribute == "missing_value":
            return None
    expected = "a number, or the base64 of its 8 bytes" if dtype.kind == "f" else "a number"
    raise attribute_error(name, attribute, value, f"{dtype} data needs {expected}")


def other_missing(
    given: Mapping[str, Any], dtype: np.dtype[Any], kind: str, name: str
) -> tuple[Any, ...]:
    """Return the missing values of strings, bytes and complex numbers; structs have none."""
    present = [raw for raw in given.values() if raw is not None]
    if dtype.kind == "c":
        # Two numbers are the parts of one value.
        numbers = [_complex(value, name) for value in present]
        return tuple(dtype.type(number) for number in numbers if number == number)
    values = [item for raw in present for item in _as_list(raw)]
    if kind == "string":
        return tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
    if kind == "bytes" and dtype.kind in "SO":
        decoded = (_bytes_of_base64(value) for value in values if isinstance(value, str))
        return tuple(dict.fromkeys(value for value in decoded if value is not None))
    return ()


def _complex(value: Any, name: str) -> complex:
    if isinstance(value, (int, float)):
        return complex(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        real, imaginary = (
            _missing_number(part, np.dtype(np.float64), "_FillValue", name) for part in value
        )
        if real is not None and imaginary is not None:
            return complex(real, imaginary)
    raise attribute_error(name, "_FillValue", value, "complex data needs the two parts [re, im]")


def packing_number(value: Any, attribute: str, name: str) -> int | float | None:
    """Return a scale or an offset; some writers store it as a list of one number."""
    if value is None:
        return None
    items = _as_list(value)
    number = items[0] if len(items) == 1 else None
    if isinstance(number, str):
        number = NON_FINITE.get(number)
    if not isinstance(number, (int, float)) or not math.isfinite(number):
        raise attribute_error(name, attribute, value, "it should be one finite number")
    return int(number) if isinstance(number, bool) else number


def packed_dtype(
    dtype: np.dtype[Any],
    scale_factor: int | float | None,
    add_offset: int | float | None,
    missing: tuple[Any, ...],
) -> np.dtype[Any]:
    """Choose the type of unpacked values as xarray does for attributes that come from JSON.

    JSON numbers are 64 bits wide, so a float scale or any offset gives ``float64``. An integer
    scale alone keeps integers integers, unless there are missing values.
    """
    if isinstance(scale_factor, int) and add_offset is None and dtype.kind in "iub" and not missing:
        return np.dtype(np.int64)
    return np.dtype(np.float64)


def timedelta_dtype(value: Any, name: str) -> str:
    """Check the ``dtype`` attribute of a timedelta."""
    try:
        return str(np.dtype(value))
    except TypeError as error:
        raise attribute_error(name, "dtype", value, "it should read like timedelta64[s]") from error


def known_string_encoding(value: str, name: str) -> str:
    """Check the ``_Encoding`` attribute of strings that are stored as bytes."""
    try:
        codecs.lookup(value)
        b"ab".decode(value, errors="replace")
    except (LookupError, ValueError) as error:
        raise attribute_error(
            name, "_Encoding", value, "it does not name an encoding of strings"
        ) from error
    return value


def _float_of_base64(string: str) -> float | None:
    data = _bytes_of_base64(string)
    if data is None or len(data) != 8:
        return None
    number: float = struct.unpack("<d", data)[0]
    return number


def _bytes_of_base64(string: str) -> bytes | None:
    try:
        return base64.b64decode(string, validate=True)
    except (binascii.Error, ValueError):
        return None


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def attribute_error(name: str, attribute: str, value: Any, why: str) -> InvalidInputError:
    """Return the error for an invalid CF attribute, with a workaround."""
    return InvalidInputError(
        f"variable {name!r}: the CF attribute {attribute}={value!r} cannot be used: {why}. "
        f"Read it with decodeCf=false to get the stored numbers",
        variable=name,
        attribute=attribute,
    )
