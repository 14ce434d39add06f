"""Divides chunk grids into groups of chunks that fit into memory, blocks or files.

Rules of this file
------------------
1. Groups are products of ranges along each axis, so a plan holds edges along axes and no data per
   chunk.
2. Edges that both grids share are also edges of groups if a group is smaller than the distance
   between them: a group of the source then overlaps as few groups of the target as possible.
3. A group holds at least one chunk of any size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.axes import ChunkAxis, RegularAxis

Edges = NDArray[np.int64]
"""First elements of the parts of an axis, and the size of the axis: ``int64 (n + 1,)``."""
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First elements and ends along each axis."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Boxes of elements that cover an array, numbered in C order."""

    edges: tuple[Edges, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of groups along each axis."""
        return tuple(len(edges) - 1 for edges in self.edges)

    def __len__(self) -> int:
        return math.prod(self.counts)

    def box(self, number: int) -> Box:
        """Return the box of a group."""
        at = tuple(map(int, np.unravel_index(number, self.counts))) if self.edges else ()
        lower = tuple(int(edges[i]) for edges, i in zip(self.edges, at, strict=True))
        upper = tuple(int(edges[i + 1]) for edges, i in zip(self.edges, at, strict=True))
        return lower, upper

    def meeting(self, box: Box) -> Iterator[tuple[int, Box]]:
        """Yield the groups that overlap a box: number and intersection."""
        ranges = []
        for edges, low, high in zip(self.edges, *box, strict=True):
            first = int(np.searchsorted(edges, low, "right")) - 1
            ranges.append(range(first, int(np.searchsorted(edges, high, "left"))))
        for at in itertools.product(*ranges):
            number = int(np.ravel_multi_index(at, self.counts)) if at else 0
            lower, upper = self.box(number)
            yield (number, (tuple(map(max, lower, box[0])), tuple(map(min, upper, box[1]))))

    @property
    def largest(self) -> int:
        """Number of elements of the largest group."""
        return math.prod(int(np.diff(edges).max(initial=0)) for edges in self.edges)


def edges_of(axis: ChunkAxis, chunks: int = 1) -> Edges:
    """Return the edges of groups of equally many chunks of an axis."""
    firsts = np.arange(0, axis.count + chunks, chunks, dtype=np.int64)
    return axis.start_of(np.minimum(firsts, axis.count))


def cut(edges: Edges, start: int, stop: int) -> Edges:
    """Return the edges in ``[start, stop)`` of an axis, relative to `start`."""
    if start == 0 and stop == edges[-1]:
        return edges
    return np.unique(np.clip(edges, start, stop)) - start


def windows(source: Sequence[Edges], target: Sequence[Edges]) -> Groups:
    """Return the smallest boxes whose edges are edges of both grids."""
    return Groups(tuple(np.intersect1d(a, b) for a, b in zip(source, target, strict=True)))


def join(own: Sequence[Edges], other: Sequence[Edges], common: Groups, elements: int) -> Groups:
    """Join the chunks of a grid into groups of at most `elements`.

    Groups grow first along the axes in which the chunks of the other grid are relatively longest.
    """
    sizes = [int(edges[-1]) for edges in own]
    lengths = [int(np.diff(edges).max(initial=1)) for edges in own]
    others = [int(np.diff(edges).max(initial=1)) for edges in other]
    growing = [axis for axis, size in enumerate(sizes) if lengths[axis] < size]
    while growing:
        axis = max(growing, key=lambda axis: others[axis] / lengths[axis])
        factor = elements // math.prod(lengths)
        if factor < 2:
            break
        # Double the length, up to that of the other grid's chunks.
        wanted = lengths[axis] * 2
        if lengths[axis] < others[axis] < wanted:
            wanted = others[axis]
        lengths[axis] = min(wanted, sizes[axis])
        if lengths[axis] == sizes[axis]:
            growing.remove(axis)
    return Groups(
        tuple(
            _joined(edges, shared, length)
            for edges, shared, length in zip(own, common.edges, lengths, strict=True)
        )
    )


def between(one: Groups, other: Groups) -> Groups:
    """Return groups whose lengths are the geometric means of those of two groupings."""
    found = []
    for edges in zip(one.edges, other.edges, strict=True):
        size, longest = int(edges[0][-1]), [int(np.diff(own).max(initial=1)) for own in edges]
        found.append(edges_of(RegularAxis(size, math.isqrt(math.prod(longest)))))
    return Groups(tuple(found))


def _joined(edges: Edges, common: Edges, length: int) -> Edges:
    """Return the edges of groups of approximately `length` along one axis."""
    found, size = [0], int(edges[-1])
    if size == 0:
        return edges[:1]
    while found[-1] < size:
        start = found[-1]
        at = int(np.searchsorted(edges, start + length, "right")) - 1
        stop = int(edges[at])
        if stop <= start:
            stop = int(edges[int(np.searchsorted(edges, start, "right"))])
        shared = int(common[int(np.searchsorted(common, stop, "right")) - 1])
        found.append(shared if shared > start else stop)
    return np.array(found, dtype=np.int64)
