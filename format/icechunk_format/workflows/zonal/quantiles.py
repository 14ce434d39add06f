"""Computes quantiles of zones from the values of all their cells, as exactextract does.

Quantiles of blocks cannot be combined, so values are shuffled by zone and *part*: a box of steps
small enough to hold all values of a zone that covers the whole grid.

Definition
----------
The n cells with a value and a positive weight are sorted by value, then by weight, so that the
result does not depend on the order of reading. Cell k, from 0, is at position ``k w_k + (n - 1)
(w_0 + ... + w_{k-1})``; the last cell is at ``(n - 1)`` times the sum of weights. The quantile is
interpolated between the two cells around ``q`` times this position. Equal weights give the quantile
of NumPy and xarray.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import UnsupportedError
from icechunk_format.grid.cover import sides_from_last

#: Maximum values of a zone in memory of a task: cells of one step, times variables.
MOST_VALUES: Final = 8 << 20
# Number of values that are sorted together.
_SORTED_TOGETHER: Final = 1 << 18
_OF_SQL: Final = {"avg": "mean", "average": "mean", "stddev": "std", "variance": "var"}
_SPELLED: Final = re.compile(r"quantile\(\s*q\s*=\s*([0-9.eE+-]+)\s*\)")

Box = tuple[tuple[int, int], ...]
"""Ranges ``(start, stop)`` of steps of a split, along each other dimension."""


def quantile_of(statistic: str) -> float | None:
    """Parse ``median`` or ``quantile(q=0.9)`` to a number from 0 to 1; None for other strings."""
    if statistic == "median":
        return 0.5
    match = _SPELLED.fullmatch(statistic)
    try:
        share = math.nan if match is None else float(match[1])
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def meant_by(statistic: object, known: Collection[str]) -> str:
    """Return a question for the known statistic that SQL or a longer word spells otherwise."""
    meant = _OF_SQL.get(statistic) if isinstance(statistic, str) else None
    return f"did you mean {meant!r}? Or " if meant in known else ""


def column_suffix(statistic: str) -> str:
    """Return the column suffix of a statistic: its name, or for instance quantile_90."""
    share = quantile_of(statistic)
    if share is None or statistic == "median":
        return statistic
    # Rounded, so that 0.29 becomes 29, not 28.999999999999996.
    return f"quantile_{round(100 * share, 10):.12g}".replace(".", "_")


def part_steps(shape: Sequence[int], cells: int) -> tuple[int, ...]:
    """Return the number of steps of a part along each dimension; ``cells`` is per step."""
    return sides_from_last(shape, max(1, MOST_VALUES // max(1, cells)))


def parts_within(
    region: Box, shape: Sequence[int], steps: Sequence[int]
) -> Iterator[tuple[int, Box]]:
    """Yield the number of each part that overlaps a box, and the overlap."""
    counts = [-(-size // step) for size, step in zip(shape, steps, strict=True)]
    numbers = (range(a // step, -(-b // step)) for (a, b), step in zip(region, steps, strict=True))
    for at in product(*numbers):
        box = (
            (max(a, n * step), min(b, (n + 1) * step))
            for n, (a, b), step in zip(at, region, steps, strict=True)
        )
        yield int(np.ravel_multi_index(at, counts)), tuple(box)


#: Bytes of the head of a sample: the column, and the number of the row of cover.
HEAD_BYTES: Final = 16


class Samples:
    """The values of one zone in one part, in the order of blocks."""

    def __init__(self, zone: str) -> None:
        self._zone = zone
        # The head of a sample identifies its cells in all blocks.
        self._weights: dict[bytes, NDArray[np.float64]] = {}
        self._blocks: list[tuple[bytes, Box, NDArray[np.float64]]] = []
        self._held = 0

    def add(self, box: Box, variables: int, samples: bytes) -> None:
        """Add a head, the weights of some cells, and their values ``(variables, *box, cells)``."""
        head = samples[:HEAD_BYTES]
        numbers = np.frombuffer(samples, dtype=np.float64, offset=HEAD_BYTES)
        shape = (variables, *(last - first for first, last in box))
        cells = len(numbers) // (1 + math.prod(shape))
        self._held += len(numbers) - cells
        if self._held > MOST_VALUES:
            raise UnsupportedError(
                f"the zone {self._zone} has more than {MOST_VALUES:,} values at one step, all"
                " variables together, and a quantile needs all of them at once: cut the zone into"
                " smaller ones, name fewer variables, or leave median and quantile out",
                option="statistics",
            )
        self._weights[head] = numbers[:cells]
        self._blocks.append((head, box, numbers[cells:].reshape(*shape, cells)))

    def quantiles(self, shares: Sequence[float], into: NDArray[np.float64]) -> None:
        """Write quantiles to an array ``(variables, shares, *split)``; NaN without a value."""
        weights = np.concatenate(list(self._weights.values()))
        ends = np.cumsum([len(some) for some in self._weights.values()])
        stops = dict(zip(self._weights, ends.tolist(), strict=True))
        boxes = np.array([box for _, box, _ in self._blocks], dtype=np.int64)
        boxes = boxes.reshape(len(self._blocks), into.ndim - 2, 2)
        firsts, lasts = boxes[:, :, 0].min(axis=0), boxes[:, :, 1].max(axis=0)
        values = np.full((len(into), *(lasts - firsts), len(weights)), np.nan)
        # Blocks of different columns may have different steps.
        while self._blocks:
            head, box, block = self._blocks.pop()
            at = (slice(a - o, b - o) for (a, b), o in zip(box, firsts.tolist(), strict=True))
            values[(slice(None), *at, slice(stops[head] - block.shape[-1], stops[head]))] = block
        found = weighted_quantiles(values.reshape(-1, len(weights)), weights, shares)
        found = found.reshape(*values.shape[:-1], len(shares))
        at = (slice(*ends) for ends in zip(firsts.tolist(), lasts.tolist(), strict=True))
        into[(slice(None), slice(None), *at)] = np.moveaxis(found, -1, 1)


def weighted_quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64], shares: Sequence[float]
) -> NDArray[np.float64]:
    """Return the quantiles ``(rows, shares)`` of values ``(rows, cells)``; NaN is a missing value.

    Cells with a weight of zero are ignored. A row without values gets NaN.
    """
    used = np.flatnonzero(weights > 0)
    # Sort by weight first; the stable sort by value keeps this order among equal values.
    used = used[np.argsort(weights[used], kind="stable")]
    weights = weights[used]
    result = np.full((len(values), len(shares)), np.nan)
    at_once = max(1, _SORTED_TOGETHER // max(1, len(used)))
    for first in range(0, len(values) if len(used) else 0, at_once):
        own = values[first : first + at_once, used]
        order = np.argsort(own, axis=1, kind="stable")  # NaN is last
        own = np.take_along_axis(own, order, axis=1)
        there = ~np.isnan(own)
        held = np.where(there, weights[order], 0.0)
        last = np.count_nonzero(there, axis=1)[:, None] - 1
        sums = np.cumsum(held, axis=1)
        position = last * (sums - held) + np.arange(len(used)) * held
        lines = np.arange(len(own))
        for number, share in enumerate(shares):
            wanted = share * last[:, 0] * sums[:, -1]
            before = np.count_nonzero((position <= wanted[:, None]) & there, axis=1) - 1
            left = np.clip(before, 0, None)
            right = np.clip(left + 1, None, np.clip(last[:, 0], 0, None))
            low, high = own[lines, left], own[lines, right]
            start, end = position[lines, left], position[lines, right]
            with np.errstate(invalid="ignore", divide="ignore"):
                between = low + (wanted - start) * ((high - low) / (end - start))
            result[first : first + at_once, number] = np.where(
                (low == high) | (wanted == start), low, between
            )
    return result
