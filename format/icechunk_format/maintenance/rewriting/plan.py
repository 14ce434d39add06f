"""Chooses the manifests of an array to rewrite, and cuts the work into boxes. No I/O.

Algorithm
---------
1. The splitting rules cut the chunk grid of an array into cells, one manifest each. A manifest fits
   if it is in one cell and shares that cell with no other one. If a cell holds more references than
   a file may, several files fit as well, unless they are many more than needed.
2. Other manifests are rewritten, in boxes that hold about as many references as one file may
   (``bounded_reads.cut_into_boxes``). Nothing is read for the plan.
3. A manifest that reaches into several boxes is read for each of them.

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

# A cell of more references than one file may hold can have so many times the files it needs: how
# they are cut depends on where the references are, and writing them again would change nothing.
_FILES_OVER_NEED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewriteOfArray:
    """The manifests of one array to replace, and the boxes in which to rewrite them.

    Rows, also those of the boxes, are rows of the array's list; manifests in other rows fit and
    stay.
    """

    replaced_rows: NDArray[np.int64]
    boxes: tuple[BoxOfReferences, ...]


def plan_rewrite_of(
    extents: NDArray[np.uint32],
    counts: NDArray[np.int64],
    cells: Sequence[int],
    max_refs: int,
) -> RewriteOfArray:
    """Plan the rewrite of one array.

    Manifests have ``extents``, uint32 of shape (n, ndim, 2), and ``counts`` references. ``cells``
    are chunks per manifest along each axis, ``max_refs`` the most references in one file.
    """
    boxes = extents.astype(np.int64)
    sizes = np.array(cells, dtype=np.int64)
    counts = np.maximum(counts, 1)
    # A manifest whose extents hold no chunk is removed.
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
    """Return for each manifest, all of them filled, whether it may stay."""
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
    # Whatever reaches into a cell from outside is rewritten, and so is the cell.
    outer = np.flatnonzero(~in_one)
    if len(outer) and fits.any():
        chosen = np.concatenate([np.flatnonzero(fits), outer])
        in_cells = np.stack([first[chosen], last[chosen] + 1], axis=2).astype(np.uint32)
        for pairs in overlapping_pairs(in_cells):
            left, right = chosen[pairs[:, 0]], chosen[pairs[:, 1]]
            fits[left[~in_one[right]]] = False
            fits[right[~in_one[left]]] = False
    # A cell stays as a whole or not at all.
    for rows in groups:
        if len(rows) > 1 and not fits[rows].all():
            fits[rows] = False
    return fits
