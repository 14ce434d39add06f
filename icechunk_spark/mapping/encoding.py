"""Encodes the variables that a function returns for a block.

Rules of this file
------------------
1. xarray encodes values. A value that the encoding cannot hold, or that would read as missing, is
   an error, as in writing; only packing and data types of floats round.
2. Attributes become JSON as xarray stores it. Others are an error: the reference cannot read a
   document with the token NaN.
"""

from __future__ import annotations

import base64
import math
import struct
import warnings
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.mapping.outputs import Layout, Result

ENCODING: Final = (
    "dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "units", "calendar",
    "_Unsigned",
)  # fmt: skip


def encoded(
    variable: xr.Variable,
    name: str,
    where: str,
    *,
    is_coordinate: bool,
    encoding: Mapping[str, Any],
    times: Mapping[str, Any],
) -> Result:
    """Return a variable as it is stored.

    Parameters
    ----------
    where
        The block, for messages.
    encoding, times
        Encoding that was given, and encoding of times.
    """
    what = f"variable {name!r} {where}"
    variable = _floats(variable)
    is_time = variable.dtype.kind in "mM" or variable.dtype.hasobject
    variable.encoding = {
        key: value
        for key, value in {
            **variable.encoding, **(times if is_time else {}), **encoding,
        }.items()
        if key in ENCODING
    }  # fmt: skip
    stored = _encode(variable, name, what)
    if is_time and "units" in stored.attrs and "units" not in variable.encoding:
        # xarray spells units that it infers differently from the same units as encoding.
        variable.encoding["units"] = stored.attrs["units"]
        stored = _encode(variable, name, what)
    values = np.asarray(stored.values, order="C")
    if values.dtype.kind in "UT":
        values = values.astype(object)
    if values.dtype.kind in "SO":
        _check_strings(variable.values, values, name, what)
    attributes = {str(key): value for key, value in stored.attrs.items()}
    if is_time:
        _check_times(variable, values, name, what)
    else:
        _check_fits(variable.values, values, attributes, name, what)
    if variable.dims == (name,):
        _check_labels(variable, stored, name, what)
    fill = attributes.get("_FillValue")
    if fill is not None:
        attributes["_FillValue"] = _stored_fill(fill)
    if fill is None and values.dtype.kind == "f":
        fill = values.dtype.type(np.nan)
    if values.dtype.kind == "f" and _is_nan(attributes.get("missing_value")):
        del attributes["missing_value"]  # NaN is missing anyway
    layout = Layout(
        name=name,
        dims=tuple(map(str, stored.dims)),
        shape=values.shape,
        dtype=values.dtype,
        attributes=plain_attributes(attributes, what),
        fill_value=fill,
        is_coordinate=is_coordinate,
    )
    return Result(layout, values)


def plain_attributes(attributes: Mapping[Any, Any], what: str) -> dict[str, Any]:
    """Return attributes as JSON values; raise InvalidInputError for others."""
    return {str(key): _plain(value, str(key), what) for key, value in attributes.items()}


def _plain(value: Any, key: str, what: str) -> Any:
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind not in "mM":
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(one, key, what) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, key, what) for one in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and value.isascii():
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            pass
        else:
            return value
    raise InvalidInputError(
        f"{what} has the attribute {key!r} with {value!r:.200} ({type(value).__name__}), which JSON"
        " does not have; use a finite number, a string, or lists or dictionaries of these, or drop"
        " it in the function",
        attribute=key,
    )


def _floats(variable: xr.Variable) -> xr.Variable:
    """Return a copy, with objects as floats, as in xarray, if all of them are floats or missing."""
    values = variable.values
    if values.dtype.hasobject and values.size:
        # Without missing values, an array without any value is empty.
        kind = pd.api.types.infer_dtype(values.reshape(-1), skipna=True)
        if kind in ("floating", "empty"):
            floats = np.where(pd.isnull(values), np.nan, values).astype(np.float64)
            return variable.copy(deep=False, data=floats)
    return variable.copy(deep=False)


def _encode(variable: xr.Variable, name: str, what: str) -> xr.Variable:
    try:
        # Values that do not fit are found afterwards.
        with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", xr.SerializationWarning)
            return xr.conventions.encode_cf_variable(variable, name=name)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        problem = " ".join(str(error).split())
        raise InvalidInputError(
            f"{what} cannot be encoded ({type(error).__name__}: {problem:.300}); return other"
            f" values, or set encoding={{{name!r}: {{...}}}}",
            variable=name,
        ) from error


def _check_strings(given: NDArray[Any], values: NDArray[Any], name: str, what: str) -> None:
    """Raise InvalidInputError if an element of an array of objects is no string."""
    missing = given.dtype.hasobject and bool(pd.isnull(given).any())
    objects = given if given.dtype.hasobject else values
    kind = "bytes"
    if values.dtype.kind != "S":
        kind = pd.api.types.infer_dtype(objects.reshape(-1), skipna=True)
    if missing or kind not in ("string", "empty"):
        found = "None or NaN among strings" if kind == "string" else f"elements of type {kind}"
        raise InvalidInputError(
            f"{what} has {found}; return strings only, or numbers of one type: replace missing"
            f" strings, such as with ds[{name!r}].fillna(''), decode bytes, as with"
            f" ds[{name!r}].astype(str), and give numbers their type, as with"
            f" ds[{name!r}].astype('float64')",
            variable=name,
            found=found,
        )


def _check_times(variable: xr.Variable, values: NDArray[Any], name: str, what: str) -> None:
    """Raise InvalidInputError if times do not fit into a small type of integers."""
    packing = variable.encoding.keys() & {"scale_factor", "add_offset"}
    if values.dtype.kind not in "iu" or values.dtype.itemsize == 8 or packing:
        return
    wide = variable.copy(deep=False)
    wide.encoding = {**variable.encoding, "dtype": np.dtype(np.int64)}
    wrong = np.asarray(_encode(wide, name, what).values != values)
    if wrong.any():
        value = variable.values.reshape(-1)[int(np.argmax(wrong))]
        raise InvalidInputError(
            f"{what} has the time {value}, which does not fit into {values.dtype} of"
            f" {variable.encoding.get('units')}; set encoding={{{name!r}: {{'dtype': 'int64'}}}}",
            variable=name,
        )


def _check_fits(
    given: NDArray[Any], values: NDArray[Any], attributes: Mapping[str, Any], name: str, what: str
) -> None:
    """Raise InvalidInputError if stored values do not read as the given ones, but for rounding."""
    if given.dtype.kind not in "iuf" or values.dtype.kind not in "iuf" or not given.size:
        return
    dtype, fill = values.dtype, attributes.get("_FillValue", attributes.get("missing_value"))
    nan = np.isnan(given) if given.dtype.kind == "f" else np.zeros(given.shape, np.bool_)
    if dtype.kind == "f":
        wrong = np.isinf(values) & ~np.isinf(given)
        if wrong.any():
            _refuse(given, wrong, f"is too large for {dtype}", name, what)
    else:
        limits = np.iinfo(dtype)
        if str(attributes.get("_Unsigned")).lower() == "true":
            limits = np.iinfo(np.dtype(f"u{dtype.itemsize}"))
        scale, offset = attributes.get("scale_factor", 1), attributes.get("add_offset", 0)
        low, high = sorted((limits.min * scale + offset, limits.max * scale + offset))
        half = abs(scale) / 2 if given.dtype.kind == "f" else 0
        with np.errstate(invalid="ignore"):
            wrong = ((given < low - half) | (given > high + half)) & ~nan
        if wrong.any():
            packed = "" if scale == 1 and not offset else " when packed"
            _refuse(
                given, wrong, f"does not fit{packed}: {dtype} holds {low:g} to {high:g}", name, what
            )
        if nan.any() and fill is None:
            _refuse(given, nan, f"has no missing value in {dtype}", name, what)
    if fill is not None and not _is_nan(fill):
        wrong = (values == np.asarray(fill).astype(dtype)) & ~nan
        if wrong.any():
            _refuse(given, wrong, f"is stored as the missing value {fill}", name, what)


def _check_labels(variable: xr.Variable, stored: xr.Variable, name: str, what: str) -> None:
    """Raise InvalidInputError if the encoding rounds labels; measurements may be rounded."""
    given = np.asarray(variable.values)
    if given.dtype.hasobject or given.dtype.kind not in "iufmM":
        return
    found = xr.conventions.decode_cf_variable(name, stored.copy(deep=False)).values
    if given.dtype.kind in "mM":
        differs = found.astype(given.dtype) != given
        if stored.dtype.kind == "f":
            off = np.abs(found.astype(given.dtype) - given)
            differs &= off >= np.timedelta64(500, "us")
    elif given.dtype == stored.dtype:
        return
    else:
        # As much as a float32 or the steps of packing may differ in writing.
        written = found.astype("U").astype(np.float64) if found.dtype.kind == "f" else found
        differs = (found != given) & ~np.isclose(written, given, rtol=1e-12, atol=0)
    if differs.any():
        at = int(np.argmax(differs))
        raise InvalidInputError(
            f"{what} has the label {given[at]}, which the encoding would turn into {found[at]};"
            f" labels are not rounded: give encoding={{{name!r}: ...}} a wider dtype or finer"
            " units",
            variable=name,
            label=str(given[at]),
            stored=str(found[at]),
        )


def _refuse(
    given: NDArray[Any], wrong: NDArray[np.bool_], problem: str, name: str, what: str
) -> NoReturn:
    value = given.reshape(-1)[int(np.argmax(wrong))].item()
    raise InvalidInputError(
        f"{what} has the value {value!r}, which {problem}; set another dtype, scale_factor or"
        f" _FillValue: encoding={{{name!r}: {{...}}}}",
        variable=name,
        value=value,
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _stored_fill(fill: Any) -> Any:
    """Return a missing value as xarray stores it in Zarr v3."""
    value = np.asarray(fill)
    if value.dtype.kind == "f":
        return base64.b64encode(struct.pack("<d", float(value))).decode()
    return value.item()
