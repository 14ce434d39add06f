"""Builds the coordinate reference system (CRS) of a grid. Needs pyproj.

Rules of this file
------------------
1. The CRS is that of the variable's grid mapping: its attribute crs_wkt, or the parameters of the
   projection. Latitudes and longitudes without a grid mapping are in WGS 84.
2. Coordinates are in the order x, y (longitude, latitude), independent of the axis order of the
   CRS.
3. `geo_package` imports optional packages; its error names the package to install.

CF conventions, appendix F "Grid Mappings".
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups import Variable
from icechunk_format.workflows.horizontal.axes import HorizontalGrid, string_attribute

WGS_84: Final = "EPSG:4326"
_LENGTHS: Final = {
    **dict.fromkeys(("", "m", "metre", "metres", "meter", "meters"), 1.0),
    **dict.fromkeys(("km", "kilometre", "kilometres", "kilometer", "kilometers"), 1000.0),
}
_RADIANS: Final = ("rad", "radian", "radians")


def geo_package(name: str, purpose: str) -> ModuleType:
    """Import a package of the extra ``geo`` for a purpose, or raise UnsupportedError."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UnsupportedError(
            f"{purpose} needs the package {package}, which cannot be imported here ({error}):"
            " pip install 'icechunk-spark[geo]' on the driver and on the executors",
            package=package,
        ) from error


def grid_mapping(variable: Variable, variables: Mapping[str, Variable]) -> Variable | None:
    """Return the grid mapping that a variable names, or None."""
    named = string_attribute(variable, "grid_mapping")
    if not named:
        return None
    # In the extended form "crs: x y", the first word is the grid mapping.
    name = named.split()[0].rstrip(":")
    if name not in variables:
        raise InvalidInputError(
            f"variable {variable.name!r} names the grid mapping {name!r}, which is not in its"
            " group: write that array, or leave option crs out and give points in the grid's own"
            " coordinates",
            variable=variable.name,
            grid_mapping=name,
        )
    return variables[name]


def grid_crs(variable: Variable, variables: Mapping[str, Variable], grid: HorizontalGrid) -> Any:
    """Return the CRS of a variable's coordinates, a ``pyproj.CRS``."""
    pyproj = geo_package("pyproj", "option crs")
    mapping = grid_mapping(variable, variables)
    if mapping is None:
        if grid.kind == "geographic":
            return pyproj.CRS.from_user_input(WGS_84)
        raise InvalidInputError(
            f"variable {variable.name!r} is on the {grid.kind} grid ({grid.y.name},"
            f" {grid.x.name}), but has no attribute grid_mapping for its CRS: leave option crs"
            " out and give points in the grid's own coordinates",
            variable=variable.name,
        )
    if grid.kind == "geographic" and grid.is_curvilinear:
        # The grid mapping describes the one-dimensional coordinates of the same grid.
        return pyproj.CRS.from_user_input(WGS_84)
    try:
        return pyproj.CRS.from_cf(dict(mapping.attributes))
    except (pyproj.exceptions.CRSError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InvalidInputError(
            f"the grid mapping {mapping.name!r} of variable {variable.name!r} is not a CRS"
            f" that pyproj knows: {reason}",
            variable=variable.name,
            grid_mapping=mapping.name,
        ) from error


def given_crs(crs: Any) -> Any:
    """Parse a user's CRS (EPSG code, WKT, PROJ string, number, CRS) to a ``pyproj.CRS``."""
    pyproj = geo_package("pyproj", "option crs")
    try:
        return pyproj.CRS.from_user_input(crs)
    except (pyproj.exceptions.CRSError, TypeError) as error:
        raise InvalidInputError(
            f"crs={crs!r} is not a coordinate reference system: use one such as 'EPSG:4326',"
            " or its WKT",
            option="crs",
            found=crs,
        ) from error


def axis_scale(
    coordinate: Variable, variable: Variable, variables: Mapping[str, Variable]
) -> float:
    """Return the factor from the labels of an axis to the units of its CRS.

    Degrees are unchanged. Lengths are converted to metres, and scanning angles to metres at the
    height of a geostationary satellite.
    """
    units = string_attribute(coordinate, "units").lower()
    if units.startswith("deg"):
        return 1.0
    mapping = grid_mapping(variable, variables)
    if units in _RADIANS and mapping is not None:
        height = mapping.attributes.get("perspective_point_height")
        if isinstance(height, int | float):
            return float(height)
    if units not in _LENGTHS:
        raise InvalidInputError(
            f"coordinate {coordinate.name!r} has the units {units!r}, which are not a known"
            f" length: {', '.join(repr(unit) for unit in _LENGTHS if unit)}",
            coordinate=coordinate.name,
            units=units,
        )
    return _LENGTHS[units]
