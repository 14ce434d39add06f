"""Creates, moves and deletes branches and tags, in ``repo`` or in ref files of version 1.

Rules of this file
------------------
1. Version 2 checks and changes in one step (``transitions`` through ``publish``). A ref to an
   unreachable snapshot is added with a marker (``revival``), which a concurrent garbage collection
   finds even if the ref has moved on.
2. Version 1 has one object for each ref. Refs and tombstones of tags are created if absent, and
   branches are moved on the condition that they have not changed. Other writers may act between a
   check and its change, so only irreversible facts are checked: a tombstone, an existing file. If a
   snapshot's file does not exist after its ref was written, the ref is reverted: a garbage
   collection deletes such files before it reads the refs.
3. ``main`` is never deleted, tags never move.

Specification: "Repo Info File"; version 1: "Refs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import snapshot_key
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.errors import ConflictError, StorageError
from icechunk_format.repository.files.optional_objects import fetch_if_there, read_ref
from icechunk_format.repository.history.graph import is_reached
from icechunk_format.repository.history.history import RefFilesHistory, ref_key, snapshots_after
from icechunk_format.repository.state import transitions as repo_changes
from icechunk_format.repository.state.conflict_errors import snapshot_removed, tip_moved
from icechunk_format.repository.state.publish import (
    Published,
    attempts,
    create_once,
    exists_after,
    outcome_unknown,
    race_lost,
    update_branch_ref,
    update_repo,
)
from icechunk_format.repository.state.revival import Marker, marker_on
from icechunk_format.repository.state.transitions import (
    TAG_DELETED,
    TipMoved,
    Transition,
    check_not_main,
    existing_ref,
    taken,
)
from icechunk_format.storage.protocol import Storage


class RepoInfoChanges:
    """Branches and tags of spec version 2."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def create_branch(self, name: str, snapshot_id: SnapshotId) -> None:
        """Create a branch at an existing snapshot."""
        self._point_to(
            snapshot_id, lambda info: repo_changes.create_branch(info, name, snapshot_id)
        )

    def delete_branch(self, name: str) -> None:
        """Delete a branch."""
        update_repo(self._storage, lambda info: repo_changes.delete_branch(info, name))

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId | None) -> None:
        """Move a branch; with ``expected``, only if it is at that snapshot."""
        moved = self._point_to(
            to, lambda info: repo_changes.reset_branch(info, name, to, expected=expected)
        )
        if moved is not None and expected is not None:
            raise tip_moved(self._storage, moved, expected)

    def fast_forward(self, name: str, to_branch: str) -> SnapshotId:
        """Move a branch to the tip of a branch that descends from it."""
        moved_to: list[SnapshotId] = []

        def change(info: RepoInfo) -> Transition | TipMoved | None:
            tip = existing_ref(info.branches, name, "branch")
            goal = existing_ref(info.branches, to_branch, "branch")
            _check_stands_on(self._storage, info.ancestry(goal), name, tip, to_branch, goal)
            moved_to[:] = [goal]
            if goal == tip:
                return None
            return repo_changes.reset_branch(info, name, goal)

        update_repo(self._storage, change)
        return moved_to[0]

    def create_tag(self, name: str, snapshot_id: SnapshotId) -> None:
        """Create a tag at an existing snapshot."""
        self._point_to(snapshot_id, lambda info: repo_changes.create_tag(info, name, snapshot_id))

    def delete_tag(self, name: str) -> None:
        """Delete a tag for good."""
        update_repo(self._storage, lambda info: repo_changes.delete_tag(info, name))

    def _point_to(
        self, snapshot_id: SnapshotId, change: Callable[[RepoInfo], Transition | TipMoved]
    ) -> TipMoved | None:
        """Apply a change that points a ref to a snapshot, which may be garbage."""
        marker: Marker | None = None

        def marked(info: RepoInfo) -> Transition | TipMoved | SnapshotInfo:
            result = change(info)
            if not isinstance(result, Transition) or is_reached(info, snapshot_id):
                return result
            return info.snapshots[snapshot_id] if marker is None else marker.added_to(result)

        while True:
            result: Published[TipMoved | SnapshotInfo] = update_repo(self._storage, marked)
            found = result.declined
            if not isinstance(found, SnapshotInfo):
                return found
            # Files are stored only if needed, and before ``repo`` refers to them.
            marker = marker_on(snapshot_id, found.flushed_at)
            self._storage.put_many(marker.files)


class RefFilesChanges:
    """Branches and tags of spec version 1."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._history = RefFilesHistory(storage)

    def create_branch(self, name: str, snapshot_id: SnapshotId) -> None:
        """Create a branch at an existing snapshot."""
        key = ref_key(self._storage, "branch", name)
        if self._history.branch_tip(name) is None:
            found = update_branch_ref(self._storage, name, snapshot_id, expected=None, key=key)
            if found.tip == snapshot_id:
                return self._check_kept(key, snapshot_id)
        raise taken("branch", name, f"exists already in {self._storage.root_url}")

    def delete_branch(self, name: str) -> None:
        """Delete a branch."""
        check_not_main(name)
        self._existing_tip(name)
        key = ref_key(self._storage, "branch", name)
        try:
            failures = self._storage.delete_many([key])
        except StorageError as error:
            # The branch may be deleted although the storage did not respond.
            try:
                if fetch_if_there(self._storage, key) is None:
                    return
            except StorageError:
                raise outcome_unknown(self._storage, key) from error
            raise
        if failures:
            raise StorageError(
                f"branch {name!r} of {self._storage.root_url} could not be deleted: "
                f"{failures[0].reason}",
                key=failures[0].key,
            )

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId | None) -> None:
        """Move a branch; with ``expected``, only if it is at that snapshot."""
        key = None
        for _ in attempts():
            tip = self._existing_tip(name)
            if expected is not None and tip != expected:
                raise tip_moved(self._storage, TipMoved(branch=name, tip=tip), expected)
            key = key or ref_key(self._storage, "branch", name)
            move = partial(update_branch_ref, self._storage, name, key=key)
            if move(to, expected=tip).tip == to:
                return self._check_kept(key, to, partial(move, tip, expected=to))
        raise race_lost(self._storage.root_url, f"branch {name!r}", branch=name)

    def fast_forward(self, name: str, to_branch: str) -> SnapshotId:
        """Move a branch to the tip of a branch that descends from it."""
        tip, goal = self._existing_tip(name), self._existing_tip(to_branch)
        _check_stands_on(self._storage, self._history.ancestry(goal), name, tip, to_branch, goal)
        self.reset_branch(name, goal, tip)
        return goal

    def create_tag(self, name: str, snapshot_id: SnapshotId) -> None:
        """Create a tag at an existing snapshot."""
        key = ref_key(self._storage, "tag", name)
        if name in self._history.deleted_tags():
            raise taken("tag", name, TAG_DELETED, deleted=True)
        data = v1_refs.encode_ref_json(snapshot_id)
        existed = self._history.tagged_snapshot(name) is not None
        if existed or not create_once(self._storage, key, data):
            where = f"in {self._storage.root_url}, and tags never move"
            raise taken("tag", name, f"exists already {where}")
        # A reverted tag is deleted without a tombstone, so its name can be used again.
        self._check_kept(key, snapshot_id)

    def delete_tag(self, name: str) -> None:
        """Delete a tag for good."""
        if self._history.tagged_snapshot(name) is None:
            existing_ref(self._history.tags(), name, "tag")
        # If another deletion was first, the result is the same.
        create_once(self._storage, f"{ref_key(self._storage, 'tag', name)}.deleted", b"")

    def _check_kept(
        self, key: str, snapshot_id: SnapshotId, take_back: Callable[[], object] | None = None
    ) -> None:
        """Revert or delete a written ref if garbage collection has removed its snapshot."""
        if exists_after(self._storage, snapshot_key(snapshot_id), written=key):
            return
        failures = []
        try:
            if take_back is not None:
                take_back()
            elif (ref := read_ref(self._storage, key)) is not None and ref[0] == snapshot_id:
                failures = self._storage.delete_many([key])
        except StorageError as error:
            raise outcome_unknown(self._storage, key) from error
        if failures:
            raise outcome_unknown(self._storage, key)
        raise snapshot_removed(self._storage, snapshot_id)

    def _existing_tip(self, name: str) -> SnapshotId:
        tip = self._history.branch_tip(name)
        return existing_ref(self._history.branches(), name, "branch") if tip is None else tip


def _check_stands_on(
    storage: Storage,
    ancestry: Iterable[SnapshotInfo],
    name: str,
    tip: SnapshotId,
    to_branch: str,
    goal: SnapshotId,
) -> None:
    """Raise ConflictError if a fast-forward would lose snapshots of the branch."""
    if snapshots_after(tip, ancestry) is None:
        raise ConflictError(
            f"branch {name!r} of {storage.root_url} cannot be moved forward to {to_branch!r}: its "
            f"tip {tip} is not in the history of {goal}, so snapshots would be lost. Merge "
            f"it instead: Repository.merge({to_branch!r}, into={name!r}), or icechunk-spark merge",
            branch=name,
            tip=str(tip),
            goal=str(goal),
        )
