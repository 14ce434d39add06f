"""Plans which manifests of an array a commit keeps, adopts from executors, or rebuilds. Pure.

Sources are the manifests of the base and those that executors stored. The extents of the resulting
manifests do not overlap, because readers use only the first one whose extents contain a coordinate.

Algorithm
---------
1. A base manifest is dropped without reading it if it is outside of ``clip``, or if new references
   fill its extents.
2. A source is rebuilt if references inside its extents were set or deleted, if ``clip`` cuts it, or
   if its extents overlap another source.
3. The other references form fresh groups: one for each cell of the manifest splitting, and for each
   side of the box around all sources, so that appended chunks do not overlap it.
4. Fresh groups and rebuilt sources are joined with all sources that their boxes overlap, until
   nothing overlaps. All other sources are kept, or adopted from executors, by id.
5. Appending creates small manifests. If a cell has many, the newest are also joined, unless that
   overlaps others, so that reads do not slow down with the number of commits. Their number is
   bounded, so that the cost of a commit still depends on its changes only.

Specification: "Chunk Manifest Files", ``ManifestRef``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.grid.boxes import (
    bounds_of,
    box_around,
    box_volumes,
    boxes_meet,
    joined_groups,
    meeting,
    overlapping_pairs,
)
from icechunk_format.grid.coordinates import CoordinateOrder
from icechunk_format.repository.changes.chunk_changes import ChunkChanges

SMALL_MANIFEST: Final = 1_000
"""Manifests with fewer references are small, so that rebuilding them costs little."""

MAX_SMALL_MANIFESTS: Final = 16
"""If a cell has this many small manifests, as many of them are joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltGroup:
    """References that are written to one new manifest.

    Parameters
    ----------
    base_rows
        int64: manifests of the base whose references are included.
    receipt_rows
        int64: executors' manifests whose references are included.
    pending_rows
        int64, ascending: rows of the references that were set.
    """

    base_rows: NDArray[np.int64]
    receipt_rows: NDArray[np.int64]
    pending_rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPlan:
    """The manifests of one array that a commit keeps, adopts and rebuilds.

    Parameters
    ----------
    kept_rows
        int64: manifests of the base that are kept.
    taken_rows
        int64: executors' manifests that are used unchanged.
    groups
        The manifests to write.
    """

    kept_rows: NDArray[np.int64]
    taken_rows: NDArray[np.int64]
    groups: tuple[RebuiltGroup, ...]


class ManifestPlanner:
    """Plans the manifests of one array.

    Sources are numbered, the manifests of the base first, then receipts.

    Parameters
    ----------
    base
        The manifests of the array in the base.
    cells
        Chunks per manifest along each axis, by the splitting rules of the repository.
    counts
        int64, shape (len(base),): references in each manifest of the base.
    joins_small
        True to join small manifests, step 5.
    """

    def __init__(
        self,
        base: ManifestRefs,
        changes: ChunkChanges,
        *,
        cells: tuple[int, ...],
        counts: NDArray[np.int64],
        joins_small: bool = True,
    ) -> None:
        self.changes = changes
        self.refs, self.deleted = changes.pending()
        self.cells = np.array(cells, dtype=np.int64)
        self.num_base = len(base)
        self.counts = counts
        self.joins_small = joins_small
        ndim = base.ndim
        receipts = np.array(
            [receipt.extents for receipt in changes.receipts], dtype=np.uint32
        ).reshape(len(changes.receipts), ndim, 2)
        self.boxes = np.concatenate([base.extents, receipts])
        self.is_alive = np.ones(len(self.boxes), dtype=np.bool_)
        self.is_dirty = np.zeros(len(self.boxes), dtype=np.bool_)
        # The source whose extents contain each pending reference; -1 for none.
        self.owner = np.full(len(self.refs), -1, dtype=np.int64)

    def plan(self) -> ArrayPlan:
        """Return the manifests that a commit keeps, reuses and rebuilds."""
        self._drop_and_clip()
        self._find_overlaps()
        self._find_touched()
        fresh = self._fresh_groups()
        groups = self._join(fresh)
        in_group = np.zeros(len(self.boxes), dtype=np.bool_)
        for group in groups:
            in_group[group.base_rows] = True
            in_group[group.receipt_rows + self.num_base] = True
        stays = np.flatnonzero(self.is_alive & ~in_group)
        return ArrayPlan(
            kept_rows=stays[stays < self.num_base],
            taken_rows=stays[stays >= self.num_base] - self.num_base,
            groups=tuple(groups),
        )

    def _drop_and_clip(self) -> None:
        base = slice(0, self.num_base)
        if self.changes.replaces_all:
            self.is_alive[base] = False
        # A manifest with empty extents has no chunks.
        self.is_alive[base] &= (self.boxes[base, :, 0] < self.boxes[base, :, 1]).all(axis=1)
        if self.changes.clip is not None:
            limit = np.array(self.changes.clip, dtype=np.int64)
            self.is_alive[base] &= (self.boxes[base, :, 0] < limit).all(axis=1)
            self.is_dirty[base] = (self.boxes[base, :, 1] > limit).any(axis=1)

    def _find_overlaps(self) -> None:
        receipts = self.changes.receipts
        if not receipts:
            return
        counts = np.array([receipt.coords.count for receipt in receipts], dtype=np.float64)
        is_full = np.zeros(len(self.boxes), dtype=np.bool_)
        is_full[self.num_base :] = counts == box_volumes(self.boxes[self.num_base :])
        self.is_dirty[self.num_base :] = [not receipt.is_whole for receipt in receipts]
        alive = np.flatnonzero(self.is_alive)
        for block in overlapping_pairs(self.boxes[alive]):
            pairs = np.sort(alive[block], axis=1)
            lower, upper = pairs[:, 0], pairs[:, 1]
            # Receipts are numbered after the base, so if the upper of a pair is not one, neither
            # is.
            with_receipt = upper >= self.num_base
            lower, upper = lower[with_receipt], upper[with_receipt]
            inner, outer = self.boxes[lower], self.boxes[upper]
            is_around = (outer[:, :, 0] <= inner[:, :, 0]) & (outer[:, :, 1] >= inner[:, :, 1])
            # A receipt within a full one has no chunks left, since none is in two receipts.
            is_hidden = is_full[upper] & is_around.all(axis=1)
            self.is_alive[lower[is_hidden]] = False
            self.is_dirty[lower[~is_hidden]] = True

    def _find_touched(self) -> None:
        refs, deleted = self.refs, CoordinateOrder(self.deleted)
        for coords in (refs.coords, self.deleted):
            if not len(coords):
                continue
            box = bounds_of(coords)
            for source in np.flatnonzero(self.is_alive & meeting(self.boxes, box)).tolist():
                low, high = self.boxes[source, :, 0].tolist(), self.boxes[source, :, 1].tolist()
                if coords is self.deleted:
                    self.is_dirty[source] |= len(deleted.select_box(low, high)) > 0
                    continue
                rows = refs.select_box(low, high)
                if source < self.num_base and len(rows) == box_volumes(self.boxes[[source]])[0]:
                    self.is_alive[source] = False
                elif len(rows):
                    self.is_dirty[source] = True
                    self.owner[rows] = source

    def _fresh_groups(self) -> list[NDArray[np.int64]]:
        """Return rows of pending references outside of all sources, grouped by side and cell."""
        rows = np.flatnonzero(self.owner < 0)
        coords = self.refs.coords[rows].astype(np.int64)
        side = np.zeros(len(rows), dtype=np.int64)
        sources = self.boxes[self.is_alive]
        if len(sources):
            low, high = sources[:, :, 0].min(axis=0), sources[:, :, 1].max(axis=0)
            for axis in range(coords.shape[1]):
                inside = side == 0
                side[inside & (coords[:, axis] < low[axis])] = 2 * axis + 1
                side[inside & (coords[:, axis] >= high[axis])] = 2 * axis + 2
        return [rows[part] for part in grouped_rows(np.column_stack([side, coords // self.cells]))]

    def _join(self, fresh: list[NDArray[np.int64]]) -> list[RebuiltGroup]:
        numbers = np.flatnonzero(self.is_alive)
        fresh_boxes = [bounds_of(self.refs.coords[rows])[None] for rows in fresh]
        boxes = np.concatenate([self.boxes[numbers], *fresh_boxes])
        fixed = np.concatenate([~self.is_dirty[numbers], np.zeros(len(fresh), dtype=np.bool_)])
        groups = joined_groups(boxes, fixed)
        taken = [box_around(boxes[group]) for group in groups]
        # Appends create small manifests, so only appends join them.
        for pool in self._small_pools(groups, numbers) if fresh and self.joins_small else ():
            groups += self._joinable(pool, boxes, taken)
        return [self._group(group, numbers, fresh) for group in groups]

    def _group(
        self, members: NDArray[np.int64], numbers: NDArray[np.int64], fresh: list[NDArray[np.int64]]
    ) -> RebuiltGroup:
        sources = numbers[members[members < len(numbers)]]
        parts = [fresh[member - len(numbers)] for member in members[members >= len(numbers)]]
        parts.append(np.flatnonzero(np.isin(self.owner, sources)))
        return RebuiltGroup(
            base_rows=sources[sources < self.num_base],
            receipt_rows=sources[sources >= self.num_base] - self.num_base,
            pending_rows=np.sort(np.concatenate(parts)),
        )

    # -- joining small manifests ------------------------------------------------------------

    def _small_pools(
        self, groups: list[NDArray[np.int64]], numbers: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        """Return the newest small base manifests of each cell that has many untouched ones."""
        is_free = np.ones(len(numbers), dtype=np.bool_)
        for group in groups:
            is_free[group[group < len(numbers)]] = False
        is_free &= numbers < self.num_base
        free = np.flatnonzero(is_free)
        free = free[self.counts[numbers[free]] < SMALL_MANIFEST]
        if len(free) < MAX_SMALL_MANIFESTS:
            return []
        extents = self.boxes[numbers[free]].astype(np.int64)
        first = extents[:, :, 0] // self.cells
        in_one = (first == (extents[:, :, 1] - 1) // self.cells).all(axis=1)
        parts = grouped_rows(first[in_one])
        # New manifests are listed after old ones, so the last is the newest.
        return [
            free[in_one][part[-MAX_SMALL_MANIFESTS:]]
            for part in parts
            if len(part) >= MAX_SMALL_MANIFESTS
        ]

    def _joinable(
        self, pool: NDArray[np.int64], boxes: NDArray[np.uint32], taken: list[NDArray[np.uint32]]
    ) -> list[NDArray[np.int64]]:
        """Return the parts of a pool that can be joined without overlapping other manifests.

        ``taken`` holds the boxes of rebuilt manifests; those of the parts are added to it.
        """
        if len(pool) < MAX_SMALL_MANIFESTS // 2:
            return []
        around = box_around(boxes[pool])
        is_alone = int(meeting(boxes, around).sum()) == len(pool)
        if is_alone and not any(boxes_meet(around, other) for other in taken):
            taken.append(around)
            return [pool]
        starts = boxes[pool, :, 0]
        axis = max(range(starts.shape[1]), key=lambda a: len(np.unique(starts[:, a])))
        ordered = pool[np.argsort(starts[:, axis], kind="stable")]
        half = len(ordered) // 2
        return [
            part
            for side in (ordered[:half], ordered[half:])
            for part in self._joinable(side, boxes, taken)
        ]


def grouped_rows(keys: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rows of each distinct key, shape (n, k), ascending within a group."""
    if not len(keys):
        return []
    if keys.shape[1] == 0 or (keys == keys[0]).all():
        return [np.arange(len(keys))]
    order = np.lexsort(keys.T[::-1])
    edges = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
    return np.split(order, edges)
