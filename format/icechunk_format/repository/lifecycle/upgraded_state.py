"""Computes the ``repo`` object that an upgrade gives a repository of spec version 1. Pure.

Version 1 has no operations log, so the upgrade derives one, as in existing libraries: the creation,
each commit at its time, each branch and tag directly after its snapshot, and the upgrade.

Rules of this file
------------------
1. Only snapshots that a branch or a tag reaches become part of the new history. Other snapshot
   files are kept until garbage collection.
2. A commit belongs to the first branch that reaches it, beginning with ``main``; commits that only
   tags reach have no entry, since their branch is not known.
3. No entry has a backup, because there is no older ``repo`` object.

Specification: "Updates to the repo info file"; version 1: "Refs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from icechunk_format.encoding.envelope import SPEC_V1, SPEC_V2
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import branch_ref_key
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.updates import (
    BranchCreatedUpdate,
    NewCommitUpdate,
    RepoInitializedUpdate,
    RepoMigratedUpdate,
    RepoStatus,
    TagCreatedUpdate,
    TagDeletedUpdate,
    Update,
    UpdateDetails,
)
from icechunk_format.encoding.values.metadata_items import NO_ITEMS, MetadataItems
from icechunk_format.errors import FormatError

MAIN: Final = "main"

_MILLISECOND: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RefsOfVersion1:
    """Branches, tags and configuration from the mutable files of spec version 1.

    Parameters
    ----------
    deleted_tags
        Name to the snapshot that the tag pointed to, None if unknown.
    config
        The configuration as a FlexBuffer; None for the defaults.
    keys
        Keys of the files, in the order of deletion.
    """

    branches: Mapping[str, SnapshotId] = field(default_factory=dict)
    tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    deleted_tags: Mapping[str, SnapshotId | None] = field(default_factory=dict)
    config: bytes | None = None
    keys: tuple[str, ...] = ()


def upgraded_state(
    refs: RefsOfVersion1,
    snapshots: Mapping[SnapshotId, SnapshotInfo],
    *,
    now: int | None,
    metadata_items: MetadataItems = NO_ITEMS,
) -> RepoInfo:
    """Return the state of the repository after its upgrade.

    Parameters
    ----------
    snapshots
        Every snapshot that a branch or tag reaches, with its ancestors.
    now
        Microseconds since 1970-01-01T00:00:00Z; None omits the entry of the upgrade, for
        repositories that never had version 1.
    """
    if MAIN not in refs.branches:
        raise FormatError(
            "branch 'main' does not exist, which every repository has; create that file with the "
            "snapshot that main should have, then upgrade again",
            object_key=branch_ref_key(MAIN),
            file_type="ref",
        )
    info = RepoInfo(
        spec_version=SPEC_V2,
        branches=dict(refs.branches),
        tags=dict(refs.tags),
        deleted_tags=tuple(sorted(refs.deleted_tags)),
        snapshots=dict(snapshots),
        status=RepoStatus(set_at=0),
        config=refs.config,
    )
    created_at = info.ancestry(refs.branches[MAIN])[-1].flushed_at
    entries = sorted(_entries(info, refs, created_at), key=lambda entry: entry[0])
    if now is not None:
        entries.append((now, RepoMigratedUpdate(from_version=SPEC_V1, to_version=SPEC_V2)))
    log: list[Update] = []
    for time, details in entries:
        # Readers rely on increasing times in a log.
        later = max(time, log[-1].updated_at + 1) if log else time
        log.append(Update(details=details, updated_at=later))
    return replace(
        info,
        status=RepoStatus(set_at=created_at),
        latest_updates=tuple(reversed(log)),
        metadata_items=metadata_items,
    )


def _entries(
    info: RepoInfo, refs: RefsOfVersion1, created_at: int
) -> Iterator[tuple[int, UpdateDetails]]:
    """Yield log entries with their times; entries with equal times are in order."""
    yield created_at, RepoInitializedUpdate()
    seen: set[SnapshotId] = set()
    names = [MAIN, *sorted(name for name in refs.branches if name != MAIN)]
    for name in names:
        for snapshot in info.ancestry(refs.branches[name]):
            if snapshot.id in seen:
                break
            seen.add(snapshot.id)
            if snapshot.parent_id is not None:
                yield snapshot.flushed_at, NewCommitUpdate(branch=name, new_snap_id=snapshot.id)

    def after(snapshot_id: SnapshotId | None) -> int:
        # The snapshot of a deleted tag may not be in the history.
        found = None if snapshot_id is None else info.snapshots.get(snapshot_id)
        return (created_at if found is None else found.flushed_at) + _MILLISECOND

    for name in names[1:]:
        yield after(refs.branches[name]), BranchCreatedUpdate(name=name)
    for name in sorted(refs.tags):
        yield after(refs.tags[name]), TagCreatedUpdate(name=name)
    for name, snapshot_id in sorted(refs.deleted_tags.items(), key=lambda item: item[0]):
        if snapshot_id is not None:
            yield after(snapshot_id), TagCreatedUpdate(name=name)
            details = TagDeletedUpdate(name=name, previous_snap_id=snapshot_id)
            yield after(snapshot_id) + _MILLISECOND, details
