"""Encoding is the inverse of decoding: a reader shows the values that the column held."""

import pickle
import re

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf import variable_encoder
from icechunk_format.tables.cf.column_types import default_array_type
from icechunk_format.zarr.data_types import data_type_from_numpy

QUICKLY = settings(deadline=None, max_examples=40)


def encoder_of(dtype, attributes, column_type, **options):
    return variable_encoder(
        data_type_from_numpy(dtype), attributes, column_type, name="v", **options
    )


def there_and_back(column, dtype, attributes):
    encoder = pickle.loads(pickle.dumps(encoder_of(dtype, attributes, column.type)))
    stored = encoder.encode(column)
    if dtype not in ("string", "bytes"):
        assert stored.dtype == np.dtype(dtype)
    return encoder.decoder.decode(stored)


micros = st.integers(-719_162 * 86_400_000_000, 2_932_897 * 86_400_000_000 - 1)
COLUMNS = {
    "bool": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "decimal": (pa.decimal128(20, 0), st.integers(0, 2**64 - 1)),
    "string": (pa.string(), st.text(alphabet=st.characters(codec="utf-8"))),
    "binary": (pa.binary(), st.binary()),
    "ntz": (pa.timestamp("us"), micros),
    "utc": (pa.timestamp("us", "UTC"), micros),
    "interval": (pa.duration("us"), st.integers(-(2**62), 2**62)),
    "date": (pa.date32(), st.integers(-719_162, 2_932_896)),
}


@pytest.mark.parametrize("kind", COLUMNS)
@QUICKLY
@given(data=st.data())
def test_a_new_array_gives_every_column_back(kind, data):
    column_type, values = COLUMNS[kind]
    listed = data.draw(st.lists(values, max_size=20))
    if pa.types.is_temporal(column_type):
        width = pa.int32() if kind == "date" else pa.int64()
        column = pa.array(listed, width).cast(column_type)
    else:
        column = pa.array(listed, column_type)
    data_type, attributes = default_array_type(column_type, name="v")
    encoder = variable_encoder(data_type, attributes, column_type, name="v")
    found = encoder.decoder.decode(encoder.encode(column))
    assert found.cast(column_type).equals(column)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.5, None, -2.0], pa.float32()),
        pa.array([1.5, None, -2.0]),
        pa.array([10**15, None, 5], pa.timestamp("us")),
        pa.array([10**9, None, 5], pa.duration("us")),
        pa.array([{"re": 1.0, "im": 2.0}, None], pa.struct([("re", "f8"), ("im", "f8")])),
    ],
    ids=str,
)
def test_null_needs_no_declaration_where_a_missing_value_exists(column):
    data_type, attributes = default_array_type(column.type, name="v")
    encoder = variable_encoder(data_type, attributes, column.type, name="v")
    found = encoder.decoder.decode(encoder.encode(column))
    assert found.to_pylist() == column.to_pylist()


@QUICKLY
@given(st.lists(st.one_of(st.none(), st.integers(-32767, 32767)), max_size=20))
def test_packed_numbers_come_back_to_the_digit(numbers):
    attributes = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    column = pa.array([None if n is None else n * 0.01 + 273.15 for n in numbers], pa.float64())
    encoder = encoder_of("int16", attributes, column.type)
    stored = encoder.encode(column)
    assert stored.tolist() == [-32768 if n is None else n for n in numbers]


def test_nan_of_packed_integers_is_their_missing_value():
    encoder = encoder_of("int8", {"scale_factor": 2, "_FillValue": -1}, pa.float64())
    assert encoder.encode(pa.array([2.0, float("nan"), None])).tolist() == [1, -1, -1]


@QUICKLY
@given(st.lists(st.integers(0, 255), max_size=20))
def test_unsigned_numbers_in_signed_bytes(numbers):
    column = pa.array(numbers, pa.int16())
    assert there_and_back(column, "int8", {"_Unsigned": "true"}).equals(column)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        ("seconds since 1900-01-01", "proleptic_gregorian"),
        ("minutes since 0001-01-01", "standard"),
        ("days since 1850-01-01 12:00", "standard"),
    ],
)
@QUICKLY
@given(days=st.lists(st.integers(-300_000, 300_000), max_size=10))
def test_times_come_back_in_any_unit(dtype, units, calendar, days):
    noon = np.array(days, "M8[D]").astype("M8[us]") + np.timedelta64(12, "h")
    # The Julian calendar has days that no timestamp has, and lacks those of the reform.
    gap = (noon >= np.datetime64("1582-10-05")) & (noon < np.datetime64("1582-10-15"))
    column = pa.array(noon[~gap])
    assert there_and_back(column, dtype, {"units": units, "calendar": calendar}).equals(column)


@pytest.mark.parametrize("calendar", ["360_day", "noleap", "all_leap", "julian"])
def test_times_of_other_calendars_come_back_as_text(calendar):
    texts = ["1999-12-30T00:00:00", "2000-02-28T06:30:00", None, "2000-03-01T00:00:00.500000"]
    attributes = {"units": "microseconds since 1999-01-01", "calendar": calendar}
    found = there_and_back(pa.array(texts), "int64", attributes)
    assert found.to_pylist() == texts
    with raises(InvalidInputError, variable="v", value="2001-02-31", calendar=calendar):
        there_and_back(pa.array(["2001-02-31"]), "int64", attributes)
    with raises(InvalidInputError, variable="v", value="yesterday", allowed=...):
        there_and_back(pa.array(["yesterday"]), "int64", attributes)


def test_dates_that_the_standard_calendar_skips_are_refused():
    column = pa.array([np.datetime64("1582-10-10", "us")])
    attributes = {"units": "days since 1970-01-01", "calendar": "standard"}
    with raises(InvalidInputError, variable="v", value="1582-10-10"):
        there_and_back(column, "int64", attributes)


@pytest.mark.parametrize(
    ("dtype", "column"),
    [
        ("datetime64[s]", pa.array([5_000_000, None], pa.timestamp("us"))),
        ("datetime64[ns]", pa.array([5_000_001, None], pa.timestamp("us"))),
        ("timedelta64[D]", pa.array([86_400_000_000, None], pa.duration("us"))),
        ("U3", pa.array(["äöü", "", "x"])),
        ("S3", pa.array([b"abc", b"", b"x"])),
        ("V2", pa.array([b"ab", b"\0\1"])),
        ("float16", pa.array([1.5, None], pa.float32())),
        (
            np.dtype([("a", "i2"), ("b", "f8")]),
            pa.array([{"a": 1, "b": 2.5}], pa.struct([("a", pa.int16()), ("b", pa.float64())])),
        ),
    ],
    ids=str,
)
def test_other_stored_types_give_columns_back(dtype, column):
    assert there_and_back(column, dtype, {}).to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    ("dtype", "attributes", "column", "match"),
    [
        ("uint8", {}, pa.array([256], pa.int16()), "256, which does not fit into uint8"),
        ("uint8", {}, pa.array([-1], pa.int16()), "0 to 255"),
        ("uint64", {}, pa.array([-1], pa.decimal128(20, 0)), "-1 does not fit into uint64"),
        ("float32", {}, pa.array([1e300]), "too large for float32"),
        ("datetime64[s]", {}, pa.array([1], pa.timestamp("us")), "neither rounded nor cut off"),
        ("U2", {}, pa.array(["abc"]), "3 characters, and an element of its array holds 2"),
        ("S2", {}, pa.array([b"abc"]), "nothing is cut off"),
        ("V2", {}, pa.array([b"a"]), "holds exactly 2"),
        ("bool", {}, pa.array([True, None]), "has NULL"),
        ("string", {}, pa.array(["a", None]), "has NULL"),
        ("int8", {"scale_factor": 2}, pa.array([1e30]), "holds -256 to 254"),
        ("int8", {"scale_factor": 2}, pa.array([float("nan")]), "has NULL"),
    ],
)
def test_what_an_array_cannot_hold_is_refused(dtype, attributes, column, match):
    with pytest.raises(InvalidInputError, match=match):
        there_and_back(column, dtype, attributes)


@pytest.mark.parametrize(
    ("dtype", "attributes", "column_type", "match"),
    [
        ("int16", {}, pa.int64(), "takes SMALLINT"),
        ("float32", {}, pa.int32(), "takes FLOAT"),
        ("int64", {"units": "days since 2000-01-01"}, pa.int64(), "takes TIMESTAMP_NTZ"),
        ("string", {}, pa.int64(), "takes STRING"),
        ("bool", {}, pa.int8(), "takes BOOLEAN"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_their_type(dtype, attributes, column_type, match):
    with raises(InvalidInputError, match=match, variable="v"):
        encoder_of(dtype, attributes, column_type)


VARIANT = pa.struct(
    [("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
)


@pytest.mark.parametrize(
    ("column_type", "name"),
    [
        (pa.decimal128(10, 2), "DECIMAL(10,2)"),
        (pa.list_(pa.int64()), "ARRAY<BIGINT>"),
        (pa.map_(pa.string(), pa.list_(pa.float32())), "MAP<STRING, ARRAY<FLOAT>>"),
        (pa.struct([("a", pa.string())]), "STRUCT<a: STRING>"),
        (VARIANT, "VARIANT"),
        (pa.null(), "VOID"),
    ],
    ids=str,
)
def test_columns_without_any_array_are_refused_by_their_type_in_spark(column_type, name):
    match = re.escape(f"column 'v' is {name}, which no array holds")
    with raises(InvalidInputError, match=match, variable="v"):
        default_array_type(column_type, name="v")


@pytest.mark.parametrize("value", [40000.0, 1e308])
def test_a_packed_value_that_does_not_fit_is_shown_as_it_was_given(value):
    packing = {"scale_factor": 0.1, "add_offset": 5.0}
    with raises(InvalidInputError, match=re.escape(repr(value)), value=value):
        there_and_back(pa.array([20.0, value]), "int16", packing)


@pytest.mark.parametrize(
    ("calendar", "time"),
    [("noleap", "2001-03-01T06:00:00"), ("360_day", "2001-02-30T06:00:00")],
)
def test_a_time_between_two_steps_is_shown_in_its_calendar(calendar, time):
    units = {"units": "days since 2000-01-01", "calendar": calendar}
    with raises(InvalidInputError, match=f"the time {time}", value=time):
        there_and_back(pa.array([time]), "int64", units)
