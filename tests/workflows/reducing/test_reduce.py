"""Reductions equal those of xarray, whatever the chunks, in one process and by shuffled pieces."""

import numpy as np
import pytest
import xarray as xr
from helpers.blocks import opened
from helpers.examples import by_day
from helpers.raised import raises
from helpers.reducing import reduced
from helpers.reference.xarray_datasets import store_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError

pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]

STATISTICS = ["count", "sum", "mean", "min", "max", "std", "var", "prod", "any", "all"]


def example(times=40, y=5, x=6, dtype="float32", *, missing=True, start="2000-01-20", seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(1, 0.2, (times, y, x))
    if np.dtype(dtype).kind in "iu":
        values = rng.integers(0, 5, values.shape)
    values = values.astype(dtype)
    if missing and values.dtype.kind == "f":
        values[rng.random(values.shape) < 0.2] = np.nan
        values[:, 0, 0] = np.nan
    time = np.datetime64(start, "ns") + np.arange(times) * np.timedelta64(1, "D")
    return xr.Dataset(
        {"t": (("time", "y", "x"), values, {"units": "K"})},
        coords={
            "time": time,
            "y": np.arange(y) * 1.5,
            "x": np.arange(x) * 2,
            "region": ("y", ["a", "b", "a", "c", "b"][:y]),
            "height": ((), 2.0),
        },
        attrs={"title": "An example"},
    )


def stored(tmp_path, dataset, chunks=(7, 2, 6)):
    return store_dataset(dataset, tmp_path / "source", {"t": {"chunks": chunks}})


def compare(found, expected):
    """Compare values, types, names, coordinates and attributes with those of xarray."""
    assert set(found.data_vars) == set(expected.data_vars)
    for name in expected.data_vars:
        # A dataset of xarray has its groups first, an array where the dimension was, as here.
        assert set(found[name].dims) == set(expected[name].dims), name
        assert found[name].dtype == expected[name].dtype, name
        assert found[name].attrs == expected[name].attrs, name
    for name in expected.data_vars:
        expected[name] = expected[name].transpose(*found[name].dims)
    xr.testing.assert_allclose(found, expected, rtol=2e-6)


def by_name(dataset, statistics, reduce):
    """Return each statistic of the variable t with the name that it gets in a list."""
    return xr.merge(
        [reduce(dataset, s).rename(t=f"t_{s}") for s in statistics], combine_attrs="override"
    )


@pytest.mark.parametrize("cores", [None, 2])
@pytest.mark.parametrize("over", ["time", "y", ("y", "x"), ("time", "y", "x")])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_statistics_are_those_of_xarray(tmp_path, over, dtype, cores):
    path = stored(tmp_path, example(dtype=dtype))
    source = opened(path)
    expected = by_name(source, STATISTICS, lambda ds, s: getattr(ds, s)(over))
    found = reduced(path, {"t": STATISTICS}, over, cores=cores)
    compare(found, expected)
    for name in ("t_count", "t_min", "t_max", "t_any", "t_all"):
        assert found[name].equals(expected[name])


GROUPS = [
    ("time.month", lambda ds: ds.groupby("time.month")),
    ("time.season", lambda ds: ds.groupby("time.season")),
    ("time.dayofyear", lambda ds: ds.groupby("time.dayofyear")),
    ("time.year", lambda ds: ds.groupby("time.year")),
    ("MS", lambda ds: ds.resample(time="MS")),
    ("5D", lambda ds: ds.resample(time="5D")),
    (8, lambda ds: ds.coarsen(time=8)),
    ({"time": 4}, lambda ds: ds.coarsen(time=4)),
]


@pytest.mark.parametrize("cores", [None, 2])
@pytest.mark.parametrize("chunks", [(1, 5, 6), (7, 2, 6), (40, 1, 1)])
@pytest.mark.parametrize(("by", "grouped"), GROUPS, ids=[str(by) for by, _ in GROUPS])
def test_groups_are_those_of_xarray(tmp_path, by, grouped, chunks, cores):
    path = stored(tmp_path, example(), chunks)
    statistics = ["count", "sum", "mean", "min", "max", "std"]
    source = opened(path)
    expected = by_name(source, statistics, lambda ds, s: getattr(grouped(ds), s)())
    compare(reduced(path, {"t": statistics}, "time", by=by, cores=cores), expected)


@pytest.mark.parametrize("cores", [None, 2])
def test_groups_by_coordinate_and_bins(tmp_path, cores):
    path = stored(tmp_path, example())
    source = opened(path)
    found = reduced(path, {"t": "mean"}, "y", by="region", cores=cores)
    compare(found, source.groupby("region").mean())
    found = reduced(path, {"t": "max"}, ("y", "time"), by={"y": [0, 2, 5, 100]}, cores=cores)
    expected = source.groupby_bins("y", [0, 2, 5, 100]).max(("y", "time"))
    np.testing.assert_array_equal(found["t"], expected["t"])
    assert found["t"].dims == expected["t"].dims
    assert found["y_bins"].values.tolist() == [1.0, 3.5, 52.5]
    assert found["y_bins_bounds"].values.tolist() == [[0, 2], [2, 5], [5, 100]]


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        ("month", "did you mean 'time.month'"),
        ({"time": "Season"}, "did you mean 'time.season'"),
        ("M", "neither a coordinate nor a frequency"),
        ("0D", "neither a coordinate nor a frequency"),
        ({"time": ["a", "b"]}, "not datetime64"),
        ({"time": ["2001-01-01", "2000-01-01"]}, "do not increase"),
        ({"time": ["1990-01-01", "1991-01-01"]}, "hold no label of 'time', from '2000-01-20"),
    ],
)
def test_unknown_groups_are_explained_in_own_words(tmp_path, by, problem):
    path = stored(tmp_path, example())
    with raises(InvalidInputError, option="by") as caught:
        reduced(path, {"t": "mean"}, "time", by=by)
    assert problem in str(caught.value)
    assert "frequency such as '1D' or 'MS'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Error" not in str(caught.value)


@pytest.mark.parametrize("cores", [None, 2])
def test_ends_and_labels_of_extremes(tmp_path, cores):
    path = stored(tmp_path, example())
    source = opened(path)
    found = reduced(path, {"t": ["idxmin", "idxmax"]}, "time", cores=cores)
    expected = by_name(source, ["idxmin", "idxmax"], lambda ds, s: getattr(ds, s)("time"))
    xr.testing.assert_equal(found, expected)
    found = reduced(path, {"t": ["idxmin"]}, "x", cores=cores)["t_idxmin"]
    xr.testing.assert_equal(found, source["t"].idxmin("x").rename("t_idxmin"))
    whole = store_dataset(example(missing=False), tmp_path / "whole", {"t": {"chunks": (7, 2, 6)}})
    found = reduced(whole, {"t": ["argmin", "argmax"]}, "time", cores=cores)
    xr.testing.assert_equal(found["t_argmax"], opened(whole)["t"].argmax("time").rename("t_argmax"))
    ends = reduced(path, {"t": ["first", "last"]}, "time", by="time.month", cores=cores)
    for name in ("first", "last"):
        expected = getattr(source.groupby("time.month"), name)()["t"]
        xr.testing.assert_equal(ends[f"t_{name}"], expected.rename(f"t_{name}"))


@pytest.mark.parametrize("cores", [None, 2])
def test_quantiles(tmp_path, cores):
    path = stored(tmp_path, example(), (40, 1, 6))
    source = opened(path)
    found = reduced(path, {"t": ["median", "quantile(q=0.9)"]}, "time", cores=cores)
    np.testing.assert_allclose(found["t_median"], source["t"].median("time"))
    expected = source["t"].quantile(0.9, "time")
    np.testing.assert_allclose(found["t_quantile_90"], expected)
    assert found["t_quantile_90"].dtype == expected.dtype
    assert found["t_median"].dtype == np.float32
    found = reduced(path, {"t": "median"}, "time", by="time.month", cores=cores)
    compare(found, source.groupby("time.month").median())


@settings(max_examples=by_day(25), deadline=None)
@given(data=st.data())
def test_any_chunks_groups_and_memory(tmp_path_factory, data):
    draw = data.draw
    shape = [draw(st.integers(1, 30)), draw(st.integers(1, 5)), draw(st.integers(1, 4))]
    chunks = [draw(st.integers(1, size)) for size in shape]
    dtype = draw(st.sampled_from(["float32", "float64", "int32"]))
    source = example(*shape, dtype=dtype, seed=draw(st.integers(0, 99)))
    path = stored(tmp_path_factory.mktemp("any"), source, chunks)
    by, grouped = draw(st.sampled_from([(None, lambda ds: ds), *GROUPS[:6]]))
    others = draw(st.sampled_from([(), ("x",), ("y", "x")]))
    cores = draw(st.sampled_from([None, 1, 3]))
    memory = draw(st.sampled_from([2000, 10_000, 2**29]))
    statistics = draw(st.lists(st.sampled_from(STATISTICS), unique=True, min_size=1))
    if by is not None:
        statistics = [one for one in statistics if one not in ("any", "all")] or ["mean"]
    over = ("time", *others)
    skipna = draw(st.sampled_from([None, False]))
    given = {} if skipna is None else {"skipna": skipna}

    def reduce(ds, statistic):
        options = {} if statistic in ("count", "any", "all") else given
        return getattr(grouped(ds), statistic)(over, **options)

    expected = by_name(opened(path), statistics, reduce)
    found = reduced(path, {"t": statistics}, over, by=by, cores=cores, memory=memory, skipna=skipna)
    compare(found, expected)
