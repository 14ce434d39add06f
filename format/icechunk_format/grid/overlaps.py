"""Whether boxes of an array's chunk grid overlap, for tens of thousands of boxes.

Boxes are sorted along one axis, and each is compared with those that start before it ends. The
axis is the one that leaves the fewest pairs. Pairs are compared in blocks, so that memory is
bounded by the block, some 50 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAIRS_AT_ONCE = 1_000_000


def first_overlap(extents: NDArray[Any]) -> tuple[int, int] | None:
    """Return two boxes that share a place, None where no two do.

    Parameters
    ----------
    extents
        Integers, shape (n, ndim, 2): start and end of each box and axis. Empty boxes share nothing;
        boxes without axes are all the same place.
    """
    n, ndim = extents.shape[:2]
    if n < 2:
        return None
    if ndim == 0:
        return 0, 1
    rows = np.flatnonzero((extents[:, :, 0] < extents[:, :, 1]).all(axis=1))
    boxes = extents[rows].astype(np.int64)
    best: tuple[int, NDArray[np.intp], NDArray[np.intp]] | None = None
    for axis in range(ndim):
        order = np.argsort(boxes[:, axis, 0], kind="stable")
        starts, ends = boxes[order, axis, 0], boxes[order, axis, 1]
        followers = np.searchsorted(starts, ends) - np.arange(len(order)) - 1
        pairs = int(followers.sum())
        if best is None or pairs < best[0]:
            best = pairs, order, followers
    assert best is not None
    _, order, followers = best
    boxes, rows = boxes[order], rows[order]
    low, high = boxes[:, :, 0], boxes[:, :, 1]
    stops = np.cumsum(followers)
    first = 0
    while first < len(rows):
        limit = (stops[first - 1] if first else 0) + _PAIRS_AT_ONCE
        last = max(first + 1, int(np.searchsorted(stops, limit, side="right")))
        counts = followers[first:last]
        left = np.repeat(np.arange(first, last), counts)
        right = left + 1 + np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
        hits = ((low[left] < high[right]) & (low[right] < high[left])).all(axis=1)
        if hits.any():
            at = int(hits.argmax())
            found = sorted((int(rows[left[at]]), int(rows[right[at]])))
            return found[0], found[1]
        first = last
    return None
