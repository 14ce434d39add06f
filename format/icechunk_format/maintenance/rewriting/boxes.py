"""Chooses the manifests of an array to rewrite, divides them into boxes, and rewrites a box.

Algorithm
---------
1. The splitting rules divide the chunk grid of an array into cells, one manifest each. A manifest
   fits if it is the only one in its cell and in no other cell. If a cell has more references than
   the limit of a file, several files fit, unless they are many more than needed.
2. Other manifests are rewritten, in boxes with about the maximum number of references of a file
   (``bounded_reads.cut_into_boxes``), in this process or on executors.
3. A manifest that overlaps several boxes is read for each box.

Rules of this file
------------------
1. A task is small and picklable: ids, extents and boxes, without references and credentials. Its
   receipt lists the stored files.
2. References are copied unchanged: native, inline, and virtual with checksums. No chunk is read.
3. Memory: a few times the list of an array's manifests for its plan; for a task the references of
   one box, about the maximum of one file, and a part of the decoded source manifests; see
   ``bounded_reads``.

Specification: "Chunk Manifest Files", ``ManifestRef``; ``manifest.splitting`` of the
configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.grid.boxes import overlapping_pairs
from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.repository.commit.manifest_plan import grouped_rows
from icechunk_format.repository.files import (
    ListedManifests,
    ManifestFormat,
    ManifestReceipt,
    cut_into_boxes,
    references_in,
    store_manifests,
)
from icechunk_format.repository.files.bounded_reads import BoxOfReferences
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage

# Files of a large cell may exceed the minimum number by this factor: the division depends on the
# positions of references, and rewriting would not improve it.
_FILES_OVER_NEED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewriteOfArray:
    """The manifests of one array to replace, and the boxes in which to rewrite them.

    All rows are rows of the array's manifest list; manifests in other rows fit.
    """

    replaced_rows: NDArray[np.int64]
    boxes: tuple[BoxOfReferences, ...]


def plan_rewrite_of(
    extents: NDArray[np.uint32], counts: NDArray[np.int64], cells: Sequence[int], max_refs: int
) -> RewriteOfArray:
    """Plan the rewrite of one array.

    Manifests have ``extents``, ``uint32 (n, ndim, 2)``, and ``counts`` references. ``cells`` are
    chunks per manifest along each axis, ``max_refs`` is the maximum number of references in a file.
    """
    boxes = extents.astype(np.int64)
    sizes = np.array(cells, dtype=np.int64)
    counts = np.maximum(counts, 1)
    # Manifests with empty extents are removed.
    filled = np.flatnonzero((boxes[:, :, 0] < boxes[:, :, 1]).all(axis=1))
    fits = np.zeros(len(boxes), dtype=np.bool_)
    fits[filled] = _fitting(extents[filled], boxes[filled], counts[filled], sizes, max_refs)
    todo = filled[~fits[filled]]
    return RewriteOfArray(
        replaced_rows=np.flatnonzero(~fits),
        boxes=tuple(
            replace(box, rows=todo[box.rows])
            for box in cut_into_boxes(extents[todo], counts[todo], tuple(cells), max_refs)
        ),
    )


def _fitting(
    extents: NDArray[np.uint32],
    boxes: NDArray[np.int64],
    counts: NDArray[np.int64],
    cells: NDArray[np.int64],
    max_refs: int,
) -> NDArray[np.bool_]:
    """Return a mask of the manifests that fit; all have non-empty extents."""
    first, last = boxes[:, :, 0] // cells, (boxes[:, :, 1] - 1) // cells
    in_one = (first == last).all(axis=1)
    fits = np.zeros(len(boxes), dtype=np.bool_)
    inner = np.flatnonzero(in_one)
    groups = [inner[rows] for rows in grouped_rows(first[inner])]
    for rows in groups:
        total, files = int(counts[rows].sum()), len(rows)
        if files == 1:
            fits[rows] = total <= max_refs
        elif total > max_refs:
            needed = -(-total // max_refs)
            is_limited = bool((counts[rows] <= max_refs).all())
            fits[rows] = is_limited and files <= _FILES_OVER_NEED * needed
    for pairs in overlapping_pairs(extents):
        fits[pairs.reshape(-1)] = False
    # A manifest that overlaps several cells is rewritten, together with these cells.
    outer = np.flatnonzero(~in_one)
    if len(outer) and fits.any():
        chosen = np.concatenate([np.flatnonzero(fits), outer])
        in_cells = np.stack([first[chosen], last[chosen] + 1], axis=2).astype(np.uint32)
        for pairs in overlapping_pairs(in_cells):
            left, right = chosen[pairs[:, 0]], chosen[pairs[:, 1]]
            fits[left[~in_one[right]]] = False
            fits[right[~in_one[left]]] = False
    # All manifests of a cell are rewritten, or none.
    for rows in groups:
        if len(rows) > 1 and not fits[rows].all():
            fits[rows] = False
    return fits


# -- tasks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewriteBox:
    """A box of chunks of one array whose references are rewritten together.

    Parameters
    ----------
    cells
        Chunks per manifest along each axis.
    box
        Range of chunk coordinates, ``int64 (ndim, 2)``.
    references
        Estimated number of references in the box.
    """

    node_id: NodeId
    path: str
    cells: tuple[int, ...]
    box: NDArray[np.int64]
    manifests: ListedManifests
    references: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteContext:
    """The context of all tasks: location and format of the files."""

    location: Location
    format: ManifestFormat


RewriteTask = tuple[RewriteBox, ...]
"""The boxes of a task."""

RewriteReceipt = list[tuple[NodeId, tuple[ManifestReceipt, ...]]]
"""For each box of a task: its array and the stored files."""


def run_rewrite(context: RewriteContext, task: RewriteTask) -> RewriteReceipt:
    """Store the new manifests of a task; return their receipts without chunk coordinates.

    Files stored before an error are garbage.
    """
    storage = open_storage(context.location)
    parts = ((box.node_id, _parts(storage, box)) for box in task)
    stored = store_manifests(storage, context.format, parts)
    return [
        (box.node_id, tuple(map(_light, receipts)))
        for box, receipts in zip(task, stored, strict=True)
    ]


def _light(receipt: ManifestReceipt) -> ManifestReceipt:
    """Return a receipt without its chunk coordinates, which may be millions."""
    no_boxes = np.empty((0, len(receipt.extents), 2), dtype=np.uint32)
    return replace(receipt, coords=CoordSet.of_boxes(no_boxes))


def _parts(storage: Storage, box: RewriteBox) -> list[ChunkRefs]:
    """Return the references of a box, grouped by cells."""
    refs = references_in(storage, box.node_id, box.path, box.manifests, box.box)
    if not len(refs):
        return []
    groups = grouped_rows(refs.coords.astype(np.int64) // np.array(box.cells, dtype=np.int64))
    return [refs] if len(groups) == 1 else [refs.take(rows) for rows in groups]
