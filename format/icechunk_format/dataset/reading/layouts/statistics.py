"""Computes statistics of many blocks together, and merges those of blocks read in slabs.

Edges along each axis divide an array of values into segments; a segment becomes one row of the
layout ``summary``. Small segments are reduced together, axis by axis, so ten thousand of them cost
as much as one large segment. Large segments are reduced one by one, in pieces that fit into the
processor's cache.

Rules of this file
------------------
1. ``m2`` is computed from the differences to the mean, never as a difference of squares.
2. Pieces are merged by the formula of Chan, Golub and LeVeque.
3. A NaN that is not a missing value is larger than all numbers, as in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A piece, its float64 copy and its differences together fit into the L2 cache.
_PIECE_CELLS = 32_768

# From this size on, passes over memory cost more than a few NumPy calls for each segment.
_LARGE_SEGMENT_CELLS = 2_048


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistics:
    """Statistics of segments; all arrays have one shape.

    Parameters
    ----------
    count, nulls
        ``int64``: number of values, and of cells without a value.
    low, high
        Smallest and largest value; undefined if ``count`` is 0.
    total, mean, m2
        Sum (``int64`` or ``float64``), mean and sum of squared differences from it (``float64``).
    """

    count: NDArray[np.int64]
    nulls: NDArray[np.int64]
    low: NDArray[Any]
    high: NDArray[Any]
    total: NDArray[Any]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of the values of both."""
        count = self.count + other.count
        share = np.divide(
            other.count, count, out=np.zeros(count.shape, dtype=np.float64), where=count > 0
        )
        # The mean without values is undefined and must not turn the result into NaN.
        first = np.where(self.count > 0, self.mean, other.mean)
        second = np.where(other.count > 0, other.mean, self.mean)
        with np.errstate(invalid="ignore", over="ignore"):
            delta = second - first
            mean = first + delta * share
            m2 = self.m2 + other.m2 + delta * delta * share * self.count
        return Statistics(
            count=count,
            nulls=self.nulls + other.nulls,
            low=_chosen(np.fmin, self, other, "low"),
            high=_chosen(np.maximum, self, other, "high"),
            total=self.total + other.total,
            mean=mean,
            m2=m2,
        )

    @classmethod
    def none(cls, shape: Sequence[int], like: Statistics) -> Statistics:
        """Return statistics of empty segments, with the types of ``like``."""
        names = cls.__dataclass_fields__
        return cls(**{name: np.zeros(shape, getattr(like, name).dtype) for name in names})

    def add(self, at: tuple[slice, ...], other: Statistics) -> None:
        """Merge statistics of more cells into the segments ``at``, in place."""
        names = self.__dataclass_fields__
        merged = Statistics(**{name: getattr(self, name)[at] for name in names}).merge(other)
        for name in names:
            getattr(self, name)[at] = getattr(merged, name)


def _chosen(best: np.ufunc, one: Statistics, two: Statistics, name: str) -> NDArray[Any]:
    first, second = getattr(one, name), getattr(two, name)
    both = np.where(two.count == 0, first, best(first, second))
    return np.asarray(np.where(one.count == 0, second, both))


def summarize(
    values: NDArray[Any],
    *,
    valid: NDArray[np.bool_] | None,
    keep: NDArray[np.bool_] | None,
    starts: Sequence[NDArray[np.int64]],
    exact_sum: bool,
) -> Statistics:
    """Return the statistics of the segments of a block, in C order of the segments.

    Parameters
    ----------
    values
        Numbers, one for each cell of the block.
    valid
        Cells that have a value, or None for all.
    keep
        Cells to count, or None for all.
    starts
        For each axis, the first position of each segment, ascending from 0.
    exact_sum
        Sum integers as ``int64``; otherwise sums are ``float64``.
    """
    shape = values.shape
    lengths = segment_lengths(starts, shape)
    present = _both(valid, keep)
    cells = summarized_cells(lengths) if keep is None else count_kept(keep, starts)
    count = cells if present is None else count_kept(present, starts)
    if values.size >= _LARGE_SEGMENT_CELLS * count.size:
        return _summarize_large(values, present, starts, cells, exact_sum)
    kind = values.dtype.kind
    if present is None:
        lows = highs = added = values
    else:
        lowest, highest = (
            (-np.inf, np.inf)
            if kind == "f"
            else (np.iinfo(values.dtype).min, np.iinfo(values.dtype).max)
        )
        lows = np.where(present, values, np.asarray(highest, dtype=values.dtype))
        highs = np.where(present, values, np.asarray(lowest, dtype=values.dtype))
        added = np.where(present, values, np.asarray(0, dtype=values.dtype))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        total = _reduce(np.add, added.astype(np.int64 if exact_sum else np.float64), starts)
        mean = np.divide(total, count, out=np.zeros(count.shape, dtype=np.float64), where=count > 0)
        spread = mean
        for axis, length in enumerate(lengths):
            spread = np.repeat(spread, length, axis=axis)
        squares = np.square(values - spread)
        if present is not None:
            squares[~present] = 0.0
        m2 = _reduce(np.add, squares, starts)
    return Statistics(
        count=count,
        nulls=cells - count,
        low=_reduce(np.fmin if kind == "f" else np.minimum, lows, starts),
        high=_reduce(np.maximum, highs, starts),
        total=total,
        mean=mean,
        m2=m2,
    )


def _summarize_large(
    values: NDArray[Any],
    present: NDArray[np.bool_] | None,
    starts: Sequence[NDArray[np.int64]],
    cells: NDArray[np.int64],
    exact_sum: bool,
) -> Statistics:
    """Summarize segment by segment; ``cells`` counts the cells of each."""
    grid = cells.shape
    count = np.zeros(grid, dtype=np.int64)
    low, high = np.zeros(grid, dtype=values.dtype), np.zeros(grid, dtype=values.dtype)
    total = np.zeros(grid, dtype=np.int64 if exact_sum else np.float64)
    mean, m2 = np.zeros(grid), np.zeros(grid)
    ends = [np.append(first[1:], size) for first, size in zip(starts, values.shape, strict=True)]
    for at in np.ndindex(grid):
        box = tuple(slice(first[i], end[i]) for first, end, i in zip(starts, ends, at, strict=True))
        flat = values[box].reshape(-1) if present is None else values[box][present[box]]
        if len(flat):
            count[at] = len(flat)
            low[at], high[at], total[at], mean[at], m2[at] = _of_numbers(flat, total.dtype)
    return Statistics(
        count=count, nulls=cells - count, low=low, high=high, total=total, mean=mean, m2=m2
    )


def _of_numbers(flat: NDArray[Any], sum_type: np.dtype[Any]) -> tuple[Any, ...]:
    """Return minimum, maximum, sum, mean and m2 of at least one number."""
    firsts = range(0, len(flat), _PIECE_CELLS)
    lows, highs = np.empty(len(firsts), flat.dtype), np.empty(len(firsts), flat.dtype)
    sums, m2s = np.empty(len(firsts), sum_type), np.empty(len(firsts))
    counts = np.empty(len(firsts))
    largest: np.ufunc = np.maximum
    lowest: np.ufunc = np.fmin if flat.dtype.kind == "f" else np.minimum
    wide = np.empty(min(_PIECE_CELLS, len(flat)))
    with np.errstate(invalid="ignore", over="ignore"):
        for number, first in enumerate(firsts):
            piece = flat[first : first + _PIECE_CELLS]
            lows[number], highs[number] = lowest.reduce(piece), largest.reduce(piece)
            differences = wide[: len(piece)]
            differences[...] = piece
            exact = sums.dtype.kind == "i"
            sums[number] = piece.sum(dtype=sum_type) if exact else differences.sum()
            counts[number] = len(piece)
            differences -= sums[number] / len(piece)
            np.square(differences, out=differences)
            m2s[number] = differences.sum()
        total = sums.sum()
        mean = total / len(flat)
        # Add the spread between the means of the pieces to the spread within them.
        m2 = m2s.sum() + (counts * np.square(sums / counts - mean)).sum()
    return lowest.reduce(lows), largest.reduce(highs), total, mean, m2


def segment_lengths(
    starts: Sequence[NDArray[np.int64]], shape: Sequence[int]
) -> list[NDArray[np.int64]]:
    """Return the length of each segment along each axis of a block of some shape."""
    return [np.diff(np.append(first, size)) for first, size in zip(starts, shape, strict=True)]


def summarized_cells(lengths: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the number of cells of each segment, ``int64`` in the shape of the segments."""
    cells = np.ones((1,) * len(lengths), dtype=np.int64)
    for axis, length in enumerate(lengths):
        cells = cells * length.reshape([-1 if a == axis else 1 for a in range(len(lengths))])
    return cells


def count_kept(keep: NDArray[np.bool_], starts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the number of kept cells of each segment."""
    return _reduce(np.add, keep.astype(np.int64), starts)


def _both(one: NDArray[np.bool_] | None, two: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    if one is None or two is None:
        return two if one is None else one
    return one & two


def _reduce(
    operation: np.ufunc, values: NDArray[Any], starts: Sequence[NDArray[np.int64]]
) -> NDArray[Any]:
    # The last axis is contiguous; reducing it first leaves little to reduce along the others.
    for axis in reversed(range(values.ndim)):
        if len(starts[axis]) == 1:
            values = operation.reduce(values, axis=axis, keepdims=True)
        elif len(starts[axis]) < values.shape[axis]:
            values = operation.reduceat(values, starts[axis], axis=axis)
    return values
