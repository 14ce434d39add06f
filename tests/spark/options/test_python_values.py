"""Options as Python values mean the same as their texts."""

from __future__ import annotations

import datetime
import pathlib

import cftime
import numpy as np
import pandas as pd
import pytest

from icechunk_format.dataset.selection.sel_isel import resolve_isel
from icechunk_format.errors import InvalidInputError
from icechunk_format.spec.ids import SnapshotId
from icechunk_spark.options.options import parse_read_options
from icechunk_spark.options.python_values import option_texts

DAY = datetime.datetime(2024, 7, 1, 6)
SPELLINGS = {
    "text": ("tag", "v 1", "v 1"),
    "truth": ("decodeCf", False, "false"),
    "truth of NumPy": ("decodeCf", np.bool_(True), "true"),
    "whole number": ("txnVersion", 3, "3"),
    "number": ("minDensity", 0.25, "0.25"),
    "number of NumPy": ("rowsPerPartition", np.int64(60), "60"),
    "instant": ("asOf", DAY, "2024-07-01T06:00:00"),
    "day": ("asOf", DAY.date(), "2024-07-01"),
    "instant of NumPy": ("asOf", np.datetime64("2024-07-01T06"), "2024-07-01T06"),
    "instant of pandas": ("asOf", pd.Timestamp(DAY), "2024-07-01T06:00:00"),
    "names": ("variables", ["a,b", "c"], '["a,b", "c"]'),
    "mapping": ("chunks", {"time": 24}, '{"time": 24}'),
    "labels": (
        "sel",
        {"time": slice(DAY, None), "latitude": slice(35, 45.5), "level": [500, 850]},
        "time=2024-07-01T06:00:00..; latitude=35..45.5; level=500,850",
    ),
    "a label as float32": ("sel", {"x": np.float32(0.1)}, "x=0.10000000149011612"),
    "positions": (
        "isel",
        {"time": -1, "y": slice(0, 10), "x": slice(None, None, 2), "z": (1, 2)},
        "time=-1; y=0:10; x=::2; z=1,2",
    ),
    "durations": (
        "sel",
        {
            "a": np.timedelta64(6, "h"),
            "b": datetime.timedelta(days=1, hours=12),
            "c": pd.Timedelta("90min"),
            "d": slice(np.timedelta64(0, "ns"), np.timedelta64(1_500, "ms")),
        },
        "a=6h; b=36h; c=90m; d=0d..1500000us",
    ),
    "arrays of labels": (
        "sel",
        {
            "a": np.array([1, 2]),
            "b": range(3),
            "c": pd.Index([1.5, 2.5]),
            "d": pd.DatetimeIndex(["2024-07-01", "2024-07-02"]),
            "e": np.array(["2024-07-01T06"], "M8[h]"),
            "f": pd.TimedeltaIndex(["6h", "12h"]),
            "g": pd.Series(["x", "y"]),
            "h": np.array(3.5),
            "i": np.datetime64("2024-07-01"),
        },
        "a=1,2; b=0,1,2; c=1.5,2.5; d=2024-07-01T00:00:00.000000,2024-07-02T00:00:00.000000;"
        " e=2024-07-01T06; f=6h,12h; g=x,y; h=3.5; i=2024-07-01",
    ),
    "arrays of positions": ("isel", {"x": np.arange(3), "y": range(0, 6, 2)}, "x=0,1,2; y=0,2,4"),
    "names in an array": ("variables", np.array(["a", "b"]), '["a", "b"]'),
    "names in an index": ("variables", pd.Index(["a", "b"]), '["a", "b"]'),
    "number without dimensions": ("rowsPerPartition", np.array(60), "60"),
    "values of NumPy in a mapping": (
        "encoding",
        {"t": {"chunks": np.array([2, 3]), "_FillValue": np.int16(-1), "a": np.bool_(True)}},
        '{"t": {"chunks": [2, 3], "_FillValue": -1, "a": true}}',
    ),
    "snapshot": ("snapshot", SnapshotId(bytes(12)), "0" * 19 + "0"),
    "path": ("group", pathlib.PurePosixPath("/a"), "/a"),
    "blocks": ("block", {"time": 24, "latitude": 10}, "time=24,latitude=10"),
}


@pytest.mark.parametrize("kind", SPELLINGS)
def test_each_kind_of_value_has_its_spelling(kind):
    name, value, text = SPELLINGS[kind]
    assert option_texts({name: value, "left out": None}) == {name: text}


def test_texts_are_what_the_options_take():
    texts = option_texts(
        {
            "path": "p",
            "layout": "summary",
            "variables": ["t"],
            "rowsPerPartition": np.int32(7),
            "block": {"x": 2},
        }
    )
    parsed = parse_read_options(texts)
    assert (parsed.variables, parsed.rows_per_partition, parsed.block) == (("t",), 7, "x=2")
    for text in ("x=::2", option_texts({"isel": {"x": slice(None, None, 2)}})["isel"]):
        assert resolve_isel(text, {"x": 5})["x"].count == 3


@pytest.mark.needs_reference
def test_labels_of_xarray_are_values():
    import xarray

    data = xarray.DataArray([1, 2], dims="t", coords={"t": np.array([0, 6], "m8[h]")})
    assert option_texts({"sel": {"t": data.t, "u": data.t[1]}}) == {"sel": "t=0d,6h; u=6h"}


def test_calendars_of_cftime_have_instants():
    day = cftime.DatetimeNoLeap(2001, 2, 28, 12)
    assert option_texts({"sel": {"t": day}}) == {"sel": "t=2001-02-28T12:00:00"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"variables": {1}}, "'variables'.*set"),
        ({"encoding": {"t": object()}}, "'encoding'.*JSON"),
        ({"sel": {"x": slice(0, 9, 2)}}, "'sel'.*isel"),
        ({"sel": {"x": slice(0, [1])}}, "'sel'.*'x'"),
        ({"sel": {"name": "a;b"}}, "'where'"),
        ({"sel": {"x": np.array([[1, 2]])}}, "'sel'.*'x'"),
        ({"sel": {"x": []}}, "'sel'.*empty list.*'x'"),
        ({"sel": {"x": np.timedelta64(1, "ns")}}, "'sel'.*'x'"),
        ({"sel": {"x": np.timedelta64("NaT", "s")}}, "'sel'.*'x'"),
        ({"sel": {"x": np.timedelta64(1, "M")}}, "'sel'.*'x'"),
        ({"variables": (name for name in "ab")}, "'variables'.*generator"),
        ({"isel": {"x": None}}, "'isel'.*'x'"),
    ],
)
def test_what_has_no_spelling_is_refused(options, says):
    with pytest.raises(InvalidInputError, match=says):
        option_texts(options)
