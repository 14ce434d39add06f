"""Functions of several sources give what xarray gives over the aligned whole sources."""

from __future__ import annotations

import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.blocks import DAY, Source, days, mapped, opened
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError, NotFoundError

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")

BLOCKS = {"time": 3, "y": 4, "x": 3}


@pytest.fixture
def model(tmp_path):
    return Source(tmp_path / "model", days(0, 10))


def minus(ds, obs):
    return (ds["t2m"] - obs["t2m"]).to_dataset(name="bias")


def check(model, obs, to, function=minus, **given):
    """Map with other sources; compare with xarray at the labels of the first source."""
    mapped(model, function, to, blocks=BLOCKS, others={"obs": {"source": obs, **given}})
    ds = opened(model.path)
    return opened(to), function(ds, opened(obs.path).reindex_like(ds, method=given.get("method")))


@pytest.mark.parametrize("chunks", [(1, 6, 4), (7, 2, 3), (12, 6, 4)])
def test_other_chunks_a_longer_period_and_another_order(model, tmp_path, chunks):
    obs = days(0, 14, seed=1).isel(y=slice(None, None, -1))
    obs = obs.assign_coords(time=obs["time"] - 2 * DAY)
    found, expected = check(model, Source(tmp_path / "obs", obs, chunks), tmp_path / "to")
    xr.testing.assert_equal(found["bias"], expected["bias"])
    assert found["bias"].notnull().all()


def test_other_order_of_dimensions_and_steps_of_labels(model, tmp_path):
    obs = days(0, 10, seed=1, y=12)
    obs = obs.assign_coords(y=np.arange(12) / 2).isel(x=[2, 0, 3, 1]).transpose("x", "time", "y")
    found, expected = check(model, Source(tmp_path / "obs", obs, (2, 5, 5)), tmp_path / "to")
    xr.testing.assert_equal(found["bias"].transpose("time", "y", "x"), expected["bias"])
    assert found["bias"].notnull().all()


def test_the_region_of_the_first_source_is_cut_from_the_others(model, tmp_path):
    obs = Source(tmp_path / "obs", days(2, 6, seed=1))
    given = {"sel": "time=2024-01-04:2024-01-06", "isel": {"x": slice(1, 3)}}
    mapped(model, minus, tmp_path / "to", blocks=BLOCKS, others={"obs": {"source": obs}}, **given)
    part = {"time": slice(3, 6), "x": slice(1, 3)}
    expected = minus(opened(model.path).isel(part), opened(obs.path))
    xr.testing.assert_equal(opened(tmp_path / "to")["bias"], expected["bias"])


SINGLE = [
    {"isel": {"time": 0}},
    {"isel": {"time": np.int64(-10)}, "method": "whole"},
    {"isel": "time=0"},
    {"sel": {"time": np.datetime64("2024-01-01")}},
]


@pytest.mark.parametrize("given", SINGLE, ids=str)
def test_a_single_position_or_label_drops_the_dimension(model, tmp_path, given):
    obs = Source(tmp_path / "obs", days(0, 10, seed=1))

    def from_first(ds, obs):
        assert obs["t2m"].dims == ("y", "x")
        assert obs.coords["time"].values == np.datetime64("2024-01-01")
        return minus(ds, obs)

    mapped(
        model,
        from_first,
        tmp_path / "to",
        blocks={"time": 3},
        others={"obs": {"source": obs, **given}},
    )
    expected = minus(opened(model.path), opened(obs.path).isel(time=0))
    xr.testing.assert_equal(opened(tmp_path / "to")["bias"], expected["bias"])


@pytest.mark.parametrize("given", [{"isel": {"time": [0]}}, {"sel": "time=2024-01-01"}], ids=str)
def test_a_list_or_a_period_keeps_the_dimension(model, tmp_path, given):
    obs = Source(tmp_path / "obs", days(0, 10, seed=1))

    def whole(ds, obs):
        assert obs["t2m"].dims == ("time", "y", "x")
        return minus(ds, obs.isel(time=0))

    others = {"obs": {"source": obs, "method": {"time": "whole"}, **given}}
    mapped(model, whole, tmp_path / "to", blocks={"time": 3}, others=others)
    expected = minus(opened(model.path), opened(obs.path).isel(time=0))
    xr.testing.assert_equal(opened(tmp_path / "to")["bias"], expected["bias"])


@pytest.mark.parametrize("selected", [{"sel": {"level": 500}}, {"sel": "level=500"}], ids=str)
def test_a_level_of_another_source(model, tmp_path, selected):
    levels = days(0, 10, seed=1).drop_vars("mask").expand_dims(level=[850, 500], axis=1)
    obs = Source(tmp_path / "obs", levels, encoding={})
    others = {"obs": {"source": obs, **selected}}
    mapped(model, minus, tmp_path / "to", blocks={"time": 3}, others=others)
    expected = minus(opened(model.path), opened(obs.path).sel(level=500))
    xr.testing.assert_equal(
        opened(tmp_path / "to")["bias"].drop_vars("level"), expected["bias"].drop_vars("level")
    )


def test_dimensions_that_one_source_lacks(model, tmp_path):
    months = xr.Dataset(
        {"normal": (("month", "y", "x"), np.arange(12.0 * 24).reshape(12, 6, 4))},
        coords={"month": np.arange(1, 13), "y": np.arange(6.0), "x": np.arange(4.0)},
    )
    land = xr.Dataset({"land": (("y", "x"), np.arange(24).reshape(6, 4) % 3)})
    sources = {
        name: Source(tmp_path / name, dataset, encoding={})
        for name, dataset in (("normal", months), ("land", land))
    }

    def anomaly(ds, normal, land, block):
        assert normal.sizes["month"] == 12
        assert dict(land.sizes) == {d: ds.sizes[d] for d in ("y", "x")}
        assert block.sizes["time"] == 10
        found = ds["t2m"].groupby("time.month") - normal["normal"]
        return found.where(land["land"] == 0).drop_vars("month").to_dataset(name="anomaly")

    others = {name: {"source": source} for name, source in sources.items()}
    mapped(model, anomaly, tmp_path / "to", blocks=BLOCKS, others=others)
    expected = opened(model.path)["t2m"] - months["normal"][0].drop_vars("month")
    expected = expected.where(land["land"] == 0)
    np.testing.assert_allclose(opened(tmp_path / "to")["anomaly"], expected)


def test_overlap_and_the_labels_of_the_block(tmp_path):
    grid = xr.Dataset(
        {"v": (("lon",), np.arange(12.0))},
        coords={"lon": ("lon", np.arange(12) * 30.0, {"units": "degrees_east"})},
    )
    sources = [
        Source(tmp_path / "one", grid, encoding={}),
        Source(tmp_path / "two", grid.isel(lon=slice(None, None, -1)), encoding={}),
    ]

    def both(ds, other):
        xr.testing.assert_equal(ds["lon"], other["lon"])
        xr.testing.assert_equal(ds["v"], other["v"])
        assert ds["lon"].attrs == other["lon"].attrs
        return (ds["v"] + other["v"]).to_dataset(name="v")

    given = {"blocks": {"lon": 4}, "overlap": {"lon": 2}, "periodic": ["lon"]}
    mapped(sources[0], both, tmp_path / "to", others={"two": {"source": sources[1]}}, **given)
    np.testing.assert_array_equal(opened(tmp_path / "to")["v"], 2 * np.arange(12.0))


def test_a_mask_of_another_source_is_passed_on(model, tmp_path):
    def with_mask(ds, other):
        return ds[["t2m"]].assign(mask=other["mask"])

    obs = Source(tmp_path / "obs", days(0, 10, seed=1))
    mapped(model, with_mask, tmp_path / "to", blocks=BLOCKS, others={"obs": {"source": obs}})
    xr.testing.assert_equal(opened(tmp_path / "to")["mask"], opened(obs.path)["mask"])


def test_a_selected_period_leads_to_the_whole(model, tmp_path):
    obs = Source(tmp_path / "obs", days(0, 10, seed=1))
    own = r"its own are 2024-01-02T00:00:00 to 2024-01-03T00:00:00\).*'time': 'whole'"
    with raises(InvalidInputError, match=own, dimension="time"):
        check(model, obs, tmp_path / "no", isel={"time": slice(1, 3)})


def test_nearest_labels(model, tmp_path):
    obs = days(0, 5, seed=1).assign_coords(
        time=np.datetime64("2024-01-01T06:00", "ns") + 2 * np.arange(5) * DAY
    )
    obs = Source(tmp_path / "obs", obs)
    given = {"method": "nearest", "tolerance": {"time": "18h"}}
    found, expected = check(model, obs, tmp_path / "to", **given)
    np.testing.assert_array_equal(found["bias"], expected["bias"])
    with raises(InvalidInputError, match="larger tolerance", dimension="time") as caught:
        check(model, obs, tmp_path / "no", method={"time": "nearest"}, tolerance={"time": "12h"})
    assert caught.value.facts["label"] == "2024-01-02T00:00:00"


def test_options_of_reading_belong_to_each_source(model, tmp_path):
    obs = Source(tmp_path / "obs", days(0, 10, seed=1))
    first = obs.repository.lookup_branch("main")
    obs.repository.create_tag("v1", snapshot_id=first)
    before = opened(obs.path)
    obs.put("t2m", 3, 1.0)
    given = {"source": obs, "tag": "v1", "variables": ("t2m",)}

    def biased(ds, other):
        assert set(other.data_vars) == {"t2m"}
        return minus(ds, other)

    mapped(model, biased, tmp_path / "to", blocks=BLOCKS, others={"obs": given})
    expected = minus(opened(model.path), before)
    xr.testing.assert_equal(opened(tmp_path / "to")["bias"], expected["bias"])
    with raises(NotFoundError):
        mapped(model, minus, tmp_path / "no", others={"obs": {"source": obs, "tag": "v2"}})
    with raises(NotFoundError, name="wind"):
        others = {"obs": {"source": obs, "variables": ("wind",)}}
        mapped(model, minus, tmp_path / "no", others=others)


def test_the_snapshots_of_all_sources_are_those_of_the_beginning(model, tmp_path):
    obs = Source(tmp_path / "obs", days(0, 10, seed=1))
    before = opened(obs.path)

    def run(function, tasks):
        for task in tasks:
            obs.put("t2m", 9, 1.0)
            yield function(task)

    others = {"obs": {"source": obs}}
    mapped(model, minus, tmp_path / "to", blocks=BLOCKS, others=others, run=run)
    expected = minus(opened(model.path), before)
    xr.testing.assert_equal(opened(tmp_path / "to")["bias"], expected["bias"])


def test_errors_of_the_function_name_the_block(model, tmp_path):
    with raises(InvalidInputError, match="failed at block time=2024-01-01.*TypeError.*positional"):
        mapped(model, lambda ds: ds, tmp_path / "to", others={"obs": {"source": model}})
