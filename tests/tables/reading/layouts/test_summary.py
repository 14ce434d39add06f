"""Rows of the layout ``summary`` are those of NumPy, block by block, whatever is read at once."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from helpers.grids.drawn_arrays import bounded, cases, isel_text, rows_of, small_bounds
from helpers.grids.synthetic_datasets import ArrayToWrite, write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.repository.chunks import ChunkSource


def summaries(values, sizes, steps, keep, picked):
    """Return the expected rows: corners, and the statistics of the kept cells of each block."""
    expected = {}
    grid = [range(0, size, step) for size, step in zip(sizes, steps, strict=True)]
    positions = [np.arange(size)[chosen] for size, chosen in zip(sizes, picked, strict=True)]
    for corner in itertools.product(*grid):
        inside = [
            p[(p >= low) & (p < low + step)]
            for p, low, step in zip(positions, corner, steps, strict=True)
        ]
        if any(not len(p) for p in inside):
            continue
        found = values[np.ix_(*inside)][keep[np.ix_(*inside)]].astype("f8")
        if len(found):
            ends = tuple(int(end) for p in inside for end in (p[0], p[-1]))
            m2 = np.square(found - found.mean()).sum()
            expected[ends] = len(found), found.min(), found.max(), found.sum(), found.mean(), m2
    return expected


def as_expected(table, dims, name):
    rows = {}
    for row in table.to_pylist():
        ends = tuple(row[f"{dim}_{end}"] for dim in dims for end in ("first", "last"))
        assert ends not in rows
        rows[ends] = tuple(
            row[f"{name}_{statistic}"] for statistic in ("count", "min", "max", "sum", "mean", "m2")
        )
    return rows


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for ends, numbers in expected.items():
        assert found[ends] == pytest.approx(numbers, rel=1e-9, abs=1e-6), ends


@settings(deadline=None, max_examples=80)
@given(cases(), st.sampled_from([2, None]), small_bounds(), st.data())
def test_each_block_has_the_statistics_of_its_cells(case, rows_per_partition, bounds, data):
    dims, sizes, (a, array_a), (_, array_b), picked = case
    steps = {dim: data.draw(st.integers(1, 7)) for dim in dims}
    dataset = write_dataset("summary", {"a": array_a, "b": array_b})
    plan = dataset.plan(
        dataset.table("summary", block=steps),
        isel=isel_text(dims, picked),
        where="a > 2",
        rows_per_partition=rows_per_partition,
        read_ahead_bytes=bounds["read_ahead_bytes"],
    )
    with bounded(bounds):
        found = as_expected(rows_of(plan), dims, "a")
    assert_same(found, summaries(a, sizes, list(steps.values()), a > 2, picked))


@pytest.mark.parametrize(
    ("block", "read_ahead_mb"),
    [
        (None, 1),
        ({"t": 6}, 1),
        ({"t": 6}, 16),
        ({"t": 1}, 1),
        ({"t": 1}, 16),
        ({"t": 75, "y": 20, "x": 20}, 16),
    ],
)
def test_blocks_of_data_larger_than_the_read_ahead(large, block, read_ahead_mb, fetched_chunks):
    values, dataset = large
    table = dataset.table("summary", block=block)
    plan = dataset.plan(table, read_ahead_bytes=read_ahead_mb << 20)
    dims, sizes, chunks = ("t", "y", "x"), values.shape, (125, 13, 9)
    asked = block or {}
    steps = [int(asked.get(dim, chunk)) for dim, chunk in zip(dims, chunks, strict=True)]
    found = rows_of(plan)
    assert found.num_rows == math.prod(-(-n // s) for n, s in zip(sizes, steps, strict=True))
    order = np.lexsort([found[f"{dim}_first"].to_numpy() for dim in reversed(dims)])
    found = found.take(order)
    starts = [np.arange(0, n, s) for n, s in zip(sizes, steps, strict=True)]
    total, low = values.astype("f8"), values
    for axis, edges in enumerate(starts):
        total = np.add.reduceat(total, edges, axis=axis)
        low = np.minimum.reduceat(low, edges, axis=axis)
    np.testing.assert_allclose(found["v_sum"].to_numpy(), total.ravel(), atol=1e-6)
    np.testing.assert_array_equal(found["v_min"].to_numpy(), low.ravel())
    for dim, edges, step, size in zip(dims, starts, steps, sizes, strict=True):
        ends = zip(found[f"{dim}_first"].to_pylist(), found[f"{dim}_last"].to_pylist(), strict=True)
        lasts = np.minimum(edges + step, size) - 1
        assert set(ends) == set(zip(edges.tolist(), lasts.tolist(), strict=True))
    # Tasks end at blocks, so two of them may share a chunk; within a task it is fetched once.
    assert len(fetched_chunks) <= 4 * 7 * 20 * 4


@pytest.fixture(scope="module")
def large():
    """32 MB: twice the largest read-ahead here, and more blocks than a batch has rows."""
    values = np.random.default_rng(0).normal(size=(500, 91, 180)).astype("f4")
    array = ArrayToWrite(values=values, chunks=(125, 13, 9), dims=("t", "y", "x"))
    return values, write_dataset("large", {"v": array})


@pytest.fixture
def fetched_chunks(monkeypatch):
    """Collect the coordinates of the chunks that are fetched."""
    fetched = []
    fetch = ChunkSource.fetch

    def collected(self, refs, rows, ranges=None):
        fetched.extend(map(tuple, refs.coords[rows].tolist()))
        return fetch(self, refs, rows, ranges)

    monkeypatch.setattr(ChunkSource, "fetch", collected)
    return fetched
