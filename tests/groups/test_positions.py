"""A selection is a set of positions: every operation agrees with Python's sets."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.groups import DimSelection

SIZE = 12
subsets = st.sets(st.integers(0, SIZE - 1))


def of(positions: set[int]) -> DimSelection:
    return DimSelection.of_indices(SIZE, np.array(sorted(positions, reverse=True), np.int64))


@given(subsets)
def test_positions_come_back_sorted_once_and_survive_pickling(chosen: set[int]) -> None:
    selection = of(chosen)
    assert selection.positions().tolist() == sorted(chosen)
    assert selection.count == len(chosen)
    assert selection.is_whole == (len(chosen) == SIZE)
    again = pickle.loads(pickle.dumps(selection))
    assert again == selection
    assert hash(again) == hash(selection)


@given(subsets)
def test_equal_sets_are_equal_values(chosen: set[int]) -> None:
    mask = np.isin(np.arange(SIZE), list(chosen))
    assert DimSelection.of_mask(mask) == of(chosen)
    if chosen and max(chosen) - min(chosen) + 1 == len(chosen):
        assert of(chosen).indices is None
        assert of(chosen) == DimSelection.span(SIZE, min(chosen), max(chosen) + 1)


@given(subsets, subsets)
def test_intersection(one: set[int], other: set[int]) -> None:
    assert of(one).intersect(of(other)) == of(one & other)


def test_a_span_costs_nothing_however_long() -> None:
    huge = DimSelection.whole(10**15)
    assert huge.intersect(DimSelection.span(10**15, 10**14, 10**15 + 5)).count == 9 * 10**14
    assert len(pickle.dumps(huge)) < 300


def test_selections_are_immutable() -> None:
    selection = of({1, 5})
    with pytest.raises(ValueError, match="read-only"):
        selection.positions()[0] = 3
