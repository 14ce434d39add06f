"""Changed chunks of a commit come in order, in bounded blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.repository.changes import touched_chunks
from icechunk_format.repository.changes.touched_chunks import TouchedChunks


def coords_of(points, ndim):
    return np.array(sorted(points), dtype=np.uint32).reshape(len(points), ndim)


def points_of(coords):
    return [tuple(row) for row in coords.tolist()]


@st.composite
def cases(draw):
    """Draw disjoint sets in all forms, and points that may lie in them."""
    ndim = draw(st.integers(0, 3))
    everywhere = sorted({()} if ndim == 0 else {*np.ndindex(*[5] * ndim)})
    owner = draw(st.lists(st.integers(0, 4), min_size=len(everywhere), max_size=len(everywhere)))
    far = draw(st.integers(1, 50))
    parts = [{p for p, o in zip(everywhere, owner, strict=True) if o == n} for n in (1, 2)]
    # Far apart they are points, close together they are bits or boxes.
    sets = [CoordSet.of(coords_of(part, ndim)) for part in parts]
    if ndim:
        scattered = {tuple(far * i + 100 for i in p) for p in parts[0]}
        parts.append(scattered)
        sets.append(CoordSet.of(coords_of(scattered, ndim)))
        tiles = [[(n * 3 + 1000, n * 3 + 1002)] + [(0, 2)] * (ndim - 1) for n in range(3)]
        sets.append(CoordSet.of_boxes(tiles))
        parts.append(set(points_of(sets[-1].coords())))
    held = set().union(*parts)
    picked = st.sets(st.sampled_from(sorted(held | {*everywhere})), max_size=9)
    return ndim, sets, held, draw(picked)


@given(cases(), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_blocks_are_in_order_and_small(case, at_once):
    ndim, sets, held, points = case
    made = TouchedChunks.of(sets, coords_of(points, ndim))
    expected = held | points
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(touched_chunks, "_ROWS_AT_ONCE", at_once)
        blocks = list(made.blocks())
        found = [point for block in blocks for point in points_of(block)]
        assert found == sorted(expected)
        assert made.count == len(expected)
        assert all(0 < len(block) <= at_once for block in blocks)
        more = held | {(7,) * ndim}
        joined = made.joined(coords_of(more, ndim))
        assert points_of(joined.coords()) == sorted(expected | more)
        assert joined.count == len(expected | more)


def test_a_box_is_cut_along_the_axes_that_need_it(monkeypatch):
    nothing = np.empty((0, 3), dtype=np.uint32)
    made = TouchedChunks.of([CoordSet.of_boxes([[(0, 2), (0, 3), (0, 5)]])], nothing)
    for at_once, sizes in (
        (4, [4, 1] * 6),
        (5, [5] * 6),
        (14, [10, 5] * 2),
        (15, [15] * 2),
        (30, [30]),
    ):
        monkeypatch.setattr(touched_chunks, "_ROWS_AT_ONCE", at_once)
        blocks = list(made.blocks())
        assert [len(block) for block in blocks] == sizes
        assert points_of(np.concatenate(blocks)) == list(np.ndindex(2, 3, 5))


def test_tiles_of_a_large_grid_come_row_by_row():
    tiles = [
        CoordSet.of_boxes([[(i, i + 100), (j, j + 50), (0, 50)]])
        for i in range(0, 200, 100)
        for j in range(0, 100, 50)
    ]
    nothing = np.empty((0, 3), dtype=np.uint32)
    made = TouchedChunks.of(tiles, nothing)
    assert made.count == 1_000_000
    expected = np.indices((200, 100, 50), dtype=np.uint32).reshape(3, -1).T
    assert (made.coords() == expected).all()
    sizes = [len(block) for block in made.blocks()]
    assert max(sizes) <= 1 << 17
    assert len(sizes) == 8


def test_scattered_chunks_are_read_in_few_blocks():
    scattered = np.random.default_rng(3).integers(0, 2**31, (300_000, 3), dtype=np.uint32)
    sets = [CoordSet.of(scattered[i::3]) for i in range(3)]
    nothing = np.empty((0, 3), dtype=np.uint32)
    made = TouchedChunks.of(sets, nothing)
    assert len(list(made.blocks())) < 10
    assert (made.coords() == scattered[np.lexsort(scattered.T[::-1])]).all()


def test_scattered_coordinates_are_sorted_without_a_mask():
    left = CoordSet.of([[0, 0], [2**31, 5]])
    right = CoordSet.of([[0, 2**31], [7, 1]])
    nothing = np.empty((0, 2), dtype=np.uint32)
    made = TouchedChunks.of([left, right], nothing)
    assert made.coords().tolist() == [[0, 0], [0, 2**31], [7, 1], [2**31, 5]]
    # The volume around them is 2**64, which no integer of NumPy holds.
    corners = [[0] * 4, [2**16 - 1] * 4]
    between = np.array([[5, 2**16 - 1, 0, 0]], dtype=np.uint32)
    made = TouchedChunks.of([CoordSet.of(corners)], between)
    assert made.coords().tolist() == [corners[0], between[0].tolist(), corners[1]]
