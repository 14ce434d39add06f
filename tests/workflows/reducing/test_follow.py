"""A result that follows its source equals a new one, and only what changed is read."""

import numpy as np
import pytest
import xarray as xr
from helpers.blocks import Source, days, opened
from helpers.examples import by_day
from helpers.raised import raises
from helpers.reducing import reduced
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import AlreadyExistsError, ConflictError, InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.storage.measures import measured
from icechunk_format.workflows.reducing import statistics

pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]

STATISTICS = ["mean", "std", "min", "max", "count", "sum", "idxmax"]


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path / "source", days(0, 40))


def follow(source, to, **given):
    given = {"over": "time", "by": "time.month"} | given
    over = given.pop("over")
    statistics = given.pop("statistics", {"t2m": STATISTICS})
    return reduced(source.path, statistics, over, to=to, follow=True, **given)


def check(source, to, statistics=None, over="time", **given):
    """Compare a followed result with one that is computed now."""
    given = {"by": "time.month"} | given
    expected = reduced(source.path, statistics or {"t2m": STATISTICS}, over, **given)
    xr.testing.assert_allclose(opened(to), expected, rtol=1e-12)
    for name in ("t2m_min", "t2m_max", "t2m_count"):
        if name in expected:
            assert opened(to)[name].equals(expected[name])


def decoded(act):
    before = measured().chunks_decoded
    done = act()
    return done, measured().chunks_decoded - before


@pytest.mark.parametrize("cores", [None, 2])
def test_a_new_day_costs_a_day(source, tmp_path, cores):
    to = tmp_path / "to"
    first = follow(source, to, cores=cores)
    assert first.full_run == "no earlier result exists"
    again, chunks = decoded(lambda: follow(source, to, cores=cores))
    # Labels alone.
    assert chunks <= 5
    assert again.commit.is_skipped
    assert again.commit.snapshot_id == first.commit.snapshot_id
    source.append(days(40, 1))
    again = follow(source, to, cores=cores)
    assert again.full_run is None
    assert again.decoded_bytes == 6 * 4 * 8
    check(source, to)
    # A month that is new.
    source.append(days(41, 30))
    again = follow(source, to, cores=cores)
    assert (again.full_run, again.decoded_bytes) == (None, 30 * 6 * 4 * 8)
    check(source, to)
    assert len(list(Repository.open(str(to)).ancestry(branch="main"))) == 4


def test_chunks_of_several_days_are_compared(tmp_path):
    source = Source(tmp_path / "source", days(0, 40), chunks=(7, 3, 4))
    follow(source, tmp_path / "to")
    source.append(days(40, 1))
    again = follow(source, tmp_path / "to")
    assert (again.full_run, again.decoded_bytes) == (None, 6 * 4 * 8)
    check(source, tmp_path / "to")


def test_changed_elements_read_their_groups(source, tmp_path):
    follow(source, tmp_path / "to")
    source.put("t2m", (3, 2), 400.0)
    again = follow(source, tmp_path / "to")
    # Both months are in one chunk of the result.
    assert again.full_run is None
    check(source, tmp_path / "to")


def test_series_grow_along_a_dimension_that_stays(source, tmp_path):
    given = {"over": ("y", "x"), "by": None, "statistics": {"t2m": ["mean", "count"]}}
    follow(source, tmp_path / "to", **given)
    source.append(days(40, 1))
    again = follow(source, tmp_path / "to", **given)
    assert again.full_run is None
    check(source, tmp_path / "to", **given)


def test_other_settings_and_labels_compute_everything(source, tmp_path):
    to = tmp_path / "to"
    follow(source, to)
    again = follow(source, to, statistics={"t2m": ["mean"]})
    assert again.full_run.startswith("statistics was")
    assert set(opened(to).data_vars) == {"t2m_mean"}
    check(source, to, {"t2m": ["mean"]})
    source.put("time", 0, -400)
    again = follow(source, to, statistics={"t2m": ["mean"]})
    assert "time changed" in again.full_run
    check(source, to, {"t2m": ["mean"]})


def test_parts_of_another_data_type_are_computed_again(tmp_path, monkeypatch):
    """An earlier version held weighted sums of integers as integers."""

    def whole(first, count):
        new = days(first, count).assign_coords(y=np.arange(6) * 0.3)
        return new.assign(t2m=new["t2m"].astype("int32"))

    source, to = Source(tmp_path / "source", whole(0, 40)), tmp_path / "to"
    given = {"statistics": {"t2m": ["sum", "mean"]}, "over": ("time", "y"), "by": None}
    given["weights"] = "y"
    held = statistics.part_dtype
    with monkeypatch.context() as earlier:
        earlier.setattr(
            statistics,
            "part_dtype",
            lambda part, dtype, *, weighted: held(part, dtype, weighted=weighted and part != "s"),
        )
        follow(source, to, **given)
    source.append(whole(40, 1))
    again = follow(source, to, **given)
    assert again.full_run is not None
    assert "would have another data_type" in again.full_run
    check(source, to, **given)


def test_quantiles_are_computed_again(tmp_path):
    source = Source(tmp_path / "source", days(0, 40), chunks=(100, 6, 4))
    given = {"statistics": {"t2m": ["median"]}}
    follow(source, tmp_path / "to", **given)
    source.append(days(40, 3))
    follow(source, tmp_path / "to", **given)
    check(source, tmp_path / "to", given["statistics"])


def test_edited_results_are_refused(source, tmp_path):
    follow(source, tmp_path / "to")
    result = Source.__new__(Source)
    result.path = str(tmp_path / "to")
    import icechunk

    result.repository = icechunk.Repository.open(icechunk.local_filesystem_storage(result.path))
    result.put("t2m_mean", (0, 0, 0), 1.0)
    source.append(days(40, 1))
    with raises(ConflictError, path="/t2m_mean"):
        follow(source, tmp_path / "to")


def test_follow_needs_a_target_of_its_own(source, tmp_path):
    with raises(InvalidInputError, option="follow"):
        follow(source, None)
    reduced(source.path, {"t2m": "mean"}, "time", to=tmp_path / "to")
    with raises(AlreadyExistsError, kind="arrays"):
        follow(source, tmp_path / "to")


@settings(max_examples=by_day(15), deadline=None)
@given(data=st.data())
def test_any_history_equals_a_new_result(tmp_path_factory, data):
    draw = data.draw
    folder = tmp_path_factory.mktemp("follow")
    source = Source(folder / "source", days(0, 35), chunks=(draw(st.integers(1, 9)), 3, 4))
    by = draw(st.sampled_from(["time.month", "MS", None]))
    over = draw(st.sampled_from(["time", ("time", "x"), ("time", "y", "x")]))
    statistics = {"t2m": draw(st.sampled_from([["mean", "std"], ["min", "sum"], ["count"]]))}
    given = {"over": over, "by": by, "statistics": statistics, "to": folder / "to"}
    count = 35
    for _ in range(draw(st.integers(1, 4))):
        follow(source, given["to"], **{k: v for k, v in given.items() if k != "to"})
        for what in draw(st.lists(st.sampled_from(["append", "put", "nan"]), max_size=2)):
            if what == "append":
                more = draw(st.integers(1, 12))
                source.append(days(count, more))
                count += more
            else:
                at = (draw(st.integers(0, count - 1)), draw(st.integers(0, 5)))
                source.put("t2m", at, np.nan if what == "nan" else 1.0)
    follow(source, given["to"], **{k: v for k, v in given.items() if k != "to"})
    check(source, given["to"], statistics, over=over, by=by)
