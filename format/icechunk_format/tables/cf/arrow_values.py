"""Converts NumPy values to Arrow arrays without copying where possible; maps and names types.

Rules of this file
------------------
1. Each stored type has one Arrow type that Spark reads without a cast. Unsigned integers take the
   next wider signed type, ``uint64`` a decimal, ``float16`` a float.
2. A missing value is null; the memory under a null is undefined.
3. Fixed-width values share the memory of their NumPy array, which must not be changed afterwards.

CF attributes are applied elsewhere (``decode``).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import FormatError, UnsupportedError

TimestampType = Literal["ntz", "utc"]

_NUMBERS: Final[dict[str, pa.DataType]] = {
    "b1": pa.bool_(),
    "i1": pa.int8(),
    "i2": pa.int16(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    "u1": pa.int16(),
    "u2": pa.int32(),
    "u4": pa.int64(),
    "u8": pa.decimal128(20, 0),
    "f2": pa.float32(),
    "f4": pa.float32(),
    "f8": pa.float64(),
    "c8": pa.struct([("re", pa.float32()), ("im", pa.float32())]),
    "c16": pa.struct([("re", pa.float64()), ("im", pa.float64())]),
}


def timestamp_type(kind: TimestampType) -> pa.DataType:
    """Return the Arrow type of a timestamp column: without a time zone, or in UTC."""
    return pa.timestamp("us", "UTC" if kind == "utc" else None)


def arrow_type(
    dtype: np.dtype[Any], kind: str, timestamps: TimestampType, *, name: str
) -> pa.DataType:
    """Return the Arrow type of a stored NumPy type; ``timestamps`` is for ``datetime64``.

    ``kind`` is that of the Zarr data type, which distinguishes strings from bytes in an ``object``
    array.
    """
    if dtype.names is not None:
        return pa.struct(
            [
                (field, arrow_type(dtype[field], kind, timestamps, name=name))
                for field in dtype.names
            ]
        )
    found = _NUMBERS.get(f"{dtype.kind}{dtype.itemsize}")
    if found is not None:
        return found
    if dtype.kind == "M":
        return timestamp_type(timestamps)
    if dtype.kind == "m":
        return pa.duration("us")
    if dtype.kind in "UT" or (dtype.kind == "O" and kind == "string"):
        return pa.string()
    if dtype.kind == "S" or (dtype.kind == "V" and dtype.subdtype is None):
        return pa.binary()
    if dtype.kind == "O" and kind == "bytes":
        return pa.binary()
    raise UnsupportedError(
        f"variable {name!r}: data type {dtype} has no SQL type. Leave the variable out with the "
        f"option variables",
        variable=name,
    )


def is_number(found: pa.DataType) -> bool:
    """Return True if a type is an integer, a decimal or a float."""
    types = pa.types
    return bool(types.is_integer(found) or types.is_floating(found) or types.is_decimal(found))


_SQL_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
    pa.date64(): "DATE",
    pa.null(): "VOID",
}


def sql_name(found: pa.DataType) -> str:
    """Return the SQL name of a type."""
    if pa.types.is_duration(found):
        return "INTERVAL DAY TO SECOND"
    if pa.types.is_timestamp(found):
        return "TIMESTAMP_NTZ" if found.tz is None else "TIMESTAMP"
    if pa.types.is_decimal(found):
        return f"DECIMAL({found.precision},{found.scale})"
    if pa.types.is_map(found):
        return f"MAP<{sql_name(found.key_type)}, {sql_name(found.item_type)}>"
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return f"ARRAY<{sql_name(found.value_type)}>"
    if pa.types.is_struct(found):
        if any(b"variant" in (field.metadata or {}) for field in found):
            return "VARIANT"
        return f"STRUCT<{', '.join(f'{field.name}: {sql_name(field.type)}' for field in found)}>"
    return _SQL_NAMES.get(found, str(found).upper())


def numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy type of a fixed-width Arrow type.

    The conversion of pyarrow needs pandas in the oldest supported versions.
    """
    found: np.dtype[Any] = pa.nulls(0, kind).to_numpy(zero_copy_only=False).dtype
    return found


def fixed_width(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, output_type: pa.DataType
) -> pa.Array:
    """Return flat numbers as an Arrow array of a fixed-width type.

    Integers are cast to the width of ``output_type``, which the type map chose so that they fit.
    Durations and timestamps are given as ``int64`` microseconds.
    """
    length = len(values)
    nulls, bitmap = _bitmap(valid, length)
    if pa.types.is_boolean(output_type):
        data = pa.py_buffer(np.packbits(values.astype(np.bool_, copy=False), bitorder="little"))
    elif pa.types.is_decimal(output_type):
        words = np.zeros((length, 2), np.uint64)
        words[:, 0] = values
        data = pa.py_buffer(words)
    else:
        width = (
            np.dtype(np.int64) if pa.types.is_temporal(output_type) else numpy_dtype(output_type)
        )
        data = pa.py_buffer(np.ascontiguousarray(values, dtype=width))
    return pa.Array.from_buffers(output_type, length, [bitmap, data], null_count=nulls)


def complex_pairs(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, output_type: pa.DataType
) -> pa.Array:
    """Return flat complex numbers as structs of a real and an imaginary part."""
    parts = [
        fixed_width(np.ascontiguousarray(part), None, output_type.field(i).type)
        for i, part in enumerate((values.real, values.imag))
    ]
    return structs(parts, valid, output_type, len(values))


def structs(
    fields: list[pa.Array], valid: NDArray[np.bool_] | None, output_type: pa.DataType, length: int
) -> pa.Array:
    """Return the columns of a structured array as one struct column."""
    nulls, bitmap = _bitmap(valid, length)
    return pa.Array.from_buffers(output_type, length, [bitmap], null_count=nulls, children=fields)


def strings_or_bytes(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, output_type: pa.DataType, *, name: str
) -> pa.Array:
    """Return flat strings or bytes, of fixed or variable length, as an Arrow array.

    Raises FormatError if a value is not Unicode, or neither a string nor bytes, and
    UnsupportedError if the values of one read exceed the 2 GiB that an Arrow column can hold.
    """
    mask = None if valid is None else ~valid
    if values.dtype.kind == "V":
        if mask is None:
            return _raw_bytes(values, output_type)
        values = values.astype(object)
        values = np.array([bytes(value) for value in values.tolist()], dtype=object)
    elif values.dtype.kind == "T":
        values = values.astype(object)
    try:
        result = pa.array(values, type=output_type, mask=mask)
    except (pa.ArrowException, UnicodeError, TypeError, ValueError) as error:
        raise FormatError(
            f"variable {name!r} holds a value that is not {output_type}: {error}", file_type="chunk"
        ) from error
    if isinstance(result, pa.ChunkedArray):
        raise UnsupportedError(
            f"variable {name!r}: more than 2 GiB of strings or bytes in one batch; select "
            "fewer cells",
            variable=name,
        )
    return result


def dictionary_strings(
    strings: list[str], positions: NDArray[np.intp], valid: NDArray[np.bool_] | None
) -> pa.Array:
    """Return a string column from its distinct values and the position of each row's value."""
    indices = pa.array(positions, mask=None if valid is None else ~valid)
    return pa.array(strings, pa.string()).take(indices)


def scattered(values: pa.Array, where: NDArray[np.int64], length: int) -> pa.Array:
    """Return a column with values at the rows ``where`` and nulls elsewhere."""
    if len(where) == length:
        return values
    index = np.zeros(length, dtype=np.int32)
    index[where] = np.arange(len(where), dtype=np.int32)
    absent = np.ones(length, dtype=bool)
    absent[where] = False
    return values.take(pa.array(index, mask=absent))


def _bitmap(valid: NDArray[np.bool_] | None, length: int) -> tuple[int, pa.Buffer | None]:
    if valid is None:
        return 0, None
    nulls = length - int(np.count_nonzero(valid))
    if not nulls:
        return 0, None
    return nulls, pa.py_buffer(np.packbits(valid, bitorder="little"))


def _raw_bytes(values: NDArray[Any], output_type: pa.DataType) -> pa.Array:
    """Cut one block of memory into equal pieces, without a Python object for each."""
    width = values.dtype.itemsize
    if width * len(values) > np.iinfo(np.int32).max:
        raise UnsupportedError("more than 2 GiB of bytes in one batch; select fewer cells")
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(width)
    data = np.ascontiguousarray(values).view(np.uint8) if values.size else np.zeros(0, np.uint8)
    return pa.Array.from_buffers(
        output_type, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
