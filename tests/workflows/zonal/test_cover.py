"""The cells that polygons cover, beside the areas that shapely finds."""

import numpy as np
import pytest
import shapely
from helpers.grids.zonal_results import fractions_of, star
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.workflows.zonal import cover as cover_module
from icechunk_format.workflows.zonal.axes import cell_axis
from icechunk_format.workflows.zonal.cover import cover_cells

EVEN = cell_axis("lat", np.arange(20.0, 0.0, -2.0)), cell_axis("lon", np.arange(0.0, 30.0, 2.5))
UNEVEN = (
    cell_axis("lat", np.array([21.0, 17, 16.5, 11, 6, 2, 1.5])),
    cell_axis("lon", np.array([0.0, 1, 3, 8, 9, 14.5, 20, 28])),
)
POLES = (
    cell_axis("lat", np.linspace(-90, 90, 10), ends_at_poles=True),
    cell_axis("lon", np.arange(0.0, 360.0, 30.0)),
)


def dense(geometries, y, x, coverage="fraction"):
    found = np.zeros((len(geometries), y.size, x.size))
    for cover in cover_cells(np.array(geometries, dtype=object), y, x, coverage):
        at = (cover.zones, cover.rows, cover.columns)
        assert not found[at].any(), "a pair came twice"
        assert (cover.fractions > 0).all()
        found[at] = cover.fractions
    return found


def drawn(seed):
    random = np.random.default_rng(seed)
    some = [
        star(random, random.uniform(-5, 35), random.uniform(-5, 25), random.uniform(0.01, 12))
        for _ in range(4)
    ]
    return [*some, shapely.union(some[0], shapely.box(3, 3, 3.5, 3.25))]


@given(seed=st.integers(0, 10_000), axes=st.sampled_from([EVEN, UNEVEN]))
@settings(max_examples=25)
def test_fractions_are_areas_of_intersections(seed, axes):
    y, x = axes
    polygons = drawn(seed)
    found = dense(polygons, y, x)
    for polygon, fractions in zip(polygons, found, strict=True):
        assert np.allclose(fractions, fractions_of(polygon, y.edges, x.edges), atol=3e-7)


@given(seed=st.integers(0, 10_000), axes=st.sampled_from([EVEN, UNEVEN]))
@settings(max_examples=15)
def test_centers_and_touched_cells_are_those_of_shapely(seed, axes):
    y, x = axes
    polygons = drawn(seed)
    for polygon, inside, touched in zip(
        polygons, dense(polygons, y, x, "center"), dense(polygons, y, x, "touched"), strict=True
    ):
        labels = shapely.contains_xy(polygon, *np.meshgrid(x.labels, y.labels))
        assert (inside == labels).all()
        areas = fractions_of(polygon, y.edges, x.edges)
        assert (touched == (areas > 0))[(areas == 0) | (areas > 1e-7)].all()


def test_cells_cut_at_the_poles_are_covered_whole():
    found = dense([shapely.box(-15, -90, 345, 90), shapely.box(0, 85, 30, 90)], *POLES)
    assert np.allclose(found[0], 1)
    assert np.allclose(found[1, -1, :2], 0.25)


def test_cells_that_only_share_an_edge_are_not_touched():
    # A tenth has no exact binary value, so edges that ought to be equal differ by a rounding.
    y = x = cell_axis("a", np.arange(1, 10) / 10)
    touched = dense([shapely.box(0.15, 0.25, 0.35, 0.75)], y, x, "touched")
    assert touched.sum() == 2 * 5


def test_a_center_on_a_common_border_lies_in_one_polygon():
    y = x = cell_axis("a", np.arange(0.0, 5.0))
    parts = [shapely.box(0, 0, 2, 4), shapely.box(2, 0, 4, 4)]
    assert (dense(parts, y, x, "center").sum(axis=0)[:4, :4] == 1).all()


def test_centers_on_a_pole_lie_in_polygons_that_reach_it():
    north, south = shapely.box(-15, 60, 32, 90), shapely.box(-15, -90, 32, -60)
    of_north, of_south = dense([north, south], *POLES, "center")
    assert of_north[-1].tolist() == of_south[0].tolist() == [1, 1] + [0] * 10


def test_slivers_count_by_their_share():
    y, x = EVEN
    found = dense([shapely.box(5.1, 5.1, 5.1001, 5.1001)], y, x)
    assert np.count_nonzero(found) == 1
    assert found.sum() == pytest.approx(1e-8 / 5, rel=1e-5)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=50)
def test_polygons_that_touch_the_edge_of_the_grid_are_covered(seed):
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(20):
        x, y = random.choice([-1.25, 28.75, 3.75]), random.choice([1.0, 21.0, 10.0])
        width, height = random.uniform(0.1, 5, 2)
        west, south = x - width * random.choice([0, 1]), y - height * random.choice([0, 0.5, 1])
        parts.append(shapely.box(west, south, west + width, south + height))
    y, x = EVEN
    polygons = [shapely.union_all(parts[n : n + 5]) for n in range(0, len(parts), 5)]
    for polygon, fractions in zip(polygons, dense(polygons, y, x), strict=True):
        assert np.allclose(fractions, fractions_of(polygon, y.edges, x.edges), atol=3e-7)


@pytest.mark.parametrize("most", [1, 7, 40])
def test_polygons_larger_than_the_bound_are_covered_in_windows(monkeypatch, most):
    polygons = [*drawn(5), shapely.box(-50, -50, 50, 50), shapely.box(100, 0, 101, 1)]
    whole = dense(polygons, *EVEN)
    assert whole[-2].all()
    assert not whole[-1].any()
    monkeypatch.setattr(cover_module, "_MOST_CELLS", most)
    assert np.allclose(dense(polygons, *EVEN), whole, atol=3e-7)
