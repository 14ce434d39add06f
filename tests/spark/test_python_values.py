"""Options as Python values: the text that they become means the same."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from icechunk_format.dataset.selectors import resolve_isel
from icechunk_format.errors import InvalidInputError
from icechunk_spark.options import parse_read_options
from icechunk_spark.python_values import option_texts

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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"variables": {1}}, "'variables'.*set"),
        ({"encoding": {"t": object()}}, "'encoding'.*JSON"),
        ({"sel": {"x": slice(0, 9, 2)}}, "'sel'.*isel"),
        ({"sel": {"x": slice(0, [1])}}, "'sel'.*'x'"),
        ({"sel": {"name": "a;b"}}, "'where'"),
        ({"isel": {"x": None}}, "'isel'.*'x'"),
    ],
)
def test_what_has_no_spelling_is_refused(options, says):
    with pytest.raises(InvalidInputError, match=says):
        option_texts(options)
