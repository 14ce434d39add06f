"""Each cell has a number of its own, which gives its unit, its block and its place."""

import itertools
import pickle

import numpy as np
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.errors import UnsupportedError
from icechunk_format.grid.axes import RegularAxis, RunAxis
from icechunk_format.tables.writing.cell_numbers import number_cells


@st.composite
def axes(draw):
    if draw(st.booleans()):
        return RegularAxis(size=draw(st.integers(1, 12)), step=draw(st.integers(1, 14)))
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return RunAxis.of_edges(edges)


@given(data=st.data())
def test_each_cell_has_a_number_that_tells_its_place(data):
    lines = data.draw(st.lists(axes(), max_size=3))
    places = [
        np.array(
            sorted(data.draw(st.sets(st.integers(0, axis.size - 1), min_size=1, max_size=6))),
            np.int64,
        )
        for axis in lines
    ]
    rows_per_unit = data.draw(st.integers(1, 50))
    made = number_cells(lines, places, row_count=None, rows_per_unit=rows_per_unit)
    numbers = pickle.loads(pickle.dumps(made))
    terms = [numbers.terms(axis, own) for axis, own in enumerate(places)]
    seen = {}
    for at in itertools.product(*(range(len(own)) for own in places)):
        cell = sum(int(term[i]) for term, i in zip(terms, at, strict=True))
        place = [int(own[i]) for own, i in zip(places, at, strict=True)]
        assert cell not in seen
        block, within = divmod(cell, numbers.cells_per_block)
        start, stop = numbers.block_bounds(block)
        inner = np.unravel_index(within, numbers.shape)
        assert [low + int(i) for low, i in zip(start, inner, strict=True)] == place
        assert all(low <= i < high for low, i, high in zip(start, place, stop, strict=True))
        unit = cell // numbers.cells_per_unit
        assert 0 <= unit < numbers.units
        assert seen.setdefault(("block", block), unit) == unit
        seen[cell] = place
    assert numbers.block_bounds(-1) is None
    assert numbers.block_bounds(numbers.units * numbers.cells_per_unit) is None


def test_terms_grow_in_the_order_of_blocks_and_cells():
    lines = [RegularAxis(size=10, step=4), RegularAxis(size=6, step=3)]
    places = [np.arange(10), np.arange(6)]
    numbers = number_cells(lines, places, row_count=60, rows_per_unit=24)
    assert (numbers.units, numbers.cells_per_unit, numbers.shape) == (3, 24, (4, 3))
    assert numbers.terms(0, places[0]).tolist() == [0, 3, 6, 9, 24, 27, 30, 33, 48, 51]
    assert numbers.terms(1, places[1]).tolist() == [0, 1, 2, 12, 13, 14]
    assert numbers.touched == (range(3), range(2))


def test_a_grid_beyond_all_numbers_is_refused():
    lines = [RegularAxis(size=2**40, step=2**40)] * 2
    with raises(UnsupportedError, match="write it in several parts", units=1):
        number_cells(lines, [np.array([0])] * 2, row_count=1, rows_per_unit=1)
