"""Computes covered fractions with exactextract from arrays in memory.

Only `cover` imports this module, when it is needed: exactextract is an optional package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap

import numpy as np
from exactextract import Operation
from exactextract.feature import JSONFeature, JSONFeatureSource
from exactextract.processor import FeatureSequentialProcessor
from exactextract.raster import NumPyRasterSource
from exactextract.writer import JSONWriter
from numpy.typing import NDArray

_NUMBER = "zone"


def coverage_fractions(
    polygons: Sequence[bytes], extent: tuple[float, float, float, float]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the fractions of unit cells that polygons (WKB) cover.

    `extent` is ``(xmin, ymin, xmax, ymax)`` of the cells, in whole numbers.

    Returns
    -------
    tuple
        Arrays of the same length: index of the polygon, index of the cell in C order from the
        largest y downwards, and the covered fraction.
    """
    xmin, ymin, xmax, ymax = extent
    # A view of one zero: only the cells' positions are needed.
    values = np.broadcast_to(np.uint8(0), (int(ymax - ymin), int(xmax - xmin)))
    raster, results = NumPyRasterSource(values, *extent), JSONWriter()
    operations = [Operation(name, name, raster) for name in ("cell_id", "coverage")]
    # The processor does not keep references to its arguments, so variables keep them alive.
    source = _Polygons(polygons)
    processor = FeatureSequentialProcessor(source, results, operations, include_cols=[_NUMBER])
    processor.process()
    found = [feature["properties"] for feature in results.features()]
    cells = [of_one["cell_id"] for of_one in found]
    numbers = np.array([of_one[_NUMBER] for of_one in found], dtype=np.int64)
    none = np.empty(0)
    return (
        np.repeat(numbers, [len(of_one) for of_one in cells]),
        np.concatenate([none, *cells]).astype(np.int64),
        np.concatenate([none, *(of_one["coverage"] for of_one in found)]),
    )


class _Polygon(JSONFeature):  # type: ignore[misc]
    """A feature with a geometry in WKB, which is faster than GeoJSON."""

    def __init__(self, number: int, wkb: bytes) -> None:
        super().__init__()
        self.set(_NUMBER, number)
        self._wkb = wkb

    def geometry(self) -> bytes:
        return self._wkb


class _Polygons(JSONFeatureSource):  # type: ignore[misc]
    def __iter__(self) -> Iterator[_Polygon]:
        return starmap(_Polygon, enumerate(self.src))
