"""Decoded values are those that xarray shows.

The oracle is ``xarray.conventions.decode_cf_variable``, the function behind ``open_zarr``, and for
stored attributes a whole round trip through ``to_zarr``. Where the two differ on purpose (integers
with missing values stay integers, float times are rounded to microseconds), the comparison says so.
"""

from __future__ import annotations

import json
import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from xarray.conventions import decode_cf_variable

from icechunk_format.tables.cf import VariableDecoder, attribute_decoder
from icechunk_format.tables.cf.decode import inherit_time_attributes

KINDS = {
    "b": "bool",
    "i": "int",
    "u": "uint",
    "f": "float",
    "c": "complex",
    "M": "datetime",
    "m": "timedelta",
    "U": "string",
    "S": "bytes",
}
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def decoder(values: np.ndarray, attributes: dict[str, Any]) -> VariableDecoder:
    dtype = values.dtype
    data_type = SimpleNamespace(numpy=dtype, kind=KINDS[dtype.kind], name=str(dtype))
    made = attribute_decoder(attributes, data_type, name="v")
    json.dumps([made.encoding, made.attributes], allow_nan=False)
    return pickle.loads(pickle.dumps(made))


def by_xarray(values: np.ndarray, attributes: dict[str, Any]) -> xr.Variable:
    dims = tuple(f"d{axis}" for axis in range(values.ndim))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return decode_cf_variable("v", xr.Variable(dims, values, dict(attributes))).load()


def assert_same_numbers(ours: pa.Array, theirs: np.ndarray) -> None:
    expected = theirs.reshape(-1)
    if expected.dtype.kind == "f":
        assert [value is None for value in ours.to_pylist()] == np.isnan(expected).tolist()
        present = ~np.isnan(expected)
    else:
        assert ours.null_count == 0
        present = np.ones(len(expected), bool)
    numbers = np.array([value for value in ours.to_pylist() if value is not None])
    np.testing.assert_array_equal(numbers.astype(expected.dtype), expected[present])


@st.composite
def packed(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    dtype = np.dtype(draw(st.sampled_from([*INTEGERS, "f4", "f8"])))
    if dtype.kind == "f":
        elements = st.sampled_from([0.0, -999.0, 1.5, 1e20, float("nan"), -2.25, 7.0])
    else:
        limits = np.iinfo(dtype)
        # Beyond 2**53 xarray's own floats cannot tell a value from the missing one.
        low, high = max(limits.min, -(2**53)), min(limits.max, 2**53)
        elements = st.one_of(st.integers(low, high), st.sampled_from([0, 1, 2, low, high]))
    values = draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=2, max_side=6), elements=elements))
    values = values.astype(dtype)
    attributes: dict[str, Any] = {"long_name": "v"}
    some = st.sampled_from(values.reshape(-1).tolist())
    other = st.sampled_from([0, 7, 1.5, float("nan")])
    if draw(st.booleans()):
        attributes["_FillValue"] = draw(st.one_of(some, other))
    if draw(st.booleans()):
        attributes["missing_value"] = draw(
            st.one_of(some, other, st.lists(some, min_size=1, max_size=3))
        )
    if draw(st.booleans()):
        attributes["scale_factor"] = draw(st.sampled_from([0.5, 0.01, 2.0]))
    if draw(st.booleans()):
        attributes["add_offset"] = draw(st.sampled_from([273.15, -1.0, 10]))
    return values, attributes


@FAST
@given(packed())
def test_missing_values_and_packing(case: tuple[np.ndarray, dict[str, Any]]) -> None:
    values, attributes = case
    ours, theirs = decoder(values, attributes), by_xarray(values, attributes)
    assert_same_numbers(ours.decode(values), theirs.values)
    assert ours.attributes == theirs.attrs
    assert set(ours.encoding) >= set(theirs.encoding) - {"dtype"}
    if "scale_factor" in attributes or "add_offset" in attributes:
        assert ours.arrow_type == pa.from_numpy_dtype(theirs.dtype)


@FAST
@given(
    hnp.arrays(st.sampled_from(["i1", "i2", "i4"]), 5, elements=st.integers(-128, 127)),
    st.sampled_from(["true", "false"]),
    st.sampled_from([None, -1, 0, 5, -128]),
    st.sampled_from([None, 0.5]),
)
def test_unsigned(values: np.ndarray, flag: str, fill: int | None, scale: float | None) -> None:
    attributes = {"_Unsigned": flag, "_FillValue": fill, "scale_factor": scale}
    attributes = {name: value for name, value in attributes.items() if value is not None}
    assert_same_numbers(
        decoder(values, attributes).decode(values), by_xarray(values, attributes).values
    )


UNITS = ["days", "hours", "minutes", "seconds", "milliseconds", "hrs", "Hour", "sec", "d"]
DATES = [
    "1970-01-01",
    "1900-01-01 00:00:00",
    "1-1-1 00:00:0.0",
    "0001-01-01",
    "2000-2-29T6:30",
    "1992-10-8 15:15:42.5 -06:00",
    "1970-01-01T00:00:00Z",
    "1970-01-01 00:00:00 UTC",
    "1582-10-15",
    "1800-01-01 00:00:00.000000",
    "19700101",
    "2000/01/02",
    "1 Jan 2000",
    "2000-05",
]


def microseconds(values: np.ndarray) -> list[int | None]:
    """Return times as xarray shows them: datetime64, or cftime by its label."""
    if values.dtype.kind == "M":
        return [None if np.isnat(v) else int(v.astype("M8[us]").astype("i8")) for v in values]
    return [int(np.datetime64(v.isoformat(), "us").astype("i8")) for v in values]


@FAST
@given(
    hnp.arrays("i8", st.integers(1, 5), elements=st.integers(-100_000, 600_000)),
    st.sampled_from(UNITS),
    st.sampled_from(DATES),
    st.sampled_from([None, "standard", "gregorian", "proleptic_gregorian", "Gregorian"]),
)
def test_integer_times(numbers: np.ndarray, unit: str, date: str, calendar: str | None) -> None:
    attributes = {"units": f"{unit} since {date}", "calendar": calendar}
    attributes = {name: value for name, value in attributes.items() if value is not None}
    ours = decoder(numbers, attributes)
    assert ours.arrow_type == pa.timestamp("us")
    try:
        theirs = by_xarray(numbers, attributes)
        expected = microseconds(theirs.values)
    except (ValueError, OverflowError, TypeError):
        # A date before the year 1, or 29 February of a Julian century; or one beyond nanoseconds,
        # which xarray leaves to cftime, that cannot read all of the dates above.
        return
    if min(expected) < -62135596800000000:
        return
    assert ours.decode(numbers).cast(pa.int64()).to_pylist() == expected
    assert ours.encoding["units"] == theirs.encoding["units"]


@FAST
@given(
    hnp.arrays("i8", st.integers(1, 5), elements=st.integers(-300_000, 600_000)),
    st.sampled_from(["days", "hours", "seconds"]),
    st.sampled_from(["2000-01-01", "0001-01-01 12:00", "1850-01-01 00:00:00 +01:30", "1999-02-28"]),
    st.sampled_from(["noleap", "365_day", "360_day", "all_leap", "366_day", "julian", "NoLeap"]),
)
def test_other_calendars(numbers: np.ndarray, unit: str, date: str, calendar: str) -> None:
    attributes = {"units": f"{unit} since {date}", "calendar": calendar}
    theirs = by_xarray(numbers, attributes).values
    if any(value.year < 1 for value in theirs):
        return
    ours = decoder(numbers, attributes)
    assert ours.arrow_type == pa.string()
    assert ours.decode(numbers).to_pylist() == [value.isoformat() for value in theirs]


@FAST
@given(
    hnp.arrays(
        st.sampled_from(["f4", "f8"]),
        st.integers(1, 5),
        elements=st.one_of(st.floats(-20_000, 60_000, width=32), st.just(float("nan"))),
    ),
    st.sampled_from(["days", "hours", "seconds"]),
)
def test_float_times_are_within_a_microsecond(numbers: np.ndarray, unit: str) -> None:
    attributes = {"units": f"{unit} since 2000-01-01"}
    ours = decoder(numbers, attributes).decode(numbers).cast(pa.int64()).to_pylist()
    theirs = by_xarray(numbers, attributes).values
    for mine, other in zip(ours, theirs.astype("M8[ns]"), strict=True):
        assert (mine is None) == bool(np.isnat(other))
        if mine is not None:
            assert abs(mine * 1000 - int(other.astype("i8"))) <= 1000


@pytest.mark.parametrize("dtype", ["i2", "i8", "f8"])
@pytest.mark.parametrize("attributes", [{}, {"scale_factor": 0.5}, {"_FillValue": 3}])
@pytest.mark.parametrize("unit", ["days", "hours", "milliseconds"])
def test_timedeltas(dtype: str, attributes: dict[str, Any], unit: str) -> None:
    numbers = np.array([0, 3, 6, -4], dtype)
    attributes = {"units": unit, "dtype": "timedelta64[ns]", **attributes}
    theirs = by_xarray(numbers, attributes)
    ours = decoder(numbers, attributes)
    assert ours.arrow_type == pa.duration("us")
    expected = [
        None if np.isnat(v) else int(v.astype("m8[us]").astype("i8")) for v in theirs.values
    ]
    assert ours.decode(numbers).cast(pa.int64()).to_pylist() == expected
    assert ours.attributes == theirs.attrs == {}


@pytest.mark.parametrize("units", ["hours", "days accumulated", "K"])
def test_units_alone_make_no_timedelta(units: str) -> None:
    numbers = np.array([1, 2])
    assert by_xarray(numbers, {"units": units}).dtype == np.int64
    assert decoder(numbers, {"units": units}).arrow_type == pa.int64()


@pytest.mark.parametrize(
    "attributes",
    [
        {"units": "days since 2000-13-01"},
        {"units": "days since 2000-01-01", "calendar": "none"},
        {"units": "days since 2000-01-01", "calendar": "lunar"},
        {"units": "days since 0000-01-01"},
        {"units": "days since 1582-10-10"},
        {"units": "weeks since 2000-01-01"},
        {"units": "accumulated since the beginning"},
        {"units": "days since 2000-02-29", "calendar": "noleap"},
        {"add_offset": "much"},
    ],
)
def test_what_xarray_cannot_decode_is_an_error_with_a_way_out(attributes: dict[str, Any]) -> None:
    numbers = np.array([0, 1])
    with pytest.raises((ValueError, TypeError)):
        by_xarray(numbers, attributes)
    with pytest.raises(ValueError, match=r"variable 'v'.*decodeCf=false"):
        decoder(numbers, attributes)


def test_a_dataset_written_by_xarray_reads_the_same(tmp_path: Any) -> None:
    time = np.arange("2024-07-01", "2024-07-05", dtype="M8[D]").astype("M8[ns]")
    dataset = xr.Dataset(
        {
            "t2m": (("time", "x"), np.array([[1.5, np.nan], [2, 3], [4, 5], [6, np.nan]], "f4")),
            "packed": (("time",), np.array([273.15, np.nan, 280.0, 290.5])),
            "flag": (("time",), np.array([True, False, True, True])),
            "name": (("x",), np.array(["a", "bc"])),
            "lead": (("x",), np.array([0, 6], "m8[h]").astype("m8[ns]")),
            "time_bnds": (("time", "nv"), np.stack([time, time + np.timedelta64(1, "D")], 1)),
            "z": (("x",), np.array([1 + 2j, 3])),
        },
        {"time": time},
    )
    dataset.packed.encoding = {
        "dtype": "i2",
        "scale_factor": 0.1,
        "add_offset": 250.0,
        "_FillValue": -1,
    }
    dataset.time.attrs["bounds"] = "time_bnds"
    dataset.time.encoding = {"units": "hours since 1900-01-01", "dtype": "i8"}
    path = str(tmp_path / "store")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(path, zarr_format=3, consolidated=False)
        shown = xr.open_zarr(path, consolidated=False).load()
        stored = xr.open_zarr(path, consolidated=False, decode_cf=False).load()
    raw = {
        name: json.loads((tmp_path / "store" / name / "zarr.json").read_text())["attributes"]
        for name in stored.variables
    }
    assert isinstance(raw["t2m"]["_FillValue"], str), "xarray stores it as base64"
    attributes = inherit_time_attributes(raw)
    for name, variable in stored.variables.items():
        values = variable.values
        if values.dtype.kind == "O":
            values = values.astype("U")
        ours = decoder(values, attributes[name]).decode(values).to_pylist()
        expected = shown[name].values.reshape(-1)
        if expected.dtype.kind in "mM":
            unit = expected.astype(f"{expected.dtype.kind}8[us]").tolist()
            assert ours == unit, name
        elif expected.dtype.kind == "c":
            assert [complex(v["re"], v["im"]) for v in ours] == expected.tolist()
        else:
            wanted = [None if value != value else value for value in expected.tolist()]
            assert ours == wanted, name
