"""Pieces of a shuffle are boxes of a bounded size that cover their group once."""

import math

import pytest

from icechunk_format.workflows.rechunking.run import _PIECE_BYTES, _bounded


@pytest.mark.parametrize(
    ("shape", "item"),
    [
        ((1000, 1000, 100), 4),
        ((400, 300, 2, 400), 8),
        ((2,) * 24, 8),
        ((3, 1, 50_000_000), 1),
        ((), 8),
    ],
    ids=str,
)
def test_pieces_fit_a_row(shape, item):
    box = (tuple(range(len(shape))), tuple(n + axis for axis, n in enumerate(shape)))
    elements = 0
    ends = set()
    for lower, upper in _bounded(box, item):
        sizes = [high - low for low, high in zip(lower, upper, strict=True)]
        assert 0 < item * math.prod(sizes) <= _PIECE_BYTES
        elements += math.prod(sizes)
        ends.add((lower, upper))
    assert elements == math.prod(shape)
    # Equal boxes would count elements twice.
    assert len(ends) == len(list(_bounded(box, item)))


def test_one_element_above_the_bound_is_a_piece():
    assert list(_bounded(((0, 0), (2, 1)), _PIECE_BYTES + 1)) == [
        ((0, 0), (1, 1)), ((1, 0), (2, 1)),
    ]  # fmt: skip
