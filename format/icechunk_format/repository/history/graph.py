"""The graph of branches and tags: every snapshot that they reach, children before parents.

A snapshot has one parent, so the graph is a forest, represented by a list in this order.

Specification: "Repo Info File", ``SnapshotInfo``; version 1: "Refs".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo


@shown_by("history.entry")
@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEntry:
    """One snapshot, and the sorted names of branches and tags that point to it."""

    snapshot: SnapshotInfo
    branches: tuple[str, ...]
    tags: tuple[str, ...]


def snapshot_graph(
    snapshots: Mapping[SnapshotId, SnapshotInfo],
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
) -> list[GraphEntry]:
    """Return the snapshots of branches and tags, in the order of ``newest_first``."""
    names: dict[SnapshotId, tuple[list[str], list[str]]] = {}
    for kind, refs in enumerate((branches, tags)):
        for name, tip in refs.items():
            names.setdefault(tip, ([], []))[kind].append(name)
    found = []
    for info in newest_first(snapshots, [*branches.values(), *tags.values()]):
        mine = names.get(info.id, ([], []))
        found.append(
            GraphEntry(snapshot=info, branches=tuple(sorted(mine[0])), tags=tuple(sorted(mine[1])))
        )
    return found


def is_reached(info: RepoInfo, snapshot_id: SnapshotId) -> bool:
    """Return True if a branch or tag reaches a snapshot."""
    tips = {*info.branches.values(), *info.tags.values()}
    return snapshot_id in tips or any(
        found.id == snapshot_id for found in newest_first(info.snapshots, tips)
    )


def newest_first(
    snapshots: Mapping[SnapshotId, SnapshotInfo], tips: Iterable[SnapshotId]
) -> list[SnapshotInfo]:
    """Return tips and their ancestors: children before parents, then the newest first.

    A history ends at a parent that is not among ``snapshots``.
    """
    reached: dict[SnapshotId, SnapshotInfo] = {}
    children: dict[SnapshotId, int] = {}
    for tip in tips:
        info = snapshots.get(tip)
        while info is not None and info.id not in reached:
            reached[info.id] = info
            if info.parent_id is None:
                break
            children[info.parent_id] = children.get(info.parent_id, 0) + 1
            info = snapshots.get(info.parent_id)
    waiting = [(-i.flushed_at, i.id.raw, i.id) for i in reached.values() if not children.get(i.id)]
    heapq.heapify(waiting)
    ordered: list[SnapshotInfo] = []
    while waiting:
        info = reached[heapq.heappop(waiting)[2]]
        ordered.append(info)
        parent = None if info.parent_id is None else reached.get(info.parent_id)
        if parent is None:
            continue
        children[parent.id] -= 1
        if children[parent.id] == 0:
            heapq.heappush(waiting, (-parent.flushed_at, parent.id.raw, parent.id))
    return ordered
