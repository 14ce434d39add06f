"""Positions that a selector can select are found without all positions of a dimension."""

import numpy as np
import pytest

from icechunk_format.tables.selection.near import is_range, positions_near


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("5", [0, 4, 5, 6, 7, 99]),
        ("5:50", [0, 4, 5, 6, 7, 49, 50, 51, 52, 99]),
        ("4.5..", [0, 3, 4, 5, 6, 99]),
        (slice(None, -3), [0, 1, 2, 99]),
        ([np.float32(2.5), "x", None, float("nan")], [0, 1, 2, 3, 4, 99]),
        (float("inf"), [0, 98, 99]),
    ],
)
def test_positions_beside_numbers_and_both_ends(selector, found):
    assert positions_near(selector, 100).tolist() == found


def test_a_dimension_without_positions():
    assert positions_near("3", 0).tolist() == []


@pytest.mark.parametrize(
    ("selector", "expected"), [("1:2", True), ("1..", True), ("1,2", False), (slice(3), True)]
)
def test_ranges(selector, expected):
    assert is_range(selector) == expected
