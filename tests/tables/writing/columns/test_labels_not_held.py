"""Labels that their array would hold as other values are refused, with an encoding that works."""

from __future__ import annotations

import datetime as dt
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location
from icechunk_format.tables.writing.in_process import write_table

DAY = dt.datetime(2024, 1, 1)
TIMES = pa.timestamp("us")
CASES = {
    "days": (
        [DAY],
        {"dtype": "float32", "units": "days since 1858-11-17"},
        dt.timedelta(minutes=2),
    ),
    "hours": (
        [DAY],
        {"dtype": "float32", "units": "hours since 1900-01-01"},
        dt.timedelta(minutes=3),
    ),
    "seconds": (
        [DAY],
        {"dtype": "float32", "units": "seconds since 1970-01-01"},
        dt.timedelta(seconds=30),
    ),
    "integer days": (
        [DAY],
        {"dtype": "int32", "units": "days since 1970-01-01"},
        dt.timedelta(hours=6),
    ),
    "float64 microseconds": (
        [DAY],
        {"dtype": "float64", "units": "days since 0001-01-01"},
        dt.timedelta(microseconds=3),
    ),
    "datetime64": ([DAY], {"dtype": "datetime64[D]"}, dt.timedelta(hours=1)),
    "packed": ([9.0, 10.0, 11.0], {"dtype": "int16", "scale_factor": 0.5}, 0.2),
    "packed with offset": (
        [5.0, 15.0],
        {"dtype": "uint8", "scale_factor": 10.0, "add_offset": 5.0},
        4.0,
    ),
    "float32 integers": ([16777215.0, 16777216.0], {"dtype": "float32"}, 1.0),
    "float32 digits": ([60310.0], {"dtype": "float32"}, 0.00139),
}


def place_at(tmp_path):
    return Location(str(tmp_path / "r"))


def table(labels, value):
    kind = TIMES if isinstance(labels[0], dt.datetime) else pa.float64()
    return pa.table({"x": pa.array(labels, kind), "v": pa.array([value] * len(labels))})


def stored(place):
    return Repository.open(place).resolve(branch="main")


def length(place):
    snapshot = Repository.open(place).snapshot(stored(place))
    return Variable(snapshot.node("/v")).shape[0]


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    labels, encoding, step = CASES[request.param]
    place = place_at(tmp_path)
    write_table(place, table(labels, 1.0), WriteOptions(dims=("x",), encoding={"x": encoding}))
    return place, labels, encoding, [*labels[:-1], labels[-1] + step]


def test_an_append_is_refused_and_changes_nothing(case):
    place, _, _, moved = case
    before = stored(place)
    with raises(InvalidInputError, match="encoding="):
        write_table(place, table(moved, 2.0), WriteOptions(mode="append"))
    assert stored(place) == before


def test_a_region_is_refused(case):
    place, _, _, moved = case
    options = WriteOptions(mode="overwrite", replace_where="x IS NOT NULL")
    before = stored(place)
    with raises(InvalidInputError, match="encoding="):
        write_table(place, table(moved, 2.0), options)
    assert stored(place) == before


def test_a_new_array_is_refused(case, tmp_path):
    _, _, encoding, moved = case
    options = WriteOptions(dims=("x",), encoding={"x": encoding})
    with raises(InvalidInputError, match="encoding="):
        write_table(Location(str(tmp_path / "new")), table(moved, 2.0), options)


def test_the_advised_encoding_holds_all_labels(case):
    place, labels, _, moved = case
    with pytest.raises(InvalidInputError) as found:
        write_table(place, table(moved, 2.0), WriteOptions(mode="append"))
    [advised] = re.findall(r"encoding=(\{.*\}) \(", str(found.value))
    every = list(dict.fromkeys([*labels, *moved]))
    options = WriteOptions(mode="overwrite", dims=("x",), encoding=json.loads(advised))
    write_table(place, table(every, 3.0), options)
    write_table(place, table(moved, 4.0), WriteOptions(mode="append"))
    assert length(place) == len(every)


@pytest.mark.parametrize(
    ("labels", "encoding"),
    [
        ([0.1, 0.2, 0.1 * 3, 1e5, 16777216.0], {"dtype": "float32"}),
        ([9.0, 10.5, 0.0], {"dtype": "int16", "scale_factor": 0.5}),
        ([0.29, 0.57, 1.1], {"dtype": "int16", "scale_factor": 0.01}),
        (
            [DAY, DAY + dt.timedelta(hours=6)],
            {"dtype": "float32", "units": "days since 1858-11-17"},
        ),
        (
            [DAY, DAY + dt.timedelta(minutes=20)],
            {"dtype": "float64", "units": "days since 0001-01-01"},
        ),
    ],
)
def test_labels_that_come_back_are_written(tmp_path, labels, encoding):
    place = place_at(tmp_path)
    options = WriteOptions(dims=("x",), encoding={"x": encoding})
    write_table(place, table(labels, 1.0), options)
    write_table(place, table(labels, 2.0), WriteOptions(mode="append"))
    assert length(place) == len(labels)


def test_two_labels_of_one_write_that_become_one_are_refused(tmp_path):
    one = float(np.float32(0.1))
    options = WriteOptions(dims=("x",), encoding={"x": {"dtype": "float32"}})
    with raises(InvalidInputError, match="would hold both as 0.1", labels=("0.1", str(one))):
        write_table(place_at(tmp_path), table([0.1, one], 1.0), options)


def test_zeros_of_both_signs_are_one_label(tmp_path):
    options = WriteOptions(dims=("x",), encoding={"x": {"dtype": "float32"}})
    write_table(place_at(tmp_path), table([0.0, 1.0], 1.0), options)
    write_table(place_at(tmp_path), table([-0.0], 1.0), WriteOptions(mode="append"))
    assert length(place_at(tmp_path)) == 2
