"""Finds the horizontal coordinates of a variable by their CF attributes, and circular ones.

Rules of this file
------------------
1. Coordinates are recognized by ``standard_name``, then by ``units`` (``degrees_north``), then,
   without units, by name: ``lat``, ``longitude``, ``nav_lat``.
2. One-dimensional coordinates are preferred to two-dimensional ones, and dimension coordinates to
   others. Two coordinates of one kind form a grid if each has one of two dimensions of the
   variable, or both have both.
3. Attributes are untrusted: values that are not strings count as absent.
4. Longitudes in degrees have a period of 360, unless their labels span more than one period: 359.9
   and -0.1 are the same.
5. A circular axis is closed if its labels cover the whole period: the step from the last label to
   the first is not much wider than the widest other step. Labels of an open axis, such as that of a
   region, match modulo the period, but there is no cell between its ends. The labels of a region
   across the seam jump by a period: 350, 355, 0, 5.
6. A last label one period after the first (a cyclic point, such as 360 after 0) repeats the first
   label and is ignored.

CF conventions, sections 4.1 "Latitude Coordinate", 4.2 "Longitude Coordinate" and 5.6 "Horizontal
Coordinate Reference Systems, Grid Mappings, and Projections".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import FormatError
from icechunk_format.groups import Variable

Direction = Literal["y", "x"]
GridKind = Literal["geographic", "rotated", "projected"]

_STANDARD_NAMES: Final[Mapping[str, tuple[Direction, GridKind]]] = {
    "latitude": ("y", "geographic"),
    "longitude": ("x", "geographic"),
    "grid_latitude": ("y", "rotated"),
    "grid_longitude": ("x", "rotated"),
    "projection_y_coordinate": ("y", "projected"),
    "projection_x_coordinate": ("x", "projected"),
    "projection_y_angular_coordinate": ("y", "projected"),
    "projection_x_angular_coordinate": ("x", "projected"),
}
_DEGREES: Final = ("degree", "degrees")
_UNITS: Final[Mapping[str, tuple[Direction, GridKind]]] = {
    **dict.fromkeys(
        ("degrees_north", "degree_north", "degree_n", "degrees_n", "degreen", "degreesn"),
        ("y", "geographic"),
    ),
    **dict.fromkeys(
        ("degrees_east", "degree_east", "degree_e", "degrees_e", "degreee", "degreese"),
        ("x", "geographic"),
    ),
}
_NAMES: Final[Mapping[str, tuple[Direction, GridKind]]] = {
    **dict.fromkeys(("lat", "latitude", "nav_lat", "xlat"), ("y", "geographic")),
    **dict.fromkeys(("lon", "long", "longitude", "nav_lon", "xlong"), ("x", "geographic")),
    "rlat": ("y", "rotated"),
    "rlon": ("x", "rotated"),
}
DEGREES_OF_A_CIRCLE: Final = 360.0
# Steps of float32 labels are uneven, and some grids omit the last column.
_MOST_OF_A_STEP: Final = 1.5
# Tolerance for the repeated label of float32 axes, as a fraction of a step.
_REPEATED: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizontalGrid:
    """The horizontal coordinates of a variable.

    Parameters
    ----------
    kind
        ``geographic`` for latitude and longitude, ``rotated`` for a rotated pole, ``projected`` for
        projected coordinates.
    y, x
        The coordinates. Both are one-dimensional, or both have the same two dimensions.
    """

    kind: GridKind
    y: Variable
    x: Variable

    @property
    def dims(self) -> tuple[str, str]:
        """The two dimensions: of y, then of x."""
        return (self.y.dims[0], self.x.dims[-1])

    @property
    def is_curvilinear(self) -> bool:
        """True if the coordinates have two dimensions."""
        return len(self.y.dims) == 2


def string_attribute(variable: Variable, name: str) -> str:
    """Return a string attribute; empty if it is absent or not a string."""
    value = variable.attributes.get(name)
    return value.strip() if isinstance(value, str) else ""


def bounds_of(coordinate: Variable, variables: Mapping[str, Variable]) -> Variable | None:
    """Return the array with two bounds for each label of a coordinate, or None."""
    bounds = variables.get(string_attribute(coordinate, "bounds"))
    return bounds if bounds is not None and bounds.shape == (*coordinate.shape, 2) else None


def direction_of(coordinate: Variable) -> tuple[Direction, GridKind] | None:
    """Return direction and grid kind of a coordinate; None if it is not horizontal."""
    named = _STANDARD_NAMES.get(string_attribute(coordinate, "standard_name").lower())
    if named is not None:
        return named
    units = string_attribute(coordinate, "units")
    by_units = _UNITS.get(units.lower())
    if by_units is not None:
        return by_units
    if not units or units.lower() in _DEGREES:
        return _NAMES.get(coordinate.name.lower())
    return None


def horizontal_grid(variable: Variable, variables: Mapping[str, Variable]) -> HorizontalGrid | None:
    """Return the horizontal coordinates of a variable, or None."""
    found = [
        (coordinate, *directed)
        for coordinate in _coordinates(variable, variables)
        for directed in [direction_of(coordinate)]
        if directed is not None
    ]
    ys = [(c, kind) for c, direction, kind in found if direction == "y"]
    xs = [(c, kind) for c, direction, kind in found if direction == "x"]
    for (y, y_kind), (x, x_kind) in itertools.product(ys, xs):
        apart = len(y.dims) == len(x.dims) == 1 and y.dims != x.dims
        if y_kind == x_kind and (apart or (len(y.dims) == 2 and y.dims == x.dims)):
            return HorizontalGrid(kind=y_kind, y=y, x=x)
    return None


def _coordinates(variable: Variable, variables: Mapping[str, Variable]) -> Iterator[Variable]:
    """Yield the coordinates on dimensions of a variable, in the order of rule 2."""
    dimensions = set(variable.dimensions)
    along = [
        other
        for other in variables.values()
        if other is not variable
        and other.dims
        and set(other.dimensions) <= dimensions
        and not other.has_repeated_dimension
        and _is_number(other)
    ]
    yield from sorted(
        (other for other in along if len(other.dims) <= 2),
        key=lambda other: (len(other.dims), not other.is_dimension_coordinate),
    )


def _is_number(variable: Variable) -> bool:
    try:
        return variable.metadata.data_type.numpy.kind in "iuf"
    except FormatError:
        return False


# -- circular axes --------------------------------------------------------------------------


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
    values = np.unique(without_jump(values[np.isfinite(values)], period))
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


def without_jump(labels: NDArray[Any], period: float) -> NDArray[Any]:
    """Return finite labels shifted by periods, if they then ascend or descend within one period."""
    turns = np.round(np.diff(labels.astype(np.float64)) / period)
    if not turns.any():
        return labels
    shifted = labels - (period * np.append(0.0, np.cumsum(turns))).astype(labels.dtype)
    steps = np.diff(shifted)
    is_ordered = bool((steps > 0).all() or (steps < 0).all())
    return shifted if is_ordered and abs(shifted[-1] - shifted[0]) < period else labels


def period_of(coordinate: Variable) -> float | None:
    """Return the period of a coordinate; None if it is not a longitude in degrees."""
    directed = direction_of(coordinate)
    if directed is None or directed[0] != "x" or directed[1] == "projected":
        return None
    units = string_attribute(coordinate, "units").lower()
    return None if units and not units.startswith("deg") else DEGREES_OF_A_CIRCLE


def detected_circle(coordinate: Variable, labels: NDArray[Any]) -> Circle | None:
    """Return the circle of a coordinate; None if it is not a longitude in degrees."""
    period = period_of(coordinate)
    return None if period is None else circle_of(labels, period)
