"""Reads zones from WKB or WKT, checks them, and transforms them to the coordinates of a grid.

Rules of this file
------------------
1. An unusable geometry has a problem, a string. The caller decides if that is an error.
2. Edges are straight lines in the CRS of the zones. Zones in another CRS than the grid are
   densified before they are transformed, since a straight edge becomes a curve.
3. On a sphere an edge of more than 180 degrees is ambiguous, and the caller chooses its meaning. An
   edge of exactly 360 degrees, as in a box of the whole world, is not ambiguous.
4. Shapely is imported on first use.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.workflows.horizontal.reference_systems import geo_package

if TYPE_CHECKING:
    from icechunk_format.workflows.zonal.plan import Antimeridian

Problems = dict[int, str]
"""The problems of geometries, by index."""

_POLYGON: Final = 3
_MULTI_POLYGON: Final = 6
# Maximum length of densified edges in degrees, or the corresponding length in metres.
_MOST_DEGREES: Final = 0.1
_METRES_OF_A_DEGREE: Final = 111_195.0


def shapely() -> ModuleType:
    """Import shapely; raise UnsupportedError if it is not installed."""
    return geo_package("shapely", "icechunk_spark.zonal")


def read_geometries(column: pa.Array) -> tuple[NDArray[Any], Problems]:
    """Read polygons from WKB or WKT.

    Returns
    -------
    tuple
        Two-dimensional polygons and multi-polygons, or None; and the problems. A NULL is not a
        problem.
    """
    lib = shapely()
    is_string = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    values = np.array(column.to_pylist(), dtype=object)
    read = lib.from_wkt if is_string else lib.from_wkb
    geometries = np.asarray(read(values, on_invalid="ignore"), dtype=object)
    problems: Problems = {}
    polygonal = np.isin(lib.get_type_id(geometries), (_POLYGON, _MULTI_POLYGON))
    for number in np.flatnonzero(~polygonal).tolist():
        geometry = geometries[number]
        if geometry is not None:
            problems[number] = f"is a {geometry.geom_type}, and zones are polygons: leave it out"
        elif values[number] is not None:
            problems[number] = f"is not {'WKT' if is_string else 'WKB'}: repair or leave it out"
        geometries[number] = None
    return lib.force_2d(geometries), problems


def invalid(geometries: NDArray[Any]) -> Problems:
    """Return the reason why each invalid geometry is invalid."""
    lib = shapely()
    found = np.flatnonzero(~lib.is_missing(geometries) & ~lib.is_valid(geometries))
    reasons = lib.is_valid_reason(geometries[found])
    return {
        number: f"is invalid: {reason}; repair it, as with shapely's make_valid"
        for number, reason in zip(found.tolist(), reasons, strict=True)
    }


class Projector:
    """Transforms geometries from one CRS to another.

    Parameters
    ----------
    source, target
        CRS as WKT.
    scale
        Factors from the grid's labels to coordinates of the target CRS, for x and y.
    """

    def __init__(self, source: str, target: str, scale: tuple[float, float] = (1.0, 1.0)) -> None:
        pyproj = geo_package("pyproj", "option crs")
        given = pyproj.CRS.from_wkt(source)
        self._transformer = pyproj.Transformer.from_crs(
            given, pyproj.CRS.from_wkt(target), always_xy=True
        )
        unit = 1.0 if given.is_geographic else given.axis_info[0].unit_conversion_factor
        self._longest = (
            _MOST_DEGREES if given.is_geographic else _MOST_DEGREES * _METRES_OF_A_DEGREE / unit
        )
        self._scale = np.array(scale)

    def __call__(self, geometries: NDArray[Any]) -> NDArray[Any]:
        """Transform geometries; vertices outside of the target's domain become infinite."""
        lib = shapely()

        def move(points: NDArray[np.float64]) -> NDArray[np.float64]:
            moved_to = self._transformer.transform(points[:, 0], points[:, 1])
            return np.asarray(np.stack(moved_to, axis=1) / self._scale)

        moved: NDArray[Any] = lib.transform(lib.segmentize(geometries, self._longest), move)
        return moved


def unusable(geometries: NDArray[Any], *, is_geographic: bool) -> Problems:
    """Return the problems of geometries' coordinates."""
    bounds = shapely().bounds(geometries)
    given = ~np.isnan(bounds).all(axis=1)
    problems: Problems = dict.fromkeys(
        np.flatnonzero(given & ~np.isfinite(bounds).all(axis=1)).tolist(),
        "has vertices that cannot be transformed to the CRS of the grid: remove them",
    )
    if is_geographic:
        low, high = bounds[:, 1], bounds[:, 3]
        with np.errstate(invalid="ignore"):
            beyond = given & ((low < -90.5) | (high > 90.5) | (np.abs(bounds[:, 0]) > 720))
        for number in np.flatnonzero(beyond).tolist():
            shown = ", ".join(f"{value:.6g}" for value in bounds[number].tolist())
            problems.setdefault(
                number,
                f"has the bounds ({shown}) in x, y, which are not longitudes and latitudes like"
                " those of the grid: set crs= to the CRS of the zones",
            )
    return problems


def across_antimeridian(
    geometries: NDArray[Any], how: Antimeridian
) -> tuple[NDArray[Any], Problems]:
    """Apply `how` to geometries with edges of more than 180 degrees, except 360 degrees.

    Returns
    -------
    tuple
        The geometries, with longitudes that may exceed 180 degrees; and the problems.
    """
    lib = shapely()
    problems: Problems = {}
    if how == "keep":
        return geometries, problems
    points, owners = lib.get_coordinates(geometries, return_index=True)
    steps = np.abs(np.diff(points[:, 0])) if len(points) else np.empty(0)
    # Also finds steps between rings, which `_unwrapped` does not change.
    far = (steps > 180) & (np.abs(steps - 360) > 1e-9) & (owners[1:] == owners[:-1])
    result = geometries.copy()
    for number in np.unique(owners[1:][far]).tolist():
        changed = _unwrapped(geometries[number])
        if changed is None:
            continue
        if how == "split":
            result[number] = changed
        else:
            problems[number] = (
                "has an edge over more than 180 degrees of longitude: give antimeridian='split' if"
                " such edges cross the antimeridian, or antimeridian='keep' if they do not"
            )
    return result, problems


def _unwrapped(geometry: Any) -> Any:
    """Unwrap a polygon whose far edges cross the antimeridian; None if it has no far edge."""
    lib = shapely()
    parts, is_changed = [], False
    for part in lib.get_parts(geometry):
        rings: list[NDArray[Any]] = []
        for ring in (part.exterior, *part.interiors):
            points = lib.get_coordinates(ring)
            steps = np.diff(points[:, 0])
            far = (np.abs(steps) > 180) & (np.abs(np.abs(steps) - 360) > 1e-9)
            periods = np.concatenate([[0.0], np.cumsum(np.where(far, np.round(steps / 360), 0.0))])
            is_changed |= bool(far.any())
            points[:, 0] -= 360 * periods
            if periods[-1]:
                # The ring encloses a pole: close it along the pole.
                pole = np.copysign(90.0, points[:, 1].mean())
                ends = [[points[-1, 0], pole], [points[0, 0], pole]]
                points = np.concatenate([points, ends, points[:1]])
            if rings:
                # Shift a hole by a multiple of 360 degrees into its polygon.
                outer: Any = rings[0][:, 0]
                inner: Any = points[:, 0]
                middle = (outer.min() + outer.max() - inner.min() - inner.max()) / 2
                points[:, 0] += 360 * np.round(middle / 360)
            rings.append(points)
        parts.append(lib.polygons(rings[0], holes=[lib.linearrings(r) for r in rings[1:]] or None))
    return lib.multipolygons(parts) if is_changed else None


def in_every_period(
    geometries: NDArray[Any], low: float, high: float, period: float | None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the geometries that overlap a range of x after a shift by multiples of the period.

    A geometry that overlaps it several times becomes the union of its copies, so that no cell
    counts twice.

    Returns
    -------
    tuple
        Geometries, and the ``int64`` indices of their originals.
    """
    lib = shapely()
    bounds = lib.bounds(geometries)
    here = np.flatnonzero(np.isfinite(bounds).all(axis=1))
    if period is None:
        return geometries[here], here
    first = np.ceil((low - bounds[here, 2]) / period).astype(np.int64)
    last = np.floor((high - bounds[here, 0]) / period).astype(np.int64)
    counts = np.maximum(last - first + 1, 0)
    starts = np.cumsum(counts) - counts
    numbers = np.repeat(here, counts)
    shift = np.arange(len(numbers)) - np.repeat(starts - first, counts)
    moved = geometries[numbers]
    points, owners = lib.get_coordinates(moved, return_index=True)
    points[:, 0] += shift[owners] * period
    moved = lib.set_coordinates(moved, points)
    for start, count in zip(starts[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        moved[start] = lib.union_all(moved[start : start + count])
    met = counts > 0
    return moved[starts[met]], here[met]
