"""CF decoding gives exact values and types, or errors; the oracle is in tests/conformance."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.tables.cf import VariableDecoder, attribute_decoder, day_number
from icechunk_format.tables.cf.calendars import proleptic_day_numbers
from icechunk_format.tables.cf.decode import inherit_time_attributes
from icechunk_format.zarr.data_types import DataType

KINDS = {
    "b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex", "M": "datetime",
    "m": "timedelta", "U": "string", "S": "bytes", "V": "bytes",
}  # fmt: skip


def decoder(values: np.ndarray, kind: str | None = None, **attributes: Any) -> VariableDecoder:
    options = {
        option: attributes.pop(option)
        for option in ("decode_cf", "timestamp_type")
        if option in attributes
    }
    kind = kind or ("struct" if values.dtype.names else KINDS[values.dtype.kind])
    data_type = DataType(name=str(values.dtype), numpy=values.dtype, kind=kind)
    made = attribute_decoder(attributes, data_type, name="v", **options)
    return pickle.loads(pickle.dumps(made))


def decode(values: np.ndarray, kind: str | None = None, **attributes: Any) -> pa.Array:
    made = decoder(values, kind, **attributes)
    result = made.decode(values)
    assert result.type == made.arrow_type
    result.validate(full=True)
    return result


@pytest.mark.parametrize(
    ("values", "kind", "arrow_type", "expected"),
    [
        (np.array([True, False]), None, pa.bool_(), [True, False]),
        (np.array([-1, 2], "i1"), None, pa.int8(), [-1, 2]),
        (np.array([255], "u1"), None, pa.int16(), [255]),
        (np.array([65535], "u2"), None, pa.int32(), [65535]),
        (np.array([2**32 - 1], "u4"), None, pa.int64(), [2**32 - 1]),
        (np.array([2**64 - 1], "u8"), None, pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
        (np.array([0.5, np.nan], "f2"), None, pa.float32(), [0.5, None]),
        (np.array([0.5, np.nan], "f8"), None, pa.float64(), [0.5, None]),
        (
            np.array([1 + 2j, np.nan], "c8"),
            None,
            pa.struct([("re", pa.float32()), ("im", pa.float32())]),
            [{"re": 1.0, "im": 2.0}, None],
        ),
        (
            np.array(["2024-07-01", "NaT"], "M8[D]"),
            None,
            pa.timestamp("us"),
            [dt.datetime(2024, 7, 1), None],
        ),
        (np.array([5, "NaT"], "m8[h]"), None, pa.duration("us"), [dt.timedelta(hours=5), None]),
        (np.array(["a", "bc"]), None, pa.string(), ["a", "bc"]),
        (np.array(["a", None], object), "string", pa.string(), ["a", None]),
        (np.array([b"a\0", b"bc"], "S2"), None, pa.binary(), [b"a", b"bc"]),
        (np.array([b"a\0", b"bc"], "V2"), None, pa.binary(), [b"a\0", b"bc"]),
        (np.array([b"", b"\xff"], object), "bytes", pa.binary(), [b"", b"\xff"]),
        (
            np.array([(1, 2.5)], [("a", "u1"), ("b", "f4")]),
            None,
            pa.struct([("a", pa.int16()), ("b", pa.float32())]),
            [{"a": 1, "b": 2.5}],
        ),
    ],
)
def test_types(
    values: np.ndarray, kind: str | None, arrow_type: pa.DataType, expected: list[Any]
) -> None:
    result = decode(values, kind)
    assert result.type == arrow_type
    assert result.to_pylist() == expected
    assert len(decode(values[:0], kind)) == 0


def test_any_shape_is_flattened_in_c_order() -> None:
    values = np.arange(6, dtype="f4").reshape(2, 3)
    assert decode(values.T).to_pylist() == [0, 3, 1, 4, 2, 5]


def test_floats_are_not_copied() -> None:
    values = np.arange(1000, dtype="f4")
    assert decoder(values).decode(values).buffers()[1].address == values.ctypes.data


def test_without_cf_values_are_the_stored_ones() -> None:
    values = np.array([1.0, np.nan, -999.0])
    result = decode(values, decode_cf=False, _FillValue=-999.0, scale_factor=2.0)
    assert result.null_count == 0
    np.testing.assert_array_equal(result.to_numpy(), values)
    numbers = np.array([1, 2])
    assert decode(numbers, decode_cf=False, units="days since 2000-01-01").to_pylist() == [1, 2]
    assert decode(np.array(["NaT"], "M8[s]"), decode_cf=False).to_pylist() == [None]


def test_a_missing_value_leaves_integers_exact() -> None:
    values = np.array([2**62 + 1, -1, 5])
    result = decode(values, _FillValue=-1, missing_value=[5.0])
    assert result.type == pa.int64()
    assert result.to_pylist() == [2**62 + 1, None, None]


@pytest.mark.parametrize("stored", ["AAAAAAA4j8A=", -999.0, "-Infinity", "NaN"])
def test_spellings_of_a_float_missing_value(stored: str | float) -> None:
    result = decode(np.array([-999.0, 1.0, -np.inf]), _FillValue=stored)
    missing = {"AAAAAAA4j8A=": 0, -999.0: 0, "-Infinity": 2, "NaN": None}[stored]
    assert [i for i, value in enumerate(result.to_pylist()) if value is None] == (
        [] if missing is None else [missing]
    )


def test_an_integer_scale_does_not_truncate_floats() -> None:
    assert decode(np.array([1.5], "f4"), scale_factor=2).to_pylist() == [3.0]


def test_unsigned_covers_missing_value_too() -> None:
    values = np.array([-1, -2, 3], "i1")
    result = decode(values, _Unsigned="true", _FillValue=-1, missing_value=-2)
    assert result.to_pylist() == [None, None, 3]
    assert decode(values, _Unsigned="true").to_pylist() == [255, 254, 3]


def test_text_stored_as_bytes() -> None:
    assert decode(np.array([b"\xc3\x84", b""]), _Encoding="utf-8").to_pylist() == ["Ä", ""]
    with pytest.raises(FormatError, match="not utf-8"):
        decode(np.array([b"\xff"]), _Encoding="utf-8")
    with raises(
        InvalidInputError, match="_Encoding='klingon'", variable="v", attribute="_Encoding"
    ):
        decode(np.array([b"a"]), _Encoding="klingon")


@given(st.integers(-(10**17), 10**17))
def test_integer_microseconds_are_exact(number: int) -> None:
    attributes = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}
    try:
        expected = [dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=number)]
    except OverflowError:
        with raises(UnsupportedError, variable="v", value=number):
            decode(np.array([number]), **attributes)
        return
    assert decode(np.array([number]), **attributes).to_pylist() == expected


@pytest.mark.parametrize(
    "values",
    [np.array([1_500], "M8[ns]"), np.array([1], "M8[ps]"), np.array([1_001], "m8[ns]")],
)
def test_stored_times_finer_than_a_microsecond_are_an_error(values: np.ndarray) -> None:
    with raises(UnsupportedError, match="'v' holds times finer than a microsecond", variable="v"):
        decode(values)
    coarse = (values.view("i8") * 0).view(values.dtype)
    assert decode(coarse).null_count == 0


@pytest.mark.parametrize("dtype", ["i8", "f8"])
def test_nanoseconds_are_never_truncated(dtype: str) -> None:
    units = "nanoseconds since 1970-01-01"
    with raises(UnsupportedError, variable="v"):
        decode(np.array([1_500], dtype), units=units)
    assert decode(np.array([2_000], dtype), units=units).cast(pa.int64()).to_pylist() == [2]


@pytest.mark.parametrize("number", [9.969209968386869e36, np.inf, -1e9])
def test_times_out_of_range_name_the_variable(number: float) -> None:
    with raises(UnsupportedError, match="lacks a _FillValue", variable="v"):
        decode(np.array([0.0, number]), units="days since 2000-01-01")
    kept = decode(np.array([0.0, number]), units="days since 2000-01-01", _FillValue=number)
    assert kept.to_pylist() == [dt.datetime(2000, 1, 1), None]


def test_the_smallest_integer_is_not_a_time() -> None:
    values = np.array([np.iinfo(np.int64).min, 0])
    result = decode(values, units="days since 2000-01-01")
    assert result.to_pylist() == [None, dt.datetime(2000, 1, 1)]


def test_utc_timestamps() -> None:
    values = np.array([0])
    result = decode(values, units="days since 2000-01-01", timestamp_type="utc")
    assert result.type == pa.timestamp("us", "UTC")
    assert result.to_pylist() == [dt.datetime(2000, 1, 1, tzinfo=dt.UTC)]


def test_dates_before_the_reform_keep_their_label() -> None:
    values = np.array([0, 1, -1])
    result = decode(values, units="days since 1582-10-15")
    assert [str(value.date()) for value in result.to_pylist()] == [
        "1582-10-15", "1582-10-16", "1582-10-04",
    ]  # fmt: skip
    with raises(UnsupportedError, variable="v", calendar="standard"):
        decode(np.array([0]), units="days since 1500-02-29")
    with raises(InvalidInputError, match="skips 1582-10-05", variable="v", attribute="units"):
        decode(np.array([0]), units="days since 1582-10-05")


@given(st.integers(1, 1582), st.integers(1, 12), st.integers(1, 28))
def test_labels_of_the_julian_calendar(year: int, month: int, day: int) -> None:
    if (year, month, day) >= (1582, 10, 5):
        return
    days = np.array([day_number("standard", year, month, day)])
    moved, exists = proleptic_day_numbers(days)
    assert exists.all()
    assert moved.tolist() == [(dt.date(year, month, day) - dt.date(1970, 1, 1)).days]


def test_a_calendar_without_timestamps_becomes_text() -> None:
    values = np.array([59, 59, 60])
    result = decode(values, units="days since 2001-01-01 06:00", calendar="360_day")
    assert result.to_pylist() == ["2001-02-30T06:00:00"] * 2 + ["2001-03-01T06:00:00"]
    part = decode(np.array([0.5, np.nan]), units="seconds since 2001-01-01", calendar="noleap")
    assert part.to_pylist() == ["2001-01-01T00:00:00.500000", None]


def test_bounds_inherit_units() -> None:
    attributes = {
        "time": {"units": "days since 2000-01-01", "calendar": "noleap", "bounds": "time_bnds"},
        "time_bnds": {},
        "x": {"units": "m", "bounds": "x_bnds"},
        "x_bnds": {},
    }
    result = inherit_time_attributes(attributes)
    assert result["time_bnds"] == {"units": "days since 2000-01-01", "calendar": "noleap"}
    assert result["x_bnds"] == {}
    assert attributes["time_bnds"] == {}


@pytest.mark.parametrize(
    ("values", "attributes", "kind"),
    [
        (np.array([1, -9, 3], "i2"), {"_FillValue": -9}, "i8"),
        (np.array([1, -9, 3], "i2"), {"_FillValue": -9, "scale_factor": 0.5}, "f8"),
        (np.array([1.5, np.nan], "f4"), {}, "f4"),
        (np.array([1.5, np.nan], "f2"), {}, "f4"),
        (np.array([True, False]), {}, "i8"),
        (np.array([2**64 - 1, 1], "u8"), {"_FillValue": 1}, "u8"),
        (np.array([250, 3], "u1"), {}, "i8"),
        (np.array([1, 2]), {"units": "days since 2000-01-01"}, "i8"),
        (np.array([1, "NaT"], "m8[s]"), {}, "i8"),
    ],
)
def test_numbers_for_summaries_agree_with_the_column(
    values: np.ndarray, attributes: dict[str, Any], kind: str
) -> None:
    made = decoder(values, **attributes)
    assert made.is_numeric
    numbers, valid = made.decode_numeric(values)
    assert numbers.dtype == kind
    assert made.to_arrow(numbers, valid).equals(made.decode(values))


def test_text_is_not_numeric() -> None:
    assert not decoder(np.array(["a"])).is_numeric
    assert not decoder(np.array([1]), units="days since 2000-01-01", calendar="noleap").is_numeric
