"""Maps of indices are those of a list of elements, also after several changes."""

import pickle

import numpy as np
import pytest
from helpers.grids.index_maps import index_maps
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.grid.index_maps import IndexMap


def listed(indices):
    return indices.of(np.arange(indices.before)).tolist()


@settings(deadline=None)
@given(index_maps())
def test_new_indices_and_their_inverse(case):
    indices, expected = case
    assert listed(indices) == expected
    back = [expected.index(i) if i in expected else -1 for i in range(indices.after)]
    assert listed(indices.inverse) == back
    assert np.array_equal(indices.inverse.inverse.runs, indices.runs)
    moves = (i for i, at in enumerate(expected) if at != i)
    assert indices.still == next(moves, indices.before)
    counts = [sum(at >= 0 for at in expected[:end]) for end in range(indices.before + 1)]
    assert indices.kept_before(np.arange(indices.before + 1)).tolist() == counts
    assert listed(pickle.loads(pickle.dumps(indices))) == expected


@settings(deadline=None)
@given(st.data())
def test_maps_of_successive_changes_are_composed(data):
    first, once = data.draw(index_maps())
    second, twice = data.draw(index_maps(before=first.after))
    third, _ = data.draw(index_maps(before=second.after))
    both = first.then(second)
    assert listed(both) == [twice[at] if at >= 0 else -1 for at in once]
    left, right = both.then(third), first.then(second.then(third))
    assert np.array_equal(left.runs, right.runs)
    same = IndexMap.resized(first.before, first.before)
    assert np.array_equal(same.then(first).runs, first.runs)


@settings(deadline=None)
@given(st.data())
def test_a_map_is_overlaid_with_another(data):
    first, once = data.draw(index_maps())
    second, twice = data.draw(index_maps(before=first.before))
    expected = [at if at >= 0 else before for before, at in zip(once, twice, strict=True)]
    found = first.overlaid(second)
    assert found.indices.tolist() == expected
    assert found.gone.tolist() == [i for i, at in enumerate(expected) if at < 0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9), unique=True))
def test_labels_are_mapped_to_equal_ones(old, new):
    found = IndexMap.of_labels(np.array(old, np.int64), np.array(new, np.int64))
    assert found.indices.tolist() == [new.index(label) if label in new else -1 for label in old]


@settings(deadline=None)
@given(index_maps())
def test_elements_of_a_run_stay_together(case):
    indices, expected = case
    elements = np.arange(indices.before)
    for at, end in zip(elements.tolist(), indices.run_ends(elements).tolist(), strict=True):
        if expected[at] < 0:
            assert end == 0
            continue
        length = end - at
        assert expected[at:end] == list(range(expected[at], expected[at] + length))
        # A longer run would be joined.
        assert end == indices.before or expected[end] != expected[at] + length


@pytest.mark.parametrize(
    "indices",
    [
        IndexMap.resized(10**15, 10**15),
        IndexMap.shifted(10**15, -5, 10**15),
        IndexMap.dropped(10**15, np.array([[7, 10**14]])),
        IndexMap.dropped(10**15, np.array([[7, 10**14]])).inverse,
        IndexMap.dropped(10**15, np.array([[7, 9]])).then(IndexMap.shifted(10**15 - 2, 9, 10**15)),
    ],
)
def test_long_axes_take_no_memory(indices):
    assert len(indices.runs) <= 2
    assert len(indices.inverse.runs) == len(indices.runs)
