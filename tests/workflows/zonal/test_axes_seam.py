"""Zones across the seam of longitudes, on grids of every turn, beside what shapely finds."""

import numpy as np
import pytest
import shapely
from helpers.grids.zonal_results import ALL, assert_alike, expected, fractions_of, grid_of, zonal
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icechunk_format.workflows.zonal.axes import cell_axis

LAT, LAT_EDGES = np.arange(-75.0, 90.0, 30.0), np.arange(-90.0, 91.0, 30.0)
LON = {
    "0..360": np.arange(0.0, 360.0, 24.0),
    "-180..180": np.arange(-180.0, 180.0, 24.0),
    "edge at 180": np.arange(-168.0, 180.0, 24.0),
    "0..360 cyclic": np.linspace(0.0, 360.0, 16),
    "180..-180 cyclic": np.linspace(180.0, -180.0, 16),
    "float32 cyclic": np.linspace(-180.0, 180.0, 16, dtype="f4") + np.float32(0.1),
    "uneven": np.array([0.0, 10, 30, 60, 100, 140, 180, 220, 260, 300, 330, 341]),
}


def edges_of(labels):
    """Return the edges of cells, of which the last joins the first a turn on."""
    labels = np.float64(labels)
    if abs(labels[-1] - labels[0]) > 359.99:
        labels = labels[:-1]
    turn = np.copysign(360.0, labels[-1] - labels[0])
    seam = (labels[0] + labels[-1] - turn) / 2
    return np.concatenate([[seam], (labels[1:] + labels[:-1]) / 2, [seam + turn]])


def zones_of(random):
    """Return zones of several boxes, some on both sides of the seam and some on two turns."""
    for _ in range(4):
        parts = []
        for _ in range(random.integers(1, 5)):
            x = random.choice([-180, 0, 180, 360, random.uniform(-360, 360)])
            y = random.uniform(-80, 80)
            width, height = random.uniform(0.5, 100), random.uniform(0.5, 60)
            west = x - width * random.choice([0, 0.5, 1])
            low, high = max(-90, y - height / 2), min(90, y + height / 2)
            parts.append(shapely.box(west, low, west + width, high))
        yield shapely.union_all(parts)


def covered(zone, labels, coverage):
    """Return the covered fraction of each cell, and 0 for a column that repeats the first."""
    around = shapely.union_all(
        [
            shapely.transform(zone, lambda xy, k=k: xy + np.array([360.0 * k, 0]))
            for k in range(-3, 4)
        ]
    )
    edges = edges_of(labels)
    found = fractions_of(around, LAT_EDGES, edges)
    found = np.where(found > 1e-9, found, 0.0)
    if coverage == "touched":
        found = (found > 0).astype("f8")
    if coverage == "center":
        found = shapely.contains_xy(
            around, *np.meshgrid(labels[: len(edges) - 1] + 1e-8, LAT + 1e-8)
        ).astype("f8")
    return np.pad(found, ((0, 0), (0, len(labels) - found.shape[1])))


@given(
    seed=st.integers(0, 10_000),
    grid=st.sampled_from(list(LON)),
    coverage=st.sampled_from(["fraction", "center", "touched"]),
)
@example(seed=0, grid="-180..180", coverage="touched")
@example(seed=0, grid="0..360 cyclic", coverage="fraction")
@settings(max_examples=25)
def test_zones_across_the_seam_are_those_of_shapely(seed, grid, coverage):
    random = np.random.default_rng(seed)
    labels = LON[grid]
    values = random.normal(280, 9, (len(LAT), len(labels)))
    zones = list(zones_of(random))
    dataset = grid_of(values, LAT, labels, chunks=(4, 7))
    names = (*ALL, "median")
    rows = zonal(dataset, zones, coverage=coverage, antimeridian="keep", statistics=names)
    fractions = [covered(zone, labels, coverage) for zone in zones]
    wanted = [expected(values, found) for found in fractions]
    assert_alike([{name: row[f"t_{name}"] for name in ALL} for row in rows], wanted, 1e-5)
    if coverage != "fraction":
        medians = [
            np.quantile(values[found > 0], 0.5) if found.any() else None for found in fractions
        ]
        assert [row["t_median"] for row in rows] == pytest.approx(medians)


@pytest.mark.parametrize("grid", LON)
@pytest.mark.parametrize("x", [-180.0, -90.0, 0.0])
def test_the_earth_has_its_area_on_every_grid(grid, x):
    labels = LON[grid]
    dataset = grid_of(np.ones((len(LAT), len(labels))), LAT, labels, chunks=(6, 5))
    [row] = zonal(dataset, [shapely.box(x, -90, x + 360, 90)], statistics=("sum",), weights="area")
    assert row["t_sum"] == pytest.approx(4 * np.pi * 6_371_008.8**2)


@pytest.mark.parametrize(("chosen", "value"), [([0, 5], 0.0), ([5, 15], 15.0), ([0, 15], 0.0)])
def test_the_selected_column_of_the_two_counts(chosen, value):
    labels = LON["0..360 cyclic"]
    values = np.broadcast_to(np.arange(16.0), (len(LAT), 16))
    dataset = grid_of(values, LAT, labels, chunks=(6, 5))
    box = shapely.box(-1, 0, 1, 30)
    [row] = zonal(dataset, [box], statistics=("max",), isel={"lon": chosen})
    assert row["t_max"] == value


def test_bounds_that_go_round_once_repeat_no_column():
    labels = np.linspace(0.0, 360.0, 5)
    bounds = np.array([[0, 45], [45, 135], [135, 225], [225, 315], [315, 360]])
    axis = cell_axis("lon", labels, bounds=bounds, period=360.0)
    assert axis.edges.tolist() == [0, 45, 135, 225, 315, 360]
