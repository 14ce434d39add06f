"""Tells whether a coordinate is circular: longitudes, where 359.9 and -0.1 are one place.

Rules of this file
------------------
1. Longitudes in degrees have a period of 360, unless their labels span more than one turn.
2. An axis is closed if its labels go all the way round: the step from the last label over the seam
   to the first is not much wider than the widest other step. Labels of an open axis, such as
   that of a region, are found under any number of turns, but no cell lies between its ends.
3. A last label one turn after the first (a cyclic column, as 360 after 0) repeats it: the two are
   one place, and only the first counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.workflows.horizontal.axes import direction_of, text_attribute

DEGREES_OF_A_TURN: Final = 360.0
# Labels of float32 make steps uneven, and some grids leave the last column out.
_MOST_OF_A_STEP: Final = 1.5
# Labels of float32 miss the whole turn by less than this part of a step.
_REPEATED: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """A circular axis.

    Parameters
    ----------
    period
        The length of one turn, in units of the labels.
    is_closed
        Whether the labels go all the way round.
    is_repeated
        Whether the last label is the first one, a turn later.
    """

    period: float
    is_closed: bool
    is_repeated: bool = False


def circle_of(labels: NDArray[Any], period: float) -> Circle | None:
    """Return the circle that labels lie on, or None where they span more than one turn.

    Parameters
    ----------
    labels
        Numbers in any order; NaN counts as absent.
    period
        The length of one turn.
    """
    values = np.asarray(labels, dtype=np.float64).reshape(-1)
    values = np.unique(values[np.isfinite(values)])
    if not len(values):
        return Circle(period=period, is_closed=False)
    span = float(values[-1] - values[0])
    # A last label that repeats the first one, a turn later, still lies on one turn.
    if span > period * (1 + 1e-6):
        return None
    steps = np.diff(values)
    return Circle(
        period=period,
        is_closed=period - span <= _MOST_OF_A_STEP * float(steps.max(initial=0.0)),
        is_repeated=period - span <= _REPEATED * float(steps.min(initial=period)),
    )


def period_of(coordinate: Variable) -> float | None:
    """Return the period of a coordinate whose attributes call it a longitude in degrees."""
    directed = direction_of(coordinate)
    if directed is None or directed[0] != "x" or directed[1] == "projected":
        return None
    units = text_attribute(coordinate, "units").lower()
    return None if units and not units.startswith("deg") else DEGREES_OF_A_TURN


def detected_circle(coordinate: Variable, labels: NDArray[Any]) -> Circle | None:
    """Return the circle of a coordinate that its attributes call a longitude in degrees.

    Parameters
    ----------
    coordinate
        The array of the labels.
    labels
        Its decoded values.
    """
    period = period_of(coordinate)
    return None if period is None else circle_of(labels, period)
