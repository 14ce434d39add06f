"""Encodes and stores the chunks of a block of cells.

Rules of this file
------------------
1. In a chunk with rows for some cells, the other cells keep their old values; if they are new or in
   a replaced region, they get the missing value. A chunk without rows is not stored.
2. Padding beyond the edge of the array is the fill value, as in other Zarr writers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.cf.column_types import missing_value_advice
from icechunk_format.dataset.writing.part import ArrayTarget, Destination, WritePart
from icechunk_format.dataset.writing.storing import padded, store_in_batches
from icechunk_format.errors import InvalidInputError
from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
from icechunk_format.storage.measures import timed

if TYPE_CHECKING:
    from icechunk_format.dataset.reading.array_reader import ArrayReader
    from icechunk_format.dataset.reading.opened import SnapshotArrays


class OldArrays:
    """The arrays of the base, opened when the first chunk is patched."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    @cached_property
    def _arrays(self) -> SnapshotArrays:
        return self._destination.open_base()

    def reader(self, path: str) -> ArrayReader:
        """Return the reader of an array of the base; raise NotFoundError if it does not exist."""
        return self._arrays.reader(path)

    def read_into(
        self,
        values: NDArray[Any],
        array: ArrayTarget,
        lower: Sequence[int],
        upper: Sequence[int],
    ) -> None:
        """Copy the old values of a box of an array into ``values`` of the same shape."""
        end = _old_end(array, lower, upper)
        if end is not None:
            values[_box(lower, end)] = self.reader(array.path).read_box(lower, end)


def _old_end(array: ArrayTarget, lower: Sequence[int], upper: Sequence[int]) -> list[int] | None:
    """Return the end of a box within the old array; None if the box is outside of it."""
    old = array.old_shape
    if old is None or any(low >= size for low, size in zip(lower, old, strict=True)):
        return None
    return [min(high, size) for high, size in zip(upper, old, strict=True)]


def _region(
    array: ArrayTarget, lower: Sequence[int], upper: Sequence[int]
) -> tuple[NDArray[np.int64], ...]:
    """Return the indices, along each axis of a box, of the cells that the write replaces."""
    assert array.region is not None
    bounds = zip(array.region, lower, upper, strict=True)
    return np.ix_(*[chosen.within(low, high).positions() - low for chosen, low, high in bounds])


def _box(lower: Sequence[int], end: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, b - a) for a, b in zip(lower, end, strict=True))


class BlockWriter:
    """Stores chunks of the arrays of a part."""

    def __init__(self, part: WritePart) -> None:
        self._part = part
        self._old = OldArrays(part.destination)
        self._codecs = {array.path: array.metadata.chunk_codecs() for array in part.arrays}

    def store(
        self, array: ArrayTarget, values: NDArray[Any], seen: NDArray[np.bool_], start: list[int]
    ) -> Iterator[ChunkRefs]:
        """Store the chunks of a block that have rows.

        ``values`` has the array's order of dimensions. ``seen`` marks cells with a row; ``seen``
        and ``start`` have the part's order.
        """
        order = [self._part.dims.index(dim) for dim in array.dims]
        seen = seen.transpose(order)
        origin = [start[axis] for axis in order]
        codecs = self._codecs[array.path]
        chunks = self._chunks(array, values, seen, origin)
        encoded = ((at, timed("encode", codecs.encode, chunk)) for at, chunk in chunks)
        return store_in_batches(self._part.destination, len(array.dims), encoded)

    def _chunks(
        self,
        array: ArrayTarget,
        values: NDArray[Any],
        seen: NDArray[np.bool_],
        origin: Sequence[int],
    ) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
        grid = array.metadata.grid
        end = [low + size for low, size in zip(origin, values.shape, strict=True)]
        first, last = grid.chunks_of_box(origin, end)
        for at in itertools.product(*map(range, first, last)):
            lower, upper = grid.box_of(at)
            inside = tuple(
                slice(a - low, b - low) for a, b, low in zip(lower, upper, origin, strict=True)
            )
            has_row = seen[inside]
            rows = int(np.count_nonzero(has_row))
            if not rows:
                continue
            cells = values[inside]
            if rows < has_row.size:
                cells = self._patched(array, cells, has_row, lower, upper)
            yield at, padded(array.metadata, cells, at)

    def _patched(
        self,
        array: ArrayTarget,
        cells: NDArray[Any],
        has_row: NDArray[np.bool_],
        lower: Sequence[int],
        upper: Sequence[int],
    ) -> NDArray[Any]:
        """Fill cells without a row with their old value or the missing value."""
        assert array.encoder is not None
        if array.encoder.absent is None:
            covered = has_row.copy()
            end = _old_end(array, lower, upper)
            if end is not None:
                covered[_box(lower, end)] = True
            if array.region is not None:
                at = _region(array, lower, upper)
                covered[at] = has_row[at]
            if not covered.all():
                raise no_row(self._part, array, covered, lower)
        result = array.encoder.blank(cells.shape, array.metadata.fill_value)
        self._old.read_into(result, array, lower, upper)
        if array.region is not None and array.encoder.absent is not None:
            result[_region(array, lower, upper)] = array.encoder.absent
        result[has_row] = cells[has_row]
        return result


def no_row(
    part: WritePart, array: ArrayTarget, covered: NDArray[np.bool_], lower: Sequence[int]
) -> InvalidInputError:
    """Return the error for the first cell of a chunk without a row and without an old value."""
    gap = np.unravel_index(int(np.argmin(covered)), covered.shape)
    cell = part.cell(
        {dim: int(index) + low for dim, index, low in zip(array.dims, gap, lower, strict=True)}
    )
    assert array.encoder is not None
    data_type = array.metadata.data_type
    advice = missing_value_advice(array.name, data_type, array.encoder.decoder.arrow_type)
    return InvalidInputError(
        f"no row for the cell ({cell}) of {array.name}, and its array of {data_type.name} has no "
        f"missing value; add the rows, or create the array with one: {advice}",
        variable=array.name,
        cell=cell,
    )
