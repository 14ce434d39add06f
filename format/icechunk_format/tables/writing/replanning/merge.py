"""Merges the cells of a write into chunks that other writers changed after it was planned.

Rules of this file
------------------
1. Cells without a row keep the value of the newest snapshot. A cell with a row is a conflict if its
   value differs between the newest snapshot and the base, on which the write was planned.
2. If every combination of the write's labels has a row, all these cells were written. Otherwise,
   stored chunks are compared with the base: an equal cell counts as not written.
3. An array without a missing value has a value in every cell of a stored chunk. Its cells outside
   of the base count as written if their chunk was written. A chunk with a cell that has neither a
   row nor a value is refused.
4. Memory holds one chunk at a time of each of these snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.groups import DimSelection
from icechunk_format.groups.changing.storing import padded
from icechunk_format.repository.changes import ChunkChanges
from icechunk_format.tables.writing.cells.task import no_row
from icechunk_format.tables.writing.part import WritePart, WriteTarget
from icechunk_format.zarr.fill_values import differs, is_all_fill

if TYPE_CHECKING:
    from icechunk_format.grid.index_maps import IndexMap
    from icechunk_format.groups import ArrayReader
    from icechunk_format.tables.writing.replanning.moves import AxisMoves

_MOST_LOST_CHUNKS: Final = 16


@dataclass(slots=True, kw_only=True, eq=False)
class CellMerge:
    """Merges chunks of one array. Readers are None if the array does not exist."""

    array: WriteTarget
    """The array in the new plan."""
    axes: Sequence[AxisMoves]
    ours: ArrayReader | None
    """Reads the chunks that this write has stored."""
    base: MovedArray | None
    """The array in the base, by the indices of the first plan."""
    base_now: MovedArray | None
    tip: MovedArray | None
    """The array in the base and in the newest snapshot, by the indices of the new plan."""
    stored: ChunkChanges
    """Chunks that this write has stored."""
    written_by_others: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    """Returns a mask of chunks of the newest snapshot, ``int64 (n, ndim)``, stored by others."""
    has_all_rows: bool
    """True if every combination of labels has a row."""
    may_agree: bool
    """True if a cell that two writers set to the same value is not a conflict."""
    resolve: str | None
    """Value of a cell that both writers changed: ``ours`` or ``theirs``; None raises an error."""
    part: WritePart | None = None
    """The part of the new plan with the array; None if the write has no rows for it."""
    lost: list[set[int]] = field(default_factory=list)
    """By axis: indices of cells in conflict."""
    cells_lost: int = 0

    @property
    def has_no_missing_value(self) -> bool:
        """True if the array has no value that marks unwritten cells."""
        return self.array.encoder is not None and self.array.encoder.absent is None

    def chunks(
        self, targets: NDArray[np.int64], touched: NDArray[np.bool_]
    ) -> Iterator[tuple[list[int], bytes]]:
        """Yield the merged chunks with their coordinates, until too many have conflicts."""
        self.lost = [set() for _ in self.axes]
        codecs = self.array.metadata.chunk_codecs()
        chunks_lost = 0
        for at, is_touched in zip(targets.tolist(), touched.tolist(), strict=True):
            before = self.cells_lost
            values = self._merged(at, is_touched=is_touched)
            if self.ours is None and is_all_fill(values, self.array.metadata.fill_value):
                # If it were stored, its cells would count as written in an array without a missing
                # value.
                continue
            yield at, codecs.encode(padded(self.array.metadata, values, at))
            chunks_lost += self.cells_lost > before
            if chunks_lost >= _MOST_LOST_CHUNKS and self.resolve is None:
                return

    def _merged(self, target: Sequence[int], *, is_touched: bool) -> NDArray[Any]:
        """Return the values of a chunk; ``is_touched`` if other writers may have written it."""
        grid = self.array.metadata.grid
        lower, upper = grid.box_of(target)
        values = self._content(self.tip, lower, upper)
        theirs = self._theirs(values, lower, upper) if is_touched else None
        if self.ours is None:
            return values
        written = np.zeros(values.shape, np.bool_)
        along = [moves.segments(at) for moves, at in zip(self.axes, target, strict=True)]
        for segments in product(*along):
            self._lay_over(self.ours, values, written, theirs, segments, lower)
        if self.has_no_missing_value and self.part is not None and written.any():
            written |= _inside(self.tip, lower, upper)
            if not written.all():
                raise no_row(self.part, self.array, written, lower)
        return values

    def _lay_over(
        self,
        reader: ArrayReader,
        values: NDArray[Any],
        merged: NDArray[np.bool_],
        theirs: NDArray[np.bool_] | None,
        segments: Sequence[tuple[int, NDArray[np.int64], NDArray[np.int64]]],
        lower: Sequence[int],
    ) -> None:
        source = np.array([[chunk for chunk, _, _ in segments]], np.uint32)
        if not self.stored.touches(source).all():
            return
        old, new = [own for _, own, _ in segments], [own for _, _, own in segments]
        first, last = [int(np.min(own)) for own in old], [int(np.max(own)) + 1 for own in old]
        within = np.ix_(*(own - low for own, low in zip(old, first, strict=True)))
        at = np.ix_(*(own - low for own, low in zip(new, lower, strict=True)))
        ours = np.asarray(reader.read_box(first, last)[within])
        written = np.ones(ours.shape, np.bool_)
        if not self.has_all_rows:
            written = differs(ours, np.asarray(self._content(self.base, first, last)[within]))
            # A chunk that only moved away from the indices of new labels is not written there.
            is_stored = len(reader.lookup.find(source).positions)
            if self.has_no_missing_value and is_stored:
                written |= ~_inside(self.base, first, last)[within]
        if theirs is not None:
            both = written & theirs[at]
            if self.may_agree:
                both &= differs(ours, values[at])
            if both.any():
                written = self._settled(written, both, new)
        part = np.array(values[at])
        part[written] = ours[written]
        values[at] = part
        merged[at] |= written

    def _settled(
        self,
        written: NDArray[np.bool_],
        both: NDArray[np.bool_],
        indices: Sequence[NDArray[np.int64]],
    ) -> NDArray[np.bool_]:
        """Return a mask of the cells to write according to ``resolve``; record conflicts."""
        self.cells_lost += int(np.count_nonzero(both))
        for lost, new, rows in zip(self.lost, indices, np.nonzero(both), strict=True):
            lost.update(new[np.unique(rows)].tolist())
        return written & ~both if self.resolve == "theirs" else written

    def _theirs(
        self, values: NDArray[Any], lower: Sequence[int], upper: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Return a mask of the cells in which the newest snapshot differs from the base."""
        found = differs(values, self._content(self.base_now, lower, upper))
        # Unwritten cells beyond the base have the fill value.
        has_value = differs(values, self.array.metadata.fill_array(values.shape))
        if self.has_no_missing_value and self.tip is not None:
            has_value |= self.tip.in_chunks(self.written_by_others, lower, upper)
        is_new = ~_inside(self.base_now, lower, upper)
        return np.where(is_new, (found | self.has_no_missing_value) & has_value, found)

    def _content(
        self, array: MovedArray | None, lower: Sequence[int], upper: Sequence[int]
    ) -> NDArray[Any]:
        """Return a box of an array, with the missing value outside of the array."""
        shape = tuple(high - low for low, high in zip(lower, upper, strict=True))
        fill = self.array.metadata.fill_value
        if self.array.encoder is None:
            values = self.array.metadata.fill_array(shape)
        else:
            values = self.array.encoder.blank(shape, fill)
        if array is not None:
            array.read_into(values, lower, upper)
        return values


class MovedArray:
    """An array of a snapshot, addressed by the indices of the new plan.

    ``maps`` are the moves of the elements of the array along each axis.
    """

    def __init__(self, reader: ArrayReader, maps: Sequence[IndexMap]) -> None:
        self._reader = reader
        self._own = [each.inverse for each in maps]

    def within(
        self, lower: Sequence[int], upper: Sequence[int]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """Return, by axis, the array's indices in a box, and their offsets in the box."""
        owns, ats = [], []
        for back, low, high in zip(self._own, lower, upper, strict=True):
            own = back.of(np.arange(low, high))
            owns.append(own[own >= 0])
            ats.append(np.flatnonzero(own >= 0))
        return owns, ats

    def in_chunks(
        self,
        chosen: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
        lower: Sequence[int],
        upper: Sequence[int],
    ) -> NDArray[np.bool_]:
        """Return a mask of the cells of a box that are in chosen chunks of the array."""
        found = np.zeros([high - low for low, high in zip(lower, upper, strict=True)], np.bool_)
        owns, ats = self.within(lower, upper)
        if not all(len(own) for own in owns):
            return found
        axes = self._reader.metadata.grid.axes
        along = [
            np.unique(axis.chunk_of(own), return_inverse=True)
            for axis, own in zip(axes, owns, strict=True)
        ]
        coords = np.array(list(product(*(chunks.tolist() for chunks, _ in along))), np.int64)
        is_chosen = chosen(coords).reshape([len(chunks) for chunks, _ in along])
        found[np.ix_(*ats)] = is_chosen[np.ix_(*(rows for _, rows in along))]
        return found

    def read_into(self, values: NDArray[Any], lower: Sequence[int], upper: Sequence[int]) -> None:
        """Copy the array's values in a box into ``values`` of the same shape."""
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


def _inside(
    array: MovedArray | None, lower: Sequence[int], upper: Sequence[int]
) -> NDArray[np.bool_]:
    """Return a mask of the cells of a box that are inside the array."""
    found = np.zeros([high - low for low, high in zip(lower, upper, strict=True)], np.bool_)
    if array is not None:
        found[np.ix_(*array.within(lower, upper)[1])] = True
    return found
