"""Defines the edges of cells along one axis of a horizontal grid.

Rules of this file
------------------
1. Edges are the CF bounds of the coordinate, or else midway between labels. Labels that are evenly
   spaced up to rounding get evenly spaced edges.
2. Positions count cells: cell `i` is between the positions `i` and `i + 1`, for ascending and
   descending labels. Within a cell, a position is linear in the coordinate.
3. Latitudes end at the poles: cells are cut there if the poles are labels.
4. On a closed circle the last cell ends at the start of the first, plus a period. A last label that
   repeats the first has no cell.

CF conventions, section 7.1 "Cell Boundaries".
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.horizontal.axes import circle_of

# Evenly spaced labels may deviate by this many rounding errors of their data type.
_ROUNDINGS: Final = 4
_POLE: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellAxis:
    """The cells along one axis.

    Parameters
    ----------
    edges
        ``float64 (n + 1,)``, in the order of the labels.
    even_ends
        The outer edges, before cells are cut at the poles, if all cells have the same length.
    """

    name: str
    labels: NDArray[np.float64]
    edges: NDArray[np.float64]
    even_ends: tuple[float, float] | None = None

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.labels)

    @property
    def low(self) -> float:
        """The smallest coordinate of a cell."""
        return float(min(self.edges[0], self.edges[-1]))

    @property
    def high(self) -> float:
        """The largest coordinate of a cell."""
        return float(max(self.edges[0], self.edges[-1]))

    @property
    def stretches(self) -> NDArray[np.float64] | None:
        """Ratio of each cell's length before and after cuts at the poles; None without cuts."""
        if self.even_ends is None:
            return None
        begin, end = self.even_ends
        if (begin, end) == (self.edges[0], self.edges[-1]):
            return None
        return np.asarray((end - begin) / self.size / np.diff(self.edges))

    def position(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the positions of coordinates, which may be outside of all cells."""
        if self.even_ends is not None:
            begin, end = self.even_ends
            return np.asarray((values - begin) * (self.size / (end - begin)))
        first, last = self.edges[0], self.edges[-1]
        numbers = np.arange(self.size + 1, dtype=np.float64)
        ascending = last > first
        edges = self.edges if ascending else self.edges[::-1]
        found = np.interp(values, edges, numbers if ascending else numbers[::-1])
        # Outside, positions are extrapolated with the average cell length.
        below, above = values < edges[0], values > edges[-1]
        slope = self.size / (last - first)
        found[below] += (values[below] - edges[0]) * slope
        found[above] += (values[above] - edges[-1]) * slope
        return np.asarray(found)


def cell_axis(
    name: str,
    labels: NDArray[Any],
    *,
    bounds: NDArray[Any] | None = None,
    period: float | None = None,
    ends_at_poles: bool = False,
) -> CellAxis:
    """Return the cells of a coordinate with labels ``(n,)``, which may jump by a period.

    `bounds` ``(n, 2)`` has the ends of each cell.
    """
    precision = np.finfo(labels.dtype).eps if labels.dtype.kind == "f" else 0.0
    values = np.asarray(labels, dtype=np.float64)
    if period is not None and len(values) and np.isfinite(values).all():
        values = np.unwrap(values, period=period)
    steps = np.diff(values)
    if not len(values) or not np.isfinite(values).all() or not (all(steps > 0) or all(steps < 0)):
        raise InvalidInputError(
            f"coordinate {name!r} cannot bound cells: its {len(values)} labels are not numbers"
            " that all ascend or all descend; choose variables on another grid with variables=",
            coordinate=name,
        )
    edges = None if bounds is None else _bound_edges(name, values, bounds, period)
    circle = None if period is None else circle_of(values, period)
    if circle is not None and circle.is_repeated:
        if edges is None or bounds is None:
            return cell_axis(name, labels[:-1], period=period)
        if abs(edges[-1] - edges[0]) > circle.period * (1 + 1e-6):
            return cell_axis(name, labels[:-1], bounds=bounds[:-1], period=period)
    if edges is None:
        if len(values) == 1:
            raise InvalidInputError(
                f"coordinate {name!r} has one label and no bounds, so its cell has no size: write"
                " an array of bounds and name it in the attribute bounds",
                coordinate=name,
            )
        off = np.abs(values - np.linspace(values[0], values[-1], len(values))).max()
        rounding = _ROUNDINGS * max(precision, 1e-15) * np.abs(values).max()
        half = (values[-1] - values[0]) / (len(values) - 1) / 2
        begin, end = values[0] - half, values[-1] + half
        is_regular = off <= rounding
        if circle is not None and circle.is_closed:
            around = np.copysign(circle.period, half)
            seam = (values[0] + values[-1] - around) / 2
            is_regular &= abs(seam - begin) <= rounding
            begin, end = seam, seam + around
        elif not is_regular:
            begin, end = values[0] - steps[0] / 2, values[-1] + steps[-1] / 2
        edges = np.linspace(begin, end, len(values) + 1)
        if not is_regular:
            edges[1:-1] = (values[1:] + values[:-1]) / 2
    even = np.linspace(edges[0], edges[-1], len(edges))
    is_even = np.abs(edges - even).max() <= 1e-12 * np.abs(np.diff(edges)).max() * len(edges)
    ends = (float(edges[0]), float(edges[-1])) if is_even else None
    edges = even if is_even else edges
    if ends_at_poles:
        edges = np.clip(edges, -_POLE, _POLE)
        if not (np.diff(edges) != 0).all():
            raise InvalidInputError(
                f"coordinate {name!r} has latitudes from {values.min():g} to {values.max():g}, of"
                " which some are beyond the poles: choose variables on another grid with"
                " variables=",
                coordinate=name,
            )
    return CellAxis(name=name, labels=values, edges=edges, even_ends=ends)


def _bound_edges(
    name: str, labels: NDArray[np.float64], bounds: NDArray[Any], period: float | None
) -> NDArray[np.float64] | None:
    """Return the edges from bounds; warn and return None if the bounds are not usable."""
    ends = np.asarray(bounds, dtype=np.float64)
    problem = "not two numbers for each label"
    if ends.shape == (len(labels), 2) and np.isfinite(ends).all():
        if period is not None:
            # Labels may have been shifted by multiples of the period.
            ends = ends + np.round((labels - ends.mean(axis=1)) / period)[:, None] * period
        ascending = labels[-1] > labels[0] if len(labels) > 1 else True
        ends = np.sort(ends, axis=1) if ascending else -np.sort(-ends, axis=1)
        edges = np.append(ends[:, 0], ends[-1, 1])
        lengths = np.diff(edges)
        gaps = np.abs(ends[:-1, 1] - ends[1:, 0]).max(initial=0.0)
        if (all(lengths > 0) or all(lengths < 0)) and gaps <= 1e-4 * np.abs(lengths).min():
            return edges
        problem = "with gaps or overlaps"
    warnings.warn(
        f"the bounds of coordinate {name!r} are {problem}: cells end midway between labels",
        UserWarning,
        stacklevel=1,
    )
    return None
