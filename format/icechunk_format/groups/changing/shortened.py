"""Finds whether expirations have shortened the history of a branch.

An expiration is logged even if it removes nothing, and its entry does not name what it removed. The
entries of commits do name snapshots, in the order of the log, so the parents at the time of each
commit follow from them. Every doubt counts as a shortened history.

Rules of this file
------------------
1. A snapshot that lists transaction logs of expired ancestors has a shortened history. Libraries
   before spec 2.1 do not list them.
2. With an expiration in the log, each snapshot of the history must still have the parent that the
   branch had when the snapshot was committed. If the log does not tell it, as for the first commit
   on a new branch, no earlier commit of the log may be missing.
3. Without a whole log, as in spec version 1, after an upgrade from it and in copies, the
   transaction log of the oldest commit must account for every node of its snapshot.

Specification: "Updates to the repo info file"; ``pruned_ancestor_tx_logs`` is of spec 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from icechunk_format.encoding.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icechunk_format.encoding.repo_info.updates import (
    BranchCreatedUpdate,
    BranchDeletedUpdate,
    BranchResetUpdate,
    CommitAmendedUpdate,
    ExpirationRanUpdate,
    NewCommitUpdate,
    NewDetachedSnapshotUpdate,
    RepoInitializedUpdate,
    RepoMigratedUpdate,
    UnknownUpdate,
    UpdateDetails,
)
from icechunk_format.errors import NotFoundError

if TYPE_CHECKING:
    from icechunk_format.encoding.repo_info.file import SnapshotInfo
    from icechunk_format.repository import RepositoryReader

_ADDS: Final = (NewCommitUpdate, CommitAmendedUpdate, NewDetachedSnapshotUpdate)


def has_expired(repository: RepositoryReader, branch: str) -> bool:
    """Return True if snapshots of the history of a branch have expired, or may have."""
    line = list(repository.ancestry(branch=branch))
    if any(info.pruned_ancestor_tx_logs for info in line):
        return True
    # Oldest first.
    log = [update.details for update in repository.operations()][::-1]
    is_begun = bool(log) and isinstance(log[0], RepoInitializedUpdate)
    if any(isinstance(details, ExpirationRanUpdate) for details in log):
        existing = {info.id for info in repository.snapshots()}
        if not (is_begun and _has_first_parents(line, log, existing)):
            return True
    named = {one.new_snap_id for one in log if isinstance(one, _ADDS)}
    is_whole = (
        is_begun
        and named.issuperset(info.id for info in line[:-1])
        and not any(isinstance(details, RepoMigratedUpdate) for details in log)
    )
    return not (is_whole or _is_explained(repository, line))


def _has_first_parents(
    line: Sequence[SnapshotInfo], log: Sequence[UpdateDetails], existing: set[SnapshotId]
) -> bool:
    """Return True if the snapshots of a history have the parents with which they were committed."""
    # None: a snapshot that the log does not name.
    tips: dict[str, SnapshotId | None] = {"main": INITIAL_SNAPSHOT_ID}
    parents: dict[SnapshotId, SnapshotId | None] = {}
    amended = {one.previous_snap_id for one in log if isinstance(one, CommitAmendedUpdate)}
    is_missing = False
    # Snapshots that were committed after one that is missing.
    late: set[SnapshotId] = set()

    def committed(snapshot_id: SnapshotId, parent: SnapshotId | None) -> None:
        nonlocal is_missing
        parents[snapshot_id] = parent
        if is_missing:
            late.add(snapshot_id)
        # An amended snapshot did not expire.
        is_missing |= snapshot_id not in existing and snapshot_id not in amended

    for details in log:
        match details:
            case NewCommitUpdate():
                committed(details.new_snap_id, tips.get(details.branch))
                tips[details.branch] = details.new_snap_id
            case CommitAmendedUpdate():
                committed(details.new_snap_id, parents.get(details.previous_snap_id))
                tips[details.branch] = details.new_snap_id
            case NewDetachedSnapshotUpdate():
                committed(details.new_snap_id, None)
            case BranchCreatedUpdate() | BranchDeletedUpdate() | BranchResetUpdate():
                tips[details.name] = None
            case UnknownUpdate():
                return False
    *commits, root = line
    return root.id == INITIAL_SNAPSHOT_ID and all(
        info.id in parents
        and (parents[info.id] == info.parent_id if parents[info.id] else info.id not in late)
        for info in commits
    )


def _is_explained(repository: RepositoryReader, line: Sequence[SnapshotInfo]) -> bool:
    """Return True if the oldest commit of a history has made all that its snapshot contains."""
    if len(line) < 2:
        return True
    root, first = line[-1].id, line[-2].id
    try:
        log = repository.transaction_log(first)
    except NotFoundError:
        return False
    before = {node.id for node in repository.snapshot(root).nodes}
    known = before.union(log.new_groups, log.new_arrays)
    changed = {*log.updated_groups, *log.updated_arrays, *log.updated_chunks}
    moved = {move.node_id for move in log.moved_nodes}
    deleted = {*log.deleted_groups, *log.deleted_arrays}
    is_known = known.issuperset({node.id for node in repository.snapshot(first).nodes} | changed)
    return is_known and before.issuperset(moved | deleted)
