"""Compares the selected positions of a dimension in two snapshots, and returns the differences.

A row is identified by its labels (layout ``cells``) or by its chunk coordinates (``chunks``,
``refs``). A position is *kept* if both snapshots select it with the same label, *fresh* if only the
newer one does, and *moved* if only the older one does. It is *gone* if the newer snapshot does not
select its label at any position.

Rules of this file
------------------
1. Positions are runs ``int64 (k, 2)``, so the cost does not depend on the length of an axis. Only
   labels are compared one by one.
2. NaN equals NaN, and NULL equals NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.grid.cover import Boxes, paint
from icechunk_format.groups import DimSelection, runs_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AxisChanges:
    """The differences along one dimension, as runs; the head of this module defines the words."""

    kept: NDArray[np.int64]
    fresh: NDArray[np.int64]
    """Positions in the newer snapshot."""
    moved: NDArray[np.int64]
    """Positions in the older snapshot."""
    gone: NDArray[np.int64] | None
    """Those of ``moved``; None if a snapshot selects a label twice, so that labels do not identify
    rows."""


def by_position(older: DimSelection, newer: DimSelection) -> AxisChanges:
    """Compare selections of a dimension without labels, or with the same labels."""
    kept = _combined(older.runs(), newer.runs(), keep=True)
    moved = _combined(older.runs(), kept, keep=False)
    fresh = _combined(newer.runs(), kept, keep=False)
    return AxisChanges(kept=kept, fresh=fresh, moved=moved, gone=moved)


def by_label(
    older: DimSelection, newer: DimSelection, old_labels: pa.Array, new_labels: pa.Array
) -> AxisChanges:
    """Compare selections by the labels of the whole dimension in both snapshots."""
    joined = pa.chunked_array([old_labels, new_labels]).combine_chunks()
    codes = np.asarray(joined.dictionary_encode(null_encoding="encode").indices)
    at_old, at_new = older.positions(), newer.positions()
    old, new = codes[: len(old_labels)][at_old], codes[len(old_labels) :][at_new]
    is_unique = all(len(np.unique(found)) == len(found) for found in (old, new))
    _, in_old, in_new = np.intersect1d(at_old, at_new, assume_unique=True, return_indices=True)
    is_same = old[in_old] == new[in_new]
    return AxisChanges(
        kept=runs_of(at_old[in_old[is_same]]),
        fresh=runs_of(np.delete(at_new, in_new[is_same])),
        moved=runs_of(np.delete(at_old, in_old[is_same])),
        gone=runs_of(at_old[~np.isin(old, new)]) if is_unique else None,
    )


def selection_of(runs: NDArray[np.int64], size: int) -> DimSelection:
    """Convert runs to a selection along a dimension of a given size."""
    if len(runs) == 1:
        return DimSelection.span(size, int(runs[0, 0]), int(runs[0, 1]))
    counts = runs[:, 1] - runs[:, 0]
    starts = np.repeat(runs[:, 0] - np.cumsum(counts) + counts, counts)
    return DimSelection.of_indices(size, starts + np.arange(int(counts.sum())))


def slabs(runs: Sequence[NDArray[np.int64]], sizes: Sequence[int]) -> Boxes:
    """Return boxes of one run along one dimension and the whole length of the others."""
    found = [np.empty((0, len(sizes), 2), dtype=np.int64)]
    for axis, along in enumerate(runs):
        boxes = np.repeat(whole_box(sizes), len(along), axis=0)
        boxes[:, axis] = along
        found.append(boxes)
    return np.concatenate(found)


def whole_box(sizes: Sequence[int]) -> Boxes:
    """Return the box of a whole array, as one of many."""
    return np.array([(0, size) for size in sizes], dtype=np.int64).reshape(1, -1, 2)


def _combined(
    left: NDArray[np.int64], right: NDArray[np.int64], *, keep: bool
) -> NDArray[np.int64]:
    """Return the parts of ``left`` that ``right`` covers (``keep``) or does not cover."""
    edges = np.unique(np.concatenate([left.reshape(-1), right.reshape(-1)]))
    if len(edges) < 2:
        return np.empty((0, 2), dtype=np.int64)
    in_left, in_right = (paint(runs[:, None], [edges]) > 0 for runs in (left, right))
    return edges[runs_of(np.flatnonzero(in_left & (in_right == keep)))]
