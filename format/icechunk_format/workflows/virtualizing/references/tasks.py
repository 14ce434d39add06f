"""Plans tasks that write the references of arrays, in disjoint boxes of chunks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.groups.changing import ArrayTarget, ChunkValues, chunks_before
from icechunk_format.storage.batches import sized_batches
from icechunk_format.workflows.virtualizing.references.manifests import (
    MovedBox,
    ReferencesTask,
    StagedRows,
)

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.copying.plan import CopiedParts
    from icechunk_format.workflows.virtualizing.copying.run import Box
    from icechunk_format.workflows.virtualizing.scanning.scan import StagedArray

_MOST_REFS_PER_TASK: Final = 200_000
_LEAST_REFS_PER_TASK: Final = 5_000
_MANY: Final = 2**62


@dataclass(slots=True, kw_only=True)
class PlannedArray:
    """An array to create or change."""

    target: ArrayTarget
    values: ChunkValues | None = None
    """Values of a stored array; None for references."""
    cleared: list[NDArray[np.uint32]] = field(default_factory=list)
    """Chunks that are deleted first, ``uint32 (n, ndim)`` each."""
    segments: list[Segment] = field(default_factory=list)
    copies: CopiedParts | None = None

    def clear(self, box: Box) -> None:
        """Delete the chunks that a box of elements had in the base."""
        grid, old_shape = self.target.metadata.grid, self.target.old_shape
        self.cleared.append(chunks_before(grid, *box, old_shape))


@dataclass(slots=True)
class Segment:
    """References of one box of chunks, from a new file or from the base."""

    starts: tuple[int, ...]
    count: int
    staged: StagedArray | None = None
    """Rows of a file, each of `parts` references or fewer."""
    box: MovedBox | None = None
    shift: tuple[int, ...] = ()
    parts: int = 1
    along: int = _MANY
    """Number of chunks along the first axis of the file, after the split."""


def plan_references(arrays: Sequence[PlannedArray], wanted: int) -> list[ReferencesTask]:
    """Return the tasks that write the manifests of arrays: about `wanted` tasks or more."""
    total = sum(segment.count for array in arrays for segment in array.segments)
    limit = max(1, min(_MOST_REFS_PER_TASK, max(_LEAST_REFS_PER_TASK, total // max(1, wanted))))
    found: list[ReferencesTask] = []
    for array in arrays:
        if array.segments:
            segments = sorted(array.segments, key=lambda segment: segment.starts)
            found += [_task(array, part) for part in _cut(segments, 0, limit)]
    return found


def _cut(segments: list[Segment], axis: int, limit: int) -> list[list[Segment]]:
    """Cut sorted segments into parts with disjoint boxes."""
    total = sum(segment.count for segment in segments)
    if total <= limit or axis >= len(segments[0].starts):
        return [segments]
    parts: list[list[Segment]] = []
    groups = [list(g) for _, g in itertools.groupby(segments, key=lambda own: own.starts[axis])]
    sized = ((group, sum(segment.count for segment in group)) for group in groups)
    for batch in sized_batches(sized, len(groups), limit):
        joined = list(itertools.chain.from_iterable(batch))
        parts += _cut(joined, axis + 1, limit) if len(batch) == 1 else [joined]
    return parts


def _task(array: PlannedArray, segments: Sequence[Segment]) -> ReferencesTask:
    by_stage: dict[str, list[tuple[Segment, StagedArray]]] = {}
    for segment in segments:
        if segment.staged is not None:
            by_stage.setdefault(segment.staged.key, []).append((segment, segment.staged))
    staged = []
    for key, members in by_stage.items():
        rows = [(own.first, own.count) for _, own in members]
        staged.append(
            StagedRows(
                key=key,
                span=members[0][1].span,
                urls=[own.file.url for _, own in members],
                rows=np.array(rows, np.int64),
                shifts=np.array([s.shift for s, _ in members], np.int64).reshape(len(members), -1),
                modified=np.array([own.file.modified or 0 for _, own in members], np.int64),
                parts=np.array([s.parts for s, _ in members], np.int64),
                counts=np.array([s.along for s, _ in members], np.int64),
            )
        )
    moved = tuple(segment.box for segment in segments if segment.box is not None)
    return ReferencesTask(target=array.target, staged=tuple(staged), moved=moved)
