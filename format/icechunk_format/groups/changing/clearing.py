"""Finds the chunks that a change of an array must delete.

A chunk with only the fill value is not stored. If one is stored at its coordinates, its old values
would be read, so a change deletes the stored chunks of what it writes that it does not store again.
The same is true of chunks whose elements have left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.grid.boxes import coords_of_boxes
from icechunk_format.grid.coordinates import without
from icechunk_format.repository.files.chunk_lookup import ChunkLookup
from icechunk_format.zarr.chunk_grid import ChunkGrid


def emptied(
    coords: NDArray[Any], stored: Iterable[ChunkRefs], *, before: ChunkLookup | None = None
) -> NDArray[np.uint32]:
    """Return the chunks of a change that it has not stored, ``uint32 (n, ndim)``.

    Parameters
    ----------
    coords
        The chunks whose elements the change writes or removes, integers of shape (n, ndim).
    stored
        The references that the change has stored.
    before
        The chunks before the change, so that only existing ones are returned; None if the chunks
        are in the grid of the array before the change, and those without an object may be listed.
    """
    found = coords.astype(np.uint32)
    if before is not None:
        found = found[before.find(found).positions]
    return without(found, (refs.coords for refs in stored))


def chunks_before(
    grid: ChunkGrid, lower: Sequence[int], upper: Sequence[int], old_shape: Sequence[int] | None
) -> NDArray[np.uint32]:
    """Return the chunks of a box of elements that an array had before, ``uint32 (n, ndim)``.

    There are none if the array is new (``old_shape`` is None) or did not reach the box.
    """
    end = upper if old_shape is None else np.minimum(upper, old_shape).tolist()
    if old_shape is None or any(high <= low for low, high in zip(lower, end, strict=True)):
        return np.empty((0, len(lower)), np.uint32)
    return coords_of_boxes(np.array(grid.chunks_of_box(lower, end), np.int64).T[None])
