"""Computes the fractions of cells that polygons cover, with exactextract.

exactextract computes covered fractions on regular grids of square cells, so vertices are
transformed to positions, which count cells (see `CellAxis`). On uneven axes a vertex is added at
each crossing of a polygon's edge and a cell's edge. Between two vertices, positions are then linear
in coordinates, so covered fractions do not change.

Rules of this file
------------------
1. Fractions are of areas in coordinates: on a grid of degrees, of square degrees.
2. ``center`` takes cells whose label is inside, with the fraction 1. A label on the common border
   of two polygons is in exactly one of them.
3. ``touched`` takes cells with any area inside, with the fraction 1.
4. Memory is bounded by the cells of a window, independent of the size of a polygon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.workflows.horizontal.reference_systems import geo_package
from icechunk_format.workflows.zonal.geometries import shapely

if TYPE_CHECKING:
    from icechunk_format.workflows.zonal.axes import CellAxis
    from icechunk_format.workflows.zonal.plan import Coverage

# Maximum cells of the bounding boxes of polygons in one window.
_MOST_CELLS: Final = 1 << 21
# Smaller fractions of a polygon (or of a cell) are due to the rounding of coordinates.
_ROUNDING: Final = 1e-10
# Labels are shifted by this fraction of a cell, all in one direction, to decide those on a border.
_NUDGE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cover:
    """Pairs of polygon and cell (row along y, column along x), with the covered fraction."""

    zones: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    fractions: NDArray[np.float64]


def cover_cells(
    geometries: NDArray[Any], y: CellAxis, x: CellAxis, coverage: Coverage
) -> Iterator[Cover]:
    """Yield the cells that valid polygons cover, in batches; each pair occurs once."""
    lib = shapely()
    moved = _in_positions(geometries, y, x)
    bounds = lib.bounds(moved)
    areas = lib.area(moved)
    low = np.clip(np.floor(bounds[:, :2]), 0, [x.size, y.size])
    high = np.clip(np.ceil(bounds[:, 2:]), 0, [x.size, y.size])
    sizes = np.prod(np.maximum(np.nan_to_num(high - low), 0), axis=1)
    least = _ROUNDING * np.minimum(1.0, areas)
    stretches = y.stretches
    for numbers, window in _windows(low, high, sizes, y.size, x.size):
        found = _exact(moved[numbers], window, y.size)
        zones = numbers[found.zones]
        if stretches is not None:
            found.fractions[...] *= stretches[found.rows]
        some = found.fractions > least[zones]
        cover = Cover(
            zones=zones[some],
            rows=found.rows[some],
            columns=found.columns[some],
            fractions=np.minimum(found.fractions[some], 1.0),
        )
        yield cover if coverage == "fraction" else _whole(cover, geometries, y, x, coverage)


def _windows(
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    sizes: NDArray[np.float64],
    height: int,
    width: int,
) -> Iterator[tuple[NDArray[np.int64], tuple[int, int, int, int]]]:
    """Yield indices of polygons, with a window of cells ``(y0, y1, x0, x1)`` for them.

    Positions of y are counted from the end, as in exactextract.
    """
    small = np.flatnonzero((sizes > 0) & (sizes <= _MOST_CELLS))
    ends = np.searchsorted(
        np.cumsum(sizes[small]), np.arange(1, sizes[small].sum() // _MOST_CELLS + 2) * _MOST_CELLS
    )
    start = 0
    for end in ends.tolist():
        stop = min(end + 1, len(small))
        if stop > start:
            yield small[start:stop], (0, height, 0, width)
        start = stop
    for number in np.flatnonzero(sizes > _MOST_CELLS).tolist():
        (x0, low_y), (x1, high_y) = low[number].astype(int), high[number].astype(int)
        step = max(1, _MOST_CELLS // int(x1 - x0))
        for first in range(height - int(high_y), height - int(low_y), step):
            last = min(first + step, height - int(low_y))
            yield np.array([number], dtype=np.int64), (first, last, int(x0), int(x1))


def _in_positions(geometries: NDArray[Any], y: CellAxis, x: CellAxis) -> NDArray[Any]:
    """Transform polygons to positions, along y counted from the end."""
    lib = shapely()
    if y.even_ends is not None and x.even_ends is not None:

        def move(points: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.stack([x.position(points[:, 0]), y.size - y.position(points[:, 1])], axis=1)

        return np.asarray(lib.transform(geometries, move), dtype=object)
    if not len(geometries):
        return geometries
    kind, points, offsets = lib.to_ragged_array(geometries)
    positions = np.stack([x.position(points[:, 0]), y.position(points[:, 1])], axis=1)
    segments = np.ones(len(points), dtype=bool)
    segments[offsets[0][1:] - 1] = False  # no edge begins at the last vertex of a ring
    starts = np.flatnonzero(segments)
    owners, shares, vertices = [np.arange(len(points))], [np.zeros(len(points))], [positions]
    for along, axis in enumerate((x, y)):
        other, across = (y, x)[along], 1 - along
        ends = np.stack([positions[starts, along], positions[starts + 1, along]])
        first = np.clip(np.floor(ends.min(axis=0)) + 1, 0, axis.size + 1).astype(np.int64)
        last = np.clip(np.ceil(ends.max(axis=0)) - 1, -1, axis.size).astype(np.int64)
        counts = np.maximum(last - first + 1, 0)
        owner = np.repeat(starts, counts)
        edge = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        begin, end = points[owner], points[owner + 1]
        share = (axis.edges[edge] - begin[:, along]) / (end[:, along] - begin[:, along])
        value = begin[:, across] + share * (end[:, across] - begin[:, across])
        vertex = np.empty((len(owner), 2))
        vertex[:, along], vertex[:, across] = edge, other.position(value)
        owners.append(owner)
        shares.append(share)
        vertices.append(vertex)
    owner = np.concatenate(owners)
    order = np.lexsort((np.concatenate(shares), owner))
    moved = np.concatenate(vertices)[order]
    moved[:, 1] = y.size - moved[:, 1]
    ring_ends = np.searchsorted(owner[order], offsets[0])
    return np.asarray(lib.from_ragged_array(kind, moved, (ring_ends, *offsets[1:])), dtype=object)


def _exact(geometries: NDArray[Any], window: tuple[int, int, int, int], height: int) -> Cover:
    """Return the covered fractions of the cells in a window."""
    # Imported here, since exactextract is optional.
    from icechunk_format.workflows.zonal.exact import coverage_fractions

    first, last, left, right = window
    extent = (float(left), float(height - last), float(right), float(height - first))
    lib = shapely()
    # Required: exactextract 0.3.0 crashes the process for some polygons that only touch the grid.
    inside = lib.clip_by_rect(geometries, *extent)
    some = np.flatnonzero(~lib.is_empty(inside))
    zones, cells, fractions = coverage_fractions(lib.to_wkb(inside[some]), extent)
    zones = some[zones]
    rows, columns = np.divmod(cells, right - left)
    return Cover(zones=zones, rows=rows + first, columns=columns + left, fractions=fractions)


def _whole(
    cover: Cover, geometries: NDArray[Any], y: CellAxis, x: CellAxis, coverage: Coverage
) -> Cover:
    """Return the cells that ``center`` or ``touched`` selects, with the fraction 1."""
    chosen = np.ones(len(cover.zones), dtype=bool)
    if coverage == "center":
        lib = shapely()
        cut = np.flatnonzero(cover.fractions < 1.0)
        nudge = _NUDGE * abs(y.edges[1] - y.edges[0])
        # A label at the north pole moves south, into the polygons that reach it.
        ys = np.minimum(y.labels + nudge, y.high - nudge)[cover.rows[cut]]
        xs = x.labels[cover.columns[cut]] + _NUDGE * abs(x.edges[1] - x.edges[0])
        zones = cover.zones[cut]
        used = geometries[np.unique(zones)]
        lib.prepare(used)
        chosen[cut] = lib.contains_xy(geometries[zones], xs, ys)
        lib.destroy_prepared(used)
    return Cover(
        zones=cover.zones[chosen],
        rows=cover.rows[chosen],
        columns=cover.columns[chosen],
        fractions=np.ones(int(chosen.sum())),
    )


def check_packages() -> None:
    """Raise UnsupportedError if a package of the extra ``geo`` is not installed."""
    for package in ("shapely", "exactextract", "scipy.sparse"):
        geo_package(package, "icechunk_spark.zonal")
