"""Checks that a column type fits an array, and chooses the array type for a new column.

Rules of this file
------------------
1. A column fits an array if the array can hold all values of its type: narrower integers, narrower
   floats, dates for times. Two exceptions are intended: ``double`` columns for ``float32`` arrays,
   since SQL computes in doubles, and any number for packed arrays.
2. The reader turns the type of a new array back into the type of the column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf.arrow_values import is_number, numpy_dtype, sql_name
from icechunk_format.zarr.data_types import DataType, data_type_from_numpy

if TYPE_CHECKING:
    from icechunk_format.tables.cf.decode import VariableDecoder

BOOLEAN_FLAGS: Final[dict[str, Any]] = {"flag_values": [0, 1], "flag_meanings": "false true"}
"""CF attributes of nullable booleans, stored as integers. xarray's ``dtype=bool`` attribute would
turn missing values into true."""


def check_column_type(
    found: pa.DataType, decoder: VariableDecoder, data_type: DataType, *, name: str
) -> None:
    """Raise InvalidInputError if the array cannot hold every value of the column's type."""
    wanted = decoder.arrow_type
    is_packed = decoder._scaled is not None and decoder._time is None
    if is_packed and is_number(found) and not pa.types.is_decimal(found):
        return
    # Nullable booleans are stored as the numbers 0 and 1, with these flags.
    flags = decoder.attributes.get("flag_meanings") == BOOLEAN_FLAGS["flag_meanings"]
    if pa.types.is_boolean(found) and pa.types.is_integer(wanted) and flags:
        return
    if not _fits(found, wanted):
        consumed = decoder.encoding.keys() - {"dtype", "_FillValue", "missing_value"}
        packed = f" with {', '.join(sorted(consumed))}" if consumed else ""
        raise InvalidInputError(
            f"column {name!r} is {sql_name(found)}, and array {name!r} of {data_type.name}{packed} "
            f"takes {sql_name(wanted)}; cast the column: CAST({name} AS {sql_name(wanted)})",
            variable=name,
            found=str(found),
            wanted=str(wanted),
        )


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    if found == wanted:
        return True
    if types.is_integer(wanted):
        if types.is_unsigned_integer(found):
            return bool(found.bit_width < wanted.bit_width)
        return types.is_integer(found) and bool(found.bit_width <= wanted.bit_width)
    if types.is_decimal(wanted):
        whole = types.is_decimal(found) and found.scale == 0 and found.precision <= 20
        return bool(types.is_integer(found) or whole)
    if types.is_floating(wanted):
        exact = wanted.bit_width // 2
        small = types.is_integer(found) and found.bit_width <= exact
        return bool(types.is_floating(found) or small)
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(found) or types.is_date(found))
    if types.is_duration(wanted):
        return bool(types.is_duration(found))
    if types.is_string(wanted):
        return bool(types.is_large_string(found))
    if types.is_binary(wanted):
        return bool(types.is_large_binary(found) or types.is_fixed_size_binary(found))
    if types.is_struct(wanted) and types.is_struct(found):
        names = [field.name for field in wanted]
        return [field.name for field in found] == names and all(
            _fits(own.type, other.type) for own, other in zip(found, wanted, strict=True)
        )
    return False


def missing_value_advice(name: str, data_type: DataType, column_type: pa.DataType) -> str:
    """Return advice on the write option that gives a variable a missing value."""
    if pa.types.is_boolean(column_type):
        return (
            f'encoding={{"{name}": {{"dtype": "int8", "_FillValue": -1}}}}, which stores 0, 1 and '
            "-1, since a boolean has no third value"
        )
    key, what = "_FillValue", "value"
    if data_type.kind in ("string", "bytes"):
        # xarray opens strings with a missing value only if the attribute has this name.
        key, what = "missing_value", "string" if data_type.kind == "string" else "value in base64"
    return f'encoding={{"{name}": {{"{key}": ...}}}}, with a {what} that does not occur in it'


def default_array_type(found: pa.DataType, *, name: str) -> tuple[DataType, dict[str, Any]]:
    """Return the data type and the CF attributes of a new array for a column."""
    types = pa.types
    dtype = _number_dtype(found)
    if dtype is not None:
        return data_type_from_numpy(dtype), {}
    if types.is_timestamp(found) or types.is_date(found):
        unit = "days" if types.is_date(found) else "microseconds"
        attributes = {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian"}
        return data_type_from_numpy("int64"), attributes
    if types.is_duration(found):
        attributes = {"dtype": "timedelta64[us]", "units": "microseconds"}
        return data_type_from_numpy("int64"), attributes
    if types.is_string(found) or types.is_large_string(found):
        return data_type_from_numpy("string"), {}
    if types.is_binary(found) or types.is_large_binary(found):
        return data_type_from_numpy("bytes"), {}
    if types.is_decimal(found) and found.scale == 0 and found.precision == 20:
        return data_type_from_numpy("uint64"), {}
    hint = "cast it, or leave it out"
    if types.is_decimal(found):
        hint = "cast it to DOUBLE or BIGINT"
    elif types.is_list(found) or types.is_large_list(found):
        hint = "make a row of each element with posexplode, or leave it out"
    raise InvalidInputError(
        f"column {name!r} is {sql_name(found)}, which no array holds; {hint}. Arrays hold BOOLEAN, "
        "integers, DECIMAL(20,0), FLOAT, DOUBLE, TIMESTAMP, TIMESTAMP_NTZ, DATE, INTERVAL DAY TO "
        "SECOND, STRING, BINARY and structs of numbers",
        variable=name,
        found=str(found),
    )


def _number_dtype(found: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy type of numbers, booleans and structs of these; None for other types."""
    if pa.types.is_boolean(found) or pa.types.is_integer(found) or pa.types.is_floating(found):
        return numpy_dtype(found)
    if not pa.types.is_struct(found):
        return None
    fields = list(found)
    kinds = {field.type for field in fields}
    if [field.name for field in fields] == ["re", "im"] and len(kinds) == 1:
        if kinds == {pa.float32()}:
            return np.dtype(np.complex64)
        if kinds == {pa.float64()}:
            return np.dtype(np.complex128)
    members: list[tuple[str, Any]] = [(field.name, _number_dtype(field.type)) for field in fields]
    return None if any(dtype is None for _, dtype in members) else np.dtype(members)
