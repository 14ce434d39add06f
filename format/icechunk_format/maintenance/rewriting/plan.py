"""Chooses the manifests of an array to rewrite, and divides them into boxes. No I/O.

Algorithm
---------
1. The splitting rules divide the chunk grid of an array into cells, one manifest each. A manifest
   fits if it is the only one in its cell and in no other cell. If a cell has more references than
   the limit of a file, several files fit, unless they are many more than needed.
2. Other manifests are rewritten, in boxes with about the maximum number of references of a file
   (``bounded_reads.cut_into_boxes``).
3. A manifest that overlaps several boxes is read for each box.

Memory is a few times the list of the array's manifests.

Specification: "Chunk Manifest Files", ``ManifestRef``; ``manifest.splitting`` of the
configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.boxes import overlapping_pairs
from icechunk_format.repository.commit.manifest_plan import grouped_rows
from icechunk_format.repository.files.bounded_reads import BoxOfReferences, cut_into_boxes

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
