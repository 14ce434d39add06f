"""Transforms points to the CRS of a grid; detects columns in the wrong units.

Rules of this file
------------------
1. If ``crs`` is given, the columns of both horizontal coordinates are transformed to the CRS of the
   grid. ``crs="grid"`` declares that they are already in it.
2. The plan refuses columns named ``lat`` and ``lon`` for coordinates of a rotated or projected
   grid. Tasks check values: latitudes beyond 90 degrees are outside, with a warning. Values that
   look like degrees on a grid in metres are an error if there are too many to be points near its
   origin, otherwise a warning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.workflows.horizontal.axes import (
    Direction,
    GridKind,
    HorizontalGrid,
    direction_of,
)
from icechunk_format.workflows.horizontal.reference_systems import (
    axis_scale,
    geo_package,
    given_crs,
    grid_crs,
)
from icechunk_format.workflows.sampling.sampled import AxisChoice, Horizontal, TreeChoice

GRID: Final = "grid"
# Common names of columns of latitudes and longitudes.
_GEOGRAPHIC_NAMES: Final = ("lat", "latitude", "lon", "long", "lng", "longitude")
_MOST_LONGITUDE: Final = 720.0
# On a grid with at least this step in metres, all degrees would be in one cell.
_METRES_OF_A_STEP: Final = 720.0
# With this many different points near the origin of a grid in metres, the values must be degrees.
# At most a quarter of the cells at the origin look like degrees, so the probability of an error is
# 1 in 10**12 batches.
_MOST_BY_CHANCE: Final = 20


def horizontal_columns(
    axes: tuple[AxisChoice, ...],
    trees: Sequence[TreeChoice],
    points: Sequence[str],
    crs: Any,
    sampled: Sequence[Variable],
    variables: Mapping[str, Variable],
) -> tuple[Horizontal | None, tuple[AxisChoice, ...]]:
    """Return the columns of horizontal coordinates, and the axes with their scales."""
    by_path = {variable.path: variable for variable in variables.values()}
    found: dict[Direction, tuple[int, Variable, GridKind]] = {}
    for tree in trees[:1]:
        found["y"] = tree.y_point, by_path[str(tree.y.path)], "geographic"
        found["x"] = tree.x_point, by_path[str(tree.x.path)], "geographic"
    for axis in () if trees else axes:
        array = by_path.get(str(axis.column.path))
        directed = None if array is None else direction_of(array)
        if array is not None and directed is not None:
            found[directed[0]] = axis.point, array, directed[1]
    kinds = {kind for _, _, kind in found.values()}
    if crs is not None and (len(found) < 2 or len(kinds) > 1):
        raise _no_grid(axes, crs)
    if len(kinds) != 1:
        return None, axes
    kind = kinds.pop()
    columns = {direction: point for direction, (point, _, _) in found.items()}
    known = Horizontal(kind=kind, y_point=columns.get("y"), x_point=columns.get("x"))
    if crs is None:
        if kind != "geographic":
            for point, array, _ in found.values():
                _check_name(array.name, points[point], kind)
        return known, axes
    known = replace(known, is_declared=True)
    if isinstance(crs, str) and crs.strip().lower() == GRID:
        return known, axes
    grid = HorizontalGrid(kind=kind, y=found["y"][1], x=found["x"][1])
    mapped = next((v for v in sampled if v.attributes.get("grid_mapping")), sampled[0])
    own = grid_crs(mapped, variables, grid)
    known = replace(known, points_crs=given_crs(crs).to_wkt(), grid_crs=own.to_wkt())
    if trees:
        return known, axes
    scales = {point: axis_scale(array, mapped, variables) for point, array, _ in found.values()}
    return known, tuple(replace(axis, scale=scales.get(axis.point, 1.0)) for axis in axes)


def _no_grid(axes: Sequence[AxisChoice], crs: Any) -> InvalidInputError:
    names = ", ".join(repr(axis.name) for axis in axes)
    return InvalidInputError(
        f"crs={crs!r} is given, but on names {names}, which are not both horizontal"
        " coordinates of a grid by their attributes standard_name and units; name both, or leave"
        " crs out",
        option="crs",
    )


def _check_name(coordinate: str, name: str, kind: GridKind) -> None:
    if name.lower() in _GEOGRAPHIC_NAMES:
        raise InvalidInputError(
            f"on[{coordinate!r}] is column {name!r}, but {coordinate!r} is a coordinate of a {kind}"
            " grid: give crs='EPSG:4326' if the points are degrees of latitude and longitude, or"
            " crs='grid' if they are in the grid's own coordinates",
            option="crs",
        )


def moved_points(
    horizontal: Horizontal, x: NDArray[Any], y: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Transform points to the CRS of the grid; points outside of its domain become infinite."""
    move = _transformer(str(horizontal.points_crs), str(horizontal.grid_crs))
    moved_x, moved_y = move.transform(
        np.asarray(x, np.float64), np.asarray(y, np.float64), errcheck=False
    )
    return moved_x, moved_y


@functools.lru_cache(maxsize=8)
def _transformer(points_crs: str, grid_crs: str) -> Any:
    pyproj = geo_package("pyproj", "option crs")
    return pyproj.Transformer.from_crs(points_crs, grid_crs, always_xy=True)


def outside_of_degrees(
    name: str, coordinate: str, values: NDArray[Any], *, is_latitude: bool
) -> NDArray[Any]:
    """Replace invalid latitudes or longitudes by infinity, and warn."""
    most = 90.0 if is_latitude else _MOST_LONGITUDE
    is_wrong = np.abs(values) > most * (1 + 1e-6)
    if not is_wrong.any():
        return values
    allowed = "latitudes from -90 to 90" if is_latitude else "longitudes"
    warnings.warn(
        f"column {name!r} holds {values[is_wrong][0].item()!r}, but {coordinate!r} are {allowed} in"
        " degrees, so such points are outside: if the points are in another CRS, set"
        " it with crs='EPSG:...'; if the columns are exchanged, exchange them in on",
        UserWarning,
        stacklevel=2,
    )
    return np.where(is_wrong, np.inf, values)


def doubt_lengths(
    names: Sequence[str],
    coordinates: Sequence[str],
    values: Sequence[NDArray[Any]],
    steps: Sequence[float],
) -> None:
    """Raise InvalidInputError for degrees on a grid in metres; warn if they are few."""
    if not len(values[0]) or min(steps) < _METRES_OF_A_STEP:
        return
    if np.abs(values[0]).max() <= 90 and np.abs(values[1]).max() <= 360:
        problem = (
            f"columns {names[0]!r} and {names[1]!r} hold numbers such as"
            f" {values[0][0].item()!r} and {values[1][0].item()!r}, which look like degrees, but"
            f" {coordinates[0]!r} and {coordinates[1]!r} are lengths with steps of"
            f" {min(steps):g}: set the CRS of the points, as in crs='EPSG:4326', or"
            " give crs='grid' if they are in the grid's own"
        )
        if len(np.unique(np.stack(values), axis=1).T) >= _MOST_BY_CHANCE:
            raise InvalidInputError(problem, columns=tuple(names))
        warnings.warn(problem, UserWarning, stacklevel=2)
