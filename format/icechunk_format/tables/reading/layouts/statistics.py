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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

# A piece, its float64 copy and its differences together fit into the L2 cache.
_PIECE_CELLS = 32_768

# From this size on, passes over memory cost more than a few NumPy calls for each segment.
_LARGE_SEGMENT_CELLS = 2_048


Statistic = Literal["low", "high", "total", "moments"]
"""A kind of statistics beside the counts; ``moments`` are ``mean`` and ``m2``."""

EVERY_STATISTIC: Final[frozenset[Statistic]] = frozenset({"low", "high", "total", "moments"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistics:
    """Statistics of segments; all arrays have one shape. None stands for one that is not wanted.

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
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None
    total: NDArray[Any] | None = None
    mean: NDArray[np.float64] | None = None
    m2: NDArray[np.float64] | None = None

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of the values of both."""
        count = self.count + other.count
        total = None
        if self.total is not None and other.total is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                total = self.total + other.total
        mean, m2 = self._merged_moments(other, count)
        return Statistics(
            count=count,
            nulls=self.nulls + other.nulls,
            low=_chosen(np.fmin, self, other, "low"),
            high=_chosen(np.maximum, self, other, "high"),
            total=total,
            mean=mean,
            m2=m2,
        )

    def _merged_moments(
        self, other: Statistics, count: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        if self.mean is None or other.mean is None or self.m2 is None or other.m2 is None:
            return None, None
        share = np.divide(
            other.count, count, out=np.zeros(count.shape, dtype=np.float64), where=count > 0
        )
        # The mean without values is undefined and must not turn the result into NaN.
        first = np.where(self.count > 0, self.mean, other.mean)
        second = np.where(other.count > 0, other.mean, self.mean)
        with np.errstate(invalid="ignore", over="ignore"):
            delta = second - first
            mean = first + delta * share
            return mean, self.m2 + other.m2 + delta * delta * share * self.count

    @classmethod
    def none(cls, shape: Sequence[int], like: Statistics) -> Statistics:
        """Return statistics of empty segments, with the fields and types of ``like``."""
        return cls(**{name: np.zeros(shape, getattr(like, name).dtype) for name in like.fields})

    @property
    def fields(self) -> list[str]:
        """The names of the fields that are not None."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name) is not None]

    def add(self, at: tuple[slice, ...], other: Statistics) -> None:
        """Merge statistics of more cells into the segments ``at``, in place."""
        names = self.fields
        merged = Statistics(**{name: getattr(self, name)[at] for name in names}).merge(other)
        for name in names:
            getattr(self, name)[at] = getattr(merged, name)


def _chosen(
    best: np.ufunc, one: Statistics, two: Statistics, name: Literal["low", "high"]
) -> NDArray[Any] | None:
    first, second = getattr(one, name), getattr(two, name)
    if first is None or second is None:
        return None
    both = np.where(two.count == 0, first, best(first, second))
    return np.asarray(np.where(one.count == 0, second, both))


def summarize(
    values: NDArray[Any],
    *,
    valid: NDArray[np.bool_] | None,
    keep: NDArray[np.bool_] | None,
    starts: Sequence[NDArray[np.int64]],
    exact_sum: bool,
    wanted: Collection[Statistic] = EVERY_STATISTIC,
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
    wanted
        The statistics to compute beside the counts.
    """
    lengths = segment_lengths(starts, values.shape)
    present = _both(valid, keep)
    cells = summarized_cells(lengths) if keep is None else count_kept(keep, starts)
    count = cells if present is None else count_kept(present, starts)
    counts: dict[str, NDArray[Any]] = {"count": count, "nulls": cells - count}
    if not wanted:
        return Statistics(**counts)
    sum_type = np.dtype(np.int64 if exact_sum else np.float64)
    if "moments" in wanted and values.size >= _LARGE_SEGMENT_CELLS * count.size:
        return _summarize_large(values, present, starts, counts, sum_type, wanted)
    found: dict[str, NDArray[Any]] = {}
    is_float = values.dtype.kind == "f"
    limits = (-np.inf, np.inf) if is_float else _limits(values.dtype)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if "total" in wanted or "moments" in wanted:
            total = _reduce(np.add, _filled(values, present, 0), starts, sum_type)
            if "total" in wanted:
                found["total"] = total
        if "moments" in wanted:
            found["mean"] = mean = np.divide(
                total, count, out=np.zeros(count.shape, dtype=np.float64), where=count > 0
            )
            spread = mean
            for axis, length in enumerate(lengths):
                spread = np.repeat(spread, length, axis=axis)
            squares = np.square(values - spread)
            if present is not None:
                squares[~present] = 0.0
            found["m2"] = _reduce(np.add, squares, starts)
    if "low" in wanted:
        # A segment that has only NaN has NaN as its smallest value.
        lowest, absent = (np.fmin, np.nan) if is_float else (np.minimum, limits[1])
        found["low"] = _reduce(lowest, _filled(values, present, absent), starts)
    if "high" in wanted:
        found["high"] = _reduce(np.maximum, _filled(values, present, limits[0]), starts)
    return Statistics(**counts, **found)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _filled(values: NDArray[Any], present: NDArray[np.bool_] | None, absent: float) -> NDArray[Any]:
    """Return the values with a number in place of those that do not count."""
    if present is None:
        return values
    filled = np.full(values.shape, absent, dtype=values.dtype)
    # Copies runs of values, which is faster than a choice at each cell.
    np.copyto(filled, values, where=present)
    return filled


def _summarize_large(
    values: NDArray[Any],
    present: NDArray[np.bool_] | None,
    starts: Sequence[NDArray[np.int64]],
    counts: dict[str, NDArray[Any]],
    sum_type: np.dtype[Any],
    wanted: Collection[Statistic],
) -> Statistics:
    """Compute the statistics segment by segment."""
    grid = counts["count"].shape
    low, high = np.zeros(grid, dtype=values.dtype), np.zeros(grid, dtype=values.dtype)
    total, mean, m2 = np.zeros(grid, dtype=sum_type), np.zeros(grid), np.zeros(grid)
    ends = [np.append(first[1:], size) for first, size in zip(starts, values.shape, strict=True)]
    for at in np.ndindex(grid):
        box = tuple(slice(first[i], end[i]) for first, end, i in zip(starts, ends, at, strict=True))
        flat = values[box].reshape(-1) if present is None else values[box][present[box]]
        if len(flat):
            low[at], high[at], total[at], mean[at], m2[at] = _of_numbers(flat, sum_type, wanted)
    return Statistics(
        **counts,
        low=low if "low" in wanted else None,
        high=high if "high" in wanted else None,
        total=total if "total" in wanted else None,
        mean=mean,
        m2=m2,
    )


def _of_numbers(
    flat: NDArray[Any], sum_type: np.dtype[Any], wanted: Collection[Statistic]
) -> tuple[Any, ...]:
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
            if "low" in wanted:
                lows[number] = lowest.reduce(piece)
            if "high" in wanted:
                highs[number] = largest.reduce(piece)
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
    return _reduce(np.add, keep, starts, np.dtype(np.int64))


def _both(one: NDArray[np.bool_] | None, two: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    if one is None or two is None:
        return two if one is None else one
    return one & two


def _reduce(
    operation: np.ufunc,
    values: NDArray[Any],
    starts: Sequence[NDArray[np.int64]],
    dtype: np.dtype[Any] | None = None,
) -> NDArray[Any]:
    """Reduce the cells of each segment, with results of a type; None is the type of the values."""
    # The last axis is contiguous; reducing it first leaves little to reduce along the others.
    for axis in reversed(range(values.ndim)):
        if len(starts[axis]) == 1 and values.shape[axis] > 1:
            values = operation.reduce(values, axis=axis, keepdims=True, dtype=dtype)
        elif len(starts[axis]) < values.shape[axis]:
            values = operation.reduceat(values, starts[axis], axis=axis, dtype=dtype)
    return values if dtype is None else values.astype(dtype, copy=False)
