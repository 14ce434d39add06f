"""Removes old snapshots from history, in one conditional update of ``repo``.

Only entries of ``repo`` and, on request, refs are deleted here. Files of expired snapshots become
garbage, which ``maintenance.collect_garbage`` deletes.

In spec version 1, snapshot files record their parents. Refs are processed one by one, tags before
branches, each kind by name. The root becomes the parent of the oldest snapshot in a ref's history
that is not expired: its file is overwritten in place, since version 1 has no other way. Readers see
the old file or the new one, and the next expiration completes an interrupted one. The transaction
logs in the gap are not recorded. A snapshot is released if no remaining ref reaches it afterwards.
The reference also reports snapshots that it keeps, such as an expired tip of ``main``.

Rules of this file
------------------
1. A snapshot is *expired* if it is older than the cutoff and is not the root of a history. An
   expired snapshot is *released* if no ref protects it: tips of tags and branches are kept unless
   expired refs are to be deleted, and the tip of ``main`` is always kept.
2. If the parent of a kept snapshot is released, its new parent is the root of the history, not the
   nearest kept ancestor. It lists the transaction logs of all snapshots in between, including kept
   ones, so that differences across the gap stay complete.
3. The change is a pure function of the state, and is computed again if other writers changed
   ``repo`` first. An expiration without expired snapshots is also logged, as in existing libraries.

Specification: "Repo Info File"; ``pruned_ancestor_tx_logs`` is from spec 2.1. Version 1:
"Snapshots", "Refs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import snapshot_key
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.state import SnapshotIds
from icechunk_format.encoding.repo_info.updates import ExpirationRanUpdate
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.history.history import RefFilesHistory
from icechunk_format.repository.history.resolve import microseconds
from icechunk_format.repository.state.branches_and_tags import RefFilesChanges
from icechunk_format.repository.state.publish import update_repo
from icechunk_format.repository.state.repo_file import read_state
from icechunk_format.repository.state.transitions import MAIN, FeatureFlag, Transition, check_flag
from icechunk_format.storage.protocol import Storage


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """Snapshots and refs that an expiration removed from history, or would remove.

    Attributes
    ----------
    released_snapshots
        Ids of snapshots that were removed from history, sorted.
    edited_snapshots
        Ids of snapshots with a new parent, sorted.
    deleted_branches, deleted_tags
        Names of deleted refs, whose tips had expired, sorted.
    dry_run
        True if nothing was changed.
    """

    released_snapshots: tuple[str, ...] = ()
    edited_snapshots: tuple[str, ...] = ()
    deleted_branches: tuple[str, ...] = ()
    deleted_tags: tuple[str, ...] = ()
    dry_run: bool = False


def expire_snapshots(
    storage: Storage,
    older_than: datetime,
    *,
    delete_expired_branches: bool = False,
    delete_expired_tags: bool = False,
    dry_run: bool = False,
) -> ExpireResult:
    """Expire snapshots of a repository of spec version 2.

    Arguments and errors are those of ``Repository.expire_snapshots``.
    """
    expired = partial(
        expire,
        older_than=microseconds(older_than, argument="older_than"),
        delete_expired_branches=delete_expired_branches,
        delete_expired_tags=delete_expired_tags,
    )
    if dry_run:
        _, result = expired(read_state(storage).info)
        return replace(result, dry_run=True)
    last: list[ExpireResult] = []

    def change(info: RepoInfo) -> Transition:
        transition, result = expired(info)
        last[:] = [result]
        return transition

    update_repo(storage, change)
    return last[0]


def expire(
    info: RepoInfo,
    older_than: int,
    *,
    delete_expired_branches: bool = False,
    delete_expired_tags: bool = False,
) -> tuple[Transition, ExpireResult]:
    """Return the state after an expiration, and the result; ``older_than`` is in microseconds."""
    expired = {
        snapshot.id
        for snapshot in info.snapshots.values()
        if snapshot.flushed_at < older_than and snapshot.parent_id is not None
    }
    deleted_tags = _at_expired(info.tags, expired) if delete_expired_tags else []
    if deleted_tags:
        check_flag(info, FeatureFlag.DELETE_TAG, "deleting tags")
    deleted_branches = _at_expired(info.branches, expired, MAIN) if delete_expired_branches else []
    protected = set() if delete_expired_tags else set(info.tags.values())
    protected |= set() if delete_expired_branches else set(info.branches.values())
    if MAIN in info.branches:
        protected.add(info.branches[MAIN])
    released = expired - protected

    snapshots: dict[SnapshotId, SnapshotInfo] = {}
    edited: set[SnapshotId] = set()
    lines = _Lines(info)
    for snapshot in info.snapshots.values():
        if snapshot.id in released:
            continue
        kept = snapshot
        if snapshot.parent_id in released:
            kept = lines.on_root(snapshot)
            edited.add(snapshot.id)
        snapshots[snapshot.id] = kept
    new = replace(
        info,
        snapshots=snapshots,
        tags={n: tip for n, tip in info.tags.items() if n not in deleted_tags},
        deleted_tags=tuple(sorted({*info.deleted_tags, *deleted_tags})),
        branches={n: tip for n, tip in info.branches.items() if n not in deleted_branches},
    )
    return Transition(info=new, details=ExpirationRanUpdate()), ExpireResult(
        released_snapshots=tuple(map(str, sorted(released))),
        edited_snapshots=tuple(map(str, sorted(edited))),
        deleted_branches=tuple(deleted_branches),
        deleted_tags=tuple(deleted_tags),
    )


def _at_expired(
    refs: Mapping[str, SnapshotId], expired: Set[SnapshotId], kept: str | None = None
) -> list[str]:
    """Return the names of refs at expired snapshots, sorted, without one that is always kept."""
    return sorted(name for name, tip in refs.items() if tip in expired and name != kept)


class _Lines:
    """Transaction logs between the root of a history and its snapshots, oldest first.

    An expiration that keeps n tags can list on the order of n² logs, so the lists of a snapshot and
    of its ancestors are slices of one array.
    """

    def __init__(self, info: RepoInfo) -> None:
        self._info = info
        # Snapshot to its root, an array, and the end of its logs in the array.
        self._ends: dict[SnapshotId, tuple[SnapshotId, NDArray[np.uint8], int]] = {}

    def on_root(self, snapshot: SnapshotInfo) -> SnapshotInfo:
        """Return a snapshot with its root as parent and the logs in between."""
        parent_id = snapshot.parent_id
        assert parent_id is not None
        if parent_id not in self._ends:
            self._add(snapshot)
        root, logs, end = self._ends[parent_id]
        raw, own = logs[:end], snapshot.pruned_ancestor_tx_logs
        if own:
            raw = np.concatenate([raw, SnapshotIds.of(own).raw])
        return replace(snapshot, parent_id=root, pruned_ancestor_tx_logs=SnapshotIds(raw))

    def _add(self, snapshot: SnapshotInfo) -> None:
        """Add a snapshot and those of its ancestors that are missing."""
        found: list[SnapshotInfo] = []
        root, logs, end = snapshot.id, np.empty((0, SnapshotId.SIZE), dtype=np.uint8), 0
        for ancestor in islice(self._info.walk(snapshot.id), 1, None):
            if ancestor.id in self._ends:
                root, logs, end = self._ends[ancestor.id]
                break
            found.append(ancestor)
        else:
            root = found.pop().id
            self._ends[root] = root, logs, end
        found.reverse()
        ids = [(*ancestor.pruned_ancestor_tx_logs, ancestor.id) for ancestor in found]
        whole = np.concatenate([logs[:end], SnapshotId.rows(chain.from_iterable(ids))])
        for ancestor, added in zip(found, ids, strict=True):
            end += len(added)
            self._ends[ancestor.id] = root, whole, end


def with_nearest(
    info: RepoInfo, snapshot: SnapshotInfo, is_parent: Callable[[SnapshotInfo], bool]
) -> SnapshotInfo:
    """Return a snapshot whose parent is the nearest ancestor for which ``is_parent`` is True.

    It lists the transaction logs of the ancestors in between, oldest first, each after the logs
    that this ancestor lists. Without such an ancestor the snapshot becomes a root.
    """
    over: list[SnapshotId] = []
    new_parent: SnapshotId | None = None
    for ancestor in islice(info.walk(snapshot.id), 1, None):
        if is_parent(ancestor):
            new_parent = ancestor.id
            break
        # Collected newest first, and reversed below.
        over.append(ancestor.id)
        over.extend(reversed(ancestor.pruned_ancestor_tx_logs))
    return replace(
        snapshot,
        parent_id=new_parent,
        pruned_ancestor_tx_logs=(*reversed(over), *snapshot.pruned_ancestor_tx_logs),
    )


# -- version 1 ------------------------------------------------------------------------------


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
    gone_tags = _at_expired(tags, expired_tips) if delete_expired_tags else []
    gone_branches = _at_expired(branches, expired_tips, MAIN) if delete_expired_branches else []
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
