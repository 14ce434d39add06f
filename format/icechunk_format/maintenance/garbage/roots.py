"""Chooses the snapshots that a collection keeps, and makes a ``repo`` without the others.

Rules of this file
------------------
1. Kept are snapshots that a branch, a tag or an extra root reaches, and unreachable ones that are
   new: their files are younger than the cutoff by the storage's clock, or not listed yet.
2. The age of the file, not the time in the snapshot, decides whether a snapshot leaves ``repo``,
   since the storage's clock decides whether the file is deleted.
3. A kept snapshot whose parent is removed gets its nearest kept ancestor as parent, and lists the
   transaction logs of those in between.
4. ``repo`` may change while a collection reads. New snapshots are kept and marked, since they may
   use data of a removed one. If a new snapshot descends from one to be removed, or a ref points to
   one, the collection begins again.

Specification: "Repo Info File"; ``pruned_ancestor_tx_logs`` is from spec 2.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from icechunk_format.repository.history.history import History, reached_from
from icechunk_format.repository.lifecycle.expire import with_nearest
from icechunk_format.repository.state.transitions import Transition
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.spec.repo_info.updates import GCRanUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class RootsMoved:
    """Other writers changed the repository, so roots must be found again."""

    why: str


def reachable(history: History, extra_roots: Iterable[SnapshotId] = ()) -> frozenset[SnapshotId]:
    """Return the snapshots that refs and extra roots reach; in version 1, one read for each."""
    tips = (*history.branches().values(), *history.tags().values(), *extra_roots)
    return frozenset(reached_from(history, tips))


def without_dropped(
    info: RepoInfo, kept: frozenset[SnapshotId], dropped: frozenset[SnapshotId]
) -> Transition | RootsMoved:
    """Return the state without the dropped snapshots, or why the roots are out of date.

    Manifests and chunks of the ``kept`` snapshots stay; ``repo`` listed the ``dropped`` beside
    them.
    """
    snapshots: dict[SnapshotId, SnapshotInfo] = {}
    for snapshot in info.snapshots.values():
        if snapshot.id in dropped:
            continue
        snapshots[snapshot.id] = snapshot
        if snapshot.parent_id in dropped:
            if snapshot.id not in kept:
                return RootsMoved(
                    why=f"snapshot {snapshot.id} was added on one that would be deleted"
                )
            nearest = with_nearest(info, snapshot, lambda ancestor: ancestor.id in kept)
            snapshots[snapshot.id] = nearest
    for name, tip in (*info.branches.items(), *info.tags.items()):
        if tip not in snapshots:
            return RootsMoved(why=f"{name!r} was moved to snapshot {tip}, which would be deleted")
    return Transition(info=replace(info, snapshots=snapshots), details=GCRanUpdate())
