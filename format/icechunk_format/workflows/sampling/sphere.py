"""Finds the nearest cell of a curvilinear or unstructured grid. Needs scipy.

A KD-tree holds the cells as points on the unit sphere, so the date line and the poles are not
special cases.

Rules of this file
------------------
1. Without a tolerance, a point is outside if its distance from the nearest cell exceeds three
   quarters of the widest step to a neighbour, somewhat more than the distance to a corner.
2. A tolerance is a great-circle arc in degrees.
3. Cells without coordinates (masked latitudes) are never found.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.workflows.horizontal.reference_systems import geo_package

_CORNER: Final = 0.75
_NEIGHBOURS: Final = 5


class SphereTree:
    """The cells of a curvilinear or unstructured grid.

    Parameters
    ----------
    latitudes, longitudes
        Degrees, both in the shape of the grid.
    tolerance
        Maximum arc from a point to its cell, in degrees; None for rule 1.
    """

    def __init__(
        self, latitudes: NDArray[Any], longitudes: NDArray[Any], *, tolerance: float | None = None
    ) -> None:
        spatial = geo_package("scipy.spatial", "sampling a grid whose coordinates are 2-D")
        self.shape = latitudes.shape
        points = on_sphere(latitudes, longitudes)
        valid = np.isfinite(points).all(axis=-1)
        self._cells = np.flatnonzero(valid)
        self._tree = spatial.cKDTree(points[valid]) if len(self._cells) else None
        if tolerance is not None:
            self._limits = np.full(
                len(self._cells), 2 * np.sin(np.deg2rad(min(tolerance, 180)) / 2)
            )
        elif len(self.shape) == 2:
            self._limits = _CORNER * _widest_steps(points)[valid]
        else:
            self._limits = self._spacing(points[valid])

    @property
    def nbytes(self) -> int:
        """The approximate memory of the tree."""
        return len(self._cells) * 80

    def find(
        self, latitudes: NDArray[np.float64], longitudes: NDArray[np.float64]
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
        """Find the nearest cells of points.

        Returns
        -------
        tuple
            ``int64 (n,)`` positions for each dimension, 0 outside; and a mask of the points inside.
        """
        inside = np.isfinite(latitudes) & np.isfinite(longitudes)
        cells = np.zeros(len(latitudes), np.int64)
        if self._tree is not None and inside.any():
            rows = np.flatnonzero(inside)
            distances, found = self._tree.query(on_sphere(latitudes[rows], longitudes[rows]))
            inside[rows] = distances <= self._limits[found] + 1e-12
            cells[rows] = self._cells[found]
        else:
            inside[:] = False
        cells[~inside] = 0
        return [np.asarray(p, np.int64) for p in np.unravel_index(cells, self.shape)], inside

    def _spacing(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._tree is None or len(points) < 2:
            return np.full(len(points), 2.0)
        distances, _ = self._tree.query(points, k=min(_NEIGHBOURS, len(points)))
        widest: NDArray[np.float64] = _CORNER * distances[:, -1]
        return widest


def on_sphere(latitudes: NDArray[Any], longitudes: NDArray[Any]) -> NDArray[np.float64]:
    """Return points on the unit sphere: ``x, y, z`` along a new last axis."""
    latitude = np.deg2rad(np.asarray(latitudes, np.float64))
    longitude = np.deg2rad(np.asarray(longitudes, np.float64))
    around = np.cos(latitude)
    return np.stack(
        [around * np.cos(longitude), around * np.sin(longitude), np.sin(latitude)], axis=-1
    )


def _widest_steps(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each cell of a 2-D grid, the widest step to a neighbour along either axis."""
    widest = np.zeros(points.shape[:2])
    for axis in (0, 1):
        steps = np.linalg.norm(np.diff(points, axis=axis), axis=-1)
        steps = np.where(np.isfinite(steps), steps, 0.0)
        before = [slice(None)] * 2
        after = [slice(None)] * 2
        before[axis], after[axis] = slice(None, -1), slice(1, None)
        np.maximum(widest[tuple(before)], steps, out=widest[tuple(before)])
        np.maximum(widest[tuple(after)], steps, out=widest[tuple(after)])
    return widest
