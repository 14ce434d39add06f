"""Defines ``IndexMap``: the new index of each element of an axis that a change keeps.

Labels that are inserted, dropped or moved, and arrays that grow, shrink or shift, change the
indices of elements. An index map records this once, and maps of successive changes are composed.

Rules of this file
------------------
1. A map holds runs of elements that stay together, so that its memory does not depend on the length
   of the axis. Only elements that are scattered take a run each.
2. Two elements never have the same new index. Elements without a new index are gone, and new
   indices without an element are fresh.
3. Maps are picklable, and no argument is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexMap:
    """The new index of each element of an axis.

    Attributes
    ----------
    before, after
        Number of elements before and after the change.
    runs
        ``int64 (k, 3)``: the first old index, the first new index and the number of elements that
        stay together; ascending by old index, none empty, and as few as possible.
    """

    before: int
    after: int
    runs: NDArray[np.int64]

    @classmethod
    def resized(cls, before: int, after: int) -> Self:
        """Return the map of an axis that grows or shrinks at its end, or stays as it is."""
        return cls.shifted(before, 0, after)

    @classmethod
    def shifted(cls, before: int, offset: int, after: int) -> Self:
        """Return the map of elements that all move by an offset; those that leave are gone."""
        low, high = max(0, -offset), min(before, after - offset)
        runs = [(low, low + offset, high - low)] if low < high else []
        return cls(before=before, after=after, runs=np.array(runs, np.int64).reshape(-1, 3))

    @classmethod
    def dropped(cls, before: int, ranges: NDArray[np.int64]) -> Self:
        """Return the map of an axis without some ranges, disjoint and ascending, ``(n, 2)``."""
        edges = np.concatenate([[0], ranges.reshape(-1), [before]]).astype(np.int64)
        starts, counts = edges[::2], edges[1::2] - edges[::2]
        new = np.cumsum(counts) - counts
        runs = np.stack([starts, new, counts], axis=1)
        return cls(before=before, after=int(counts.sum()), runs=_joined(runs))

    @classmethod
    def of_indices(cls, indices: NDArray[Any], after: int) -> Self:
        """Return the map of elements to their new indices, distinct; -1 for those that are gone."""
        old = np.flatnonzero(indices >= 0)
        runs = np.stack([old, indices[old], np.ones_like(old)], axis=1).astype(np.int64)
        return cls(before=len(indices), after=after, runs=_joined(runs))

    @classmethod
    def of_labels(cls, old: NDArray[Any], new: NDArray[Any]) -> Self:
        """Return the map of labels to equal ones; missing labels are gone.

        Labels that repeat keep their indices if all do, and have one of them otherwise.
        """
        if np.array_equal(new[: len(old)], old):
            return cls.resized(len(old), len(new))
        found = np.full(len(old), -1, np.int64)
        if len(new):
            order = np.argsort(new, kind="stable")
            at = np.minimum(np.searchsorted(new[order], old), len(new) - 1)
            is_there = np.asarray(new[order][at] == old, np.bool_)
            found[is_there] = order[at[is_there]]
        return cls.of_indices(found, len(new))

    @property
    def indices(self) -> NDArray[np.int64]:
        """The new index of every element, -1 for those that are gone; takes memory for each."""
        return self.of(np.arange(self.before, dtype=np.int64))

    @property
    def gone(self) -> NDArray[np.int64]:
        """The elements without a new index; takes memory for each element."""
        return np.flatnonzero(self.indices < 0)

    @property
    def still(self) -> int:
        """The number of leading elements that keep their index."""
        starts_alike = len(self.runs) and not self.runs[0, :2].any()
        return int(self.runs[0, 2]) if starts_alike else 0

    @property
    def inverse(self) -> Self:
        """The map from new to old indices."""
        runs = self.runs[np.argsort(self.runs[:, 1], kind="stable")][:, [1, 0, 2]]
        return type(self)(before=self.after, after=self.before, runs=runs)

    def then(self, later: IndexMap) -> Self:
        """Return the map of this change and a later one."""
        assert self.after == later.before, "maps of two axes"
        back = self.inverse
        starts = [each.runs[:, 0] for each in (back, later)]
        ends = [each.runs[:, 0] + each.runs[:, 2] for each in (back, later)]
        edges = np.unique(np.concatenate([*starts, *ends]))
        old, new = back.of(edges[:-1]), later.of(edges[:-1])
        runs = np.stack([old, new, np.diff(edges)], axis=1)[(old >= 0) & (new >= 0)]
        runs = runs[np.argsort(runs[:, 0], kind="stable")]
        return type(self)(before=self.before, after=later.after, runs=_joined(runs))

    def overlaid(self, other: IndexMap) -> Self:
        """Return this map with the new indices that another one has; takes memory for each."""
        found = other.indices
        return self.of_indices(np.where(found < 0, self.indices, found), self.after)

    def of(self, elements: NDArray[Any]) -> NDArray[np.int64]:
        """Return the new index of each element, -1 for those that are gone."""
        return self._found(elements)[0]

    def run_ends(self, elements: NDArray[Any]) -> NDArray[np.int64]:
        """Return the end of the run of each element, in old indices; 0 for those that are gone."""
        return self._found(elements)[1]

    def kept_before(self, elements: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of elements with a new index before each of some elements."""
        starts, counts = self.runs[:, 0], self.runs[:, 2]
        before = np.concatenate([[0], np.cumsum(counts)])
        at = np.searchsorted(starts, elements)
        last = np.maximum(at - 1, 0)
        inside = np.zeros(len(elements), np.int64)
        if len(starts):
            inside = np.where(at > 0, np.minimum(elements - starts[last], counts[last]), 0)
        return np.asarray(before[last] + inside, np.int64)

    def _found(self, elements: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if not len(self.runs):
            return np.full(len(elements), -1, np.int64), np.zeros(len(elements), np.int64)
        at = np.maximum(np.searchsorted(self.runs[:, 0], elements, side="right") - 1, 0)
        old, new, count = self.runs[at].T
        is_kept = (elements >= old) & (elements < old + count)
        return np.where(is_kept, elements - old + new, -1), np.where(is_kept, old + count, 0)


def _joined(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Join adjacent runs, ascending by old index, and leave out empty ones."""
    runs = runs[runs[:, 2] > 0]
    if not len(runs):
        return runs
    ends = runs[:-1, :2] + runs[:-1, 2:]
    first = np.flatnonzero(np.append(True, (runs[1:, :2] != ends).any(axis=1)))
    joined = runs[first]
    joined[:, 2] = np.add.reduceat(runs[:, 2], first)
    return joined
