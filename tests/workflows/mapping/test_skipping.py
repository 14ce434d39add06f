"""Elements of failed blocks never read as values or labels."""

from __future__ import annotations

import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.blocks import Source, days, mapped, opened
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def source(tmp_path):
    dataset = days(0, 8).assign_coords(area=(("y", "x"), np.arange(24.0).reshape(6, 4)))
    return Source(tmp_path / "source", dataset, chunks=(2, 6, 4))


def skipping(*failing):
    def function(ds, block):
        if block.number in failing:
            ds["mask"].values[:] = -7  # changes of a failed function are not stored
            raise ValueError("no")
        return ds

    return function


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("failing", [(1,), (0,), (0, 2), (0, 1, 2, 3, 4, 5)])
def test_labels_of_failed_blocks_are_those_of_the_source(source, tmp_path, failing, follow):
    how = {"blocks": {"time": 2, "y": 3}, "skips_errors": True, "follow": follow}
    done = mapped(source, skipping(*failing), tmp_path / "to", **how)
    assert len(done.failed) == len(failing)
    found, whole = opened(tmp_path / "to"), opened(source.path)
    xr.testing.assert_equal(found.drop_vars("t2m"), whole.drop_vars("t2m"))
    for number in range(8):
        at = {"time": slice(number // 2 * 2, number // 2 * 2 + 2)}
        at["y"] = slice(number % 2 * 3, number % 2 * 3 + 3)
        part = found["t2m"].isel(at)
        if number in failing:
            assert part.isnull().all()
        else:
            xr.testing.assert_equal(part, whole["t2m"].isel(at))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("count", lambda ds: ds.assign(count=(ds["t2m"] > 280).astype("i8"))),
        ("word", lambda ds: ds.assign(word=ds["t2m"].astype(str))),
        ("time", lambda ds: ds.assign_coords(time=ds["time"] + np.timedelta64(1, "h"))),
        ("seen", lambda ds: ds.assign(seen=("time", ds["time"].values))),
    ],
)
def test_results_without_missing_value_are_refused(source, tmp_path, name, function):
    calls = []

    def counted(ds):
        calls.append(1)
        return function(ds)

    with raises(InvalidInputError, option="on_error", variable=name):
        mapped(source, counted, tmp_path / "to", blocks={"time": 2}, skips_errors=True)
    assert len(calls) == 1  # before other blocks are computed
    mapped(source, function, tmp_path / "to", blocks={"time": 2})


def test_a_missing_value_that_is_given_allows_to_skip(source, tmp_path):
    def count(ds, block):
        if block.number == 1:
            raise ValueError("no")
        return (ds[["t2m"]] > 280).astype("i4")

    encoding = {"t2m": {"dtype": "i4", "_FillValue": -1}}
    how = {"blocks": {"time": 2}, "encoding": encoding, "skips_errors": True}
    mapped(source, count, tmp_path / "to", **how)
    assert opened(tmp_path / "to")["t2m"].isnull().any(("y", "x")).values.tolist() == (
        [False] * 2 + [True] * 2 + [False] * 4
    )


def test_a_failure_while_following_keeps_shared_variables(source, tmp_path):
    to, how = tmp_path / "to", {"blocks": {"time": 2}, "follow": True, "skips_errors": True}

    def positive(ds):
        if (ds["t2m"] < 0).any():
            raise ValueError("negative")
        return ds

    mapped(source, positive, to, **how)
    source.put("t2m", (0, 0, 0), -1.0)
    assert len(mapped(source, positive, to, **how).failed) == 1
    found, whole = opened(to), opened(source.path)
    xr.testing.assert_equal(found.drop_vars("t2m"), whole.drop_vars("t2m"))
    assert found["t2m"][:2].isnull().all()


def test_a_later_block_that_changes_what_the_first_passed_on_is_refused(source, tmp_path):
    def later(ds, block):
        shift = np.timedelta64(int(block.number == 2), "h")
        return ds.assign_coords(time=ds["time"] + shift)

    with raises(InvalidInputError, variable="time"):
        mapped(source, later, tmp_path / "to", blocks={"time": 2}, skips_errors=True)
