"""Stored forms of values and labels: missing chunks, packed integers, calendars, and counts."""

import numpy as np
import pytest
import xarray as xr
from helpers.blocks import opened
from helpers.raised import raises
from helpers.reducing import reduced
from helpers.reference.xarray_datasets import store_dataset

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.storage.measures import measured
from icechunk_format.workflows.reducing import plan, reduce

pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]


def example(times=40, y=4, x=6, dtype="float32"):
    values = np.random.default_rng(0).integers(0, 50, (times, y, x)).astype(dtype)
    time = np.datetime64("2000-01-20", "ns") + np.arange(times) * np.timedelta64(1, "D")
    return xr.Dataset({"t": (("time", "y", "x"), values)}, coords={"time": time})


@pytest.mark.parametrize("cores", [None, 2])
def test_missing_chunks_and_packed_integers(tmp_path, cores):
    source = example()
    source["t"][10:20] = np.nan
    packed = {
        "dtype": "int16", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -1,
        "chunks": (5, 2, 6),
    }  # fmt: skip
    for name, encoding in {"floats": {"chunks": (5, 2, 6)}, "packed": packed}.items():
        path = store_dataset(source, tmp_path / name, {"t": encoding})
        before = measured().chunks_decoded
        found = reduced(path, {"t": ["mean", "count"]}, "time", by="time.month", cores=cores)
        decoded = measured().chunks_decoded - before
        groups = opened(path)["t"].groupby("time.month")
        np.testing.assert_allclose(found["t_mean"], groups.mean(), rtol=1e-6)
        assert found["t_mean"].dtype == groups.mean().dtype
        np.testing.assert_array_equal(found["t_count"], groups.count())
        assert "scale_factor" not in found["t_mean"].attrs
        # With one chunk of labels, which are decoded to find the groups.
        assert decoded == 1 + (12 if name == "floats" else 16)


@pytest.mark.parametrize("by", ["time.month", "time.season", "MS", "10D", None])
@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_calendars(tmp_path, calendar, by):
    time = xr.date_range("2000-01-20", periods=40, calendar=calendar, use_cftime=True)
    path = store_dataset(
        example().assign_coords(time=time), tmp_path / "r", {"t": {"chunks": (7, 4, 6)}}
    )
    source = opened(path)["t"]
    statistic = "idxmax" if by is None else "mean"
    found = reduced(path, {"t": statistic}, "time", by=by)["t"]
    if by is None:
        expected = source.idxmax("time")
    elif "." in by:
        expected = source.groupby(by).mean()
    else:
        expected = source.resample(time=by).mean()
    assert found.dims == expected.dims
    for dim in expected.coords:
        assert found[dim].values.tolist() == expected[dim].values.tolist()
    if by is None:
        assert (found.values == expected.values).all()
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_variables_of_times(tmp_path):
    source = example()
    seen = source["time"] + (source["t"] * 1e9).astype("timedelta64[ns]")
    path = store_dataset(source.assign(seen=seen.dt.floor("s")), tmp_path / "r")
    found = reduced(path, {"seen": ["min", "max", "count"]}, "time")
    values = opened(path)["seen"]
    assert (found["seen_min"].values == values.min("time").values).all()
    assert (found["seen_max"].values == values.max("time").values).all()
    with raises(InvalidInputError, variable="seen"):
        reduced(path, {"seen": "sum"}, "time")


@pytest.mark.parametrize("memory", [3000, 2**29])
@pytest.mark.parametrize("by", [None, "time.month", "time.dayofyear"])
@pytest.mark.parametrize("chunks", [(1, 4, 6), (7, 2, 6), (40, 1, 1)])
def test_each_chunk_is_decoded_once_with_a_shuffle(tmp_path, monkeypatch, chunks, by, memory):
    monkeypatch.setattr(plan, "_LEAST_TASK_BYTES", 1)
    path = store_dataset(example(), tmp_path / "r", {"t": {"chunks": chunks}})
    before = measured().chunks_decoded
    found = reduced(path, {"t": ["mean", "std"]}, "time", by=by, cores=2, memory=memory)
    count = np.prod([-(-n // c) for n, c in zip((40, 4, 6), chunks, strict=True)])
    # With one chunk of labels, if they make groups.
    assert measured().chunks_decoded - before == count + (by is not None)
    source = opened(path)["t"]
    expected = source.std("time") if by is None else source.groupby(by).std()
    np.testing.assert_allclose(found["t_std"], expected, rtol=1e-5)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("cores", [None, 2])
def test_one_number_is_stored(tmp_path, cores, follow):
    path = store_dataset(example(), tmp_path / "r", {"t": {"chunks": (7, 3, 4)}})
    wanted, over = {"t": ["mean", "count", "median"]}, ("time", "y", "x")
    found = reduced(path, wanted, over)
    reduced(path, wanted, over, to=tmp_path / "to", cores=cores, follow=follow)
    xr.testing.assert_equal(opened(tmp_path / "to"), found)
    assert found["t_count"] == 40 * 4 * 6


def test_selections_and_a_plan(tmp_path):
    path = store_dataset(example(), tmp_path / "r", {"t": {"chunks": (7, 3, 4)}})
    chosen = {"isel": {"time": slice(3, 33), "x": slice(1, 6)}}
    for cores in (None, 2):
        found = reduced(path, {"t": "mean"}, "time", by=6, cores=cores, **chosen)
        expected = opened(path).isel(chosen["isel"])["t"].coarsen(time=6).mean()
        np.testing.assert_allclose(found["t"], expected)
        assert (found["time"].values == expected["time"].values).all()
    to = tmp_path / "to"
    planned = reduced(path, "mean", "time", to=to, dry_run=True)
    assert planned.layout.splitlines()[0] == "Dimensions: (y: 4, x: 6)"
    assert planned.decoded_bytes == 40 * 4 * 6 * 4
    assert Repository.find(str(to)) is None


def test_what_cannot_be_reduced_is_named(tmp_path, monkeypatch):
    path = store_dataset(example(), tmp_path / "r", {"t": {"chunks": (7, 3, 4)}})
    for given, facts in [
        (({"t": "avg"}, "time"), {"option": "statistics"}),
        (({"u": "mean"}, "time"), {}),
        (({"t": "mean"}, "level"), {"option": "over"}),
        (({"t": "first"}, ("x", "y")), {"option": "statistics"}),
        (({"t": "idxmin"}, "x"), {"option": "statistics"}),
    ]:
        with raises(Exception, **facts):
            reduced(path, *given)
    with raises(InvalidInputError, option="over") as error:
        reduced(path, "mean", "tim")
    assert "did you mean 'time'" in str(error.value)
    with raises(InvalidInputError, option="statistics") as error:
        reduced(path, "avg", "time")
    assert "did you mean 'mean'" in str(error.value)
    for by in ("time.moon", "moon", 7, {"time": [1]}, {"x": 2}, {"time": 2, "x": 2}):
        with raises(InvalidInputError, option="by"):
            reduced(path, {"t": "mean"}, "time", by=by)
    with raises(InvalidInputError, option="memory"):
        reduced(path, {"t": "median"}, "time", memory=1000)
    monkeypatch.setattr(reduce, "MOST_RESULT_BYTES", 10)
    with raises(InvalidInputError, option="to"):
        reduced(path, {"t": "mean"}, "time")
