"""Reads the chunk references of an array in boxes of bounded size.

Maintenance reads all references of an array, which may not fit into memory. So the chunk grid is
cut into boxes of about as many references as one file may contain, estimated from the extents and
counts in snapshots, and each box is read separately.

Rules of this file
------------------
1. Only references that readers find are returned: inside the extents of their manifest and outside
   those of earlier manifests.
2. Cells of a grid are not enumerated: a grid may have more cells than references.
3. Memory: the references of one box, and the decoded manifests of ``_REFS_AT_ONCE`` references.

Specification: "Chunk Manifest Files", ``ManifestRef``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.grid.boxes import box_around, box_volumes, meeting, overlapping_pairs
from icechunk_format.grid.cover import clip
from icechunk_format.repository.files.chunk_lookup import refs_of_array, visible_rows
from icechunk_format.repository.files.metadata_files import load_manifests
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.protocol import Storage

_REFS_AT_ONCE: Final = 1_000_000
_FILES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListedManifests:
    """Some manifests of one array, in the order in which readers try them.

    Parameters
    ----------
    ids
        uint8, shape (n, 12).
    extents
        uint32, shape (n, ndim, 2).
    counts
        int64, shape (n,): references in each file.
    """

    ids: NDArray[np.uint8]
    extents: NDArray[np.uint32]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, refs: ManifestRefs, files: ManifestFiles) -> ListedManifests:
        """Join the list of an array with the list of files of its snapshot."""
        return cls(ids=refs.ids, extents=refs.extents, counts=files.counts_of(refs.ids))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> ListedManifests:
        """Return some rows."""
        return ListedManifests(
            ids=self.ids[rows], extents=self.extents[rows], counts=self.counts[rows]
        )

    def meeting(self, box: NDArray[np.int64]) -> ListedManifests:
        """Return the manifests whose extents overlap a box, shape (ndim, 2)."""
        return self.take(meeting(self.extents, box))


def manifest_keys(refs: ManifestRefs) -> NDArray[np.void]:
    """Return a key for each manifest of an array, made of its id and extents."""
    n = len(refs)
    extents = np.ascontiguousarray(refs.extents, dtype="<u4").reshape(n, 2 * refs.ndim)
    rows = np.concatenate([refs.ids, extents.view(np.uint8).reshape(n, 8 * refs.ndim)], axis=1)
    keys: NDArray[np.void] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").reshape(-1)
    return keys


def references_in(
    storage: Storage, node_id: NodeId, path: str, manifests: ListedManifests, box: NDArray[np.int64]
) -> ChunkRefs:
    """Return the references of an array in a box.

    ``manifests`` include all manifests of the array that overlap the box.
    """
    wanted = manifests.meeting(box)
    overlaps = any(True for _ in overlapping_pairs(wanted.extents))
    parts = [ChunkRefs.empty(len(box))]
    for batch in sized_batches(enumerate(wanted.counts.tolist()), _FILES_AT_ONCE, _REFS_AT_ONCE):
        ids = [ManifestId(wanted.ids[row].tobytes()) for row in batch]
        for row, manifest in zip(batch, load_manifests(storage, ids), strict=True):
            refs = refs_of_array(manifest, node_id, path, len(box))
            if refs is None:
                continue
            earlier = wanted.extents[:row] if overlaps else wanted.extents[:0]
            rows = visible_rows(refs, wanted.extents[row], box, earlier)
            parts.append(refs if len(rows) == len(refs) else refs.take(rows))
    return ChunkRefs.concat(parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxOfReferences:
    """A part of a chunk grid that is read in one step.

    Parameters
    ----------
    box
        int64, shape (ndim, 2): start and end (exclusive) per axis.
    rows
        int64, ascending: the manifests that overlap it.
    references
        Estimated number of references in it.
    """

    box: NDArray[np.int64]
    rows: NDArray[np.int64]
    references: int


def cut_into_boxes(
    extents: NDArray[np.uint32], counts: NDArray[np.int64], cells: tuple[int, ...], max_refs: int
) -> Iterator[BoxOfReferences]:
    """Cut the box around manifests until each part has about ``max_refs`` references.

    Boxes are halved by weight, along borders of cells if possible; within a cell, preferably
    between manifests.

    Parameters
    ----------
    extents
        uint32, shape (n, ndim, 2), none empty.
    counts
        int64, shape (n,): references in each manifest.
    cells
        Chunks along each axis that belong together.
    max_refs
        Estimated maximum of references in a box.
    """
    if not len(extents):
        return
    boxes, sizes = extents.astype(np.int64), np.array(cells, dtype=np.int64)
    waiting = [(box_around(boxes), np.arange(len(boxes)))]
    while waiting:
        box, rows = waiting.pop()
        clipped, inside = clip(boxes[rows], box)
        rows = rows[inside]
        if not len(rows):
            continue
        weights = np.maximum(counts[rows], 1) * box_volumes(clipped) / box_volumes(boxes[rows])
        total = float(weights.sum())
        cut = _cut(clipped, weights, sizes) if total > max_refs else None
        if cut is None:
            yield BoxOfReferences(box=box, rows=rows, references=int(total) + 1)
            continue
        axis, at = cut
        lower, upper = box.copy(), box.copy()
        lower[axis, 1] = upper[axis, 0] = at
        waiting += [(upper, rows), (lower, rows)]


def _cut(
    boxes: NDArray[np.int64], weights: NDArray[np.float64], cells: NDArray[np.int64]
) -> tuple[int, int] | None:
    """Return the axis and coordinate that halve boxes by weight; None for a single chunk."""
    if not len(cells):
        return None
    low, high = boxes[:, :, 0].min(axis=0), boxes[:, :, 1].max(axis=0)
    in_cells = (high - 1) // cells - low // cells
    if (in_cells > 0).any():
        axis = int(np.argmax(in_cells))
        size = int(cells[axis])
        middle = round(_median(boxes[:, axis], weights) / size) * size
        first = (int(low[axis]) // size + 1) * size
        final = (int(high[axis]) - 1) // size * size
        return axis, min(max(middle, first), final)
    axis = int(np.argmax(high - low))
    if high[axis] - low[axis] < 2:
        return None
    about = _median(boxes[:, axis], weights)
    clean = _gaps(boxes[:, axis])
    if len(clean):
        return axis, int(clean[np.argmin(np.abs(clean - about))])
    return axis, min(max(round(about), int(low[axis]) + 1), int(high[axis]) - 1)


def _median(ranges: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """Return the weighted median coordinate of ranges, shape (n, 2)."""
    if len(ranges) == 1:
        return float(ranges[0].mean())
    centres = ranges.mean(axis=1)
    order = np.argsort(centres, kind="stable")
    summed = np.cumsum(weights[order])
    return float(centres[order][int(np.searchsorted(summed, summed[-1] / 2))])


def _gaps(ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the coordinates, ascending, that separate ranges without cutting any."""
    ordered = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])[:-1]
    starts = ordered[1:, 0]
    return np.unique(starts[starts >= reached])
