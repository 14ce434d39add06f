"""Decodes stored arrays by their CF attributes, following xarray's rules.

Packed integers, sentinel values and counts of hours become temperatures, NULLs and timestamps.
`attribute_decoder` reads the attributes once, on the driver, and returns a small value that
executors apply to every chunk.

Rules of this file
------------------
1. Steps run in xarray's order: ``_Unsigned``, missing values, scale and offset, timedelta, time,
   boolean. Each moves the attributes that it uses to the encoding.
2. Missing values are ``_FillValue``, ``missing_value`` (one or several), NaN and NaT. The fill
   value of the Zarr array is an ordinary value: chunks that were never written hold it.
3. Packed data takes the float type that xarray chooses. Data with a missing value and no packing
   keeps its own type, since SQL has NULL for integers where NumPy needs a float for NaN.
4. Two differences from xarray, which truncates or fails in these cases: floats with an integer
   ``scale_factor`` stay floats, and ``_Unsigned`` applies to ``missing_value`` as to
   ``_FillValue``.
5. A character array (data type S1 with a dimension for the letters) stays a column of single bytes;
   xarray joins its last dimension.
6. With ``decode_cf=False`` attributes are ignored, and only NaT is null.

CF conventions, sections 2.5.1 "Missing data", 4.4 "Time Coordinate" and 8.1 "Packed Data".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import FormatError
from icechunk_format.tables.cf import arrow_values
from icechunk_format.tables.cf.arrow_values import TimestampType
from icechunk_format.tables.cf.attributes import (
    attribute_error,
    known_string_encoding,
    numeric_missing,
    other_missing,
    packed_dtype,
    packing_number,
    timedelta_dtype,
)
from icechunk_format.tables.cf.times import (
    TIMEDELTA_UNITS,
    TimeScale,
    duration_scale,
    has_varying_unit,
    parse_time_units,
    stored_scale,
)
from icechunk_format.zarr.data_types import DataType
from icechunk_format.zarr.fill_values import json_safe

_LOG: Final = logging.getLogger("icechunk_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableDecoder:
    """Turns stored values of one variable into a column; small, picklable, stateless."""

    name: str
    arrow_type: pa.DataType
    encoding: dict[str, Any]
    """xarray's ``encoding`` of the values, as JSON (``NaN`` is the string ``"NaN"``)."""
    attributes: dict[str, Any]
    """The attributes that decoding did not use."""
    _dtype: np.dtype[Any] = field(repr=False)
    _nan_is_missing: bool = field(repr=False)
    _integer_view: np.dtype[Any] | None = field(default=None, repr=False)
    _missing: tuple[Any, ...] = field(default=(), repr=False)
    _scaled: np.dtype[Any] | None = field(default=None, repr=False)
    _scale_factor: int | float | None = field(default=None, repr=False)
    _add_offset: int | float | None = field(default=None, repr=False)
    _time: TimeScale | None = field(default=None, repr=False)
    _is_boolean: bool = field(default=False, repr=False)
    _string_encoding: str | None = field(default=None, repr=False)
    _fields: tuple[VariableDecoder, ...] = field(default=(), repr=False)

    @property
    def is_numeric(self) -> bool:
        """True if :meth:`decode_numeric` can be called."""
        return self._dtype.kind in "biufMm" and not pa.types.is_string(self.arrow_type)

    def decode(self, values: NDArray[Any]) -> pa.Array:
        """Return stored values of any shape as one Arrow array, in C order.

        The result may share memory with ``values``, which must not be written to afterwards.
        """
        flat = np.ascontiguousarray(values).reshape(-1)
        if flat.dtype.kind in "biufMm":
            numbers, valid = self._numbers(flat)
            if self._time is not None and pa.types.is_string(self.arrow_type):
                strings, positions = self._time.iso_strings(numbers)
                return arrow_values.dictionary_strings(strings, positions, valid)
            return arrow_values.fixed_width(numbers, valid, self.arrow_type)
        valid = self._valid(flat)
        if flat.dtype.kind == "c":
            return arrow_values.complex_pairs(flat, valid, self.arrow_type)
        if self._fields:
            columns = [child.decode(flat[child.name]) for child in self._fields]
            return arrow_values.structs(columns, valid, self.arrow_type, len(flat))
        if self._string_encoding is not None:
            flat = self._decoded_bytes(flat)
        return arrow_values.strings_or_bytes(flat, valid, self.arrow_type, name=self.name)

    def decode_numeric(self, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return stored values of any shape as numbers of that shape, for sums and extremes.

        The numbers are ``int64``, ``uint64``, ``float32`` or ``float64``, microseconds for times
        and durations, undefined at missing values. The second array is True at present values; None
        if all are present.
        """
        assert self.is_numeric, f"{self.name} holds {self.arrow_type}"
        numbers, valid = self._numbers(np.ascontiguousarray(values).reshape(-1))
        if numbers.dtype.kind == "f":
            # Not widened here: the summation widens its pieces one by one.
            if numbers.dtype.itemsize < 4:
                numbers = numbers.astype(np.float32)
        elif numbers.dtype != np.uint64:
            numbers = numbers.astype(np.int64, copy=False)
        return numbers.reshape(values.shape), None if valid is None else valid.reshape(values.shape)

    def to_arrow(self, numbers: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> pa.Array:
        """Convert numbers of :meth:`decode_numeric` to an array of :attr:`arrow_type`."""
        return arrow_values.fixed_width(numbers, valid, self.arrow_type)

    def _numbers(self, flat: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Decode numbers, up to microseconds for times; validity is None if all are present."""
        if self._integer_view is not None:
            flat = flat.view(self._integer_view)
        if flat.dtype.kind in "Mm":
            if np.datetime_data(flat.dtype)[0] in ("Y", "M"):
                flat = flat.astype("M8[D]")
            flat = flat.view(np.int64)
            valid = self._valid(flat)
        else:
            valid = self._valid(flat)
            if self._scaled is not None:
                flat = flat.astype(self._scaled)
                if self._scale_factor is not None:
                    flat *= self._scale_factor
                if self._add_offset is not None:
                    flat += self._add_offset
        if self._time is not None:
            microseconds, valid = self._time.microseconds(flat, valid, name=self.name)
            return self._time.timestamps(microseconds, valid, name=self.name), valid
        if self._is_boolean:
            flat = flat.astype(np.bool_)
        return flat, valid

    def _valid(self, flat: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Return a mask of the present values; None if all are present."""
        missing: NDArray[np.bool_] | None = None
        if self._nan_is_missing and flat.dtype.kind in "fc":
            missing = np.isnan(flat)
            if not missing.any():
                missing = None
        for value in self._missing:
            equal = np.asarray(flat == value, np.bool_)
            missing = equal if missing is None else missing | equal
        return None if missing is None else ~missing

    def _decoded_bytes(self, flat: NDArray[Any]) -> NDArray[Any]:
        assert self._string_encoding is not None
        try:
            strings = [bytes(value).decode(self._string_encoding) for value in flat.tolist()]
        except UnicodeError as error:
            raise FormatError(
                f"variable {self.name!r}: stored bytes are not {self._string_encoding}: {error}",
                file_type="chunk",
            ) from error
        return np.array(strings, dtype=object)


def attribute_decoder(
    attributes: Mapping[str, Any],
    data_type: DataType,
    *,
    decode_cf: bool = True,
    timestamp_type: TimestampType = "ntz",
    name: str,
) -> VariableDecoder:
    """Return the decoder of an array.

    ``attributes`` are its own, or those that :func:`inherit_time_attributes` returns; with
    ``decode_cf=False`` they are ignored. ``timestamp_type`` is ``"ntz"`` for timestamps without a
    time zone, ``"utc"`` for timestamps in UTC. ``name`` is the variable, for errors.
    """
    dtype, kind = data_type.numpy, data_type.kind
    stored = str(dtype) if dtype.kind in "biufcMm" else data_type.name
    plain = _plain_decoder(dtype, kind, timestamp_type, name, nan_is_missing=decode_cf)
    plan: dict[str, Any] = {"encoding": {"dtype": stored}, "attributes": dict(attributes)}
    if decode_cf and dtype.kind not in "Mm":
        _apply_attributes(plan, dtype, kind, timestamp_type, name)
    return replace(plain, **plan)


def inherit_time_attributes(
    attributes: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Copy ``units`` and ``calendar`` of time variables to their bounds variables.

    ``attributes`` are those of all variables of one group, by name.
    """
    result = {name: dict(own) for name, own in attributes.items()}
    for own in result.values():
        units, bounds = own.get("units"), own.get("bounds")
        if isinstance(units, str) and "since" in units and isinstance(bounds, str):
            described = result.get(bounds)
            if described is not None:
                described.setdefault("units", units)
                if "calendar" in own:
                    described.setdefault("calendar", own["calendar"])
    return result


def _plain_decoder(
    dtype: np.dtype[Any], kind: str, timestamps: TimestampType, name: str, *, nan_is_missing: bool
) -> VariableDecoder:
    """Return the decoder of a type without attributes, for ``decode_cf=False``."""
    fields: tuple[VariableDecoder, ...] = ()
    if dtype.names is not None:
        fields = tuple(
            _plain_decoder(dtype[child], "bytes", timestamps, child, nan_is_missing=nan_is_missing)
            for child in dtype.names
        )
    is_time = dtype.kind in "Mm"
    return VariableDecoder(
        name=name,
        arrow_type=arrow_values.arrow_type(dtype, kind, timestamps, name=name),
        encoding={},
        attributes={},
        _dtype=dtype,
        _nan_is_missing=nan_is_missing,
        _time=stored_scale(dtype, name=name) if is_time else None,
        _fields=fields,
    )


def _apply_attributes(
    plan: dict[str, Any], dtype: np.dtype[Any], kind: str, timestamps: TimestampType, name: str
) -> None:
    """Fill in the fields of a decoder from the attributes, in xarray's order."""
    stored = dtype
    attributes, encoding = plan["attributes"], plan["encoding"]

    def consume(attribute: str) -> Any:
        value = attributes.pop(attribute, None)
        if value is not None:
            encoding[attribute] = json_safe(value)
        return value

    if kind == "bytes" and isinstance(attributes.get("_Encoding"), str):
        plan["_string_encoding"] = known_string_encoding(consume("_Encoding"), name)
        plan["arrow_type"] = pa.string()
    given = {key: consume(key) for key in ("missing_value", "_FillValue")}
    if dtype.kind not in "biuf":
        plan["_missing"] = other_missing(given, dtype, kind, name)
        return
    if dtype.kind in "iu" and "_Unsigned" in attributes:
        dtype = _apply_unsigned(plan, dtype, consume("_Unsigned"), name)
    missing, only_nan = numeric_missing(given, stored, dtype, encoding, name)
    plan["_missing"] = missing

    scale_factor = packing_number(consume("scale_factor"), "scale_factor", name)
    add_offset = packing_number(consume("add_offset"), "add_offset", name)
    units, time = attributes.get("units"), None
    if isinstance(units, str) and has_varying_unit(units, attributes.get("calendar")):
        _LOG.warning("variable %r is not decoded: its units are %r", name, units[:200])
    elif isinstance(units, str) and "since" in units:
        consume("units")
        time = parse_time_units(units, consume("calendar"), name=name)
    elif (
        isinstance(units, str)
        and units in TIMEDELTA_UNITS
        and str(attributes.get("dtype")).startswith("timedelta64")
    ):
        consume("units")
        encoding["dtype"] = timedelta_dtype(attributes.pop("dtype"), name)
        time = duration_scale(units)
    if scale_factor is not None or add_offset is not None:
        # xarray keeps the stored float type when the only missing value is NaN.
        keep = only_nan and time is None
        plan["_scaled"] = dtype if keep else packed_dtype(dtype, scale_factor, add_offset, missing)
        plan["_scale_factor"], plan["_add_offset"] = scale_factor, add_offset
        dtype = plan["_scaled"]
    plan["_time"] = time
    if time is not None:
        plan["arrow_type"] = _time_type(time, timestamps)
    elif attributes.get("dtype") == "bool":
        encoding["dtype"] = attributes.pop("dtype")
        plan["_is_boolean"], plan["arrow_type"] = True, pa.bool_()
    else:
        plan["arrow_type"] = arrow_values.arrow_type(dtype, kind, timestamps, name=name)


def _time_type(time: TimeScale, timestamps: TimestampType) -> pa.DataType:
    if time.calendar is None:
        return pa.duration("us")
    return arrow_values.timestamp_type(timestamps) if time.is_timestamp else pa.string()


def _apply_unsigned(
    plan: dict[str, Any], dtype: np.dtype[Any], flag: Any, name: str
) -> np.dtype[Any]:
    kind = {"true": "u", "false": "i"}.get(str(flag).lower())
    if kind is None:
        raise attribute_error(name, "_Unsigned", flag, 'allowed are "true" and "false"')
    if kind != dtype.kind:
        dtype = np.dtype(f"{kind}{dtype.itemsize}")
        plan["_integer_view"] = dtype
    return dtype
