"""Distinct vtables are numbered, by elimination or by sorting."""

from __future__ import annotations

import numpy as np
import pytest

from icechunk_format.encoding.tables.vtables import number_vtables


@pytest.mark.parametrize("distinct", [*range(1, 28), 100])
@pytest.mark.parametrize("repeats", [1, 3])
def test_each_row_has_the_number_of_its_vtable(distinct: int, repeats: int) -> None:
    chance = np.random.default_rng(distinct)
    vtables = chance.permutation(np.repeat(8 * np.arange(distinct), repeats))
    if len(vtables) == 1:
        vtables = np.repeat(vtables, 2)
    found, codes = number_vtables(vtables)
    assert found.dtype == np.int64
    assert sorted(found.tolist()) == list(range(0, 8 * distinct, 8))
    if distinct == 1:
        assert codes is None
    else:
        assert codes is not None
        assert codes.shape == vtables.shape
        assert (found[codes] == vtables).all()


def test_no_row_has_no_vtable() -> None:
    found, codes = number_vtables(np.zeros(0, np.int64))
    assert (found.tolist(), codes) == ([], None)


def test_vtables_are_numbered_as_they_occur() -> None:
    found, codes = number_vtables(np.array([24, 8, 24, 16, 8]))
    assert codes is not None
    assert (found.tolist(), codes.tolist()) == ([24, 8, 16], [0, 1, 0, 2, 1])
