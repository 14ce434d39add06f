"""Makes the coordinate reference system of a grid, and moves points into it. Needs pyproj.

Rules of this file
------------------
1. The grid mapping of a variable decides: its ``crs_wkt``, or the parameters of the projection.
   Latitudes and longitudes without a grid mapping are those of WGS 84.
2. Coordinates come in the order x, y (longitude, latitude), whatever a reference system says.
3. Optional packages are imported by `geo_package`, which says what to install.

CF conventions, appendix F "Grid Mappings".
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.workflows.horizontal.axes import HorizontalGrid, text_attribute

WGS_84: Final = "EPSG:4326"
_LENGTHS: Final = {
    **dict.fromkeys(("", "m", "metre", "metres", "meter", "meters"), 1.0),
    **dict.fromkeys(("km", "kilometre", "kilometres", "kilometer", "kilometers"), 1000.0),
}
_RADIANS: Final = ("rad", "radian", "radians")


def geo_package(name: str, purpose: str) -> ModuleType:
    """Import a package of the extra ``geo``.

    Parameters
    ----------
    name
        The module, such as ``"scipy.spatial"``.
    purpose
        What needs it, as in "points in another reference system".

    Raises
    ------
    UnsupportedError
        The package is not installed; the error says how to install it.
    """
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
    """Return the grid mapping that a variable names, or None.

    Raises
    ------
    InvalidInputError
        The variable names a grid mapping that is not in the group.
    """
    text = text_attribute(variable, "grid_mapping")
    if not text:
        return None
    # "crs: x y" names the coordinates of the mapping, too; the first mapping counts.
    name = text.split()[0].rstrip(":")
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
    """Return the reference system of a variable's coordinates, a ``pyproj.CRS``.

    Raises
    ------
    InvalidInputError
        The variable has no grid mapping though its grid is rotated or projected, or the mapping
        has no meaning.
    UnsupportedError
        pyproj is not installed.
    """
    pyproj = geo_package("pyproj", "option crs")
    mapping = grid_mapping(variable, variables)
    if mapping is None:
        if grid.kind == "geographic":
            return pyproj.CRS.from_user_input(WGS_84)
        raise InvalidInputError(
            f"variable {variable.name!r} lies on the {grid.kind} grid ({grid.y.name},"
            f" {grid.x.name}), but has no attribute grid_mapping that says which: leave option crs"
            " out and give points in the grid's own coordinates",
            variable=variable.name,
        )
    if grid.kind == "geographic" and grid.is_curvilinear:
        # The mapping describes the one-dimensional coordinates beside these.
        return pyproj.CRS.from_user_input(WGS_84)
    try:
        return pyproj.CRS.from_cf(dict(mapping.attributes))
    except (pyproj.exceptions.CRSError, KeyError, TypeError, ValueError) as error:
        told = " ".join(str(error).split())
        raise InvalidInputError(
            f"the grid mapping {mapping.name!r} of variable {variable.name!r} is no reference"
            f" system that pyproj knows: {told}",
            variable=variable.name,
            grid_mapping=mapping.name,
        ) from error


def given_crs(text: Any) -> Any:
    """Read a reference system that a user gave, as a ``pyproj.CRS``.

    Parameters
    ----------
    text
        What pyproj takes: ``"EPSG:4326"``, WKT, PROJ's text, a number, a CRS.

    Raises
    ------
    InvalidInputError
        It is none.
    UnsupportedError
        pyproj is not installed.
    """
    pyproj = geo_package("pyproj", "option crs")
    try:
        return pyproj.CRS.from_user_input(text)
    except (pyproj.exceptions.CRSError, TypeError) as error:
        raise InvalidInputError(
            f"crs={text!r} is no coordinate reference system: give one such as 'EPSG:4326',"
            " or its WKT",
            option="crs",
        ) from error


def axis_scale(
    coordinate: Variable, variable: Variable, variables: Mapping[str, Variable]
) -> float:
    """Return by what to multiply the labels of an axis to get the units of its reference system.

    Degrees stay degrees. Lengths become metres, and scanning angles metres at the height of a
    geostationary satellite.

    Raises
    ------
    InvalidInputError
        The units are no length.
    """
    units = text_attribute(coordinate, "units").lower()
    if units.startswith("deg"):
        return 1.0
    mapping = grid_mapping(variable, variables)
    if units in _RADIANS and mapping is not None:
        height = mapping.attributes.get("perspective_point_height")
        if isinstance(height, int | float):
            return float(height)
    if units not in _LENGTHS:
        raise InvalidInputError(
            f"coordinate {coordinate.name!r} has the units {units!r}, which are no length that is"
            f" known here: {', '.join(repr(unit) for unit in _LENGTHS if unit)} are",
            coordinate=coordinate.name,
            units=units,
        )
    return _LENGTHS[units]
