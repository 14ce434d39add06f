"""Quantiles of zones: beside exactextract and NumPy, however chunks, steps and parts are cut."""

import exactextract
import numpy as np
import pytest
import shapely
from exactextract.raster import NumPyRasterSource
from helpers.grids.synthetic_datasets import ArrayToWrite
from helpers.grids.zonal_results import grid_of, star, zonal
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.workflows.zonal import quantiles, summing
from icechunk_format.workflows.zonal.quantiles import column_suffix, quantile_of, weighted_quantiles
from icechunk_format.workflows.zonal.statistics import check_statistics

LAT, LON = np.arange(60.0, 40.0, -2.0), np.arange(0.0, 36.0, 3.0)
EXTENT = (-1.5, 41.0, 34.5, 61.0)
ASKED = ("median", "quantile(q=0.9)", "quantile(q=0)", "quantile(q=1)", "quantile(q=0.07)")
WHOLE = shapely.box(-90, 0, 90, 80)


def drawn(seed=0, steps=5):
    random = np.random.default_rng(seed)
    values = random.normal(280, 9, (steps, len(LAT), len(LON)))
    values[random.random(values.shape) < 0.2] = np.nan
    return values


def by_exactextract(values, polygons):
    """Return the quantiles of one step, a list for each polygon; None where it has no cell."""
    raster = NumPyRasterSource(values, *EXTENT, nodata=np.nan)
    features = [
        {"type": "Feature", "properties": {}, "geometry": shapely.geometry.mapping(p)}
        for p in polygons
    ]
    found = exactextract.exact_extract(raster, features, list(ASKED))
    rows = [[f["properties"][column_suffix(name)] for name in ASKED] for f in found]
    return [[None if value is None or np.isnan(value) else value for value in row] for row in rows]


def of_step(rows, step, asked=ASKED):
    return [
        [row[f"t_{column_suffix(name)}"] for name in asked] for row in rows if row["time"] == step
    ]


def assert_equal(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        if None in theirs:
            assert ours == theirs
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@given(
    seed=st.integers(0, 10_000),
    chunks=st.tuples(st.integers(1, 5), st.integers(1, 10), st.integers(1, 12)),
    cores=st.sampled_from([1, 1 << 30]),
    at_once=st.sampled_from([1, 300, 1 << 20]),
)
@settings(max_examples=15)
def test_any_chunks_and_parts_give_what_exactextract_gives(seed, chunks, cores, at_once):
    values = drawn(seed)
    values[2] = np.nan
    random = np.random.default_rng(seed)
    polygons = [star(random, random.uniform(0, 33), random.uniform(43, 59), 5) for _ in range(3)]
    polygons += [WHOLE, shapely.box(100, 0, 101, 1)]
    dataset = grid_of(values, LAT, LON, chunks=chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_SORTED_TOGETHER", at_once)
        # Room for two steps of the grid, or for all of them.
        patch.setattr(quantiles, "MOST_VALUES", max(at_once, 2 * len(LAT) * len(LON)))
        patch.setattr(summing, "_MOST_PARTS_BYTES", 500)
        rows = zonal(dataset, polygons, statistics=ASKED, batches=2, cores=cores)
    for step in range(len(values)):
        assert_equal(of_step(rows, step), by_exactextract(values[step], polygons))


def test_quantiles_stand_beside_other_statistics_and_variables():
    values = drawn(1)
    other = ArrayToWrite(
        values=drawn(2, steps=1)[0].T, chunks=(5, 4), dims=("lon", "lat"), fill_value=float("nan")
    )
    dataset = grid_of(values, LAT, LON, chunks=(2, 4, 5), other=other)
    asked = {"statistics": ("mean", "median", "max"), "variables": ["t", "other"]}
    rows = zonal(dataset, [WHOLE], **asked)
    for row, step in zip(rows, values, strict=True):
        assert np.isclose(row["t_median"], np.nanmedian(step))
        assert np.isclose(row["t_mean"], np.nanmean(step))
        assert np.isclose(row["t_max"], np.nanmax(step))
        assert np.isclose(row["other_median"], np.nanmedian(other.values))


def test_weights_multiply_the_covered_part():
    values = drawn(3, steps=1)[0]
    mask = np.where(np.arange(len(LON)) < 6, 0.0, 2.0)[None, :].repeat(len(LAT), axis=0)
    dataset = grid_of(
        values,
        LAT,
        LON,
        chunks=(4, 5),
        mask=ArrayToWrite(values=mask, chunks=mask.shape, dims=("lat", "lon")),
    )
    [row] = zonal(dataset, [WHOLE], statistics=("median",), variables=["t"], weights="mask")
    assert np.isclose(row["t_median"], np.nanmedian(values[:, 6:]))


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4)), min_size=1, max_size=12),
    st.floats(0, 1),
    st.randoms(use_true_random=False),
)
def test_the_order_of_cells_does_not_matter(cells, share, random):
    shuffled = list(cells)
    random.shuffle(shuffled)
    values, weights = np.array(cells, dtype=float).T
    others, their_weights = np.array(shuffled, dtype=float).T
    [[one]] = weighted_quantiles(values[None], weights, [share])
    [[two]] = weighted_quantiles(others[None], their_weights, [share])
    assert one == two
    assert values.min() <= one <= values.max()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.floats(0, 1))
def test_equal_weights_give_the_quantiles_of_numpy(values, share):
    [[found]] = weighted_quantiles(np.array([values]), np.full(len(values), 0.3), [share])
    assert np.isclose(found, np.quantile(values, share), rtol=1e-9, atol=1e-6)


def test_values_that_are_missing_or_infinite():
    values = np.array([[np.nan, np.nan, np.nan], [np.nan, 3.0, np.nan], [1.0, np.inf, 2.0]])
    found = weighted_quantiles(values, np.ones(3), [0.0, 0.5, 1.0])
    np.testing.assert_array_equal(found, [[np.nan] * 3, [3.0] * 3, [1.0, 2.0, np.inf]])


def test_a_zone_with_too_many_cells_is_named(monkeypatch):
    dataset = grid_of(drawn(), LAT, LON, chunks=(2, 4, 5))
    monkeypatch.setattr(quantiles, "MOST_VALUES", 90)
    small = shapely.box(0, 41, 12, 61)
    assert zonal(dataset, [small], statistics=("median",), cores=1 << 30)
    with raises(
        UnsupportedError,
        match=r"zone Chad has more than 90 values at one step",
        option="statistics",
    ):
        zonal(dataset, [WHOLE], statistics=("median",), names=["Chad"])


def test_names_of_statistics_and_columns():
    assert quantile_of("median") == 0.5
    assert quantile_of("quantile( q = .9 )") == 0.9
    for wrong in (
        "quantile",
        "quantile(0.9)",
        "quantile(q=1.1)",
        "quantile(q=-0.1)",
        "q90",
        "mean",
    ):
        assert quantile_of(wrong) is None
    names = ("median", "quantile(q=0.29)", "quantile(q=0.005)", "quantile(q=1)")
    shown = ["median", "quantile_29", "quantile_0_5", "quantile_100"]
    check_statistics(names)
    assert [column_suffix(name) for name in names] == shown
    with raises(
        InvalidInputError,
        match=r"median, or quantile\(q=0.9\) with q from 0 to 1",
        option="statistics",
    ):
        check_statistics(["quantile(q=90)"])
    with raises(InvalidInputError, match="each once", option="statistics"):
        check_statistics(["quantile(q=0.9)", "quantile(q=0.90)"])
