"""Values and attributes of blocks that cannot be stored are refused by name."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
import xarray as xr
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_spark.mapping.encoding import encoded, plain_attributes


def stored(values, **encoding):
    variable = xr.Variable(("x",), values)
    return encoded(variable, "a", "of block 0", is_coordinate=False, encoding=encoding, times={})


PACKED = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768}


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([1e6], PACKED),
        ([-327.68], PACKED),  # is stored as the missing value
        ([np.inf], PACKED),
        ([1.0, np.nan], {"dtype": "i2"}),
        ([300], {"dtype": "u1"}),
        ([-1], {"dtype": "u1"}),
        ([2**31], {"dtype": "i4"}),
        ([1e39], {"dtype": "f4"}),
        ([5], {"dtype": "i4", "_FillValue": 5}),
        ([300.0], {"dtype": "i1", "_Unsigned": "true", "_FillValue": 0}),
    ],
)
def test_values_that_do_not_fit_are_refused(values, encoding):
    with raises(InvalidInputError, variable="a", value=...):
        stored(np.array(values), **encoding)


def test_values_that_fit_are_packed():
    values = np.array([-327.67, 327.67, np.nan, 0.004])
    assert stored(values, **PACKED).values.tolist() == [-32767, 32767, -32768, 0]
    assert stored(np.array([-128, 127]), dtype="i1").values.tolist() == [-128, 127]
    assert np.isinf(stored(np.array([np.inf]), dtype="f4").values).all()
    assert stored(np.array([], "f8"), **PACKED).values.tolist() == []


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["a", None], "None or NaN among strings"),
        (["a", np.nan], "None or NaN among strings"),
        ([b"a", b"b"], "elements of type bytes"),
        (["a", b"b"], "elements of type mixed"),
        (["a", 1], "elements of type mixed-integer"),
        ([1, None], "elements of type integer"),
        ([True, None], "elements of type boolean"),
    ],
)
def test_objects_other_than_strings_are_refused(values, found):
    with raises(InvalidInputError, variable="a", found=found):
        stored(np.array(values, dtype=object))


@pytest.mark.parametrize("values", [[np.nan, np.nan], [None, None], [1.5, None], [np.float32(1)]])
def test_objects_that_are_floats_or_missing_are_floats(values):
    found = stored(np.array(values, dtype=object))
    assert found.values.dtype == np.float64
    np.testing.assert_array_equal(found.values, np.array(values, np.float64))


def test_bytes_of_one_length_are_refused_and_strings_taken():
    with raises(InvalidInputError, variable="a"):
        stored(np.array([b"a", b"b"]))
    for values in (np.array(["a", "bc"]), np.array(["a", "bc"], object)):
        assert stored(values).values.tolist() == ["a", "bc"]


def test_times_beyond_their_type_are_refused():
    with raises(InvalidInputError, variable="a"):
        times = np.array(["2200-01-01"], "M8[ns]")
        stored(times, units="seconds since 1970-01-01", dtype="i2")


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), np.float32("inf"), [1.0, float("nan")], datetime.date(2024, 1, 1),
        np.datetime64("2024-01-01"), b"x", 1j, {1}, "\ud800", {"a": [np.nan]},
    ],
    ids=repr,
)  # fmt: skip
def test_attributes_that_json_lacks_are_refused(value):
    with raises(InvalidInputError, attribute="key"):
        plain_attributes({"key": value}, "variable 'a'")


def test_numpy_values_in_attributes_become_json():
    given = {"a": [np.float32(1)], "b": {"c": np.int64(1)}, "d": np.ones((2, 1)), "e": (1, "ä")}
    assert plain_attributes(given, "") == {
        "a": [1.0], "b": {"c": 1}, "d": [[1.0], [1.0]], "e": [1, "ä"],
    }  # fmt: skip
