"""Lookups of coordinates and boxes give the rows of a full search, in all layouts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.coordinates import CoordinateOrder, is_sorted, sorting_rows, without

# Small numbers collide and give dense and keyed layouts, huge ones the wide layout.
axis_values = st.integers(0, 4) | st.sampled_from([0, 1, 2**31, 2**32 - 2, 2**32 - 1])


@st.composite
def coordinate_lists(draw: st.DrawFn) -> np.ndarray:
    ndim = draw(st.integers(0, 4))
    values = draw(st.sampled_from([st.integers(0, 3), axis_values]))
    rows = draw(st.lists(st.tuples(*[values] * ndim), max_size=60))
    return np.array(rows, dtype=np.uint32).reshape(len(rows), ndim)


def ordered(coords: np.ndarray) -> np.ndarray:
    return np.asfortranarray(coords[sorting_rows(coords)])


@settings(deadline=None)
@given(coordinate_lists())
def test_sorting_gives_each_coordinate_once_in_tuple_order(coords: np.ndarray) -> None:
    rows = sorting_rows(coords)
    kept = [tuple(c) for c in coords[rows].tolist()]
    everything = [tuple(c) for c in coords.tolist()]
    assert kept == sorted(set(everything))
    assert rows.tolist() == [everything.index(c) for c in kept]
    assert is_sorted(coords[rows])
    assert is_sorted(coords) == (everything == kept)


@settings(deadline=None)
@given(coordinate_lists(), st.data())
def test_found_rows_hold_what_was_asked_for(coords: np.ndarray, data: st.DataObject) -> None:
    coords = ordered(coords)
    held = [tuple(c) for c in coords.tolist()]
    others = data.draw(st.lists(st.tuples(*[axis_values] * coords.shape[1]), max_size=20))
    wanted = held + others
    found = CoordinateOrder(coords).find(
        np.array(wanted, dtype=np.uint32).reshape(len(wanted), coords.shape[1])
    )
    assert found.tolist() == [held.index(w) if w in held else -1 for w in wanted]


@settings(deadline=None)
@given(coordinate_lists(), st.data())
def test_a_box_holds_the_same_rows_as_a_scan(coords: np.ndarray, data: st.DataObject) -> None:
    coords = ordered(coords)
    lo = data.draw(st.tuples(*[axis_values] * coords.shape[1]))
    hi = data.draw(st.tuples(*[axis_values | st.just(2**32)] * coords.shape[1]))
    inside = ((coords >= np.array(lo, np.int64)) & (coords < np.array(hi, np.int64))).all(axis=1)
    assert CoordinateOrder(coords).select_box(lo, hi).tolist() == np.flatnonzero(inside).tolist()


@pytest.mark.parametrize("kept", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("far", [0, 2**31])
def test_boxes_of_large_grids(kept: float, far: int) -> None:
    generator = np.random.default_rng(5)
    grid = np.stack(np.meshgrid(*[np.arange(40)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    grid = grid[generator.random(len(grid)) < kept]
    if far:
        grid = np.concatenate([grid, np.full((1, 3), far)])
    coords = np.asfortranarray(grid.astype(np.uint32))
    order = CoordinateOrder(coords)
    for lo, hi in [
        ((0, 0, 0), (40, 40, 40)),
        ((3, 0, 0), (4, 40, 40)),
        ((0, 7, 0), (40, 8, 40)),
        ((0, 0, 39), (40, 40, 40)),
        ((5, 5, 5), (9, 12, 30)),
        ((0, 0, 0), (2**32, 1, 2**32)),
    ]:
        inside = ((coords >= np.array(lo)) & (coords < np.array(hi))).all(axis=1)
        assert order.select_box(lo, hi).tolist() == np.flatnonzero(inside).tolist()
    assert order.find(coords).tolist() == list(range(len(coords)))


def test_bounds_are_tight() -> None:
    coords = np.array([[1, 9], [4, 2]], dtype=np.uint32)
    assert CoordinateOrder(coords).bounds() == [(1, 5), (2, 10)]
    assert CoordinateOrder(coords[:0]).bounds() == [(0, 0), (0, 0)]


def test_the_wrong_number_of_dimensions_is_refused() -> None:
    order = CoordinateOrder(np.zeros((1, 2), dtype=np.uint32))
    with pytest.raises(InvalidInputError):
        order.find(np.zeros((1, 3), dtype=np.uint32))
    with pytest.raises(InvalidInputError):
        order.select_box((0,), (1,))


@settings(deadline=None)
@given(st.data())
def test_coordinates_without_those_of_some_parts(data):
    coords = ordered(data.draw(coordinate_lists()))
    rows = st.lists(st.integers(0, max(len(coords) - 1, 0)), max_size=4 * bool(len(coords)))
    parts = [coords[data.draw(rows)] for _ in range(data.draw(st.integers(0, 3)))]
    gone = [row for part in parts for row in part.tolist()]
    assert without(coords, parts).tolist() == [row for row in coords.tolist() if row not in gone]
