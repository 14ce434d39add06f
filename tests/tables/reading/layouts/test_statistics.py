"""Segments large and small get the same statistics, which are those of the plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from icechunk_format.tables.reading.layouts import statistics as block_statistics
from icechunk_format.tables.reading.layouts.statistics import Statistics, summarize

SHAPE = (3, 70, 400)
STARTS = [np.array([0, 1]), np.array([0, 40]), np.array([0, 130, 390])]


def both_ways(monkeypatch: pytest.MonkeyPatch, values: Any, **options: Any) -> list[Statistics]:
    found = []
    for least in (1, 10**9):
        monkeypatch.setattr(block_statistics, "_LARGE_SEGMENT_CELLS", least)
        found.append(summarize(values, starts=STARTS, **options))
    return found


@pytest.mark.parametrize("piece", [97, 32_768])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u8"])
@pytest.mark.parametrize("masked", [False, True])
def test_large_segments_are_summed_up_as_small_ones(monkeypatch, dtype, masked, piece) -> None:
    monkeypatch.setattr(block_statistics, "_PIECE_CELLS", piece)
    random = np.random.default_rng(5)
    values = random.normal(1000, 30, SHAPE).astype(dtype)
    valid = random.random(SHAPE) < 0.6 if masked else None
    keep = random.random(SHAPE) < 0.6 if masked else None
    if keep is not None:
        keep[1:, 40:, 390:] = False  # A segment of which nothing is left.
    options = {"valid": valid, "keep": keep, "exact_sum": dtype == "i8"}
    large, small = both_ways(monkeypatch, values, **options)
    np.testing.assert_array_equal(large.count, small.count)
    np.testing.assert_array_equal(large.nulls, small.nulls)
    some = small.count > 0
    assert some.all() != masked
    assert large.total.dtype == small.total.dtype
    for name in ("low", "high"):
        np.testing.assert_array_equal(getattr(large, name)[some], getattr(small, name)[some])
    for name in ("total", "mean", "m2"):
        np.testing.assert_allclose(
            getattr(large, name)[some], getattr(small, name)[some], rtol=1e-12
        )
    present = np.ones(SHAPE, bool) if valid is None or keep is None else valid & keep
    first = values[:1, :40, :130][present[:1, :40, :130]].astype("f8")
    assert large.m2[0, 0, 0] == pytest.approx(np.square(first - first.mean()).sum())


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_spread_alike(monkeypatch, odd) -> None:
    values = np.random.default_rng(6).normal(size=SHAPE).astype("f4")
    values[0, 3, 5] = odd
    values[2, 40:, 390:] = odd
    large, small = both_ways(monkeypatch, values, valid=None, keep=None, exact_sum=False)
    for name in ("low", "high"):
        np.testing.assert_array_equal(getattr(large, name), getattr(small, name))
    for name in ("total", "mean", "m2"):
        np.testing.assert_allclose(getattr(large, name), getattr(small, name), rtol=1e-12)
