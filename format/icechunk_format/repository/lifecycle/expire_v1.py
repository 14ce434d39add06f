"""Removes old snapshots from history in spec version 1, where snapshot files record their parents.

Refs are processed one by one, tags before branches, each kind by name. The root becomes the parent
of the oldest snapshot in a ref's history that is not expired: its file is overwritten in place,
since version 1 has no other way. Readers see the old file or the new one, and the next expiration
completes an interrupted one. Version 1 does not record the transaction logs in the gap.

A snapshot is released if no remaining ref reaches it afterwards. The reference also reports
snapshots that it keeps, such as an expired tip of ``main``.

Specification, version 1: "Snapshots", "Refs".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.history.history import RefFilesHistory
from icechunk_format.repository.history.resolve import microseconds
from icechunk_format.repository.lifecycle.expire import ExpireResult
from icechunk_format.repository.state.branches_and_tags import RefFilesChanges
from icechunk_format.repository.state.transitions import MAIN
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.object_keys import snapshot_key
from icechunk_format.spec.repo_info.file import SnapshotInfo
from icechunk_format.spec.snapshot import file as snapshot_file
from icechunk_format.storage.protocol import Storage


def expire_snapshots_v1(
    storage: Storage,
    older_than: datetime,
    *,
    delete_expired_branches: bool = False,
    delete_expired_tags: bool = False,
    dry_run: bool = False,
) -> ExpireResult:
    """Expire snapshots of a repository of spec version 1.

    Arguments and errors are those of ``Repository.expire_snapshots``.
    """
    cutoff = microseconds(older_than, argument="older_than")
    history, refs = RefFilesHistory(storage), RefFilesChanges(storage)
    # Parents changed for earlier refs, which apply to later ones, also in a dry run.
    parents: dict[SnapshotId, SnapshotId] = {}
    seen: dict[SnapshotId, SnapshotId | None] = {}
    tags, branches = history.tags(), history.branches()
    expired_tips: set[SnapshotId] = set()
    for tip in (*tags.values(), *branches.values()):
        line = [(i.id, i.flushed_at < cutoff) for i in _ancestry(history, tip, parents)]
        if line[0][1]:
            expired_tips.add(tip)
        root = line[-1][0]
        seen |= {child: parent for (child, _), (parent, _) in pairwise(line)} | {root: None}
        kept = [snapshot_id for snapshot_id, is_expired in line if not is_expired]
        edited = kept[-1] if kept else tip
        position = [snapshot_id for snapshot_id, _ in line].index(edited)
        if position + 2 >= len(line):
            continue  # it is the root, or its parent is
        parents[edited] = root
        if not dry_run:
            found = load_snapshot(storage, edited)
            data = snapshot_file.encode(replace(found, parent_id=root))
            storage.put(snapshot_key(edited), data)
    gone_tags = sorted(n for n, t in tags.items() if delete_expired_tags and t in expired_tips)
    gone_branches = sorted(
        name
        for name, tip in branches.items()
        if delete_expired_branches and tip in expired_tips and name != MAIN
    )
    stay = {tip for name, tip in tags.items() if name not in gone_tags}
    stay |= {tip for name, tip in branches.items() if name not in gone_branches}
    released = seen.keys() - _reached(stay, {**seen, **parents})
    if not dry_run:
        for name in gone_tags:
            refs.delete_tag(name)
        for name in gone_branches:
            refs.delete_branch(name)
    return ExpireResult(
        released_snapshots=tuple(map(str, sorted(released))),
        edited_snapshots=tuple(map(str, sorted(parents))),
        deleted_branches=tuple(gone_branches),
        deleted_tags=tuple(gone_tags),
        dry_run=dry_run,
    )


def _reached(
    tips: Iterable[SnapshotId], parents: Mapping[SnapshotId, SnapshotId | None]
) -> set[SnapshotId]:
    found: set[SnapshotId] = set()
    for tip in tips:
        following: SnapshotId | None = tip
        while following is not None and following not in found:
            found.add(following)
            following = parents[following]
    return found


def _ancestry(
    history: RefFilesHistory, tip: SnapshotId, parents: Mapping[SnapshotId, SnapshotId]
) -> Iterator[SnapshotInfo]:
    """Yield a snapshot and its ancestors, following changed parents."""
    following: SnapshotId | None = tip
    while following is not None:
        start, following = following, None
        for info in history.ancestry(start):
            yield info
            if info.id in parents:
                following = parents[info.id]
                break
