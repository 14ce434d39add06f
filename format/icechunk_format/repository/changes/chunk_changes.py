"""``ChunkChanges``: the uncommitted changes of a session to the chunks of one array.

There are three layers; a later layer hides earlier ones at the same coordinate:

1. the references of the base snapshot below ``clip`` on every axis, unless ``replaces_all``;
2. the manifests that executors have stored (``receipts``);
3. coordinates that were deleted, and references that were set. They are disjoint.

Rules of this file
------------------
1. Pure: nothing is read or written here. Values can be pickled.
2. Later calls override earlier ones. Calls are recorded and joined at the next read, so setting a
   million chunks one by one costs no more than setting them together.
3. ``revision`` is incremented by every change, so that results for an earlier state are not reused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import (
    bounds_of,
    box_of_grid,
    boxes_meet,
    inside_box,
    overlapping_pairs,
)
from icechunk_format.grid.coordinates import CoordinateOrder, joined_coords, sorting_rows
from icechunk_format.repository.changes.touched_chunks import TouchedChunks, in_any
from icechunk_format.repository.files.manifest_files import ManifestReceipt


class ChunkChanges:
    """Changes of the chunks of one array.

    Attributes
    ----------
    replaces_all
        True if the chunks of the base are ignored: they were shifted, or the array is new.
    clip
        The chunk grid after a reduction: chunks of the base outside of it are dropped. None for no
        limit.
    receipts
        Manifests stored by executors, with disjoint sets of valid chunks.
    """

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self.revision = 0
        self.replaces_all = False
        self.clip: tuple[int, ...] | None = None
        self.receipts: list[ManifestReceipt] = []
        self._left = np.empty((0, ndim), dtype=np.uint32)
        self._refs = ChunkRefs.empty(ndim)
        self._deleted = np.empty((0, ndim), dtype=np.uint32)
        # Set references or deleted coordinates, the newest last.
        self._notes: list[ChunkRefs | NDArray[np.uint32]] = []

    # -- changing ---------------------------------------------------------------------------

    def set_refs(self, refs: ChunkRefs) -> None:
        """Set references, replacing those at the same coordinates."""
        if len(refs):
            self._notes.append(refs)
            self.revision += 1

    def delete(self, coords: NDArray[np.uint32]) -> None:
        """Delete chunks; missing ones are ignored."""
        if len(coords):
            self._notes.append(coords)
            self.revision += 1

    def add_receipts(self, receipts: Sequence[ManifestReceipt]) -> None:
        """Reuse stored manifests; their chunks replace those at the same coordinates."""
        if not receipts:
            return
        refs, deleted = self.pending()
        hidden: list[NDArray[np.uint32]] = []
        joined = [*self.receipts, *receipts]
        boxes = np.array([receipt.extents for receipt in joined], dtype=np.uint32)
        for pairs in overlapping_pairs(boxes.reshape(len(joined), self.ndim, 2)):
            for left, right in pairs.tolist():
                shared = joined[left].coords.intersection(joined[right].coords)
                is_twice = np.ones(len(shared), dtype=np.bool_)
                if min(left, right) < len(self.receipts):
                    is_twice = (refs.find(shared) < 0) & ~_is_in(deleted, shared)
                hidden.append(shared)
                shared = shared[is_twice]
                if len(shared):
                    raise InvalidInputError(
                        f"{len(shared)} chunks were written twice, such as "
                        f"{tuple(shared[0].tolist())}, by two tasks; let each chunk be written "
                        "by one task",
                        coords=tuple(shared[0].tolist()),
                        count=len(shared),
                    )
        new = [receipt.coords for receipt in receipts]
        is_hidden = in_any(new, refs.coords)
        if is_hidden.any():
            self._refs = refs.take(~is_hidden)
        self._deleted = deleted[~in_any(new, deleted)]
        self._leave_to_others(joined_coords(hidden, self.ndim))
        self.receipts += receipts
        self.revision += 1

    def resize(self, num_chunks: Sequence[int], dropped: NDArray[np.uint32] | None = None) -> None:
        """Drop all chunks outside of a chunk grid, also for a grid that grows again later.

        Parameters
        ----------
        num_chunks
            The new chunk grid, smaller on some axis than the current or an earlier one.
        dropped
            uint32, shape (n, ndim), sorted: chunks of the base inside of this grid, but outside of
            the previous one.
        """
        self.clip = tuple(num_chunks)
        box = box_of_grid(num_chunks)
        refs, deleted = self.pending()
        self._refs = refs.take(inside_box(refs.coords, box))
        self._deleted = deleted[inside_box(deleted, box)]
        self._left = self._left[inside_box(self._left, box)]
        kept = []
        for receipt in self.receipts:
            if (receipt.coords.bounds()[:, 1] <= box[:, 1]).all():
                kept.append(receipt)
                continue
            coords = receipt.coords.coords()
            is_inside = inside_box(coords, box)
            if is_inside.any():
                kept.append(receipt.only(coords[is_inside]))
        self.receipts = kept
        if dropped is not None:
            # An array without elements has a first chunk, which may be set already.
            comes_back = dropped[~self.touches(dropped)]
            self._deleted = joined_coords([self._deleted, comes_back], self.ndim)
        self.revision += 1

    def replace_all(self, refs: ChunkRefs, left: NDArray[np.uint32]) -> None:
        """Replace all references of the array.

        Parameters
        ----------
        refs
            The new references.
        left
            Coordinates of the previous chunks, except those that this object lists as deleted.
        """
        _, deleted = self.pending()
        self._left = joined_coords([self._left, left, deleted], self.ndim)
        self.replaces_all = True
        self.receipts = []
        self._refs, self._deleted = refs, deleted[:0]
        self.revision += 1

    def yield_to_others(self, coords: NDArray[np.uint32]) -> None:
        """Drop changes at coordinates for which another writer's chunks are preferred."""
        refs, deleted = self.pending()
        self._refs = refs.take(~_is_in(coords, refs.coords))
        self._deleted = deleted[~_is_in(coords, deleted)]
        self._leave_to_others(coords)
        self.revision += 1

    def _leave_to_others(self, coords: NDArray[np.uint32]) -> None:
        """Remove coordinates from the receipts."""
        kept = []
        for receipt in self.receipts:
            if boxes_meet(receipt.coords.bounds(), bounds_of(coords)):
                own = receipt.coords.coords()
                is_gone = _is_in(coords, own)
                if is_gone.all():
                    continue
                if is_gone.any():
                    receipt = receipt.only(own[~is_gone])
            kept.append(receipt)
        self.receipts = kept

    # -- reading ----------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if nothing was changed."""
        return not (
            self._notes
            or len(self._refs)
            or len(self._deleted)
            or self.receipts
            or self.replaces_all
            or self.clip is not None
        )

    def pending(self) -> tuple[ChunkRefs, NDArray[np.uint32]]:
        """Return set references, and the sorted coordinates (n, ndim) of deleted chunks."""
        if self._notes:
            self._refs, self._deleted = self._join_notes()
            self._notes = []
        return self._refs, self._deleted

    def _join_notes(self) -> tuple[ChunkRefs, NDArray[np.uint32]]:
        notes: list[ChunkRefs | NDArray[np.uint32]] = [self._refs, self._deleted, *self._notes]
        if len(notes) == 3 and isinstance(notes[2], ChunkRefs) and not len(self._deleted):
            return ChunkRefs.overlay(self._refs, notes[2]), self._deleted
        # Newest first, since the first row of each coordinate is kept.
        notes.reverse()
        coords = [note.coords if isinstance(note, ChunkRefs) else note for note in notes]
        number = np.repeat(np.arange(len(notes)), [len(part) for part in coords])
        row = np.concatenate([np.arange(len(part)) for part in coords])
        stays = sorting_rows(np.concatenate(coords))
        number, row = number[stays], row[stays]
        # The stable sort keeps the rows of each note in order of coordinate.
        by_note = np.argsort(number, kind="stable")
        edges = np.searchsorted(number[by_note], np.arange(len(notes) + 1))
        refs: list[ChunkRefs] = [ChunkRefs.empty(self.ndim)]
        deleted: list[NDArray[np.uint32]] = []
        for note, begin, end in zip(notes, edges[:-1], edges[1:], strict=True):
            rows = row[by_note[begin:end]]
            if isinstance(note, ChunkRefs):
                if len(rows):
                    refs.append(note.take(rows))
            else:
                deleted.append(note[rows])
        return ChunkRefs.concat(refs), joined_coords(deleted, self.ndim)

    def touched(self) -> TouchedChunks:
        """Return all set and deleted coordinates, for the transaction log."""
        refs, deleted = self.pending()
        return TouchedChunks.of(
            [receipt.coords for receipt in self.receipts],
            joined_coords([refs.coords, deleted, self._left], self.ndim),
        )

    def touches(self, coords: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return a mask of the coordinates, shape (m, ndim), that were set or deleted."""
        refs, deleted = self.pending()
        found = in_any([receipt.coords for receipt in self.receipts], coords)
        found |= refs.find(coords) >= 0
        return found | _is_in(deleted, coords) | _is_in(self._left, coords)


def _is_in(known: NDArray[np.uint32], coords: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return a mask of the coordinates, shape (m, ndim), that are among sorted ones."""
    return CoordinateOrder(known).find(coords) >= 0
