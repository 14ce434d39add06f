"""A session: changes to one branch that become one version, or nothing.

Rules of this file
------------------
1. A session sees its branch as it was when the session began, and its own changes on top. Others
   see nothing of it before it is committed.
2. One session makes one version: after a commit it can be read, and not changed any more.
3. A session stays where it was made. It refuses to be pickled; what executors need is a location,
   node ids and ``session.format``, and what they send back are receipts.
4. A commit that did not land leaves the session with all its changes, to try again.

Specification: "Consistency and Optimistic Concurrency"; the reference calls this a writable
session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, Never

from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError
from icechunk_format.repository.changes import conflicts as conflict_rules
from icechunk_format.repository.changes.change_set import ChangeSet
from icechunk_format.repository.changes.conflicts import TheirCommit
from icechunk_format.repository.changes.working_tree import WorkingTree
from icechunk_format.repository.commit.commit import (
    CommitResult,
    commit_metadata,
    pause_after_lost_race,
    store_version,
)
from icechunk_format.repository.files.metadata_files import (
    load_newer_versions,
    load_transaction_log,
    remember_snapshot,
)
from icechunk_format.repository.session.edits import SessionEdits
from icechunk_format.repository.state import conflict_errors
from icechunk_format.spec.object_keys import transaction_log_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icechunk_format.repository.commit.commit import StoredVersion
    from icechunk_format.repository.state.branch_tip import CommitsSince
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.spec.snapshot.file import Snapshot

DEFAULT_REBASE_TRIES: Final = 1000
"""Rebases before a commit gives up. Every lost race means that somebody else's commit landed."""

OnConflict = Literal["rebase", "fail"]
Resolve = Literal["ours", "theirs"]
WhenMoved = Callable[["Snapshot", "Sequence[TheirCommit]"], None]


class WriteSession(SessionEdits):
    """Changes to one branch; get it from ``Repository.writable_session``."""

    def __repr__(self) -> str:
        return f"WriteSession({self._storage.root_url!r}, {self.branch!r}, base={self.snapshot_id})"

    def __reduce__(self) -> Never:
        raise TypeError(
            "a WriteSession cannot be pickled: two copies would commit each other's work away. "
            "Send executors the location, node ids and session.format, and give the receipts "
            "that they send back to add_manifests"
        )

    # -- versions ---------------------------------------------------------------------------

    def commit(
        self,
        message: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        on_conflict: OnConflict = "rebase",
        resolve: Resolve | None = None,
        rebase_tries: int = DEFAULT_REBASE_TRIES,
        allow_empty: bool = False,
        when_moved: WhenMoved | None = None,
    ) -> CommitResult:
        """Make the changes a new version of the branch.

        Parameters
        ----------
        message
            For people.
        metadata
            JSON values by name, kept with the version.
        on_conflict
            When the branch has moved: ``"rebase"`` lays the changes over the new tip if they fit,
            ``"fail"`` raises.
        resolve
            Chunks that both wrote: ``"ours"`` or ``"theirs"`` wins; None is a conflict.
        rebase_tries
            How often the race may be lost.
        allow_empty
            Whether a version without changes may be made.
        when_moved
            Called with the new tip and the commits of others before the changes are laid over
            them; what it raises ends the commit, and the session is as it was.

        Raises
        ------
        ConflictError
            Others changed what this session changes, or the branch was deleted or reset; nothing
            was committed, and the session still has its changes.
        InvalidInputError
            There is nothing to commit.
        CommitOutcomeUnknownError
            The store did not say whether the commit landed.
        ReadOnlyError, StorageError, FormatError, NotFoundError
            The repository cannot be written or read; nothing was committed.
        """
        self._check_commit(on_conflict, resolve, allow_empty)
        if on_conflict == "rebase":
            # Before anything is stored: what others did since the session began costs no files.
            self.rebase(resolve=resolve, when_moved=when_moved)
        attempt = 0
        while True:
            began = time.monotonic()
            version = self._store(
                message,
                metadata,
                parent_id=self.snapshot_id,
                attempt=attempt,
                beside=self._tip.copy_to_store(),
            )
            moved = self._tip.advance(version.info)
            if moved is None:
                return self._landed(version)
            if on_conflict == "fail":
                raise conflict_errors.tip_moved(self._storage, moved, self.snapshot_id)
            attempt += 1
            if attempt > rebase_tries:
                raise ConflictError(
                    f"branch {self.branch!r} of {self._storage.root_url} was moved by others "
                    f"{attempt} times while this commit was tried; nothing was committed. Let "
                    "fewer writers commit at once, or try again",
                    branch=self.branch,
                    attempts=attempt,
                )
            pause_after_lost_race(attempt, time.monotonic() - began)
            self.rebase(resolve=resolve, when_moved=when_moved)

    def amend(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> CommitResult:
        """Replace the newest version of the branch by one that has the changes as well.

        The new version has the parent of the replaced one, which stays readable by its id until it
        is collected.

        Raises
        ------
        UnsupportedError
            The repository has spec version 1.
        InvalidInputError
            There is nothing to commit, the first version would be amended, or one of both moves
            nodes and the other changes them.
        ConflictError
            The branch has moved; an amendment is never rebased.
        CommitOutcomeUnknownError, ReadOnlyError, StorageError, FormatError, NotFoundError
            As for ``commit``.
        """
        self._check_commit("fail", None, allow_empty)
        replaced = self._tip.amendable(self.snapshot_id)
        log = load_transaction_log(self._storage, self.snapshot_id)
        changes = self._tree.changes
        edited = not log.is_empty and not log.moved_nodes
        if (changes.moved and edited) or (changes.has_edits and log.moved_nodes):
            raise InvalidInputError(
                "a version that moves nodes cannot be amended with changes to them, nor the "
                "other way round; commit instead"
            )
        version = self._store(
            message,
            metadata,
            parent_id=replaced.parent_id,
            pruned=replaced.pruned_ancestor_tx_logs,
            amends=True,
        )
        moved = self._tip.amend(self.snapshot_id, version.info)
        if moved is not None:
            raise conflict_errors.tip_moved(self._storage, moved, self.snapshot_id)
        return self._landed(version)

    def flush(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> SnapshotId:
        """Make the changes a version that no branch has, and return its id.

        It is kept while it is young, or as soon as a branch or tag refers to it.

        Raises
        ------
        InvalidInputError
            There is nothing to commit.
        CommitOutcomeUnknownError, ReadOnlyError, StorageError, FormatError, NotFoundError
            As for ``commit``.
        """
        self._check_commit("fail", None, allow_empty)
        version = self._store(message, metadata, parent_id=self.snapshot_id)
        self._tip.add_detached(version.info)
        return self._landed(version).snapshot_id

    def rebase(self, *, resolve: Resolve | None = None, when_moved: WhenMoved | None = None) -> int:
        """Lay the changes over the newest version of the branch; returns how many were passed.

        Nothing is written. With an unmoved branch nothing happens. Parameters are those of
        ``commit``.

        Raises
        ------
        ConflictError
            The changes do not fit; the session is as it was.
        NotFoundError, FormatError, StorageError
            The repository cannot be read.
        """
        self._check_open()
        _check_choice("resolve", resolve, (None, "ours", "theirs"))
        since = self._tip.commits_since(self.snapshot_id)
        if since is None:
            return 0
        if not since.is_ancestor:
            raise conflict_errors.history_left(
                self._storage, self.branch, self.snapshot_id, since.tip
            )
        theirs, tip = self._versions_of(since)
        if when_moved is not None:
            when_moved(tip, theirs)
        changes = self._tree.changes
        found = conflict_rules.detect(changes, base=self._tree.base, tip=tip, theirs=theirs)
        remaining = conflict_rules.resolved(found, resolve)
        if remaining:
            raise conflict_errors.conflicting(self._storage, self.branch, remaining)
        conflict_rules.rebased(changes, tip=tip, conflicts=found, resolve=resolve)
        self._tree = WorkingTree(tip, changes)
        self._times_rebased += 1
        return len(since.commits)

    # -- inside -----------------------------------------------------------------------------

    def _check_commit(self, on_conflict: str, resolve: str | None, allow_empty: bool) -> None:
        self._check_open()
        _check_choice("on_conflict", on_conflict, ("rebase", "fail"))
        _check_choice("resolve", resolve, (None, "ours", "theirs"))
        if not allow_empty and not self.has_changes:
            raise InvalidInputError(
                f"nothing to commit: this session on branch {self.branch!r} has changed nothing; "
                "allow_empty makes a version all the same",
                branch=self.branch,
            )

    def _store(
        self,
        message: str,
        metadata: Mapping[str, Any] | None,
        *,
        parent_id: SnapshotId | None,
        pruned: tuple[SnapshotId, ...] = (),
        amends: bool = False,
        attempt: int = 0,
        beside: Iterable[tuple[str, bytes]] = (),
    ) -> StoredVersion:
        spec_version = self.format.spec_version
        return store_version(
            self._storage,
            self.format,
            self._assembler,
            self._tree,
            parent_id=parent_id,
            pruned_ancestor_tx_logs=pruned,
            log_before=(load_transaction_log(self._storage, self.snapshot_id) if amends else None),
            message=message,
            metadata=commit_metadata(
                metadata, spec_version=spec_version, rebased=self._times_rebased
            ),
            written=self._written,
            is_repeated=attempt > 0,
            beside=beside,
        )

    def _landed(self, version: StoredVersion) -> CommitResult:
        info = version.info
        self._ended = f"committed as snapshot {info.id}"
        self._written.add("manifests", self._assembler.files_written, self._assembler.bytes_written)
        self._tree = WorkingTree(version.snapshot, ChangeSet())
        remember_snapshot(self._storage, version.snapshot)
        return CommitResult(
            snapshot_id=info.id,
            parent_id=info.parent_id,
            branch=self.branch,
            rebased=self._times_rebased,
            files_written=self._written.files,
            bytes_written=self._written.bytes,
        )

    def _versions_of(self, since: CommitsSince) -> tuple[list[TheirCommit], Snapshot]:
        """Return what others committed, oldest first, and the newest snapshot."""
        versions = {
            log_id: info.id
            for info in since.commits
            for log_id in (*info.pruned_ancestor_tx_logs, info.id)
        }
        try:
            logs, tip = load_newer_versions(self._storage, list(versions), since.tip)
        except NotFoundError as error:
            if error.facts.get("file_type") != "transaction log":
                raise
            missing = next(i for i in versions if transaction_log_key(i) == error.facts["key"])
            raise conflict_errors.log_missing(
                self._storage, self.branch, missing, versions[missing]
            ) from error
        commits = zip(versions.values(), logs, strict=True)
        return [TheirCommit(snapshot_id=version, log=log) for version, log in commits], tip


def _check_choice(name: str, found: object, allowed: tuple[object, ...]) -> None:
    if found not in allowed:
        raise InvalidInputError(
            f"{name} is {found!r}; {', '.join(map(repr, allowed))} are allowed",
            found=found,
            allowed=allowed,
        )
