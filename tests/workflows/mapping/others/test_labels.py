"""Labels of two sources match by their decoded values."""

from __future__ import annotations

import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.blocks import Source, other
from helpers.examples import by_day
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.read import ReadRequest
from icechunk_format.tables import requested_dataset
from icechunk_format.workflows.mapping.others import open_other

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")


def source_of(path, **coords):
    """Write a variable on one-dimensional coordinates."""
    shape = [len(values) for values in coords.values()]
    data = {"v": (tuple(coords), np.zeros(shape))}
    labels = {n: v if isinstance(v, xr.Variable) else (n, v) for n, v in coords.items()}
    return Source(path, xr.Dataset(data, labels), encoding={})


def matched(tmp_path, dim, mine, own, *, selected=None, **options):
    """Return the positions in the second source of the labels of the first."""
    request = other("obs", source_of(tmp_path / "obs", **{dim: own}), **options)
    path = str(source_of(tmp_path / "first", **{dim: mine}).path)
    first = requested_dataset(ReadRequest(path=path))
    found = open_other(request, first, {dim: selected or (0, len(mine))})
    positions = found.own.positions[dim]
    return np.asarray(positions).tolist(), type(positions)


def test_subsets_in_any_order(tmp_path):
    found = matched(tmp_path, "x", [3.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0])
    assert found == ([3, 1, 2], np.ndarray)


def test_reversed_and_stepped_labels_need_no_memory(tmp_path):
    latitude = np.arange(-90.0, 91.0)
    found, kind = matched(tmp_path, "y", latitude[::-2], latitude)
    assert found == list(range(180, -1, -2))
    assert kind is range


@pytest.mark.parametrize("kind", ["f4", "f2"])
@pytest.mark.parametrize("is_first", [True, False])
def test_short_floats_match_doubles_of_the_same_grid(tmp_path, kind, is_first):
    count = {"f4": 3600, "f2": 300}[kind]
    doubles = np.arange(count) * 0.1
    # Computed, so that the last places differ from those of rounded doubles.
    floats = (np.arange(count, dtype=kind) * np.array(0.1, kind)).astype(kind)
    assert kind == "f2" or (floats != doubles.astype(kind)).any()
    if kind == "f2":
        floats = doubles[: count // 3].astype(kind)
        doubles = doubles[: count // 3]
    pair = (floats, doubles) if is_first else (doubles, floats)
    found, _ = matched(tmp_path, "x", *pair)
    assert found == list(range(len(floats)))


def test_doubles_match_exactly(tmp_path):
    with raises(InvalidInputError, match="method='nearest'", label="0.30000000000000004"):
        matched(tmp_path, "x", [0.0, 0.1 + 0.2], [0.0, 0.3])


def test_integers_and_packed_labels_match_floats(tmp_path):
    assert matched(tmp_path / "a", "x", [1, 2], [0.0, 1.0, 2.0])[0] == [1, 2]
    packed = xr.Variable("x", [0.0, 0.5, 1.0], encoding={"dtype": "i2", "scale_factor": 0.5})
    assert matched(tmp_path / "b", "x", [1.0, 0.5], packed)[0] == [2, 1]


def test_strings(tmp_path):
    assert matched(tmp_path / "a", "city", ["B", "Ä"], ["A", "B", "Ä"])[0] == [1, 2]
    with raises(InvalidInputError, match="others: 'obs' has no label city=C", label="C"):
        matched(tmp_path / "b", "city", ["B", "C"], ["A", "B"])


def times(values, units, calendar="standard"):
    return xr.Variable("time", values, {"units": units, "calendar": calendar})


def test_times_match_whatever_their_reference(tmp_path):
    own = times([0, 24, 48], "hours since 2024-01-01")
    found, _ = matched(tmp_path / "a", "time", times([8767, 8768], "days since 2000-01-01"), own)
    assert found == [1, 2]
    mine = times(np.array([2, 1]) + 2023 * 365, "days since 0001-01-01", "noleap")
    own = times([0, 1, 2], "days since 2024-01-01", "365_day")
    assert matched(tmp_path / "b", "time", mine, own)[0] == [2, 1]


@pytest.mark.parametrize("calendars", [("noleap", "360_day"), ("standard", "noleap")])
def test_calendars_are_not_mixed(tmp_path, calendars):
    mine, own = (times([0, 1], "days since 2024-01-01", calendar) for calendar in calendars)
    with raises(InvalidInputError, match="convert_calendar", dimension="time"):
        matched(tmp_path, "time", mine, own)


def test_the_first_difference_is_named(tmp_path):
    mine = np.datetime64("2024-01-01", "ns") + np.arange(5) * np.timedelta64(1, "D")
    with raises(
        InvalidInputError,
        match=r"no label time=2024-01-03T00:00:00 \(the first of 2 of 5 .* that do not match; its"
        " own are 2024-01-01T00:00:00 to 2024-01-05T00:00:00",
        option="others",
        source="obs",
        dimension="time",
        label="2024-01-03T00:00:00",
    ):
        matched(tmp_path / "a", "time", mine, mine[[0, 1, 4]])
    # Labels that are not selected need not match.
    assert matched(tmp_path / "b", "time", mine, mine[[0, 1, 4]], selected=(0, 2))[0] == [0, 1]


def test_units_are_named_if_they_differ(tmp_path):
    levels = [xr.Variable("level", [850.0, 500.0], {"units": "hPa"})]
    levels.append(xr.Variable("level", [85000.0, 50000.0], {"units": "Pa"}))
    with raises(InvalidInputError, match="units 'hPa' and 'Pa'"):
        matched(tmp_path, "level", *levels)


@pytest.mark.parametrize("method", ["exact", "nearest"])
@pytest.mark.parametrize("is_positive", [True, False])
def test_longitudes_of_two_ranges_lead_to_a_call_that_works(tmp_path, method, is_positive):
    labels = [np.arange(0.0, 360.0, 30.0), np.arange(-180.0, 180.0, 30.0)]
    mine, own = labels if is_positive else labels[::-1]
    with raises(InvalidInputError, match="different ranges", dimension="longitude") as caught:
        matched(tmp_path / "a", "longitude", mine, own, method=method)
    [expression] = [
        part.partition(").sortby")[0]
        for part in str(caught.value).split("assign_coords(longitude=")[1:]
    ]
    ds = xr.Dataset(coords={"longitude": own})
    shifted = ds.assign_coords(longitude=eval(expression, {"ds": ds})).sortby("longitude")
    found, _ = matched(tmp_path / "b", "longitude", mine, shifted["longitude"].values)
    assert found == list(range(12))


def test_other_dimensions_are_not_shifted(tmp_path):
    with raises(InvalidInputError, match="select labels that both have"):
        matched(tmp_path, "x", [350.0], [-10.0, 0.0])


def test_a_label_that_a_source_has_twice_is_ambiguous(tmp_path):
    with raises(InvalidInputError, match="label 1.0 twice, at positions 1 and 2", dimension="x"):
        matched(tmp_path / "a", "x", [1.0], [0.0, 1.0, 1.0, 2.0])
    # Others of its labels are not.
    assert matched(tmp_path / "b", "x", [2.0, 0.0], [0.0, 1.0, 1.0, 2.0])[0] == [3, 0]
    assert matched(tmp_path / "c", "x", [2.0, 2.0], [0.0, 1.0, 2.0])[0] == [2, 2]


def test_nearest_takes_the_higher_of_two_and_ends_half_a_step_beyond(tmp_path):
    own = np.array([20.0, 10.0, 0.0])
    found, _ = matched(tmp_path / "a", "x", [-5, 4, 5, 16, 25], own, method="nearest")
    assert found == [2, 2, 1, 0, 0]
    for wrong in (-5.1, 25.1):
        with raises(InvalidInputError, match="larger tolerance", label=str(wrong)):
            matched(tmp_path / f"b{wrong}", "x", [wrong], own, method="nearest")
    given = {"method": {"x": "nearest"}, "tolerance": {"x": 6}}
    assert matched(tmp_path / "c", "x", [-5.1, 25.1], own, **given)[0] == [2, 0]
    with raises(InvalidInputError, match="larger tolerance", label="4.0"):
        matched(tmp_path / "d", "x", [0.0, 4.0], own, method="nearest", tolerance=3.0)


def test_dimensions_without_labels_match_by_position(tmp_path):
    first = xr.Dataset({"v": ("x", np.arange(4.0))})
    labelled = first.assign_coords(x=np.arange(4) * 10)
    path = str(Source(tmp_path / "first", first, encoding={}).path)
    dataset = requested_dataset(ReadRequest(path=path))
    obs = other("obs", Source(tmp_path / "obs", labelled, encoding={}))
    assert open_other(obs, dataset, {"x": (0, 4)}).own.positions == {"x": range(4)}
    with raises(InvalidInputError, match="4 elements in 'obs' and 2 in the blocks", dimension="x"):
        open_other(obs, dataset, {"x": (0, 2)})


def test_a_dimension_may_be_read_as_a_whole(tmp_path):
    path = str(source_of(tmp_path / "first", x=[0.0, 1.0]).path)
    request = other("obs", source_of(tmp_path / "obs", x=[5.0, 6.0, 7.0]), method={"x": "whole"})
    found = open_other(request, requested_dataset(ReadRequest(path=path)), {"x": (0, 2)}).own
    assert (found.positions, found.ranges) == ({}, {"x": (0, 3)})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"method": "linear"}, "is not known; choose exact, nearest, whole"),
        ({"method": {"y": "nearest"}}, "method of 'obs' in others"),
        ({"tolerance": {"y": 1}}, "tolerance of 'obs' in others"),
        ({"method": "nearest", "tolerance": "1 day"}, "give a number from 0"),
        ({"method": "nearest", "tolerance": -1}, "give a number from 0"),
    ],
)
def test_wrong_settings(tmp_path, options, problem):
    with raises(InvalidInputError, match=problem):
        matched(tmp_path, "x", [0.0], [0.0], **options)


@settings(deadline=None, max_examples=by_day(25))
@given(data=st.data())
def test_exact_matches_are_those_of_pandas(data, tmp_path_factory):
    import pandas as pd

    numbers = st.lists(st.integers(-50, 50), min_size=1, max_size=12, unique=True)
    own = data.draw(numbers)
    mine = data.draw(st.lists(st.sampled_from(own), min_size=1, max_size=12))
    kinds = data.draw(st.tuples(*[st.sampled_from(["i2", "i8", "f4", "f8"])] * 2))
    path = tmp_path_factory.mktemp("labels")
    found, _ = matched(path, "x", np.array(mine, kinds[0]), np.array(own, kinds[1]))
    assert found == pd.Index(own).get_indexer(mine).tolist()
