"""Gives groups of a file the coordinates of dimensions that they share with groups above.

NetCDF4 and data trees of xarray inherit such coordinates. A group of the repository is read on
its own, so each group gets them as arrays, with their CF bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from icechunk_format.workflows.virtualizing.scanning.headers import metadata_of

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.scanning.parsed import ParsedArray


def with_inherited(arrays: Sequence[ParsedArray], groups: Collection[str]) -> list[ParsedArray]:
    """Return the arrays, sorted by path, with the coordinates that groups inherit.

    A coordinate is inherited from the nearest group above that has one, if the lengths are equal.
    """
    own = {array.path: array for array in arrays}
    found = dict(own)
    for array in arrays:
        group = array.path.rpartition("/")[0]
        if not group:
            continue
        document = metadata_of(array.json_document, array.path)
        for dim, size in zip(document.dimension_names or (), document.shape, strict=False):
            if dim is None or f"{group}/{dim}" in found or f"{group}/{dim}" in groups:
                continue
            for coordinate in _of_above(own, group, dim, size):
                path = f"{group}/{coordinate.path.rpartition('/')[2]}"
                if path not in groups:
                    found.setdefault(path, replace(coordinate, path=path))
    return [found[path] for path in sorted(found)]


def _of_above(own: dict[str, ParsedArray], group: str, dim: str, size: int) -> list[ParsedArray]:
    """Return the coordinate of a dimension and its bounds in the nearest group above."""
    while group:
        group = group.rpartition("/")[0]
        coordinate = own.get(f"{group}/{dim}".lstrip("/"))
        if coordinate is None:
            continue
        document = metadata_of(coordinate.json_document, coordinate.path)
        if document.dimension_names != (dim,) or document.shape != (size,):
            return []
        named = (document.attributes.get(key) for key in ("bounds", "climatology"))
        bounds = (own.get(f"{group}/{name}".lstrip("/")) for name in named if name)
        return [coordinate, *(array for array in bounds if array is not None)]
    return []
