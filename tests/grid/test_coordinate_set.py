"""Sets of chunk coordinates and boxes answer what plain Python sets answer."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid import boxes as box_geometry
from icechunk_format.grid.boxes import bounds_of, joined_groups, overlapping_pairs
from icechunk_format.grid.coordinate_set import CoordSet


def coords_of(points, ndim):
    return np.array(sorted(points), dtype=np.uint32).reshape(len(points), ndim)


def points_of(coords):
    return {tuple(row) for row in coords.tolist()}


def points_of_box(box):
    return set(itertools.product(*(range(lo, hi) for lo, hi in box)))


dimensions = st.integers(0, 3)


def point_sets(ndim):
    return st.sets(st.tuples(*[st.integers(0, 4)] * ndim), max_size=12)


def boxes(ndim):
    side = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda s: (s[0], s[0] + s[1]))
    return st.tuples(*[side] * ndim)


@st.composite
def two_sets(draw):
    ndim = draw(dimensions)
    return ndim, draw(point_sets(ndim)), draw(point_sets(ndim))


@st.composite
def box_lists(draw, max_size=8):
    ndim = draw(dimensions)
    return ndim, draw(st.lists(boxes(ndim), max_size=max_size))


def box_array(ndim, found):
    return np.array(found, dtype=np.uint32).reshape(len(found), ndim, 2)


@given(two_sets())
@settings(max_examples=200, deadline=None)
def test_sets_behave_as_sets(case):
    ndim, left, right = case
    mine, theirs = CoordSet.of(coords_of(left, ndim)), CoordSet.of(coords_of(right, ndim))
    assert mine.count == len(left)
    assert points_of(mine.coords()) == left
    shared = mine.intersection(theirs)
    assert points_of(shared) == left & right
    assert shared.tolist() == sorted(shared.tolist())
    assert mine.contains(coords_of(right, ndim)).tolist() == [p in left for p in sorted(right)]
    assert (mine.bounds() == bounds_of(coords_of(left, ndim))).all()
    copy = pickle.loads(pickle.dumps(mine))
    assert points_of(copy.coords()) == left


@given(box_lists())
@settings(max_examples=200, deadline=None)
def test_pairs_are_those_that_share_a_coordinate(case):
    ndim, found = case
    array = box_array(ndim, found)
    pairs = {tuple(sorted(p)) for block in overlapping_pairs(array) for p in block.tolist()}
    assert pairs == {
        (i, j)
        for i, j in itertools.combinations(range(len(found)), 2)
        if points_of_box(found[i]) & points_of_box(found[j])
    }


def test_pairs_come_in_blocks_of_bounded_size(monkeypatch):
    monkeypatch.setattr(box_geometry, "_PAIRS_AT_ONCE", 7)
    array = np.array([[[0, 10 + i]] for i in range(9)], dtype=np.uint32)
    blocks = list(overlapping_pairs(array))
    assert len(blocks) > 4
    assert sum(len(block) for block in blocks) == 36


@given(box_lists())
@settings(max_examples=200, deadline=None)
def test_sets_of_boxes_behave_as_sets(case):
    ndim, found = case
    overlaps = any(points_of_box(a) & points_of_box(b) for a, b in itertools.combinations(found, 2))
    if overlaps:
        with pytest.raises(InvalidInputError, match="overlap"):
            CoordSet.of_boxes(box_array(ndim, found))
        return
    expected = set().union(*map(points_of_box, found)) if found else set()
    made = CoordSet.of_boxes(box_array(ndim, found))
    assert made.count == len(expected)
    assert points_of(made.coords()) == expected
    assert made.coords().tolist() == sorted(made.coords().tolist())
    probe = coords_of(set(itertools.product(range(6), repeat=ndim)), ndim)
    assert made.contains(probe).tolist() == [tuple(p) in expected for p in probe.tolist()]
    other = CoordSet.of(probe[::2])
    assert points_of(made.intersection(other)) == expected & points_of(probe[::2])


def test_many_boxes_are_searched_as_coordinates():
    made = CoordSet.of_boxes([[[i * 3, i * 3 + 2]] for i in range(40)])
    probe = np.arange(125, dtype=np.uint32)[:, None]
    assert made.contains(probe).tolist() == [n % 3 < 2 and n < 119 for n in range(125)]


@given(box_lists(), st.data())
@settings(max_examples=200, deadline=None)
def test_groups_are_apart(case, data):
    ndim, found = case
    array = box_array(ndim, found)
    fixed = np.array([data.draw(st.booleans()) for _ in found], dtype=np.bool_)
    groups = [group.tolist() for group in joined_groups(array, fixed)]
    members = [n for group in groups for n in group]
    assert len(members) == len(set(members))
    assert {n for n in range(len(found)) if not fixed[n]} <= set(members)

    def around(group):
        return [
            (min(found[n][axis][0] for n in group), max(found[n][axis][1] for n in group))
            for axis in range(ndim)
        ]

    rest = [[n] for n in range(len(found)) if n not in members]
    for group in groups:
        assert any(not fixed[n] for n in group)
        for other in groups + rest:
            if other is not group:
                assert not points_of_box(around(group)) & points_of_box(around(other))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoordSet.of([1, 2]), "of shape"),
        (lambda: CoordSet.of([[0.5]]), "of shape"),
        (lambda: CoordSet.of([[-1]]), "from 0 to"),
        (lambda: CoordSet.of([[2**32]]), "from 0 to"),
        (lambda: CoordSet.of_boxes([[0, 1]]), "of shape"),
        (lambda: CoordSet.of_boxes([[[1, 1]]]), "is empty"),
        (lambda: CoordSet.of_boxes([[[-1, 1]]]), "is empty or exceeds"),
        (lambda: CoordSet.of_boxes([[[0.0, 1.0]]]), "of shape"),
    ],
)
def test_what_is_no_set_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_a_block_travels_as_its_corners():
    block = CoordSet.of(np.argwhere(np.ones((100, 100))))
    assert len(block.boxes) == 1
    assert len(pickle.dumps(block)) < 1000


def test_a_block_with_gaps_travels_as_bits():
    is_there = np.random.default_rng(1).random((100, 100, 100)) < 0.5
    gappy = CoordSet.of(np.argwhere(is_there))
    assert gappy.count == is_there.sum()
    assert len(pickle.dumps(gappy)) < 126_000
    assert gappy.nbytes < 126_000
    assert (gappy.coords() == np.argwhere(is_there)).all()
    scattered = CoordSet.of(np.argwhere(is_there)[::100] * 1000)
    assert scattered.bits is None
    assert scattered.count == len(scattered.points)


@given(two_sets(), st.data())
@settings(max_examples=200, deadline=None)
def test_what_lies_within_a_box(case, data):
    ndim, left, _ = case
    made = CoordSet.of(coords_of(left, ndim))
    box = data.draw(boxes(ndim))
    found = made.within(np.array(box, dtype=np.int64).reshape(ndim, 2))
    assert points_of(found) == left & points_of_box(box)
    assert found.tolist() == sorted(found.tolist())
