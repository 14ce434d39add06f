"""Cuts the references of arrays into tasks, whose boxes of chunks do not overlap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.writing.part import ArrayTarget
from icechunk_format.workflows.virtualizing.placing.place import MovedBox, PlaceTask, StagedRows

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.members import Member
    from icechunk_format.workflows.virtualizing.scanning.scan import ScannedPiece

_MOST_REFS_PER_TASK: Final = 200_000
_LEAST_REFS_PER_TASK: Final = 5_000


@dataclass(slots=True, kw_only=True)
class PlannedArray:
    """An array as it will be.

    Parameters
    ----------
    is_new
        Whether it is created; where it exists, it is deleted first.
    values
        All of its values, where they are stored; None for references.
    first_changed
        The first element along the first axis whose chunk has to be stored.
    cleared
        Boxes of its chunk grid whose chunks are deleted first.
    """

    target: ArrayTarget
    is_new: bool
    values: NDArray[Any] | None = None
    first_changed: int = 0
    cleared: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)


@dataclass(slots=True)
class Segment:
    """References that lie together: of a new file, or of the array before."""

    starts: tuple[int, ...]
    count: int
    member: Member | None = None
    box: MovedBox | None = None
    shift: tuple[int, ...] = ()
    path: str = ""
    row: int = 0
    parts: int = 1


def place_tasks(
    arrays: Sequence[PlannedArray], pieces: Sequence[ScannedPiece], tasks: int
) -> list[PlaceTask]:
    """Return the tasks that make the manifests of arrays.

    Parameters
    ----------
    tasks
        About how many there should be at least.
    """
    total = sum(segment.count for array in arrays for segment in array.segments)
    limit = max(1, min(_MOST_REFS_PER_TASK, max(_LEAST_REFS_PER_TASK, total // max(1, tasks))))
    found: list[PlaceTask] = []
    for array in arrays:
        segments = sorted(array.segments, key=lambda segment: segment.starts)
        found += [_task(array, unit, pieces) for unit in _units(segments, 0, limit)]
    return found


def _units(segments: list[Segment], axis: int, limit: int) -> list[list[Segment]]:
    """Cut segments, which are sorted, where their boxes do not overlap."""
    if not segments:
        return []
    total = sum(segment.count for segment in segments)
    if total <= limit or axis >= len(segments[0].starts):
        return [segments]
    units: list[list[Segment]] = []
    waiting: list[Segment] = []
    size = 0
    for _, members in itertools.groupby(segments, key=lambda segment: segment.starts[axis]):
        group = list(members)
        count = sum(segment.count for segment in group)
        if waiting and size + count > limit:
            units.append(waiting)
            waiting, size = [], 0
        if count > limit:
            units += _units(group, axis + 1, limit)
            continue
        waiting += group
        size += count
    return [*units, waiting] if waiting else units


def _task(
    array: PlannedArray, segments: Sequence[Segment], pieces: Sequence[ScannedPiece]
) -> PlaceTask:
    by_piece: dict[int, list[Segment]] = {}
    for segment in segments:
        if segment.member is not None:
            by_piece.setdefault(segment.member.piece, []).append(segment)
    staged = []
    for number, members in by_piece.items():
        piece = pieces[number]
        scans = [segment.member.scanned for segment in members if segment.member is not None]
        rows = [
            (scanned.starts[segment.row], segment.count // segment.parts)
            for segment, scanned in zip(members, scans, strict=True)
        ]
        assert piece.key is not None
        staged.append(
            StagedRows(
                key=piece.key,
                span=piece.streams[members[0].path],
                urls=[scanned.file.url for scanned in scans],
                rows=np.array(rows, np.int64).reshape(-1, 2),
                shifts=np.array([s.shift for s in members], np.int64).reshape(len(members), -1),
                modified=np.array([scanned.file.modified or 0 for scanned in scans], np.int64),
                parts=np.array([s.parts for s in members], np.int64),
            )
        )
    moved = tuple(segment.box for segment in segments if segment.box is not None)
    return PlaceTask(target=array.target, staged=tuple(staged), moved=moved)
