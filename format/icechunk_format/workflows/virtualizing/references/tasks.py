"""Plans tasks that write the references of arrays, in disjoint boxes of chunks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from icechunk_format.groups.changing import ArrayTarget, ChunkValues
from icechunk_format.workflows.virtualizing.references.manifests import (
    MovedBox,
    ReferencesTask,
    StagedRows,
)

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.copying.plan import CopiedParts
    from icechunk_format.workflows.virtualizing.planning.members import Member
    from icechunk_format.workflows.virtualizing.scanning.scan import ScannedFile, Stage

_MOST_REFS_PER_TASK: Final = 200_000
_LEAST_REFS_PER_TASK: Final = 5_000
MANY: Final = 2**62


@dataclass(slots=True, kw_only=True)
class PlannedArray:
    """An array to create or change."""

    target: ArrayTarget
    values: ChunkValues | None = None
    """Values of a stored array; None for references."""
    cleared: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """Boxes of the chunk grid whose chunks are deleted first."""
    segments: list[Segment] = field(default_factory=list)
    copies: CopiedParts | None = None


@dataclass(slots=True)
class Segment:
    """References of one box of chunks, from a new file or from the base."""

    starts: tuple[int, ...]
    count: int
    member: Member | None = None
    box: MovedBox | None = None
    shift: tuple[int, ...] = ()
    path: str = ""
    first: int = 0
    """First row in the staged stream of the array at ``path``."""
    rows: int = 0
    """Number of rows, each of `parts` references or fewer."""
    parts: int = 1
    along: int = MANY
    """Number of chunks along the first axis of the file, after the split."""


def plan_references(arrays: Sequence[PlannedArray], wanted: int) -> list[ReferencesTask]:
    """Return the tasks that write the manifests of arrays: about `wanted` tasks or more."""
    total = sum(segment.count for array in arrays for segment in array.segments)
    limit = max(1, min(_MOST_REFS_PER_TASK, max(_LEAST_REFS_PER_TASK, total // max(1, wanted))))
    found: list[ReferencesTask] = []
    for array in arrays:
        segments = sorted(array.segments, key=lambda segment: segment.starts)
        found += [_task(array, part) for part in _cut(segments, 0, limit)]
    return found


def _cut(segments: list[Segment], axis: int, limit: int) -> list[list[Segment]]:
    """Cut sorted segments into parts with disjoint boxes."""
    if not segments:
        return []
    total = sum(segment.count for segment in segments)
    if total <= limit or axis >= len(segments[0].starts):
        return [segments]
    parts: list[list[Segment]] = []
    waiting: list[Segment] = []
    size = 0
    for _, members in itertools.groupby(segments, key=lambda segment: segment.starts[axis]):
        group = list(members)
        count = sum(segment.count for segment in group)
        if waiting and size + count > limit:
            parts.append(waiting)
            waiting, size = [], 0
        if count > limit:
            parts += _cut(group, axis + 1, limit)
            continue
        waiting += group
        size += count
    return [*parts, waiting] if waiting else parts


def _task(array: PlannedArray, segments: Sequence[Segment]) -> ReferencesTask:
    by_stage: dict[str, tuple[Stage, list[tuple[Segment, ScannedFile]]]] = {}
    for segment in segments:
        if segment.member is not None:
            scanned = segment.member.scanned
            assert scanned.stage is not None
            _, members = by_stage.setdefault(scanned.stage.key, (scanned.stage, []))
            members.append((segment, scanned))
    staged = []
    for stage, members in by_stage.values():
        rows = [(s.first, s.rows) for s, _ in members]
        staged.append(
            StagedRows(
                key=stage.key,
                span=stage.streams[members[0][0].path],
                urls=[scanned.file.url for _, scanned in members],
                rows=np.array(rows, np.int64).reshape(-1, 2),
                shifts=np.array([s.shift for s, _ in members], np.int64).reshape(len(members), -1),
                modified=np.array([f.file.modified or 0 for _, f in members], np.int64),
                parts=np.array([s.parts for s, _ in members], np.int64),
                counts=np.array([s.along for s, _ in members], np.int64),
            )
        )
    moved = tuple(segment.box for segment in segments if segment.box is not None)
    return ReferencesTask(target=array.target, staged=tuple(staged), moved=moved)
