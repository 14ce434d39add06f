"""Finds circular coordinates: longitudes, of which 359.9 and -0.1 are the same.

Rules of this file
------------------
1. Longitudes in degrees have a period of 360, unless their labels span more than one period.
2. An axis is closed if its labels cover the whole period: the step from the last label to the first
   is not much wider than the widest other step. Labels of an open axis, such as that of a region,
   match modulo the period, but there is no cell between its ends.
3. A last label one period after the first (a cyclic point, such as 360 after 0) repeats the first
   label and is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.workflows.horizontal.axes import direction_of, text_attribute

DEGREES_OF_A_CIRCLE: Final = 360.0
# Steps of float32 labels are uneven, and some grids omit the last column.
_MOST_OF_A_STEP: Final = 1.5
# Tolerance for the repeated label of float32 axes, as a fraction of a step.
_REPEATED: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """A circular axis.

    Parameters
    ----------
    is_repeated
        True if the last label repeats the first, one period later.
    """

    period: float
    is_closed: bool
    is_repeated: bool = False


def circle_of(labels: NDArray[Any], period: float) -> Circle | None:
    """Return the circle of labels in any order; None if they span more than one period."""
    values = np.asarray(labels, dtype=np.float64).reshape(-1)
    values = np.unique(values[np.isfinite(values)])
    if not len(values):
        return Circle(period=period, is_closed=False)
    span = float(values[-1] - values[0])
    if span > period * (1 + 1e-6):
        return None
    steps = np.diff(values)
    return Circle(
        period=period,
        is_closed=period - span <= _MOST_OF_A_STEP * float(steps.max(initial=0.0)),
        is_repeated=period - span <= _REPEATED * float(steps.min(initial=period)),
    )


def period_of(coordinate: Variable) -> float | None:
    """Return the period of a coordinate; None if it is not a longitude in degrees."""
    directed = direction_of(coordinate)
    if directed is None or directed[0] != "x" or directed[1] == "projected":
        return None
    units = text_attribute(coordinate, "units").lower()
    return None if units and not units.startswith("deg") else DEGREES_OF_A_CIRCLE


def detected_circle(coordinate: Variable, labels: NDArray[Any]) -> Circle | None:
    """Return the circle of a coordinate; None if it is not a longitude in degrees."""
    period = period_of(coordinate)
    return None if period is None else circle_of(labels, period)
