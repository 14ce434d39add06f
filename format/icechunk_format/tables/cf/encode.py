"""Encodes columns of a table as the stored values of an array: the inverse of ``decode``.

Readers of the stored array must see the values of the table, so an encoder is made from the decoder
of that array and undoes its steps in reverse order.

Rules of this file
------------------
1. A value that the array cannot hold (too large, between two steps of a time unit, too long a
   string) is an error that names the variable and the value. The one exception is the rounding of
   packing and of ``float32``.
2. NULL, and NaN where integers are stored, becomes the missing value that the array declares.
   Floats use NaN and 64-bit times NaT without a declaration. NULL without a missing value is an
   error. A value equal to the missing value is also an error: it would read as NULL.
3. Whole columns are encoded at once. Only strings of calendars that no timestamp can hold are
   parsed one by one, each distinct string once.

CF conventions, sections 2.5.1, 4.4 and 8.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf.attributes import numeric_missing, other_missing
from icechunk_format.tables.cf.column_types import check_column_type, missing_value_advice
from icechunk_format.tables.cf.decode import VariableDecoder, attribute_decoder
from icechunk_format.tables.cf.encode_times import microseconds_of, stored_times
from icechunk_format.tables.cf.times import NOT_A_TIME
from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.fill_values import fill_array


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableEncoder:
    """Turns a column into stored values of one array; small and picklable.

    ``absent`` is the stored value that reads as NULL, or None.
    """

    name: str
    data_type: DataType
    absent: Any
    decoder: VariableDecoder

    def encode(self, column: pa.Array) -> NDArray[Any]:
        """Return the stored values of a column: flat, of ``data_type.numpy``.

        Raises InvalidInputError if a value does not fit into the array, equals the missing value,
        or is NULL and the array has no missing value.
        """
        valid = self._valid(column)
        if valid is not None and self.absent is None:
            raise InvalidInputError(
                f"column {self.name!r} has NULL, and its array of {self.data_type.name} has no "
                f"missing value. Give it one when it is created: "
                f"{missing_value_advice(self.name, self.data_type, column.type)}; or replace NULL "
                "in the column (coalesce)",
                variable=self.name,
            )
        values = self._stored(column, valid)
        self._refuse_missing(column, values, valid)
        if valid is not None:
            if not values.flags.writeable:
                values = values.copy()
            values[~valid] = self.absent
        return values

    def _valid(self, column: pa.Array) -> NDArray[np.bool_] | None:
        """Return a mask of the rows that have a value; None if all have one."""
        is_present = column.is_valid()
        if self.data_type.numpy.kind in "iu" and pa.types.is_floating(column.type):
            # Integers cannot store NaN: it becomes the missing value, as in xarray.
            is_present = pc.and_(is_present, pc.invert(pc.fill_null(pc.is_nan(column), False)))
        elif not column.null_count:
            return None
        valid: NDArray[np.bool_] = is_present.to_numpy(zero_copy_only=False)
        return None if bool(valid.all()) else valid

    def _refuse_missing(
        self, column: pa.Array, values: NDArray[Any], valid: NDArray[np.bool_] | None
    ) -> None:
        """Raise InvalidInputError if a value equals the missing value."""
        decoder = self.decoder
        view = decoder._integer_view
        for missing in decoder._missing:
            equal = np.asarray((values if view is None else values.view(view)) == missing, np.bool_)
            if valid is not None:
                equal &= valid
            if equal.any():
                value = column[int(np.argmax(equal))].as_py()
                raise InvalidInputError(
                    f"column {self.name!r} has the value {value!r}, stored as {missing!s}, which "
                    "is the missing value of its array and would read as NULL. If it means a "
                    "missing value, write NULL (nullif); otherwise store the column in an array "
                    "with another missing value",
                    variable=self.name,
                    value=value,
                )

    def blank(self, shape: Sequence[int], otherwise: Any) -> NDArray[Any]:
        """Return an array filled with the missing value, or with ``otherwise`` if there is none."""
        value = otherwise if self.absent is None else self.absent
        return fill_array(self.data_type, value, shape)

    def _stored(self, column: pa.Array, valid: NDArray[np.bool_] | None) -> NDArray[Any]:
        decoder, dtype = self.decoder, self.data_type.numpy
        if dtype.names is not None:
            return self._structs(column)
        if dtype.kind == "c":
            result = np.empty(len(column), dtype)
            for part, half in (("re", result.real), ("im", result.imag)):
                half[...] = _numbers(pc.struct_field(column, part))
            return result
        if dtype.kind not in "biufMm":
            return self._strings_or_bytes(column)
        if decoder._time is not None:
            microseconds = microseconds_of(column, decoder._time, name=self.name)
            if dtype.kind in "Mm":
                return stored_times(microseconds, valid, decoder._time, dtype, name=self.name)
            output_dtype = dtype if decoder._scaled is None else np.dtype(np.float64)
            numbers = stored_times(microseconds, valid, decoder._time, output_dtype, name=self.name)
        else:
            numbers = _numbers(column)
        view = decoder._integer_view
        output_dtype = dtype if view is None else view
        given = numbers
        if decoder._scaled is not None:
            numbers = numbers.astype(np.float64)
            if decoder._add_offset is not None:
                numbers -= decoder._add_offset
            if decoder._scale_factor is not None:
                with np.errstate(over="ignore"):
                    numbers = numbers / decoder._scale_factor
                too_large = np.isinf(numbers) & ~np.isinf(given)
                scale = f"is too large for scale_factor={decoder._scale_factor}"
                self._check(too_large, given, valid, scale)
            if output_dtype.kind in "iu":
                numbers = np.rint(numbers)
        result = self._cast(numbers, given, valid, output_dtype)
        return result if view is None else result.view(dtype)

    def _cast(
        self,
        numbers: NDArray[Any],
        given: NDArray[Any],
        valid: NDArray[np.bool_] | None,
        output_dtype: np.dtype[Any],
    ) -> NDArray[Any]:
        """Cast numbers to the stored type; raise InvalidInputError if the cast changes one.

        The error shows the value as it was given, not as it is packed.
        """
        if numbers.dtype == output_dtype:
            return numbers
        if output_dtype.kind == "b" or numbers.dtype.kind == "b":
            return numbers.astype(output_dtype)
        if output_dtype.kind == "f":
            with np.errstate(over="ignore"):
                result = numbers.astype(output_dtype)
            if numbers.dtype.kind == "f" and output_dtype.itemsize < numbers.dtype.itemsize:
                too_large = np.isinf(result) & ~np.isinf(numbers)
                self._check(too_large, given, valid, f"is too large for {output_dtype}")
            return result
        limits = np.iinfo(output_dtype)
        if numbers.dtype.kind == "f":
            # 2**63 - 1 is not a float but 2.0**63 is, so the upper limit is exclusive.
            with np.errstate(invalid="ignore"):
                wrong = ~((numbers >= float(limits.min)) & (numbers < float(limits.max) + 1.0))
                self._check(wrong, given, valid, self._limits(output_dtype))
                return np.where(wrong, 0, numbers).astype(output_dtype)
        low, high = np.iinfo(numbers.dtype).min, np.iinfo(numbers.dtype).max
        if low < limits.min or high > limits.max:
            wrong = (numbers < max(low, limits.min)) | (numbers > min(high, limits.max))
            self._check(wrong, given, valid, self._limits(output_dtype))
        return numbers.astype(output_dtype)

    def _limits(self, output_dtype: np.dtype[Any]) -> str:
        limits = np.iinfo(output_dtype)
        decoder = self.decoder
        if decoder._scaled is None:
            return f"does not fit into {output_dtype} ({limits.min} to {limits.max})"
        scale, offset = decoder._scale_factor or 1, decoder._add_offset or 0
        ends = sorted((limits.min * scale + offset, limits.max * scale + offset))
        return (
            f"does not fit when packed: {output_dtype} with scale_factor={scale} and "
            f"add_offset={offset} holds "
            f"{ends[0]:g} to {ends[1]:g}"
        )

    def _check(
        self,
        wrong: NDArray[np.bool_],
        numbers: NDArray[Any],
        valid: NDArray[np.bool_] | None,
        problem: str,
    ) -> None:
        if valid is not None:
            wrong = wrong & valid
        if wrong.any():
            number = numbers[int(np.argmax(wrong))].item()
            raise InvalidInputError(
                f"column {self.name!r} has the value {number!r}, which {problem}. Change the "
                "value, or write to an array of a wider type",
                variable=self.name,
                value=number,
            )

    def _structs(self, column: pa.Array) -> NDArray[Any]:
        result = np.zeros(len(column), self.data_type.numpy)
        for (field, data_type), child in zip(
            self.data_type.fields, self.decoder._fields, strict=True
        ):
            encoder = VariableEncoder(
                name=f"{self.name}.{field}",
                data_type=data_type,
                absent=missing_value({}, child, data_type),
                decoder=child,
            )
            result[field] = encoder.encode(pc.struct_field(column, field))
        return result

    def _strings_or_bytes(self, column: pa.Array) -> NDArray[Any]:
        dtype = self.data_type.numpy
        is_string = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        encoding = self.decoder._string_encoding
        if dtype.kind != "O" and encoding is None:
            self._check_length(column, dtype, is_string=is_string)
        values = column.to_numpy(zero_copy_only=False)
        if encoding is not None:
            values = self._encoded_strings(values, encoding)
            longest = max(map(len, values.tolist()), default=0)
            if dtype.kind == "S" and longest > dtype.itemsize:
                raise self._too_long(longest, dtype.itemsize, "bytes")
        if dtype.kind == "O":
            return np.asarray(values, dtype=object)
        blank = "" if dtype.kind == "U" else bytes(dtype.itemsize)
        if column.null_count:
            values = np.array([blank if v is None else v for v in values.tolist()], dtype=object)
        if dtype.kind == "V":
            joined = b"".join(values.tolist())
            return np.frombuffer(joined, dtype=dtype).copy()
        fixed: NDArray[Any] = values.astype(dtype)
        return fixed

    def _encoded_strings(self, values: NDArray[Any], encoding: str) -> NDArray[Any]:
        result = np.empty(len(values), object)
        try:
            result[:] = [
                b"" if string is None else string.encode(encoding) for string in values.tolist()
            ]
        except UnicodeEncodeError as error:
            raise InvalidInputError(
                f"column {self.name!r} has a string that {encoding} cannot encode: {error}",
                variable=self.name,
            ) from error
        return result

    def _check_length(self, column: pa.Array, dtype: np.dtype[Any], *, is_string: bool) -> None:
        if not len(column) or column.null_count == len(column):
            return
        lengths = pc.utf8_length(column) if is_string else pc.binary_length(column)
        ends = pc.min_max(lengths)
        size = dtype.itemsize // 4 if dtype.kind == "U" else dtype.itemsize
        unit = "characters" if dtype.kind == "U" else "bytes"
        if ends["max"].as_py() > size:
            raise self._too_long(ends["max"].as_py(), size, unit)
        if dtype.kind == "V" and ends["min"].as_py() != size:
            raise InvalidInputError(
                f"column {self.name!r} has a value of {ends['min'].as_py()} bytes, and its array "
                f"holds exactly {size} in each element",
                variable=self.name,
            )

    def _too_long(self, found: int, size: int, unit: str) -> InvalidInputError:
        return InvalidInputError(
            f"column {self.name!r} has a value of {found} {unit}, and an element of its array "
            f"holds {size}; nothing is cut off. Shorten the value, or write to an array of "
            "variable length",
            variable=self.name,
        )


def variable_encoder(
    data_type: DataType,
    attributes: Mapping[str, Any],
    column_type: pa.DataType,
    *,
    decode_cf: bool = True,
    name: str,
) -> VariableEncoder:
    """Return the encoder of a column for an array with a data type and attributes.

    With ``decode_cf=False`` values are stored unchanged. Raises InvalidInputError if the type of
    the column does not fit the array, or a CF attribute is invalid.
    """
    decoder = attribute_decoder(attributes, data_type, decode_cf=decode_cf, name=name)
    check_column_type(column_type, decoder, data_type, name=name)
    return VariableEncoder(
        name=name,
        data_type=data_type,
        absent=missing_value(attributes if decode_cf else {}, decoder, data_type),
        decoder=decoder,
    )


def missing_value(
    attributes: Mapping[str, Any], decoder: VariableDecoder, data_type: DataType
) -> Any:
    """Return the stored value that reads as NULL, or None."""
    dtype = data_type.numpy
    if dtype.kind in "Mm":
        return np.array([NOT_A_TIME]).view(dtype)[0]
    for key in ("_FillValue", "missing_value"):
        if attributes.get(key) is None:
            continue
        given = {key: attributes[key]}
        if dtype.kind in "biuf":
            view = decoder._integer_view or dtype
            found, only_nan = numeric_missing(given, dtype, view, {}, decoder.name)
            if only_nan:
                return dtype.type(np.nan)
            if found:
                return np.array([found[0]], view).view(dtype)[0]
        else:
            others = other_missing(given, dtype, data_type.kind, decoder.name)
            if others:
                return others[0]
    if dtype.kind == "f":
        return dtype.type(np.nan)
    if dtype.kind == "c":
        return dtype.type(complex(np.nan, np.nan))
    if decoder._time is not None and dtype == np.int64:
        return np.int64(NOT_A_TIME)
    return None


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Return the numbers of a column; NULLs become arbitrary numbers."""
    if pa.types.is_decimal(column.type):
        return _unsigned_of_decimals(column)
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(0).cast(column.type))
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def _unsigned_of_decimals(column: pa.Array) -> NDArray[Any]:
    """Return decimals without a fraction as ``uint64``, or as objects if one does not fit."""
    if column.type.byte_width != 16:
        column = column.cast(pa.decimal128(20, 0))
    words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)]
    is_wide = words[:, 1] != 0
    if column.null_count:
        is_wide = is_wide & column.is_valid().to_numpy(zero_copy_only=False)
    if is_wide.any():
        value = column[int(np.argmax(is_wide))].as_py()
        raise InvalidInputError(
            f"the value {value} does not fit into uint64 (0 to {2**64 - 1})", value=str(value)
        )
    return np.ascontiguousarray(words[:, 0])
