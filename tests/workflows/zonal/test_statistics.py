"""Weighted statistics of blocks, and their combination."""

import numpy as np
import pytest
from helpers.grids.zonal_results import ALL, assert_alike, expected
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.zonal import statistics as module
from icechunk_format.workflows.zonal.statistics import (
    CoverMatrix,
    block_parts,
    check_statistics,
    combine,
    finish,
    no_parts,
    parts_of,
)

PARTS = parts_of(ALL)


def matrix(fractions, weights=None):
    """Make the cover of dense fractions ``(zones, cells)``."""
    zones, cells = np.nonzero(fractions)
    starts = np.searchsorted(zones, np.arange(len(fractions) + 1))
    held = fractions[zones, cells]
    return CoverMatrix(
        starts=starts,
        cells=cells,
        fractions=held,
        weights=held if weights is None else held * weights[cells],
        size=fractions.shape[1],
    )


def told(found, number):
    result = {}
    for name in ALL:
        values, there = finish(found, PARTS, name)
        result[name] = values[number] if there[number] else None
    return result


@given(seed=st.integers(0, 10_000), pieces=st.integers(1, 4), weighted=st.booleans())
@settings(max_examples=30)
def test_any_cut_gives_the_statistics_of_the_whole(seed, pieces, weighted):
    random = np.random.default_rng(seed)
    values = random.normal(280, 10, (3, 40))
    values[random.random(values.shape) < 0.3] = np.nan
    fractions = np.where(random.random((5, 40)) < 0.4, random.random((5, 40)), 0.0)
    fractions[0] = 0
    weights = random.random(40) if weighted else None
    found = np.repeat(no_parts(PARTS, (3,))[:, None], 5, axis=1)
    for cells in np.array_split(random.permutation(40), pieces):
        own = None if weights is None else weights[cells]
        cover = matrix(fractions[:, cells], own)
        some = values[:, cells]
        parts = block_parts(some, ~np.isnan(some), cover, PARTS)
        found = combine(found, parts.transpose(1, 0, 2), PARTS)
    for zone in range(5):
        for step in range(3):
            wanted = expected(values[step], fractions[zone], weights)
            assert_alike([told(found, (zone, step))], [wanted], 1e-9)


def test_the_spread_beside_a_large_mean_is_exact():
    random = np.random.default_rng(1)
    values = 1e9 + random.normal(0, 1e-3, (1, 1000))
    cover = matrix(random.random((1, 1000)))
    parts = block_parts(values, None, cover, PARTS).transpose(1, 0, 2)
    std, _ = finish(combine(parts, parts, PARTS), PARTS, "std")
    weights = cover.fractions
    mean = np.average(values[0] - 1e9, weights=weights)
    wanted = np.sqrt(np.average((values[0] - 1e9 - mean) ** 2, weights=weights))
    assert std[0, 0] == pytest.approx(wanted, rel=1e-4)


def test_steps_beyond_the_bound_are_reduced_in_turns(monkeypatch):
    random = np.random.default_rng(2)
    values, cover = random.random((50, 30)), matrix(random.random((4, 30)))
    whole = block_parts(values, None, cover, PARTS)
    monkeypatch.setattr(module, "_MOST_VALUES", 64)
    assert np.array_equal(block_parts(values, None, cover, PARTS), whole)


def test_values_are_not_written_to():
    values = np.ones((1, 4))
    values.flags.writeable = False
    there = np.array([[True, False, True, True]])
    assert block_parts(values, there, matrix(np.ones((1, 4))), PARTS)[0, 0, 0] == 3


@pytest.mark.parametrize("names", [["mode"], [], ["mean", "mean"]])
def test_unknown_statistics_are_refused(names):
    with raises(InvalidInputError, match="count, mean, sum, min, max, std", option="statistics"):
        check_statistics(names)
