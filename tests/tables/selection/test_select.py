"""The options ``where``, ``sel`` and ``isel`` are resolved together, each only if it is given."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.select import select

DIMS = {"x": 4, "y": 3}
LABELS = {"x": pa.array([10, 20, 30, 40]), "y": pa.array([0.1, 1.5, 2.0], pa.float32())}
COLUMNS = {"x": pa.int64(), "y": pa.float32(), "v": pa.float64()}


def selected(**options):
    found = select(dims=DIMS, columns=COLUMNS, coordinate=LABELS.__getitem__, **options)
    return {name: one.positions().tolist() for name, one in found.dims.items()}, found.residual


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"sel": "x=20:30"}, {"x": [1, 2]}),
        ({"isel": "x=1:3"}, {"x": [1, 2]}),
        ({"sel": "x=24", "sel_method": "nearest"}, {"x": [1]}),
        ({"sel": "x=20", "sel_method": "exact"}, {"x": [1]}),
        ({"isel": "x=1", "sel_method": "exact"}, {"x": [1]}),
        ({"where": "x > 20"}, {"x": [2, 3]}),
        ({"where": "x > 20", "sel": "x=10:30", "isel": "x=1:4"}, {"x": [2]}),
        ({"where": "y > 1", "isel": "x=0"}, {"x": [0], "y": [1, 2]}),
        ({"where": "1 = 2"}, {"x": [], "y": []}),
        ({"where": "1 = 2", "isel": "x=0"}, {"x": [], "y": []}),
        ({"where": "1 = 1"}, {}),
        ({"sel": {"y": 0.1}}, {"y": [0]}),
    ],
)
def test_selections_are_intersected(options, expected):
    dims, residual = selected(**options)
    assert (dims, residual) == (expected, None)


def test_a_condition_on_values_is_left_for_the_rows():
    dims, residual = selected(where="v > 1 AND x = 20", sel="x=20:30")
    assert dims == {"x": [1]}
    assert residual.columns == ("v",)
    assert selected(where="v > 1")[1].evaluate({"v": pa.array([1.0, 2.0])}, 2).to_pylist() == [
        False,
        True,
    ]


def test_a_method_needs_labels():
    for options in ({}, {"isel": "x=1"}, {"where": "x = 10"}):
        with raises(InvalidInputError, option="sel.method", match="given without sel"):
            selected(sel_method="nearest", **options)


def test_numbers_that_are_rounded_are_refused_if_they_must_be_exact():
    with raises(InvalidInputError, dimension="y"):
        selected(sel={"y": 0.1000000001}, exactly=True)
    assert selected(sel={"y": 0.1000000001})[0] == {"y": [0]}
    assert selected(sel={"y": 0.1}, exactly=True)[0] == {"y": [0]}


def test_times_are_those_of_the_zone():
    times = pa.array([0, 3_600_000_000], pa.timestamp("us", "UTC"))
    for zone, hour in (("UTC", 1), ("Asia/Tokyo", 10)):
        found = select(
            dims={"t": 2},
            columns={"t": times.type},
            coordinate=lambda _: times,
            where=f"hour(t) = {hour}",
            time_zone=zone,
        )
        assert found.dims["t"].positions().tolist() == [1]


def test_the_zone_is_utc_unless_it_is_given():
    times = {"t": pa.array([0, 3_600_000_000], pa.timestamp("us", "UTC"))}
    found = select(
        dims={"t": 2},
        columns={"t": times["t"].type},
        coordinate=times.__getitem__,
        where="hour(t) = 1",
    )
    assert found.dims["t"].positions().tolist() == [1]


def test_a_coordinate_is_read_once():
    asked = []

    def labels(name):
        asked.append(name)
        return LABELS[name]

    select(dims=DIMS, columns=COLUMNS, coordinate=labels, where="x > 10", sel="x=20:30")
    assert asked == ["x"]


def test_nothing_is_imported_for_a_read_that_selects_nothing():
    code = (
        "import sys, icechunk_format.tables.selection.select as module;"
        "module.select(dims={}, columns={}, coordinate=dict);"
        "sys.exit(any('.where' in name or name.endswith('sel_isel') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
