"""Options as Python values mean the same as their texts."""

from __future__ import annotations

import datetime
import pathlib

import numpy as np
import pandas as pd
import pytest
from helpers.raised import raises

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import InvalidInputError
from icechunk_format.options.keywords import option_strings
from icechunk_format.options.parse import parse_read_options

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
    "blocks": ("block", {"time": 24, "latitude": 10}, '{"time": 24, "latitude": 10}'),
}


@pytest.mark.parametrize("kind", SPELLINGS)
def test_each_kind_of_value_has_its_spelling(kind):
    name, value, text = SPELLINGS[kind]
    assert option_strings({name: value, "left out": None}) == {name: text}


def test_texts_are_what_the_options_take():
    texts = option_strings(
        {
            "path": "p",
            "layout": "summary",
            "variables": ["t"],
            "rowsPerPartition": np.int32(7),
            "block": {"x": 2},
        }
    )
    parsed = parse_read_options(texts)
    assert (parsed.variables, parsed.rows_per_partition, parsed.block) == (("t",), 7, {"x": 2})


@pytest.mark.parametrize("option", ["sel", "isel"])
def test_values_of_a_selection_stay_as_they_are(option):
    given = {"x": slice(DAY, None), "y": np.arange(3)}
    texts = option_strings({"path": "p", option: given})
    assert texts[option] is given
    assert getattr(parse_read_options(texts), option) is given
    with raises(InvalidInputError, option=option, value=""):
        parse_read_options({"path": "p", option: {}})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"variables": {1}}, "'variables'.*set"),
        ({"encoding": {"t": object()}}, "'encoding'.*JSON"),
        ({"encoding": {"t": datetime.timedelta(1)}}, "'encoding'.*JSON"),
        ({"minDensity": np.timedelta64(1, "s")}, "'minDensity'.*timedelta64"),
        ({"variables": (name for name in "ab")}, "'variables'.*generator"),
    ],
)
def test_what_has_no_spelling_is_refused(options, says):
    with pytest.raises(InvalidInputError, match=says):
        option_strings(options)
