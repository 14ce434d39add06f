"""Blocks that disagree are refused, and blocks that agree give what xarray gives."""

from __future__ import annotations

import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.blocks import Source, days, mapped, opened
from helpers.examples import by_day
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.mapping.agreement import digest_of, unequal

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return Source(tmp_path_factory.mktemp("agreement") / "source", days(0, 6), chunks=(2, 3, 4))


def changed(kind, ds):
    """Return a dataset in which one thing differs from `ds`."""
    match kind:
        case "labels":
            return ds.assign_coords(x=ds["x"] + 1)
        case "order":
            return ds.isel(x=slice(None, None, -1))
        case "fewer":
            return ds.isel(x=slice(1, None))
        case "swapped":
            return ds.transpose("x", "y", "time")
        case "scalar":
            return ds.assign_coords(run=7)
        case "shared":
            return ds.assign(mask=ds["mask"] + 1)
        case "attribute":
            return ds.assign(t2m=ds["t2m"].assign_attrs(units="degC"))
        case "dtype":
            return ds.astype("f4")
        case "text":
            return ds.assign(mask=ds["mask"].astype(str))
        case "variable":
            return ds.drop_vars("mask")
        case "new dimension":
            return ds.assign_coords(level=[1.0, 3.0])
        case "scaled":
            ds["t2m"].encoding |= {"dtype": "i2", "scale_factor": 0.1}
            return ds
    raise AssertionError(kind)


KINDS = [
    "labels", "order", "fewer", "swapped", "scalar", "shared", "attribute", "dtype", "text",
    "variable", "new dimension", "scaled",
]  # fmt: skip


def normal(ds):
    return ds.assign_coords(run=5, level=[1.0, 2.0])


@settings(max_examples=by_day(40), deadline=None)
@given(st.data())
def test_any_block_that_disagrees_is_refused(source, tmp_path_factory, data):
    to = tmp_path_factory.mktemp("law")
    blocks = {"time": data.draw(st.sampled_from([2, 3])), "y": data.draw(st.sampled_from([3, -1]))}
    count = (6 // blocks["time"]) * (2 if blocks["y"] == 3 else 1)
    other = data.draw(st.integers(0, count - 1))
    kind = data.draw(st.sampled_from(KINDS))

    def one_differs(ds, block):
        return changed(kind, normal(ds)) if block.number == other else normal(ds)

    # A template differs from the first block, so that digests are compared as well.
    template = data.draw(st.sampled_from([None, normal(opened(source.path))]))
    with raises(InvalidInputError):
        mapped(source, one_differs, to / "differs", blocks=blocks, template=template)
    mapped(source, lambda ds: normal(ds), to / "agree", blocks=blocks, template=template)
    xr.testing.assert_equal(opened(to / "agree"), normal(opened(source.path)))


def test_the_error_names_coordinate_blocks_and_first_difference(source, tmp_path):
    def cut(ds):
        return ds.sortby("time", ascending=bool(ds["y"][0] < 3))

    words = r"coordinate 'time' of block .*y=3.0\.\.5.0.* is not that of block .*y=0.0\.\.2.0"
    with pytest.raises(InvalidInputError, match=words) as caught:
        mapped(source, cut, tmp_path / "to", blocks={"time": -1, "y": 3})
    assert "first time[0]: 2024-01-06 and 2024-01-01" in caught.value.message
    template = opened(source.path)
    with pytest.raises(InvalidInputError, match=words):
        mapped(source, cut, tmp_path / "to", blocks={"time": -1, "y": 3}, template=template)


def test_swapped_names_in_square_blocks_are_refused(tmp_path):
    source = Source(tmp_path / "square", days(0, 2, y=4, x=4), chunks=(2, 2, 2))
    with raises(InvalidInputError, variable="y"):
        mapped(source, lambda ds: ds[["t2m"]].rename(x="y", y="x"), tmp_path / "to")


def test_a_followed_block_with_other_labels_than_stored_is_refused(tmp_path):
    source = Source(tmp_path / "source", days(0, 6), chunks=(2, 6, 4))

    def cut(ds):
        return ds[["t2m"]].assign_coords(cold=float(ds["t2m"].min() < 0))

    to, how = tmp_path / "to", {"blocks": {"time": 2}, "follow": True}
    mapped(source, cut, to, **how)
    source.put("t2m", (0, 0, 0), -1.0)
    with pytest.raises(InvalidInputError, match=r"'cold' .* is not that of the last run"):
        mapped(source, cut, to, **how)
    source.put("t2m", (slice(None), 0, 0), -1.0)  # all blocks change
    assert mapped(source, cut, to, **how).computed == 3
    assert float(opened(to)["cold"]) == 1


def test_digests_take_equal_values_as_equal():
    payload = np.array([0x7FC00001], "u4").view("f4")
    assert digest_of(payload) == digest_of(np.array([np.nan], "f4"))
    assert digest_of(np.array([-0.0])) == digest_of(np.array([0.0]))
    assert digest_of(np.array(["a", "b"], object)) != digest_of(np.array(["ab", ""], object))
    assert unequal(np.array([1, np.nan]), np.array([2, np.nan])).tolist() == [True, False]
