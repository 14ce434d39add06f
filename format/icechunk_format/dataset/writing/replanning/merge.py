"""Merges the cells of a write into chunks that other writers changed after it was planned.

Rules of this file
------------------
1. Cells without a row keep the value of the newest version. A cell with a row is in conflict if the
   newest version differs there from the version that the write was planned on.
2. If every combination of the write's labels has a row, all of those cells were written. If not,
   stored chunks are compared with that earlier version: an equal cell counts as not written.
3. Memory holds one chunk at a time, in each of these versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.writing.cells.chunk_batches import padded
from icechunk_format.dataset.writing.part import ArrayTarget
from icechunk_format.repository.changes.chunk_changes import ChunkChanges

if TYPE_CHECKING:
    from icechunk_format.dataset.reading.arrays.array_reader import ArrayReader
    from icechunk_format.dataset.writing.replanning.moves import AxisMoves

_MOST_LOST_CHUNKS: Final = 16


@dataclass(slots=True, kw_only=True, eq=False)
class CellMerge:
    """Merges chunks of one array.

    Parameters
    ----------
    array
        The array as it is planned now.
    axes
        How its places move.
    ours, base
        Read what the write has stored, and the version that it was planned on; None where there is
        no such array.
    base_now, tip
        The base and the newest version, by the places of now; None where they have no such array.
    stored
        Which chunks the write has stored.
    has_all_rows
        Whether every combination of labels has a row.
    resolve
        Whose cells count where both wrote; None is a conflict.

    Attributes
    ----------
    lost
        By axis: indices now of cells that both wrote, where that is a conflict.
    """

    array: ArrayTarget
    axes: Sequence[AxisMoves]
    ours: ArrayReader | None
    base: PlacedArray | None
    base_now: PlacedArray | None
    tip: PlacedArray | None
    stored: ChunkChanges
    has_all_rows: bool
    resolve: str | None
    lost: list[set[int]] = field(default_factory=list)
    cells_lost: int = 0

    def chunks(
        self, targets: NDArray[np.int64], touched: NDArray[np.bool_]
    ) -> Iterator[tuple[list[int], bytes]]:
        """Yield the merged chunks with their coordinates, until too many have lost cells."""
        self.lost = [set() for _ in self.axes]
        codecs = self.array.metadata.chunk_codecs()
        chunks_lost = 0
        for at, is_touched in zip(targets.tolist(), touched.tolist(), strict=True):
            before = self.cells_lost
            values = self._merged(at, is_touched=is_touched)
            yield at, codecs.encode(padded(self.array.metadata, values, at))
            chunks_lost += self.cells_lost > before
            if chunks_lost >= _MOST_LOST_CHUNKS:
                return

    def _merged(self, target: Sequence[int], *, is_touched: bool) -> NDArray[Any]:
        """Return the values of a chunk; ``is_touched`` says that others may have written it."""
        grid = self.array.metadata.grid
        lower, upper = grid.box_of(target)
        values = self._content(self.tip, lower, upper)
        theirs = self._theirs(values, lower, upper) if is_touched else None
        if self.ours is not None:
            segments = [moves.into_target(at) for moves, at in zip(self.axes, target, strict=True)]
            for numbers in product(*segments):
                self._lay_over(self.ours, values, theirs, numbers, lower)
        return values

    def _lay_over(
        self,
        reader: ArrayReader,
        values: NDArray[Any],
        theirs: NDArray[np.bool_] | None,
        numbers: Sequence[int],
        lower: Sequence[int],
    ) -> None:
        pairs = list(zip(self.axes, numbers, strict=True))
        source = np.array([[int(moves.sources[n]) for moves, n in pairs]], np.int64)
        if not self.stored.touches(source.astype(np.uint32)).all():
            return
        places = [moves.places(n) for moves, n in pairs]
        first = [int(np.min(old)) for old, _ in places]
        last = [int(np.max(old)) + 1 for old, _ in places]
        within = np.ix_(*(old - low for (old, _), low in zip(places, first, strict=True)))
        at = np.ix_(*(new - low for (_, new), low in zip(places, lower, strict=True)))
        ours = np.asarray(reader.read_box(first, last)[within])
        written = np.ones(ours.shape, np.bool_)
        if not self.has_all_rows:
            written = differs(ours, np.asarray(self._content(self.base, first, last)[within]))
        if theirs is not None:
            both = written & theirs[at]
            if both.any():
                written = self._settled(written, both, [new for _, new in places])
        part = np.array(values[at])
        part[written] = ours[written]
        values[at] = part

    def _settled(
        self,
        written: NDArray[np.bool_],
        both: NDArray[np.bool_],
        places: Sequence[NDArray[np.int64]],
    ) -> NDArray[np.bool_]:
        """Return which cells to write, by ``resolve``; note conflicts for the error."""
        if self.resolve is None:
            self.cells_lost += int(np.count_nonzero(both))
            for lost, new, rows in zip(self.lost, places, np.nonzero(both), strict=True):
                lost.update(new[np.unique(rows)].tolist())
        return written & ~both if self.resolve == "theirs" else written

    def _theirs(
        self, values: NDArray[Any], lower: Sequence[int], upper: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Return which cells of the newest version differ from those of the old base."""
        found = differs(values, self._content(self.base_now, lower, upper))
        is_new = np.ones(values.shape, np.bool_)
        if self.base_now is not None:
            is_new[np.ix_(*self.base_now.within(lower, upper)[1])] = False
        # Where a dimension has grown and nobody wrote, the array has its fill value.
        found &= ~is_new | differs(values, self.array.metadata.fill_array(values.shape))
        return _hull(found) if self.resolve == "theirs" else found

    def _content(
        self, version: PlacedArray | None, lower: Sequence[int], upper: Sequence[int]
    ) -> NDArray[Any]:
        """Return a box of a version, with the missing value where it is outside of the array."""
        shape = tuple(high - low for low, high in zip(lower, upper, strict=True))
        fill = self.array.metadata.fill_value
        if self.array.encoder is None:
            values = self.array.metadata.fill_array(shape)
        else:
            values = self.array.encoder.blank(shape, fill)
        if version is not None:
            version.read_into(values, lower, upper)
        return values


class PlacedArray:
    """An array of a version, addressed by the indices of the new plan.

    Parameters
    ----------
    reader
        Reads the array.
    places
        By axis, ``int64``: where each of its own places is.
    sizes
        By axis: how many places there are.
    """

    def __init__(
        self, reader: ArrayReader, places: Sequence[NDArray[np.int64]], sizes: Sequence[int]
    ) -> None:
        self._reader = reader
        self._own: list[NDArray[np.int64]] = []
        for at, size in zip(places, sizes, strict=True):
            own = np.full(size, -1, np.int64)
            own[at] = np.arange(len(at))
            self._own.append(own)

    @classmethod
    def as_it_is(cls, reader: ArrayReader) -> PlacedArray:
        """Return an array by its own places."""
        return cls(reader, [np.arange(size) for size in reader.shape], reader.shape)

    def within(
        self, lower: Sequence[int], upper: Sequence[int]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """Return by axis the array's own places in a box, and where they are in it."""
        owns, ats = [], []
        for own, low, high in zip(self._own, lower, upper, strict=True):
            at = np.flatnonzero(own[low:high] >= 0)
            owns.append(own[low:high][at])
            ats.append(at)
        return owns, ats

    def read_into(self, values: NDArray[Any], lower: Sequence[int], upper: Sequence[int]) -> None:
        """Copy the array's values in a box into ``values``, which has the shape of the box."""
        owns, ats = self.within(lower, upper)
        if not all(len(own) for own in owns):
            return
        sorts = [np.argsort(own) for own in owns]
        chosen = [
            DimSelection.of_indices(size, own)
            for size, own in zip(self._reader.shape, owns, strict=True)
        ]
        at = [own_at[order] for own_at, order in zip(ats, sorts, strict=True)]
        values[np.ix_(*at)] = self._reader.read(chosen)


def _hull(cells: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the cells of all rows and columns that have a changed cell, as if a grid was written.

    A cell that others wrote with its earlier value does not differ, but is kept as theirs, too.
    """
    found = np.ones(cells.shape, np.bool_)
    for axis in range(cells.ndim):
        others = tuple(other for other in range(cells.ndim) if other != axis)
        found &= cells.any(axis=others, keepdims=True)
    return found


def differs(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which elements differ in any bit; texts, in any character."""
    if one.dtype.hasobject or not one.dtype.itemsize:
        return np.asarray(one != other, np.bool_)
    raw = (*one.shape, one.dtype.itemsize)
    mine, theirs = (
        np.frombuffer(np.ascontiguousarray(v).tobytes(), np.uint8).reshape(raw)
        for v in (one, other)
    )
    found: NDArray[np.bool_] = (mine != theirs).any(axis=-1)
    return found
