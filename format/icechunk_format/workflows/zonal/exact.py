"""Computes covered fractions with exactextract from arrays in memory.

Only `cover` imports this module, when it is needed: exactextract is an optional package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from exactextract import Feature, FeatureSource, Operation, RasterSource, Writer
from exactextract.processor import FeatureSequentialProcessor
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
    raster, results = _Cells(extent), _Results()
    operations = [Operation(name, name, raster) for name in ("cell_id", "coverage")]
    # The processor does not keep references to its arguments, so variables keep them alive.
    source = _Polygons(polygons)
    processor = FeatureSequentialProcessor(source, results, operations, include_cols=[_NUMBER])
    processor.process()
    cells = [result["cell_id"] for result in results.found]
    numbers = np.array([result[_NUMBER] for result in results.found], dtype=np.int64)
    none: list[NDArray[Any]] = [np.empty(0)]
    return (
        np.repeat(numbers, [len(of_one) for of_one in cells]),
        np.concatenate([*none, *cells]).astype(np.int64),
        np.concatenate([*none, *(result["coverage"] for result in results.found)]),
    )


class _Polygon(Feature):  # type: ignore[misc]
    """A polygon with its index, or a result."""

    def __init__(self, wkb: bytes | None = None, number: int | None = None) -> None:
        super().__init__()
        self.wkb = wkb
        self.values: dict[str, Any] = {} if number is None else {_NUMBER: number}

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value

    def get(self, name: str) -> Any:
        return self.values[name]

    def geometry(self) -> bytes | None:
        return self.wkb

    def set_geometry(self, wkb: bytes | None) -> None:
        self.wkb = wkb

    def set_geometry_format(self) -> str:
        return "wkb"

    def fields(self) -> list[str]:
        return list(self.values)


class _Polygons(FeatureSource):  # type: ignore[misc]
    def __init__(self, polygons: Sequence[bytes]) -> None:
        super().__init__()
        self._polygons = polygons

    def count(self) -> int:
        return len(self._polygons)

    def __iter__(self) -> Iterator[_Polygon]:
        for number, wkb in enumerate(self._polygons):
            yield _Polygon(wkb, number)

    def srs_wkt(self) -> None:
        return None


class _Cells(RasterSource):  # type: ignore[misc]
    """A grid without values."""

    def __init__(self, extent: tuple[float, float, float, float]) -> None:
        super().__init__()
        self._extent = extent

    def res(self) -> tuple[float, float]:
        return (1.0, 1.0)

    def extent(self) -> tuple[float, float, float, float]:
        return self._extent

    def srs_wkt(self) -> None:
        return None

    def nodata_value(self) -> None:
        return None

    def read_window(self, x0: int, y0: int, nx: int, ny: int) -> NDArray[np.uint8]:
        return np.zeros((ny, nx), dtype=np.uint8)


class _Results(Writer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []

    def write(self, feature: Any) -> None:
        result = _Polygon()
        feature.copy_to(result)
        self.found.append(result.values)
