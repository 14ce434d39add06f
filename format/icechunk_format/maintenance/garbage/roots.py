"""Finds the snapshots that a collection keeps, and removes the others from ``repo``.

Rules of this file
------------------
1. A collection keeps snapshots that a branch, a tag or an extra root reaches, and new unreachable
   snapshots, whose files are newer than the cutoff by the storage's clock or not yet listed.
2. Snapshots are removed from ``repo`` by the time of their file, not by the time in the snapshot,
   since files are also deleted by the storage's clock.
3. A kept snapshot whose parent is removed gets its nearest kept ancestor as parent, and lists the
   transaction logs of the removed ancestors in between.
4. ``repo`` may change during a collection. New snapshots are kept and marked, since they may use
   data of a removed snapshot. If a new snapshot descends from a snapshot to remove, or a ref points
   to one, the collection starts again.

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
    """A change of the repository by other writers, after which roots must be found again."""

    why: str


def reachable(history: History, extra_roots: Iterable[SnapshotId] = ()) -> frozenset[SnapshotId]:
    """Return the snapshots that refs and extra roots reach; one read per snapshot in version 1."""
    tips = (*history.branches().values(), *history.tags().values(), *extra_roots)
    return frozenset(reached_from(history, tips))


def without_dropped(
    info: RepoInfo, kept: frozenset[SnapshotId], dropped: frozenset[SnapshotId]
) -> Transition | RootsMoved:
    """Return the state without the dropped snapshots, or the change that outdated the roots.

    ``kept`` and ``dropped`` are all snapshots that ``repo`` listed when the roots were found.
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
