"""Plans the chunks to copy: boxes of chunks, and their sources in files.

Rules of this file
------------------
1. A chunk is either one reference or copied as a whole. A file is referenced only if its chunks
   have no elements of other files; a shared chunk is copied from all files that have a part of it.
2. Elements of known files are copied from the base snapshot, without fetching the files.
3. A box has a bounded number of bytes, or is one chunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from icechunk_format.groups import runs_of
from icechunk_format.groups.changing import ArrayTarget
from icechunk_format.storage.batches import batches
from icechunk_format.workflows.virtualizing.copying.run import Box, CopySource, CopyTask
from icechunk_format.zarr.zarr_json import ArrayMetadata

_BOX_BYTES: Final = 64 * 2**20
_TASKS_OF_A_CORE: Final = 8


@dataclass(slots=True, kw_only=True)
class CopiedParts:
    """The parts of one array to copy."""

    axes: Sequence[int]
    """The concatenated axes, slowest first."""
    decoded_like: ArrayMetadata
    may_round: bool
    sources: dict[tuple[int, ...], CopySource] = field(default_factory=dict)
    """All files of the array, copied or referenced, by their starts along `axes`."""
    copied: list[Box] = field(default_factory=list)
    """Boxes of the files to copy."""

    def boxes(self, metadata: ArrayMetadata) -> list[Box]:
        """Return disjoint boxes of whole chunks that cover all copied elements."""
        grid, ndim, axes = metadata.grid, metadata.ndim, list(self.axes)
        item = metadata.data_type.item_bytes
        chunk = grid.chunk_shape or metadata.shape
        left = max(1, _BOX_BYTES // item // max(1, math.prod(chunk)))
        steps, counts = [1] * ndim, grid.num_chunks
        # Extend boxes along whole axes of files first, so that their chunks are decoded once.
        for axis in [a for a in reversed(range(ndim)) if a not in axes] + axes[-1:]:
            steps[axis] = max(1, min(counts[axis], left))
            left //= steps[axis]
        taken: dict[tuple[int, ...], set[int]] = {}
        for lower, upper in self.copied:
            first, last = grid.chunks_of_box(lower, upper)
            ranges = [range(first[axis], last[axis]) for axis in axes]
            for lead in itertools.product(*ranges[:-1]):
                taken.setdefault(lead, set()).update(ranges[-1] if ranges else (0,))
        found: list[Box] = []
        for lead, numbers in sorted(taken.items()):
            step = steps[axes[-1]] if axes else 1
            for run in _runs(sorted(numbers), step):
                own = dict(zip(axes, [*((n, n + 1) for n in lead), run], strict=False))
                spans = [
                    [own[axis]] if axis in own else _runs(range(counts[axis]), steps[axis])
                    for axis in range(ndim)
                ]
                for at in itertools.product(*spans):
                    first, last = np.multiply(np.reshape(at, (ndim, 2)).T, chunk).tolist()
                    found.append((tuple(first), tuple(map(min, last, metadata.shape))))
        return found

    def sources_of(self, boxes: Sequence[Box]) -> list[CopySource]:
        """Return the sources that may have elements in some boxes."""
        lower, upper = (np.array(edge) for edge in zip(*boxes, strict=True))
        first, last = lower.min(axis=0), upper.max(axis=0)
        sources = list(self.sources.values())
        starts, ends = (np.array([getattr(s, n) for s in sources]) for n in ("lower", "upper"))
        near = ((starts < last) & (ends > first)).all(axis=1)
        return [sources[number] for number in np.flatnonzero(near)]


def plan_copies(parts: CopiedParts, target: ArrayTarget, cores: int) -> list[CopyTask]:
    """Divide the copied chunks of one array into tasks."""
    boxes = parts.boxes(target.metadata)
    size = max(1, -(-len(boxes) // (_TASKS_OF_A_CORE * max(1, cores))))
    return [
        CopyTask(
            target=target,
            decoded_like=parts.decoded_like,
            may_round=parts.may_round,
            boxes=tuple(own),
            sources=tuple(parts.sources_of(own)),
        )
        for own in batches(boxes, size)
    ]


def is_aligned(start: int, length: int, chunk: int, *, is_last: bool) -> bool:
    """Return True if a range of elements fills its chunks along an axis."""
    return start % chunk == 0 and (is_last or length % chunk == 0)


def _runs(numbers: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return sorted numbers as ranges of at most ``most`` numbers."""
    return [
        (start, min(start + most, end))
        for first, end in runs_of(np.array(numbers, np.int64)).tolist()
        for start in range(first, end, most)
    ]
