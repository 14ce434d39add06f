"""Computes weighted statistics of zones from blocks of cells, and combines those of blocks.

A block has the values of cells at some steps: positions along all other dimensions. Its cover is a
sparse matrix of zones by cells, and a sum is the product of this matrix and the values. Minimum,
maximum and squared differences are reduced over the cells of each zone.

Rules of this file
------------------
1. A cell without a value at a step is ignored at this step.
2. ``m2`` is computed from differences to the mean of the zone, never from a difference of squares,
   and combined by the formula of Chan, Golub and LeVeque with weights in place of counts.
3. ``count`` is the sum of covered fractions; ``weight`` is the sum of fractions times weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.horizontal.reference_systems import geo_package
from icechunk_format.workflows.zonal.quantiles import column_suffix, meant_by, quantile_of

#: The parts of each statistic.
PARTS: Final = {
    "count": ("count",),
    "mean": ("weight", "sum"),
    "sum": ("weight", "sum"),
    "min": ("min",),
    "max": ("max",),
    "std": ("weight", "sum", "m2"),
}
STATISTICS: Final = tuple(PARTS)
_ORDER: Final = ("count", "weight", "sum", "m2", "min", "max")
_BEST: Final = {"min": np.fmin, "max": np.fmax}
# Number of values of covered cells that are reduced together.
_MOST_VALUES: Final = 1 << 20


def check_statistics(names: Sequence[str]) -> None:
    """Raise InvalidInputError for unknown or repeated names of statistics."""
    known = f"{', '.join(STATISTICS)}, median, or quantile(q=0.9) with q from 0 to 1"
    for name in names:
        if name not in PARTS and quantile_of(name) is None:
            hint = meant_by(name, STATISTICS)
            raise InvalidInputError(
                f"statistics={list(names)}: {name!r} is not known; {hint}choose among {known}",
                option="statistics",
            )
    if not names or len(set(map(column_suffix, names))) < len(names):
        raise InvalidInputError(
            f"statistics={list(names)}: name at least one and each once, among {known}",
            option="statistics",
        )


def parts_of(statistics: Sequence[str]) -> tuple[str, ...]:
    """Return the parts that statistics need, in the order of arrays of parts."""
    # Quantiles have no parts; `count` lists the zones.
    needed = {part for name in statistics for part in PARTS.get(name, ("count",))}
    return tuple(part for part in _ORDER if part in needed)


@dataclass(frozen=True, kw_only=True, eq=False)
class CoverMatrix:
    """The cover of a block by zones, row after row.

    Parameters
    ----------
    cells
        ``int64``: indices of cells in the block.
    fractions
        ``float64``: covered fraction of each cell.
    weights
        ``float64``: fractions times weights of cells; the same array as ``fractions`` without
        weights.
    """

    starts: NDArray[np.int64]
    cells: NDArray[np.int64]
    fractions: NDArray[np.float64]
    weights: NDArray[np.float64]
    size: int

    @property
    def zones(self) -> int:
        """Number of zones."""
        return len(self.starts) - 1

    def some(self, first: int, last: int) -> CoverMatrix:
        """Return the cover of the zones ``[first, last)``."""
        if first == 0 and last >= self.zones:
            return self
        starts = self.starts[first : last + 1]
        cells = slice(int(starts[0]), int(starts[-1]))
        fractions = self.fractions[cells]
        same = self.weights is self.fractions
        return CoverMatrix(
            starts=starts - starts[0],
            cells=self.cells[cells],
            fractions=fractions,
            weights=fractions if same else self.weights[cells],
            size=self.size,
        )

    @cached_property
    def by_fraction(self) -> Any:
        """The matrix of fractions in SciPy's CSR format."""
        return self._matrix(self.fractions)

    @cached_property
    def by_weight(self) -> Any:
        """The matrix of weights in SciPy's CSR format."""
        return self.by_fraction if self.weights is self.fractions else self._matrix(self.weights)

    def _matrix(self, values: NDArray[np.float64]) -> Any:
        sparse = geo_package("scipy.sparse", "icechunk_spark.zonal")
        return sparse.csr_array((values, self.cells, self.starts), shape=(self.zones, self.size))


def block_parts(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, cover: CoverMatrix, parts: Sequence[str]
) -> NDArray[np.float64]:
    """Return the parts ``(zones, parts, steps)`` of the values ``(steps, cells)`` of a block.

    `valid` is a mask of present values; None if all are present.
    """
    steps = len(values)
    result = np.empty((cover.zones, len(parts), steps))
    at_once = max(1, _MOST_VALUES // max(1, cover.size if len(parts) < 3 else len(cover.cells)))
    for first in range(0, steps, at_once):
        some = slice(first, first + at_once)
        held = None if valid is None else valid[some]
        found = _parts(values[some], held, cover, parts)
        for number, name in enumerate(parts):
            result[:, number, some] = found[name]
    return result


def _parts(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, cover: CoverMatrix, parts: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    """Return parts by name, each ``(zones, steps)`` or ``(zones, 1)``."""
    found: dict[str, NDArray[np.float64]] = {}
    # Transposed: SciPy multiplies fastest if the values of a cell are contiguous.
    wide = np.array(values.T, dtype=np.float64, order="C")
    there = None
    if valid is not None:
        there = np.ascontiguousarray(valid.T)
        wide[~there] = 0.0
    if "count" in parts:
        found["count"] = _summed(cover.by_fraction, there)
    if "weight" in parts:
        same = cover.by_weight is cover.by_fraction and "count" in found
        found["weight"] = found["count"] if same else _summed(cover.by_weight, there)
        with np.errstate(invalid="ignore", over="ignore"):
            found["sum"] = cover.by_weight @ wide
    gathered = {"m2", "min", "max"} & set(parts)
    if gathered:
        own = wide[cover.cells]
        held = None if there is None else there[cover.cells]
        for name in gathered - {"m2"}:
            filled = own if held is None else np.where(held, own, np.nan)
            found[name] = _reduced(_BEST[name], filled, cover.starts, np.nan)
        if "m2" in gathered:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                mean = np.where(found["weight"] > 0, found["sum"] / found["weight"], 0.0)
                own -= np.repeat(mean, np.diff(cover.starts), axis=0)
                own *= own
            own *= cover.weights[:, None]
            if held is not None:
                own[~held] = 0.0
            found["m2"] = _reduced(np.add, own, cover.starts, 0.0)
    return found


def _summed(matrix: Any, there: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Return the sums over the cells with a value."""
    if there is None:
        total: NDArray[np.float64] = np.asarray(matrix.sum(axis=1))[:, None]
        return total
    return np.asarray(matrix @ there.astype(np.float64))


def _reduced(
    reduce: np.ufunc, values: NDArray[np.float64], starts: NDArray[np.int64], none: float
) -> NDArray[np.float64]:
    """Reduce the cells of each zone; ``none`` for zones without cells."""
    result = np.full((len(starts) - 1, values.shape[1]), none)
    some = np.diff(starts) > 0
    if some.any():
        result[some] = reduce.reduceat(values, starts[:-1][some], axis=0)
    return result


def combine(
    one: NDArray[np.float64], other: NDArray[np.float64], parts: Sequence[str]
) -> NDArray[np.float64]:
    """Combine the parts of two sets of cells; arrays are ``(parts, ...)``."""
    result = np.empty(np.broadcast_shapes(one.shape, other.shape))
    index = {name: number for number, name in enumerate(parts)}
    for name, number in index.items():
        if name in _BEST:
            result[number] = _BEST[name](one[number], other[number])
        else:
            result[number] = one[number] + other[number]
    if "m2" in index:
        weight, total = index["weight"], index["sum"]
        left, right = one[weight], other[weight]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            apart = other[total] / right - one[total] / left
            between = apart * apart * (left / result[weight]) * right
        result[index["m2"]] += np.where((left > 0) & (right > 0), between, 0.0)
    return result


def no_parts(parts: Sequence[str], shape: Sequence[int]) -> NDArray[np.float64]:
    """Return the parts of an empty set of cells, ``float64 (parts, *shape)``."""
    result = np.zeros((len(parts), *shape))
    for number, name in enumerate(parts):
        result[number] = np.nan if name in _BEST else 0.0
    return result


def finish(
    found: NDArray[np.float64], parts: Sequence[str], statistic: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the values of a statistic from ``(parts, ...)``, and a mask of valid values.

    A count or a weight of NaN marks a zone without geometry.
    """
    held = {name: found[number] for number, name in enumerate(parts)}
    if statistic in ("count", "min", "max"):
        return held[statistic], ~np.isnan(held[statistic])
    weight = held["weight"]
    with np.errstate(invalid="ignore", divide="ignore"):
        some = weight > 0
        if statistic == "sum":
            return held["sum"], some
        if statistic == "mean":
            return held["sum"] / weight, some
        return np.sqrt(held["m2"] / weight), some
