"""A result that follows several sources computes the blocks of which any source changed."""

from __future__ import annotations

import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.blocks import DAY, Source, days, mapped, opened
from helpers.examples import by_day
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.workflows.mapping.record import RECORD_KEY, parse_record

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")


def minus(ds, obs):
    return (ds["t2m"] - obs["t2m"]).to_dataset(name="bias")


class Following:
    """A result that follows two sources."""

    def __init__(self, path, obs, **given):
        self.model, self.to = Source(path / "model", days(0, 10)), path / "to"
        self.obs = Source(path / "obs", obs)
        self.given = given

    def update(self, function=minus, **given):
        given = {"obs": {"source": self.obs, **self.given, **given}}
        blocks = {"time": 1, "y": 3}
        return mapped(self.model, function, self.to, blocks=blocks, others=given, follow=True)

    def check(self, method=None, tolerance=None):
        ds = opened(self.model.path)
        obs = opened(self.obs.path).sortby("time")
        matched = obs.reindex(time=ds["time"], method=method, tolerance=tolerance)
        expected = minus(ds, matched.reindex(y=ds["y"]))
        xr.testing.assert_equal(opened(self.to)["bias"], expected["bias"])
        assert opened(self.to)["bias"].notnull().all()


def test_a_change_of_one_source_computes_its_blocks(tmp_path):
    both = Following(tmp_path, days(0, 12, seed=1).isel(y=slice(None, None, -1)))
    assert both.update().computed == 20
    assert both.update().commit.is_skipped
    both.obs.put("t2m", 3, 1.0)
    done = both.update()
    assert (done.computed, done.full_run) == (2, None)
    both.check()
    both.model.put("t2m", 5, 1.0)
    assert both.update().computed == 2
    both.check()
    # Both at once, on one day and on two; labels beyond the blocks count for none.
    both.obs.put("t2m", slice(4, 6), 2.0)
    both.model.put("t2m", 5, 2.0)
    both.obs.put("t2m", 11, 2.0)
    assert both.update().computed == 4
    both.check()
    both.obs.append(days(12, 2, seed=1).isel(y=slice(None, None, -1)))
    assert both.update().commit.is_skipped
    both.model.append(days(10, 4))
    done = both.update()
    assert (done.blocks, done.computed) == (28, 8)
    both.check()


def test_chunks_of_reversed_labels_are_found_in_their_blocks(tmp_path):
    obs = days(0, 10, seed=1).isel(y=slice(None, None, -1))
    both = Following(tmp_path, obs)
    both.obs = Source(tmp_path / "chunked", obs, (10, 3, 4))
    both.update()
    both.obs.put("t2m", (slice(None), 0), 1.0)
    assert both.update().computed == 10
    both.check()


def test_overlap_widens_the_changes_of_all_sources(tmp_path):
    both = Following(tmp_path, days(0, 10, seed=1))

    def smooth(ds, obs):
        return minus(ds, obs).rolling(time=3, center=True, min_periods=1).mean()

    def update():
        others = {"obs": {"source": both.obs}}
        given = {"blocks": {"time": 1}, "overlap": {"time": 1}, "others": others}
        return mapped(both.model, smooth, both.to, follow=True, **given)

    update()
    both.obs.put("t2m", 4, 1.0)
    assert update().computed == 3
    expected = smooth(opened(both.model.path), opened(both.obs.path))
    xr.testing.assert_allclose(opened(both.to)["bias"], expected["bias"])


def test_new_labels_that_are_nearer_count_as_changes(tmp_path):
    obs = days(0, 4, seed=1).assign_coords(
        time=np.datetime64("2024-01-01", "ns") + np.arange(0, 8, 2) * DAY
    )
    both = Following(tmp_path, obs, method={"time": "nearest"}, tolerance={"time": "9 days"})
    both.update()
    both.check("nearest")
    late = days(9, 1, seed=1)
    both.obs.append(late)
    # The tenth day itself, and the ninth, which was nearest to the seventh; the eighth stays.
    assert both.update().computed == 4
    both.check("nearest")


def test_elements_that_a_label_has_left_count_as_changes(tmp_path):
    obs = days(0, 5, seed=1).assign_coords(
        time=np.datetime64("2024-01-01", "ns") + np.arange(0, 10, 2) * DAY
    )
    both = Following(tmp_path, obs, method={"time": "nearest"}, tolerance={"time": "9 days"})
    both.update()
    # The label of the third day becomes that of the sixth: days 1 and 2 are nearer to others now.
    both.obs.put("time", 1, (np.datetime64("2024-01-06") - np.datetime64("2000-01-01")).astype(int))
    assert both.update().computed == 6
    both.check("nearest")


def test_labels_that_are_inserted_move_those_of_the_blocks(tmp_path):
    obs = days(0, 12, seed=1)
    both = Following(tmp_path, obs.isel(time=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]))
    both.update()
    both.obs.write(obs, mode="w")
    done = both.update()
    assert done.computed == 20
    assert done.full_run
    both.check()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("repository", "repository of 'obs' was"),
        ("method", "settings of 'obs' was"),
        ("rewritten", "others: 'obs': /"),
        ("attributes", "others: 'obs': the attributes of /t2m changed"),
        ("expired", "others: 'obs': the changes since snapshot"),
        ("dropped", "others had the names"),
    ],
)
def test_all_blocks_are_computed_if_another_source_is_another(tmp_path, change, reason):
    both, given, function = Following(tmp_path, days(0, 10, seed=1)), {}, minus
    both.update()
    others = None
    if change == "repository":
        both.obs = Source(tmp_path / "elsewhere", days(0, 10, seed=2))
    elif change == "method":
        given = {"method": "nearest"}
    elif change == "rewritten":
        both.obs.write(days(0, 10, seed=3), mode="w")
    elif change == "attributes":
        import zarr

        session = both.obs.repository.writable_session("main")
        zarr.open_group(session.store)["t2m"].attrs["units"] = "degC"
        session.commit("units")
    elif change == "expired":
        import datetime as dt

        both.obs.put("t2m", 0, 1.0)
        both.obs.put("t2m", 0, 2.0)
        both.obs.repository.expire_snapshots(dt.datetime.now(dt.UTC))
        both.obs.repository.garbage_collect(dt.datetime.now(dt.UTC))
    else:
        others = {}

        def function(ds):
            return ds["t2m"].rename("bias").to_dataset()

        function.__qualname__ = "minus"
    if others is None:
        done = both.update(function, **given)
    else:
        blocks = {"time": 1, "y": 3}
        done = mapped(both.model, function, both.to, blocks=blocks, others=others, follow=True)
    assert done.computed == done.blocks
    assert done.full_run.startswith(reason)
    if change != "dropped":
        both.check()


def test_labels_that_no_longer_match_are_refused_and_nothing_changes(tmp_path):
    both = Following(tmp_path, days(0, 10, seed=1))
    first = both.update()
    both.model.append(days(10, 1))
    with raises(InvalidInputError, match="'obs' has no label time=2024-01-11"):
        both.update()
    repository = Repository.open(str(both.to))
    assert repository.resolve(branch="main") == first.commit.snapshot_id
    both.obs.append(days(10, 1, seed=1))
    assert both.update().computed == 2
    both.check()


def test_a_commit_to_another_source_during_the_run_is_of_the_next_run(tmp_path):
    both = Following(tmp_path, days(0, 10, seed=1))

    def run(function, tasks):
        found = [function(task) for task in tasks]
        both.obs.put("t2m", 7, 5.0)
        return found

    others = {"obs": {"source": both.obs}}
    blocks = {"time": 1, "y": 3}
    mapped(both.model, minus, both.to, blocks=blocks, others=others, follow=True, run=run)
    done = both.update()
    assert (done.computed, done.full_run) == (2, None)
    both.check()


def test_the_record_names_the_snapshot_of_each_source(tmp_path):
    both = Following(tmp_path, days(0, 10, seed=1))
    both.update()
    attributes = opened(both.to).attrs
    record = parse_record(attributes[RECORD_KEY])
    [other] = record.others
    assert record.snapshot_id == both.model.repository.lookup_branch("main")
    assert other["snapshot_id"] == both.obs.repository.lookup_branch("main")
    assert other["repository"] == both.obs.path
    alone = tmp_path / "alone"
    mapped(both.model, lambda ds: ds, alone, follow=True)
    text = opened(alone).attrs[RECORD_KEY]
    assert '"others"' not in text
    assert parse_record(text).others == []


@settings(deadline=None, max_examples=by_day(3))
@given(data=st.data())
def test_followed_results_equal_those_computed_anew(data, tmp_path_factory):
    obs = days(0, 16, seed=1).isel(time=data.draw(st.permutations(range(16))))
    both = Following(tmp_path_factory.mktemp("following"), obs)
    both.update()
    for _ in range(data.draw(st.integers(1, 3))):
        source = data.draw(st.sampled_from([both.model, both.obs]))
        days_of = st.tuples(st.integers(0, 9), st.integers(1, 3))
        first, count = data.draw(days_of)
        source.put("t2m", slice(first, min(first + count, 10)), float(data.draw(st.integers(1, 9))))
        done = both.update()
        assert done.full_run is None
        assert done.computed < done.blocks
        both.check()
