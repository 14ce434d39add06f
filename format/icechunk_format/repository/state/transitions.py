"""Computes changes of the ``repo`` object: branches, tags, snapshots and settings.

Rules of this file
------------------
1. A change is a pure function from ``RepoInfo`` to a new ``RepoInfo`` and a log entry, or raises.
   Only ``publish.update_repo`` runs changes, and repeats them after lost races.
2. A change keeps all other fields: configuration bytes, feature flags, pruned lists, deleted
   tags, status.
3. Names of deleted tags cannot be reused, tags are never moved, ``main`` is never deleted.

Specification: "Repo Info File", "Updates to the repo info file", "References".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.snapshot_list import with_snapshot
from icechunk_format.encoding.repo_info.updates import (
    Availability,
    BranchCreatedUpdate,
    BranchDeletedUpdate,
    BranchResetUpdate,
    CommitAmendedUpdate,
    ConfigChangedUpdate,
    FeatureFlagChangedUpdate,
    MetadataChangedUpdate,
    NewCommitUpdate,
    NewDetachedSnapshotUpdate,
    RepoStatus,
    RepoStatusChangedUpdate,
    TagCreatedUpdate,
    TagDeletedUpdate,
    Update,
    UpdateDetails,
)
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
)
from icechunk_format.names import by_likeness, unknown

MAIN: Final = "main"

TAG_DELETED: Final = "was deleted, and the name of a deleted tag cannot be used again"

MAX_CLOCK_SKEW: Final = 600_000_000
"""Microseconds that the newest log entry may be ahead of this machine's clock; also the tolerance
between the clocks of a writer and of the storage."""


class FeatureFlag(IntEnum):
    """Operations that a repository can disable; all are enabled by default."""

    MOVE_NODE = 3
    CREATE_TAG = 4
    DELETE_TAG = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A new state without its log entry, and the details of the entry."""

    info: RepoInfo
    details: UpdateDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class TipMoved:
    """A branch that is not at the expected snapshot, so no commit was added.

    ``tip`` is its current snapshot; None if it was deleted.
    """

    branch: str
    tip: SnapshotId | None


# -- the log ---------------------------------------------------------------------------------


def record(
    transition: Transition, *, now: int, backup_name: str, entries_per_file: int
) -> RepoInfo:
    """Add the log entry of a transition to the log.

    Parameters
    ----------
    transition
        The new state, still with the previous log.
    backup_name
        Name below ``overwritten/`` of the backup of the previous state. It is added to the
        previously newest entry, since an entry names the backup in which it is the newest.
    entries_per_file
        After this many entries, the log is cut at the next entry that has a backup.
    """
    info = transition.info
    older = list(info.latest_updates)
    if older:
        ahead = older[0].updated_at - now
        if ahead > MAX_CLOCK_SKEW:
            raise InvalidInputError(
                f"the newest entry in the log of this repository is {ahead / 1e6:.0f} s in the "
                "future of this machine's clock, but times in the log must increase; check "
                "the clock of this machine, then that of the writer of that entry",
                newest_entry=older[0].updated_at,
                now=now,
            )
        # Clocks of machines differ, but times in the log must follow the order of writes.
        now = max(now, older[0].updated_at + 1)
        older[0] = replace(older[0], backup_path=backup_name)
    updates = [Update(details=transition.details, updated_at=now, backup_path=None), *older]
    before = info.repo_before_updates
    for position in range(entries_per_file, len(updates)):
        continued_in = updates[position].backup_path
        # Entries of a migration have no backup, so they are not cut off.
        if continued_in is not None:
            updates, before = updates[:position], continued_in
            break
    return replace(info, latest_updates=tuple(updates), repo_before_updates=before)


# -- snapshots -------------------------------------------------------------------------------


def add_commit(info: RepoInfo, branch: str, snapshot: SnapshotInfo) -> Transition | TipMoved:
    """Add a snapshot on top of a branch, whose tip must be the snapshot's parent."""
    tip = info.branches.get(branch)
    if tip is None or tip != snapshot.parent_id:
        return TipMoved(branch=branch, tip=tip)
    return Transition(
        info=_with_snapshot(info, snapshot, branch=branch),
        details=NewCommitUpdate(branch=branch, new_snap_id=snapshot.id),
    )


def amend_commit(
    info: RepoInfo, branch: str, amended: SnapshotId, snapshot: SnapshotInfo
) -> Transition | TipMoved:
    """Replace the tip of a branch by a snapshot; the old tip can be read by its id."""
    tip = info.branches.get(branch)
    if tip is None or tip != amended:
        return TipMoved(branch=branch, tip=tip)
    return Transition(
        info=_with_snapshot(info, snapshot, branch=branch),
        details=CommitAmendedUpdate(
            branch=branch, previous_snap_id=amended, new_snap_id=snapshot.id
        ),
    )


def add_detached(info: RepoInfo, snapshot: SnapshotInfo) -> Transition:
    """Add a snapshot that no branch points to."""
    return Transition(
        info=_with_snapshot(info, snapshot),
        details=NewDetachedSnapshotUpdate(new_snap_id=snapshot.id),
    )


def _with_snapshot(info: RepoInfo, snapshot: SnapshotInfo, branch: str | None = None) -> RepoInfo:
    if snapshot.id in info.snapshots:
        raise AlreadyExistsError(
            f"snapshot {snapshot.id} is already in the repository; ids are never reused",
            snapshot=str(snapshot.id),
        )
    branches = info.branches if branch is None else {**info.branches, branch: snapshot.id}
    return replace(info, snapshots=with_snapshot(info.snapshots, snapshot), branches=branches)


# -- branches --------------------------------------------------------------------------------


def create_branch(info: RepoInfo, name: str, snapshot_id: SnapshotId) -> Transition:
    """Add a branch at a snapshot."""
    _check_name(name, "branch")
    if name in info.branches:
        raise taken("branch", name, f"exists already, at snapshot {info.branches[name]}")
    info.check_listed(snapshot_id)
    return Transition(
        info=replace(info, branches={**info.branches, name: snapshot_id}),
        details=BranchCreatedUpdate(name=name),
    )


def delete_branch(info: RepoInfo, name: str) -> Transition:
    """Remove a branch; its snapshots are kept until garbage collection."""
    check_not_main(name)
    previous = existing_ref(info.branches, name, "branch")
    return Transition(
        info=replace(info, branches={n: s for n, s in info.branches.items() if n != name}),
        details=BranchDeletedUpdate(name=name, previous_snap_id=previous),
    )


def reset_branch(
    info: RepoInfo, name: str, snapshot_id: SnapshotId, *, expected: SnapshotId | None = None
) -> Transition | TipMoved:
    """Move a branch to any snapshot; with ``expected``, only if it is at that snapshot."""
    previous = existing_ref(info.branches, name, "branch")
    if expected is not None and previous != expected:
        return TipMoved(branch=name, tip=previous)
    info.check_listed(snapshot_id)
    return Transition(
        info=replace(info, branches={**info.branches, name: snapshot_id}),
        details=BranchResetUpdate(name=name, previous_snap_id=previous),
    )


# -- tags ------------------------------------------------------------------------------------


def create_tag(info: RepoInfo, name: str, snapshot_id: SnapshotId) -> Transition:
    """Add a tag at a snapshot; it cannot be moved."""
    check_flag(info, FeatureFlag.CREATE_TAG, "creating tags")
    _check_name(name, "tag")
    if name in info.tags:
        raise taken(
            "tag", name, f"exists already, at snapshot {info.tags[name]}, and tags never move"
        )
    if name in info.deleted_tags:
        raise taken("tag", name, TAG_DELETED, deleted=True)
    info.check_listed(snapshot_id)
    return Transition(
        info=replace(info, tags={**info.tags, name: snapshot_id}),
        details=TagCreatedUpdate(name=name),
    )


def delete_tag(info: RepoInfo, name: str) -> Transition:
    """Remove a tag; its name stays reserved."""
    check_flag(info, FeatureFlag.DELETE_TAG, "deleting tags")
    previous = existing_ref(info.tags, name, "tag")
    return Transition(
        info=replace(
            info,
            tags={n: s for n, s in info.tags.items() if n != name},
            deleted_tags=tuple(sorted({*info.deleted_tags, name})),
        ),
        details=TagDeletedUpdate(name=name, previous_snap_id=previous),
    )


# -- settings --------------------------------------------------------------------------------


def set_status(
    info: RepoInfo, availability: Availability, *, now: int, reason: str | None = None
) -> Transition:
    """Open or close the repository for changes."""
    status = RepoStatus(availability=availability, set_at=now, reason=reason)
    return Transition(
        info=replace(info, status=status), details=RepoStatusChangedUpdate(status=status)
    )


def set_flag(info: RepoInfo, flag: int, value: bool | None) -> Transition:
    """Enable or disable a feature; None resets it to its default."""
    enabled = {*(info.enabled_feature_flags or ())} - {flag}
    disabled = {*(info.disabled_feature_flags or ())} - {flag}
    if value is not None:
        (enabled if value else disabled).add(flag)
    return Transition(
        info=replace(
            info,
            enabled_feature_flags=tuple(sorted(enabled)),
            disabled_feature_flags=tuple(sorted(disabled)),
        ),
        details=FeatureFlagChangedUpdate(id=flag, new_value=bool(value), is_set=value is not None),
    )


def set_metadata(info: RepoInfo, metadata: Mapping[str, Any]) -> Transition:
    """Replace the metadata of the repository."""
    return Transition(
        info=replace(info, metadata_items=MetadataItems.of(metadata)),
        details=MetadataChangedUpdate(),
    )


def set_config(info: RepoInfo, config: bytes | None) -> Transition:
    """Replace the stored configuration, given as its FlexBuffer."""
    return Transition(info=replace(info, config=config), details=ConfigChangedUpdate())


# -- checks ----------------------------------------------------------------------------------


def check_status(status: RepoStatus) -> None:
    """Raise ReadOnlyError if this status does not allow changes."""
    if status.availability is Availability.READ_ONLY:
        why = f" ({status.reason})" if status.reason else ""
        raise ReadOnlyError(
            f"the repository is set to read-only{why}; set its status to online to change it",
            reason=status.reason,
        )


def check_flag(info: RepoInfo, flag: FeatureFlag, what: str) -> None:
    """Raise ReadOnlyError if a feature flag forbids an operation."""
    if flag in (info.disabled_feature_flags or ()):
        raise ReadOnlyError(
            f"{what} is switched off in this repository (feature flag {flag:d}, "
            f"{flag.name.lower()}); switch the flag on to do it",
            flag=int(flag),
        )


def _check_name(name: str, kind: str) -> None:
    if not name or "\0" in name:
        raise InvalidInputError(
            f"{name!r} cannot be the name of a {kind}: names have at least one character and no "
            "NUL",
            kind=kind,
            name=name,
        )


def taken(kind: str, name: str, why: str, *, deleted: bool = False) -> AlreadyExistsError:
    """Return the error for a branch or tag that cannot be created under a name."""
    advice = "reset it to move it, or " if kind == "branch" else ""
    return AlreadyExistsError(
        f"{kind} {name!r} {why}; {advice}choose another name",
        kind=kind,
        name=name,
        deleted=deleted,
    )


def check_not_main(name: str) -> None:
    """Raise an error for the branch ``main``, which cannot be deleted."""
    if name == MAIN:
        raise InvalidInputError(
            "branch 'main' cannot be deleted: every repository has it; reset it instead", name=name
        )


def existing_ref(refs: Mapping[str, SnapshotId], name: str, kind: str) -> SnapshotId:
    """Return the snapshot of a branch or tag; NotFoundError lists existing ones."""
    found = refs.get(name)
    if found is None:
        raise NotFoundError(
            unknown(kind, name, refs), kind=kind, name=name, existing=tuple(by_likeness(name, refs))
        )
    return found
