"""``CommittingSession``: commits the changes of a session, and rebases them if the branch moved.

Long because its public methods are documented here.

Rules of this file
------------------
1. A failed commit keeps the changes in the session, so that it can be repeated.
2. A rebase writes nothing; if it fails, the session is unchanged.

Specification: "Consistency and Optimistic Concurrency".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import transaction_log_key
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.transaction_log import EncodedLog, TransactionLog
from icechunk_format.errors import (
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    escaped,
)
from icechunk_format.names import choose
from icechunk_format.repository.changes import conflicts as conflict_rules
from icechunk_format.repository.changes.change_set import ChangeSet, joined_chunks, joined_logs
from icechunk_format.repository.changes.conflicts import Conflict, ConflictDetector, TheirCommit
from icechunk_format.repository.changes.group_lengths import (
    changed_groups,
    length_conflicts,
    other_lengths,
)
from icechunk_format.repository.changes.working_tree import WorkingTree
from icechunk_format.repository.commit.assemble import ManifestAssembler
from icechunk_format.repository.commit.commit import (
    CommitResult,
    StoredSnapshot,
    Written,
    commit_metadata,
    new_snapshot_id,
    store_nodes,
    store_snapshot,
)
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.files.metadata_files import (
    load_logs_and_tip,
    load_transaction_log,
    remember_snapshot,
)
from icechunk_format.repository.state import conflict_errors
from icechunk_format.repository.state.branch_tip import BranchTip
from icechunk_format.repository.state.races import MOST_LOST_RACES, RaceLost, until_won
from icechunk_format.repository.state.turns import turn
from icechunk_format.storage.protocol import Storage

_log = logging.getLogger(__name__)

OnConflict = Literal["rebase", "fail"]
Resolve = Literal["ours", "theirs"]
WhenMoved = Callable[[Snapshot, Sequence[TheirCommit]], None]


class CommittingSession:
    """The half of ``WriteSession`` that commits its changes."""

    def __init__(
        self, storage: Storage, tip: BranchTip, base: Snapshot, format: ManifestFormat
    ) -> None:
        self.format = format
        self._storage = storage
        self._tip = tip
        self._tree = WorkingTree(base, ChangeSet())
        self._assembler = ManifestAssembler(storage, format)
        self._written = Written()
        self._times_rebased = 0
        self._ended: str | None = None

    @property
    def branch(self) -> str:
        """The branch that a commit moves."""
        return self._tip.branch

    @property
    def snapshot_id(self) -> SnapshotId:
        """The base snapshot of the session; after a commit, the new snapshot."""
        return self._tree.base.id

    @property
    def has_changes(self) -> bool:
        """True if a commit would change anything."""
        return not self.changes.is_empty

    @property
    def changes(self) -> ChangeSet:
        """The changes of the session; must not be modified."""
        return self._tree.changes

    def commit(
        self,
        message: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        on_conflict: OnConflict = "rebase",
        resolve: Resolve | None = None,
        rebase_tries: int = MOST_LOST_RACES,
        allow_empty: bool = False,
        when_moved: WhenMoved | None = None,
    ) -> CommitResult:
        """Commit the changes to the branch.

        Parameters
        ----------
        message
            The message of the snapshot.
        metadata
            JSON values by name, stored in the snapshot.
        on_conflict
            If the branch has moved: ``"rebase"`` rebases the changes if they do not conflict,
            ``"fail"`` raises.
        resolve
            For chunks that both wrote: ``"ours"`` keeps those of this session, ``"theirs"`` those
            of the other writer; None raises.
        rebase_tries
            Largest number of lost races.
        allow_empty
            True to allow a commit without changes.
        when_moved
            Called with the new tip and the commits of other writers before the changes are rebased;
            its exceptions end the commit and leave the session unchanged.

        Returns
        -------
        CommitResult
            The new snapshot, its parent, and the stored files.

        Raises
        ------
        ConflictError
            Another writer made conflicting changes, or the branch was deleted or reset; nothing was
            committed, and the session keeps its changes.
        InvalidInputError
            There is nothing to commit, or an argument is invalid.
        CommitOutcomeUnknownError
            The storage did not report whether the commit succeeded.
        ReadOnlyError, StorageError, FormatError, NotFoundError
            The repository cannot be written or read; nothing was committed.

        Examples
        --------
        >>> session.commit("Add June", metadata={"author": "ana"}).snapshot_id  # doctest: +SKIP
        """
        choose("on_conflict", on_conflict, ("rebase", "fail"))
        choose("resolve", resolve, (None, "ours", "theirs"))
        self._check_commit(allow_empty)

        def attempt(lost: int) -> CommitResult | RaceLost:
            # Attempts of one machine that overlap would only slow down one another.
            with turn(self._tip.scope):
                return attempt_in_turn(lost)

        def attempt_in_turn(lost: int) -> CommitResult | RaceLost:
            if on_conflict == "rebase":
                # Rebasing before anything is stored costs no files.
                self.rebase(resolve=resolve, when_moved=when_moved)
            beside = self._tip.copy_to_store()
            stored = self._store(message, metadata, lost=lost, beside=beside)
            moved = self._tip.advance(stored.info)
            if moved is None:
                return self._finish(stored, lost)
            if on_conflict == "fail":
                raise conflict_errors.tip_moved(self._storage, moved, self.snapshot_id)
            return RaceLost(why=f"another writer committed {moved.tip} first")

        url = self._storage.root_url
        return until_won(attempt, url, branch=self.branch, most=rebase_tries)

    def amend(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> CommitResult:
        """Replace the newest snapshot of the branch by one that includes the changes.

        The parent of the new snapshot is that of the replaced one, which can be read by id until
        garbage collection.

        Parameters
        ----------
        message, metadata, allow_empty
            As for ``commit``; message and metadata of the replaced snapshot are not kept.

        Returns
        -------
        CommitResult
            The new snapshot and its parent.

        Raises
        ------
        UnsupportedError
            The repository has spec version 1.
        InvalidInputError
            There is nothing to commit, the snapshot is the first one, or only one of the two
            commits moves nodes.
        ConflictError
            The branch has moved; an amendment is never rebased.
        CommitOutcomeUnknownError
            As for ``commit``.

        Examples
        --------
        >>> session.amend("Add June, with corrected units")  # doctest: +SKIP
        """
        self._check_commit(allow_empty)
        replaced = self._tip.amendable(self.snapshot_id)
        log = load_transaction_log(self._storage, self.snapshot_id)
        edited = not log.is_empty and not log.moved_nodes
        if (self.changes.moved and edited) or (self.changes.has_edits and log.moved_nodes):
            raise InvalidInputError(
                "a commit that moves nodes cannot be amended with other changes, nor the other way "
                "round; commit instead",
                moved=bool(self.changes.moved),
            )
        stored = self._store(message, metadata, replaced=replaced, before=log)
        moved = self._tip.amend(self.snapshot_id, stored.info)
        if moved is not None:
            raise conflict_errors.tip_moved(self._storage, moved, self.snapshot_id)
        return self._finish(stored)

    def flush(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> SnapshotId:
        """Store the changes as a detached snapshot, on no branch, and return its id.

        The session ends, as after a commit. Garbage collection keeps the snapshot while it is
        recent, or if a ref reaches it.

        Parameters
        ----------
        message, metadata, allow_empty
            As for ``commit``.

        Raises
        ------
        InvalidInputError
            There is nothing to commit.
        CommitOutcomeUnknownError
            As for ``commit``.

        Examples
        --------
        >>> repository.create_tag("draft", session.flush("Try other units"))  # doctest: +SKIP
        """
        self._check_commit(allow_empty)
        stored = self._store(message, metadata)
        self._tip.add_detached(stored.info)
        return self._finish(stored).snapshot_id

    def rebase(self, *, resolve: Resolve | None = None, when_moved: WhenMoved | None = None) -> int:
        """Rebase the changes on the tip of the branch; return the number of new commits there.

        Nothing is written.

        Parameters
        ----------
        resolve, when_moved
            As for ``commit``.

        Raises
        ------
        ConflictError
            The changes conflict, or the branch was deleted or reset; the session is unchanged.
        """
        self._check_open()
        choose("resolve", resolve, (None, "ours", "theirs"))
        storage, base = self._storage, self._tree.base
        since = self._tip.commits_since(base.id)
        if since is None:
            return 0
        if since.commits is None:
            raise conflict_errors.history_left(storage, self.branch, base.id, since.tip)
        theirs, tip = self._commits_of(since.commits, since.tip)
        if when_moved is not None:
            when_moved(tip, theirs)
        detector = ConflictDetector(changes=self.changes, base=base, tip=tip, theirs=theirs)
        found = list(detector.conflicts())
        remaining = conflict_rules.resolved(found, resolve)
        if not remaining:
            sides = (self._tree, tip)
            groups = changed_groups(self.changes, base)
            remaining = length_conflicts(WorkingTree(tip, self.changes), sides, groups)
        if remaining:
            raise conflict_errors.conflicting(storage, self.branch, remaining)
        conflict_rules.rebased(self.changes, tip=tip, conflicts=found, resolve=resolve)
        self._tree = WorkingTree(tip, self.changes)
        self._times_rebased += 1
        plural = "s" * (len(since.commits) > 1)
        conflicts = f"{len(found)} resolved" if found else "no"
        _log.info(
            "rebased on %d newer commit%s of other writers to branch %s of %s, with %s"
            " conflicts; the newest is %s: %s",
            *(len(since.commits), plural, self.branch, storage.root_url, conflicts),
            *(since.tip, escaped(since.commits[-1].message)),
        )
        return len(since.commits)

    def length_conflicts(self, *sides: Snapshot) -> list[Conflict]:
        """Return arrays of one group with different lengths of a dimension after the changes.

        Dimensions on which the group disagreed in the base, or in a side, are not included.
        """
        tree = self._tree
        groups = changed_groups(self.changes, tree.base)
        return length_conflicts(tree, (tree.base, *sides), groups)

    def check_lengths(self) -> None:
        """Raise InvalidInputError if arrays of a group would have different lengths."""
        for found in self.length_conflicts():
            raise other_lengths(str(found.labels))

    # -- inside -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        """Raise ReadOnlyError if the session was committed."""
        if self._ended is not None:
            raise ReadOnlyError(
                f"this session has been {self._ended}; open another session to change more"
            )

    def _check_commit(self, allow_empty: bool) -> None:
        self._check_open()
        if not (allow_empty or self.has_changes):
            raise InvalidInputError(
                f"nothing to commit: this session on branch {self.branch!r} has changed nothing; "
                "allow_empty=True makes a snapshot without changes",
                branch=self.branch,
            )

    def _store(
        self,
        message: str,
        metadata: Mapping[str, Any] | None,
        *,
        replaced: SnapshotInfo | None = None,
        before: TransactionLog | None = None,
        lost: int = 0,
        beside: Iterable[tuple[str, bytes]] = (),
    ) -> StoredSnapshot:
        """Store manifests, snapshot and transaction log, before anything refers to them.

        An amendment has a snapshot that is ``replaced``, and its log ``before``.
        """
        spec_version = self.format.spec_version
        # Raises for metadata that are not JSON, and too many chunks for one log, before anything is
        # stored.
        items = commit_metadata(metadata, spec_version=spec_version, rebased=self._times_rebased)
        log, touched = self.changes.transaction_log(new_snapshot_id()), self.changes.touched()
        if before is not None:
            touched = joined_chunks(before, log, touched)
            log = joined_logs(before, log)
        encoded = EncodedLog(log, chunks=touched, spec_version=spec_version)
        # After a lost race small manifests are not joined, so that stored ones are reused.
        nodes, files = store_nodes(self._assembler, self._tree, joins_small=lost == 0)
        return store_snapshot(
            self._storage,
            self.format,
            base=self._tree.base,
            nodes=nodes,
            files=files,
            log=encoded,
            replaced=replaced,
            message=message,
            metadata=items,
            written=self._written,
            clock_is_known=lost > 0,
            beside=beside,
        )

    def _finish(self, stored: StoredSnapshot, lost: int = 0) -> CommitResult:
        """End the session after its commit, and return the result."""
        snapshot = stored.snapshot
        self._ended = f"committed as snapshot {snapshot.id}"
        self._written.add("manifests", self._assembler.files_written, self._assembler.bytes_written)
        self._tree = WorkingTree(snapshot, ChangeSet())
        remember_snapshot(self._storage, snapshot)
        races = f" ({lost} lost {'race' if lost == 1 else 'races'} before)" if lost else ""
        _log.info(
            "committed %s to branch %s of %s: %s%s",
            *(snapshot.id, self.branch, self._storage.root_url, escaped(snapshot.message), races),
        )
        return stored.result(self.branch, rebased=self._times_rebased)

    def _commits_of(
        self, since: Sequence[SnapshotInfo], tip_id: SnapshotId
    ) -> tuple[list[TheirCommit], Snapshot]:
        """Return the commits of other writers, oldest first, and the newest snapshot."""
        snapshot_of = {
            log_id: info.id for info in since for log_id in (*info.pruned_ancestor_tx_logs, info.id)
        }
        try:
            logs, tip = load_logs_and_tip(self._storage, list(snapshot_of), tip_id)
        except NotFoundError as error:
            if error.facts.get("file_type") != "transaction log":
                raise
            missing = next(i for i in snapshot_of if transaction_log_key(i) == error.facts["key"])
            raise conflict_errors.log_missing(
                self._storage, self.branch, missing, snapshot_of[missing]
            ) from error
        commits = zip(snapshot_of.values(), logs, strict=True)
        return [TheirCommit(snapshot_id=i, log=log) for i, log in commits], tip
