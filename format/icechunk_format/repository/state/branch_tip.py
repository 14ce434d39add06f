"""Reads and moves the tip of a branch, in both spec versions.

===================  ==================================  =========================================
                     spec version 2                      spec version 1
===================  ==================================  =========================================
moving the branch    ``repo`` is replaced                the ref file is replaced
commits since        one read of ``repo``                one read of a snapshot for each
amend, move nodes    yes                                 no
a detached snapshot  listed in ``repo``                  only its files
===================  ==================================  =========================================

``commits_since`` first uses the state given to ``writable_tip``, and the first ``advance`` reuses
it. If that state is stale, the conditional write fails and the state is read again. The backup that
``advance`` needs can be stored together with the snapshot (``copy_to_store``).

A commit that uses files of another snapshot, which may become garbage, is made by ``using``. In
version 2 the commit succeeds only if the other snapshot is listed. If no ref reaches it, the update
adds a marker to it (``revival``): a concurrent garbage collection either removed it before, or
starts over. In version 1 its file must exist after the commit, or the branch is moved back. This
library's garbage collection reads the refs after it deleted such files, so that either it or the
commit detects the other; those of other libraries do not.

Specification: "Repo Info File"; version 1: "Refs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import overwritten_key, snapshot_key
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.updates import RepoStatus
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import ConflictError, InvalidInputError, StorageError, UnsupportedError
from icechunk_format.repository.history.graph import is_reached
from icechunk_format.repository.history.history import RefFilesHistory, ref_key, snapshots_after
from icechunk_format.repository.state.conflict_errors import snapshot_removed
from icechunk_format.repository.state.publish import (
    Seen,
    exists_after,
    new_backup_name,
    now_in_microseconds,
    outcome_unknown,
    update_branch_ref,
    update_repo,
)
from icechunk_format.repository.state.repo_file import RepoState, read_state
from icechunk_format.repository.state.revival import Marker, marker_on
from icechunk_format.repository.state.transitions import (
    FeatureFlag,
    TipMoved,
    Transition,
    add_commit,
    add_detached,
    amend_commit,
    check_flag,
    check_status,
)
from icechunk_format.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsSince:
    """Commits of a branch since a snapshot.

    Parameters
    ----------
    commits
        The snapshots after the given one up to the tip, oldest first; each lists expired ones
        before it. None if the given snapshot is not in the history of the branch.
    """

    tip: SnapshotId
    commits: tuple[SnapshotInfo, ...] | None


class RepoBranchTip:
    """A branch of spec version 2."""

    def __init__(
        self,
        storage: Storage,
        branch: str,
        state: RepoState | None = None,
        marker: Marker | None = None,
    ) -> None:
        self._storage = storage
        self.branch = branch
        self._state = state
        self._marker = marker
        self._seen: Seen | None = None

    @property
    def scope(self) -> str:
        """Name of what a move of a branch replaces: the ``repo`` object, for all branches."""
        return self._storage.root_url

    def using(self, used: Snapshot) -> RepoBranchTip:
        """Return the branch for a next commit that uses files of a snapshot."""
        marker = marker_on(used.id, used.flushed_at)
        return RepoBranchTip(self._storage, self.branch, marker=marker)

    def check_moves(self) -> None:
        """Raise ReadOnlyError if a feature flag forbids moves."""
        check_flag(self._info(), FeatureFlag.MOVE_NODE, "moving nodes")

    def commits_since(self, snapshot_id: SnapshotId) -> CommitsSince | None:
        """Return later commits; None if the branch has not moved.

        Raises ConflictError if the branch was deleted.
        """
        state, self._state = self._state or read_state(self._storage), None
        self._seen = Seen(state=state)
        info = state.info
        tip = info.branches.get(self.branch)
        if tip is None:
            raise branch_deleted(self._storage, self.branch)
        if tip == snapshot_id:
            return None
        return _since(tip, snapshot_id, info.ancestry(tip))

    def copy_to_store(self) -> tuple[tuple[str, bytes], ...]:
        """Return key and bytes of the objects that must be stored before ``advance``."""
        files = () if self._marker is None else self._marker.files
        if self._seen is None:
            return files
        name = new_backup_name(now_in_microseconds())
        self._seen = replace(self._seen, copy=name)
        return ((overwritten_key(name), self._seen.state.data), *files)

    def amendable(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Return the entry of a snapshot to amend, or raise ConflictError or InvalidInputError."""
        found = self._info().snapshots.get(snapshot_id)
        if found is None:
            raise ConflictError(
                f"snapshot {snapshot_id}, which would be amended, is not in "
                f"{self._storage.root_url} any more; nothing was committed",
                branch=self.branch,
                expected=str(snapshot_id),
            )
        if found.parent_id is None:
            raise InvalidInputError(
                f"snapshot {snapshot_id} is the first one of {self._storage.root_url}, which "
                "cannot be amended; commit instead",
                snapshot=str(snapshot_id),
                parent=None,
            )
        return found

    def advance(self, snapshot: SnapshotInfo) -> TipMoved | None:
        """Move the branch to a child of its tip; None if it was moved."""
        marker, seen, self._seen = self._marker, self._seen, None

        def change(info: RepoInfo) -> Transition | TipMoved:
            used = None if marker is None else marker.info.parent_id
            if used is not None and used not in info.snapshots:
                raise snapshot_removed(self._storage, used)
            result = add_commit(info, self.branch, snapshot)
            if marker is None or used is None or isinstance(result, TipMoved):
                return result
            return result if is_reached(info, used) else marker.added_to(result)

        return self._update(snapshot, change, seen=seen)

    def amend(self, amended: SnapshotId, snapshot: SnapshotInfo) -> TipMoved | None:
        """Replace the tip by a snapshot; None if it was replaced."""
        return self._update(
            snapshot, lambda info: amend_commit(info, self.branch, amended, snapshot)
        )

    def add_detached(self, snapshot: SnapshotInfo) -> None:
        """Add a snapshot that is on no branch."""
        self._update(snapshot, lambda info: add_detached(info, snapshot))

    def _update(
        self,
        snapshot: SnapshotInfo,
        change: Callable[[RepoInfo], Transition | TipMoved],
        *,
        seen: Seen | None = None,
    ) -> TipMoved | None:
        # Ids are random, so a state that lists this one is later than this write.
        return update_repo(
            self._storage, change, landed=lambda info: snapshot.id in info.snapshots, seen=seen
        ).declined

    def _info(self) -> RepoInfo:
        return read_state(self._storage).info


class RefBranchTip:
    """A branch of spec version 1."""

    def __init__(self, storage: Storage, branch: str, used: SnapshotId | None = None) -> None:
        self._storage = storage
        self.branch = branch
        self._used = used

    @property
    def scope(self) -> str:
        """Name of what a move of the branch replaces: its ref file."""
        return f"{self._storage.root_url}#{self.branch}"

    def using(self, used: Snapshot) -> RefBranchTip:
        """Return the branch for a next commit that uses files of a snapshot."""
        return RefBranchTip(self._storage, self.branch, used.id)

    def check_moves(self) -> None:
        """Raise UnsupportedError, since transaction logs of version 1 have no moves."""
        raise self._unsupported("nodes cannot be moved")

    def commits_since(self, snapshot_id: SnapshotId) -> CommitsSince | None:
        """Return later commits; None if the branch has not moved.

        Raises ConflictError if the branch was deleted.
        """
        history = RefFilesHistory(self._storage)
        tip = history.branch_tip(self.branch)
        if tip is None:
            raise branch_deleted(self._storage, self.branch)
        return None if tip == snapshot_id else _since(tip, snapshot_id, history.ancestry(tip))

    def copy_to_store(self) -> tuple[tuple[str, bytes], ...]:
        """Return an empty tuple, since version 1 has no backups of refs."""
        return ()

    def amendable(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Raise UnsupportedError, since readers of version 1 expect branches only to grow."""
        raise self._unsupported(f"snapshot {snapshot_id} cannot be amended")

    def advance(self, snapshot: SnapshotInfo) -> TipMoved | None:
        """Move the branch to a child of its tip; None if it was moved."""
        moved = self._advance(snapshot)
        if moved is None:
            self._check_used(snapshot)
        return moved

    def _advance(self, snapshot: SnapshotInfo) -> TipMoved | None:
        key = ref_key(self._storage, "branch", self.branch)
        result = update_branch_ref(
            self._storage, self.branch, snapshot.id, expected=snapshot.parent_id, key=key
        )
        tip = result.tip
        if tip is None or tip == snapshot.id:
            return None if tip else TipMoved(branch=self.branch, tip=None)
        if result.tried and self._stands_on(tip, snapshot, key):
            return None
        return TipMoved(branch=self.branch, tip=tip)

    def _check_used(self, snapshot: SnapshotInfo) -> None:
        """Move the branch back if the snapshot that a commit uses was removed."""
        used, before = self._used, snapshot.parent_id
        if used is None or before is None:
            return
        key = ref_key(self._storage, "branch", self.branch)
        if not exists_after(self._storage, snapshot_key(used), written=key):
            result = update_branch_ref(
                self._storage, self.branch, before, expected=snapshot.id, key=key
            )
            if result.tip == before:
                raise snapshot_removed(self._storage, used)
            outcome = f"it was committed as {snapshot.id}, which later ones build on"
            raise snapshot_removed(self._storage, used, outcome)

    def _stands_on(self, tip: SnapshotId, snapshot: SnapshotInfo, key: str) -> bool:
        """Return True if other writers committed on top of a snapshot of unknown outcome.

        Raises CommitOutcomeUnknownError if the history cannot be read back to that snapshot or its
        parent.
        """
        problem: StorageError | None = None
        try:
            for info in RefFilesHistory(self._storage).ancestry(tip):
                if info.id == snapshot.id:
                    return True
                if info.id == snapshot.parent_id:
                    return False
        except StorageError as error:
            problem = error
        raise outcome_unknown(self._storage, key) from problem

    def amend(self, amended: SnapshotId, snapshot: SnapshotInfo) -> TipMoved | None:
        """Raise UnsupportedError; see ``amendable``."""
        raise self._unsupported(f"snapshot {amended} cannot be amended")

    def add_detached(self, snapshot: SnapshotInfo) -> None:
        """Do nothing, since in version 1 a snapshot exists if its file does."""

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} in {self._storage.root_url}: the repository has spec version 1; upgrade it to "
            "version 2 first",
            spec_version=1,
        )


BranchTip: TypeAlias = RepoBranchTip | RefBranchTip
"""One branch of a repository of either spec version."""


def writable_tip(
    storage: Storage, branch: str, *, status: RepoStatus | None, state: RepoState | None = None
) -> BranchTip:
    """Return the tip of a branch, or raise ReadOnlyError if the repository is read-only.

    ``status`` is None in spec version 1. A ``state`` that was just read saves the first read.
    """
    if status is None:
        return RefBranchTip(storage, branch)
    check_status(status)
    return RepoBranchTip(storage, branch, state)


def _since(
    tip: SnapshotId, snapshot_id: SnapshotId, ancestry: Iterable[SnapshotInfo]
) -> CommitsSince:
    newer = snapshots_after(snapshot_id, ancestry)
    return CommitsSince(tip=tip, commits=None if newer is None else tuple(reversed(newer)))


def branch_deleted(storage: Storage, branch: str) -> ConflictError:
    """Return the error for a branch that was deleted."""
    return ConflictError(
        f"branch {branch!r} of {storage.root_url} was deleted after this session began; nothing "
        "was committed. Create the branch again, or make the changes in a session on another one",
        branch=branch,
        found=None,
    )
