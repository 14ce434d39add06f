"""Runs and ranges of bytes are indexed and copied as plain loops would do it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.tables.byte_ranges import (
    collect,
    joined,
    length_groups,
    ragged_rows,
    starts_of,
)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=6))
def test_runs_are_indexed_one_after_another(runs: list[tuple[int, int]]) -> None:
    starts, counts = (np.array([run[at] for run in runs], np.int64) for at in (0, 1))
    found = ragged_rows(starts, counts)
    assert found.dtype == np.int64
    assert found.tolist() == [start + n for start, count in runs for n in range(count)]
    assert starts_of(counts).tolist() == [sum(counts[:n]) for n in range(len(counts))]


def test_runs_with_items_and_without() -> None:
    assert ragged_rows(np.array([5, 9, 2]), np.array([2, 0, 3])).tolist() == [5, 6, 2, 3, 4]
    assert ragged_rows(np.array([3]), np.array([1])).tolist() == [3]
    nothing = np.zeros(0, np.int64)
    assert ragged_rows(nothing, nothing).tolist() == []


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [0],
        [0, 0],
        [3],
        [3, 3],
        [3, 0, 3, 1],
        [65_535, 1, 65_535, 0],
        [65_536, 1, 0, 2, 65_536],
        [1, 65_537, 2, 65_537],
        [200_000, 3, 65_536 + 3],
    ],
)
def test_rows_are_grouped_by_length_but_for_empty_ranges(lengths: list[int]) -> None:
    found = [
        (length, np.arange(len(lengths))[rows].tolist())
        for length, rows in length_groups(np.array(lengths, np.int64))
    ]
    wanted = sorted({length for length in lengths if length})
    assert sorted(found) == [
        (length, [at for at, own in enumerate(lengths) if own == length]) for length in wanted
    ]


def collected(parts: list[bytes]) -> tuple[list[bytes], int]:
    source, starts, lengths = joined(parts)
    kept, placed = collect(source, starts, lengths)
    pairs = zip(placed.tolist(), lengths.tolist(), strict=True)
    return [kept[at : at + length].tobytes() for at, length in pairs], kept.size


@pytest.mark.parametrize("length", range(1, 27))
def test_texts_that_differ_in_any_one_byte_are_other_texts(length: int) -> None:
    for at in range(length):
        parts = [bytes(length), bytes(at) + b"\1" + bytes(length - at - 1), bytes(length)]
        assert collected(parts) == (parts, 3 * length)
    assert collected([bytes(length)] * 3) == ([bytes(length)] * 3, length)


@settings(deadline=None)
@given(st.lists(st.text("ab", max_size=10).map(str.encode), max_size=12))
def test_equal_neighbours_are_kept_once(parts: list[bytes]) -> None:
    kept, size = collected(parts)
    assert kept == parts
    of_length = [[one for one in parts if len(one) == n] for n in range(11)]
    assert size == sum(
        len(one)
        for same in of_length
        for before, one in zip([b"-", *same], same, strict=False)
        if one != before
    )
