"""Regions are covered exactly once by any extents, and never at quadratic cost."""

import numpy as np
from helpers.effort import counted_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.grid import cover as regions


@st.composite
def regions_and_extents(draw):
    ndim = draw(st.integers(1, 4))
    sizes = [draw(st.integers(1, 9)) for _ in range(ndim)]
    region = np.array([[0, s] for s in sizes], dtype=np.int64)
    boxes = []
    for _ in range(draw(st.integers(0, 6))):
        box = []
        for size in sizes:
            low = draw(st.integers(-1, size))
            box.append((low, low + draw(st.integers(0, size + 1))))
        boxes.append(box)
    return region, np.array(boxes, dtype=np.int64).reshape(len(boxes), ndim, 2)


def count_cells(region, boxes):
    counts = np.zeros([hi for _, hi in region.tolist()], dtype=int)
    for box in boxes:
        counts[tuple(slice(lo, hi) for lo, hi in box.tolist())] += 1
    return counts


@settings(deadline=None, max_examples=300)
@given(regions_and_extents())
def test_every_cell_is_covered_exactly_once_even_where_extents_overlap(case):
    region, extents = case
    boxes, covered = regions.cover(region, extents)
    assert (count_cells(region, boxes) == 1).all()
    inside, _ = regions.clip(extents, region)
    expected = count_cells(region, inside) > 0
    np.testing.assert_array_equal(count_cells(region, boxes[covered]) == 1, expected)


def test_halving_gives_the_same_cover_as_painting_at_once(monkeypatch):
    rng = np.random.default_rng(3)
    region = np.array([[0, 40], [0, 40], [0, 40]], dtype=np.int64)
    starts = rng.integers(0, 39, size=(30, 3))
    extents = np.stack([starts, starts + rng.integers(1, 12, size=(30, 3))], axis=-1)
    monkeypatch.setattr(regions, "_MAX_PAINTED_CELLS", 200)
    boxes, covered = regions.cover(region, extents)
    assert (count_cells(region, boxes) == 1).all()
    inside, _ = regions.clip(extents, region)
    np.testing.assert_array_equal(
        count_cells(region, boxes[covered]) == 1, count_cells(region, inside) > 0
    )


def test_disjoint_extents_stay_whole():
    region = np.array([[0, 100], [0, 10]], dtype=np.int64)
    extents = np.array([[[i, i + 10], [0, 10]] for i in range(0, 50, 10)], dtype=np.int64)
    boxes, covered = regions.cover(region, extents)
    np.testing.assert_array_equal(boxes[covered], extents)
    assert boxes[~covered].tolist() == [[[50, 100], [0, 10]]]


def test_scalars_are_one_cell():
    empty = np.empty((0, 2), dtype=np.int64)
    boxes, covered = regions.cover(empty, np.empty((1, 0, 2), dtype=np.int64))
    assert boxes.shape == (1, 0, 2)
    assert covered.tolist() == [True]
    assert regions.cover(empty, np.empty((0, 0, 2), dtype=np.int64))[1].tolist() == [False]


def test_thousands_of_scattered_extents_are_covered_without_the_grid_of_their_edges():
    rng = np.random.default_rng(0)
    # One small box in every cell of a 12 x 12 x 12 lattice, each at a random place: all edges
    # differ, so the grid of edges would have 3,456 ** 3 cells.
    lattice = np.stack(np.meshgrid(*[np.arange(12)] * 3, indexing="ij"), -1).reshape(-1, 3) * 1000
    lows = lattice + rng.integers(0, 500, size=lattice.shape)
    extents = np.stack([lows, lows + rng.integers(1, 500, size=lattice.shape)], axis=-1)
    region = np.array([[0, 12_000]] * 3, dtype=np.int64)
    (boxes, covered), lines = counted_lines(lambda: regions.cover(region, extents.astype(np.int64)))
    assert lines < 3_000_000  # far fewer than cells of the grid of edges
    assert covered.sum() == len(extents)
    assert regions.volumes(boxes).sum() == 12_000**3


def test_steps_cut_the_leading_axis_first():
    assert regions.steps_along([10, 4], 1000, 100) == [1, 4]
    assert regions.steps_along([10, 4], 1000, 25) == [1, 1]
    assert regions.steps_along([10, 4], 1000, 50) == [1, 2]
    assert regions.steps_along([10, 4], 1000, 500) == [5, 4]
    assert regions.steps_along([10, 4], 1000, 10_000) == [10, 4]
    assert regions.steps_along([], 1, 10) == []


def test_small_neighbours_share_a_group():
    groups = regions.join_small(np.array([10, 10, 10, 100, 10, 60, 50]), 100)
    assert groups.tolist() == [0, 0, 0, 1, 2, 3, 4]
