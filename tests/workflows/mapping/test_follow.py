"""A result that follows its source equals one that is computed anew, with fewer blocks computed."""

from __future__ import annotations

import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.blocks import DAY, Source, days, mapped, opened
from helpers.builder import reference_repository
from helpers.examples import by_day
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import AlreadyExistsError, ConflictError, InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.workflows.running import in_process

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")


def celsius(ds):
    return (ds[["t2m"]] - 273.15).assign(masked=ds["t2m"].where(ds["mask"] == 1))


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path / "source", days(0, 10))


def check(source, to, function=celsius):
    xr.testing.assert_equal(opened(to), function(opened(source.path)))


def test_only_changed_blocks_are_computed(source, tmp_path):
    to = tmp_path / "to"
    first = mapped(source, celsius, to, follow=True)
    assert (first.blocks, first.computed) == (10, 10)
    again = mapped(source, celsius, to, follow=True)
    assert again.computed == 0
    assert again.commit.is_skipped
    assert again.commit.snapshot_id == first.commit.snapshot_id
    assert set(again.arrays) == set(first.arrays)
    source.put("t2m", (3, 2), 1.0)
    done = mapped(source, celsius, to, follow=True)
    assert (done.computed, done.full_run) == (1, None)
    check(source, to)
    # All labels are written again, and three days are new.
    source.append(days(10, 3))
    done = mapped(source, celsius, to, follow=True)
    assert (done.blocks, done.computed) == (13, 3)
    check(source, to)
    assert len(list(Repository.open(str(to)).ancestry(branch="main"))) == 4


def test_overlap_widens_changes(source, tmp_path):
    def smooth(ds):
        return ds[["t2m"]].rolling(time=3, center=True, min_periods=1).mean()

    to, given = tmp_path / "to", {"overlap": {"time": 1}, "follow": True}
    mapped(source, smooth, to, **given)
    source.put("t2m", (5, 0, 0), 1.0)
    assert mapped(source, smooth, to, **given).computed == 3
    source.append(days(10, 1))
    assert mapped(source, smooth, to, **given).computed == 2
    xr.testing.assert_allclose(opened(to), smooth(opened(source.path))[["t2m"]])


def test_labels_and_other_arrays_are_compared_by_value(source, tmp_path):
    to = tmp_path / "to"

    def shifted(ds):
        return ds[["t2m"]] + ds["y"]

    mapped(source, shifted, to, blocks={"time": 5, "y": 2}, follow=True)
    source.put("y", 3, 3.5)
    done = mapped(source, shifted, to, blocks={"time": 5, "y": 2}, follow=True)
    assert done.computed == 2
    check(source, to, shifted)
    # A data variable without the divided dimension is compared, too.
    source.put("mask", (0, 0), 1)
    assert mapped(source, shifted, to, blocks={"time": 5, "y": 2}, follow=True).computed == 2


def test_chunks_that_hold_nothing_now_are_deleted(source, tmp_path):
    to = tmp_path / "to"

    def warm(ds):
        return ds[["t2m"]].where(ds["t2m"] > 0)

    mapped(source, warm, to, follow=True)
    source.put("t2m", 4, -1.0)
    assert mapped(source, warm, to, follow=True).computed == 1
    check(source, to, warm)
    assert opened(to)["t2m"][4].isnull().all()


@pytest.mark.parametrize(
    "change", ["version", "rewritten", "blocks", "function", "target", "attributes", "shorter"]
)
def test_all_blocks_are_computed_in_doubt(source, tmp_path, change):
    to, given, function = tmp_path / "to", {"function_version": "1"}, celsius
    mapped(source, celsius, to, follow=True, **given)
    if change == "version":
        given = {"function_version": "2"}
    elif change == "rewritten":
        source.write(days(0, 10, seed=1), mode="w")
    elif change == "blocks":
        given["blocks"] = {"time": 2}
    elif change == "function":

        def function(ds):
            return ds[["t2m"]] - 1

    elif change == "target":
        rival = icechunk.Repository.open(icechunk.local_filesystem_storage(str(to)))
        session = rival.writable_session("main")
        import zarr

        group = zarr.open_group(session.store)
        del group["masked"]
        session.commit("rival")
    elif change == "attributes":
        import zarr

        session = source.repository.writable_session("main")
        zarr.open_group(session.store)["t2m"].attrs["units"] = "degC"
        session.commit("units")
    else:
        source.write(days(0, 6, seed=1), mode="w")
    done = mapped(source, function, to, follow=True, **given)
    assert done.computed == done.blocks
    assert done.full_run
    check(source, to, function)


def edit_result(to, edit):
    import zarr

    session = icechunk.Repository.open(icechunk.local_filesystem_storage(str(to))).writable_session(
        "main"
    )
    edit(zarr.open_group(session.store))
    return session.commit("edited by hand")


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("t2m", lambda g: g["t2m"].__setitem__((2, 1, 1), -5.0)),
        ("t2m", lambda g: g["t2m"].resize((11, 6, 4))),
        ("t2m", lambda g: g["t2m"].resize((9, 6, 4))),
        ("masked", lambda g: g["masked"].attrs.update(units="degC")),
        ("x", lambda g: g["x"].__setitem__(0, -5.0)),
    ],
)
def test_a_result_that_another_writer_edited_is_refused(source, tmp_path, name, edit, runs):
    to = tmp_path / "to"
    for number in range(runs):
        mapped(source, celsius, to, follow=True)
        source.put("t2m", number, 1.0)
    edited = edit_result(to, edit)
    with raises(ConflictError, path=f"/{name}", snapshot=edited, option="function_version"):
        mapped(source, celsius, to, follow=True)
    done = mapped(source, celsius, to, follow=True, function_version="2")
    assert done.computed == done.blocks
    check(source, to)
    source.put("t2m", 3, 1.0)
    assert mapped(source, celsius, to, follow=True, function_version="2").computed == 1
    check(source, to)


def test_an_edit_during_a_run_is_found_by_the_next_one(source, tmp_path):
    """The commit of the run is rebased on it."""
    to = tmp_path / "to"
    mapped(source, celsius, to, follow=True)
    source.put("t2m", 0, 1.0)
    edits = [lambda g: g["t2m"].__setitem__((5, 1, 1), -5.0)]

    def run(function, tasks):
        done = list(in_process(function, tasks))
        if edits:
            edit_result(to, edits.pop())
        return done

    assert mapped(source, celsius, to, follow=True, run=run).computed == 1
    source.put("t2m", 1, 1.0)
    with raises(ConflictError, path="/t2m"):
        mapped(source, celsius, to, follow=True)


def test_other_commits_to_the_repository_of_a_result_are_no_edits(source, tmp_path):
    to = tmp_path / "to"
    mapped(source, celsius, to, follow=True)
    edit_result(to, lambda g: g.create_group("other").create_array("a", shape=(3,), dtype="f8"))
    edit_result(to, lambda g: g.attrs.update(title="Result"))
    edit_result(to, lambda g: g["t2m"].attrs.update(comment="described later"))
    repository = Repository.open(str(to))
    restored = repository.resolve()
    edit_result(to, lambda g: g["t2m"].__setitem__((2, 1, 1), -5.0))
    Repository.open(str(to)).restore("main", restored)
    source.put("t2m", 0, 1.0)
    done = mapped(source, celsius, to, follow=True)
    assert (done.computed, done.full_run) == (1, None)
    assert opened(to).attrs["title"] == "Result"
    assert opened(to)["t2m"].attrs["comment"] == "described later"
    check(source, to)


def test_an_expired_snapshot_and_another_repository(source, tmp_path):
    to = tmp_path / "to"
    mapped(source, celsius, to, follow=True)
    source.put("t2m", 0, 1.0)
    source.put("t2m", 1, 1.0)
    from datetime import UTC, datetime

    source.repository.expire_snapshots(datetime.now(UTC))
    done = mapped(source, celsius, to, follow=True)
    assert done.computed == 10
    check(source, to)
    other = Source(tmp_path / "other", days(0, 4, seed=5))
    done = mapped(other, celsius, to, follow=True)
    assert "repository" in done.full_run
    check(other, to)


def test_arrays_of_others_are_not_replaced(source, tmp_path):
    to = tmp_path / "to"
    mapped(source, celsius, to)
    with pytest.raises(AlreadyExistsError):
        mapped(source, celsius, to, follow=True)


def group_of_another(path, group, length, **attributes):
    """Create a repository and a group with an array of another writer."""
    session = reference_repository(path).writable_session("main")
    other = xr.Dataset({"other": ("time", np.arange(float(length)))}, attrs=attributes)
    other.to_zarr(session.store, group=group, consolidated=False, zarr_format=3, mode="w")
    session.commit("other")


@pytest.mark.parametrize("group", ["g", None])
def test_arrays_of_another_length_in_the_group_are_refused(source, tmp_path, group):
    """Before any block but the first one is computed."""
    to, calls = str(tmp_path / "to"), []
    group_of_another(to, group, 3)
    base = Repository.open(to).resolve()

    def function(block):
        calls.append(1)
        return block

    where = "/g" if group else ""
    with raises(InvalidInputError, found=f"time is 10 in {where}/t2m and 3 in {where}/other"):
        mapped(source, function, to, blocks={"time": 1}, group=group, mode="overwrite")
    assert len(calls) < 3
    assert Repository.open(to).resolve() == base


def test_the_attributes_of_a_group_stay(source, tmp_path):
    to = str(tmp_path / "to")
    group_of_another(to, "g", 10, mine=1, title="Mine")

    def result(block):
        return block.assign_attrs(title="Result", history="mapped")

    mapped(source, result, to, blocks={"time": 5}, group="g", mode="overwrite")
    assert opened(to, "g").attrs == {"mine": 1, "title": "Mine", "history": "mapped"}
    assert set(opened(to, "g")) == {"other", "t2m", "mask"}


def test_a_result_computed_again_replaces_its_own_attributes(source, tmp_path):
    to = str(tmp_path / "to")
    for title in ("first", "second"):
        mapped(source, lambda b, t=title: b.assign_attrs(title=t), to, mode="overwrite")
    assert opened(to).attrs == {"title": "second"}


def test_failed_blocks_are_computed_again(source, tmp_path):
    to, bad = tmp_path / "to", {0, 4}

    def fails(ds, block):
        if block.number in bad:
            raise ValueError("no")
        return celsius(ds)

    done = mapped(source, fails, to, follow=True, skips_errors=True)
    assert len(done.failed) == 2
    # The first block would have written the labels of y and x.
    expected = celsius(opened(source.path))
    found = opened(to)
    xr.testing.assert_equal(found.isel(time=slice(5, None)), expected.isel(time=slice(5, None)))
    np.testing.assert_array_equal(found["y"], expected["y"])
    assert found["t2m"][[0, 4]].isnull().all()
    bad.clear()
    done = mapped(source, fails, to, follow=True, skips_errors=True)
    assert done.computed == 2
    check(source, to)
    bad.add(7)
    source.put("t2m", 7, 1.0)
    mapped(source, fails, to, follow=True, skips_errors=True)
    assert opened(to)["t2m"][7].isnull().all()


def test_all_blocks_fail(source, tmp_path):
    def fails(ds):
        raise ValueError("no")

    with raises(InvalidInputError, blocks=10):
        mapped(source, fails, tmp_path / "to", skips_errors=True)


def test_a_template_needs_no_first_block(source, tmp_path):
    calls = []

    def recorded(ds):
        calls.append(1)
        return ds[["t2m"]].coarsen(y=2).mean()

    template = opened(source.path)[["t2m"]].coarsen(y=2).mean()
    to = tmp_path / "to"
    mapped(source, recorded, to, blocks={"y": 2}, template=template)
    assert len(calls) == 30
    xr.testing.assert_allclose(opened(to), template)
    other = template.astype("f4").chunk()
    with raises(InvalidInputError, variable="t2m"):
        mapped(source, recorded, tmp_path / "other", blocks={"y": 2}, template=other)


def test_periodic_overlap(tmp_path):
    def globe(first, count, x):
        ds = days(first, count, x=x).rename(x="longitude", y="latitude")
        ds["longitude"] = ("longitude", np.arange(x) * 360.0 / x, {"units": "degrees_east"})
        return ds

    source = Source(tmp_path / "globe", globe(0, 2, 12), chunks=(1, 6, 3))

    def smooth(ds):
        assert (np.diff(ds["longitude"]) == 30).all()
        return ds[["t2m"]].rolling(longitude=5, center=True).mean()

    given = {"overlap": {"longitude": 2}, "periodic": ("longitude",), "follow": True}
    to = tmp_path / "to"
    mapped(source, smooth, to, **given)
    whole = opened(source.path)[["t2m"]]
    around = whole.pad(longitude=2, mode="wrap").rolling(longitude=5, center=True).mean()
    expected = around.isel(longitude=slice(2, -2))
    np.testing.assert_allclose(opened(to)["t2m"], expected["t2m"])
    np.testing.assert_array_equal(opened(to)["longitude"], whole["longitude"])
    # The last block reads the first longitude.
    source.put("t2m", (0, slice(None), slice(0, 3)), 1.0)
    assert mapped(source, smooth, to, **given).computed == 3
    with raises(InvalidInputError, option="periodic"):
        mapped(source, smooth, tmp_path / "x", periodic=("longitude",))
    region = Source(tmp_path / "region", globe(0, 2, 12).isel(longitude=slice(0, 6)))
    with raises(InvalidInputError, option="periodic"):
        mapped(region, smooth, tmp_path / "x", **given)


def test_times_of_all_blocks_have_one_encoding(source, tmp_path):
    def late(ds):
        return ds[["t2m"]].assign(seen=ds["time"] + np.timedelta64(3, "D"))

    to = tmp_path / "to"
    mapped(source, late, to)
    np.testing.assert_array_equal(opened(to)["seen"], opened(source.path)["time"] + 3 * DAY)


def test_chunks_that_do_not_divide_blocks(source, tmp_path):
    for chunks in ({"time": 3}, {"time": 10}):
        with raises(InvalidInputError, chunk=chunks["time"], block=4):
            mapped(source, celsius, tmp_path / "to", blocks={"time": 4}, chunks=chunks)
    with raises(InvalidInputError, name="tim"):
        mapped(source, celsius, tmp_path / "to", blocks={"time": 4}, chunks={"tim": 2})
    mapped(source, celsius, tmp_path / "to", blocks={"time": 4}, chunks={"time": 2, "y": 5})
    check(source, tmp_path / "to")


def test_two_jobs_at_once_and_a_repeated_job(source, tmp_path):
    to = tmp_path / "to"
    mapped(source, celsius, to, follow=True)
    source.put("t2m", 0, 1.0)

    def raced(function, tasks):
        found = list(in_process(function, tasks))
        if not beaten:
            beaten.append(mapped(source, celsius, to, follow=True))
        return found

    beaten = []
    with pytest.raises(ConflictError):
        mapped(source, celsius, to, follow=True, run=raced)
    assert beaten[0].computed == 1
    assert mapped(source, celsius, to, follow=True).computed == 0
    check(source, to)
    given = {"txn_app_id": "job", "txn_version": 1, "group": "once"}
    done = mapped(source, celsius, to, **given)
    again = mapped(source, celsius, to, **given)
    assert again.commit.is_skipped
    assert again.commit.snapshot_id == done.commit.snapshot_id


@settings(max_examples=by_day(8), deadline=None)
@given(st.data())
def test_following_equals_computing_anew(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("law")
    source = Source(folder / "source", days(0, 5), chunks=(2, 3, 4))
    blocks = {"time": data.draw(st.integers(1, 4)), "y": data.draw(st.sampled_from([2, 3, -1]))}
    overlap = {"time": data.draw(st.integers(0, 2)), "y": data.draw(st.integers(0, 1))}

    def function(ds):
        padded = ds["t2m"].rolling(time=3, center=True, min_periods=1).max()
        found = (padded + ds["y"]).transpose("time", "y", "x").to_dataset(name="t")
        return found.where(found > 250)

    def plain(ds, block):
        return ds[["t2m"]].where(ds["t2m"] > 270) + ds["mask"]

    used = function if overlap["time"] else plain
    size = 5
    parts = [None, {"time": slice(1, None)}, {"time": slice(0, -1)}, {"time": slice(-3, None)}]
    how = {"blocks": blocks, "overlap": overlap, "isel": data.draw(st.sampled_from(parts))}
    for step in range(3):
        mapped(source, used, folder / "to", follow=True, **how)
        mapped(source, used, folder / f"new{step}", **how)
        xr.testing.assert_identical(
            opened(folder / "to").drop_attrs(), opened(folder / f"new{step}").drop_attrs()
        )
        for _ in range(data.draw(st.integers(0, 2))):
            match data.draw(st.sampled_from(["append", "cell", "label", "fill"])):
                case "append":
                    count = data.draw(st.integers(1, 3))
                    source.append(days(size, count))
                    size += count
                case "cell":
                    at = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 5))
                    source.put("t2m", at, data.draw(st.sampled_from([200.0, 300.0, np.nan])))
                case "label":
                    source.put("y", data.draw(st.integers(0, 5)), data.draw(st.floats(0, 9)))
                case "fill":
                    source.put("t2m", slice(0, data.draw(st.integers(1, size))), np.nan)


def test_a_part_is_that_of_xarray(source, tmp_path):
    picked = {"sel": "time=2024-01-03:2024-01-07", "isel": {"x": slice(1, 3), "y": 2}}
    blocks = {"time": 2, "y": 1, "x": 1}

    def near(ds, block):
        assert block.sizes == {"time": 5, "y": 1, "x": 2}
        return celsius(ds)

    done = mapped(source, near, tmp_path / "to", blocks=blocks, overlap={"time": 1}, **picked)
    assert done.computed == 6
    whole = opened(source.path).sel(time=slice("2024-01-03", "2024-01-07"))
    xr.testing.assert_equal(
        opened(tmp_path / "to"), celsius(whole.isel(x=slice(1, 3), y=slice(2, 3)))
    )
    for picked, text in [
        ({"isel": {"time": slice(0, 8, 2)}}, "4 elements with gaps"),
        ({"isel": {"x": [0, 2]}}, "gaps"),
        ({"sel": "time=2030"}, "2030"),
        ({"isel": {"x": slice(2, 2)}}, "nothing"),
        ({"isel": {"z": 1}}, "'z'"),
        ({"isel": {"x": slice(0, 2)}, "periodic": ["x"], "overlap": {"x": 1}}, "a part"),
    ]:
        with pytest.raises(InvalidInputError, match=text):
            mapped(source, celsius, tmp_path / "other", **picked)


def test_a_part_that_grows_within_its_source_is_followed(source, tmp_path):
    to, how = tmp_path / "to", {"blocks": {"time": 1}, "follow": True}
    assert mapped(source, celsius, to, isel={"time": slice(0, -3)}, **how).computed == 7
    source.append(days(10, 2))  # the part grows by two old elements
    done = mapped(source, celsius, to, isel={"time": slice(0, -3)}, **how)
    assert (done.computed, done.full_run) == (2, None)
    xr.testing.assert_equal(opened(to), celsius(opened(source.path).isel(time=slice(0, -3))))
    source.put("t2m", 11, 5.0)  # outside of the part
    assert mapped(source, celsius, to, isel={"time": slice(0, -3)}, **how).computed == 0
    source.append(days(12, 1))
    done = mapped(source, celsius, to, isel={"time": slice(2, -3)}, **how)
    assert "origin was" in done.full_run or "isel was" in done.full_run
    xr.testing.assert_equal(opened(to), celsius(opened(source.path).isel(time=slice(2, -3))))


def test_times_without_encoding_have_the_units_of_the_first_block(source, tmp_path):
    months = xr.date_range("1860-06-01", periods=10, freq="YS", calendar="360_day", use_cftime=True)

    def dated(ds, block):
        own = months[block.start["time"] : block.stop["time"]]
        return ds[["t2m"]].assign(month=("time", own)).drop_encoding()

    to = tmp_path / "to"
    assert mapped(source, dated, to, blocks={"time": 3}).computed == 4
    assert list(opened(to)["month"].values) == list(months)


def test_errors_name_lines_of_the_user_and_keys_of_encoding(source, tmp_path):
    def inner(ds):
        return ds["nothing"]

    def outer(ds):
        return inner(ds)

    with pytest.raises(InvalidInputError, match=r"named 'nothing'.* in \S*outer > .* in \S*inner"):
        mapped(source, outer, tmp_path / "to")
    with raises(InvalidInputError, option="encoding", found="dtyp"):
        mapped(source, outer, tmp_path / "to", encoding={"t2m": {"dtyp": "i2"}})
