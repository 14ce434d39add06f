"""Commits the changes of a session, and rebases them if the branch has moved.

Rules of this file
------------------
1. A failed commit keeps the changes in the session, so that it can be repeated.
2. A rebase writes nothing; if it fails, the session is unchanged.

Specification: "Consistency and Optimistic Concurrency".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError, ReadOnlyError
from icechunk_format.repository.changes import conflicts as conflict_rules
from icechunk_format.repository.changes.change_set import ChangeSet
from icechunk_format.repository.changes.conflicts import ConflictDetector, TheirCommit
from icechunk_format.repository.changes.working_tree import WorkingTree
from icechunk_format.repository.commit.assemble import ManifestAssembler
from icechunk_format.repository.commit.commit import (
    CommitResult,
    StoredVersion,
    Written,
    commit_metadata,
    new_snapshot_id,
    pause_after_lost_race,
    planned_log,
    store_nodes,
    store_snapshot,
)
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.files.metadata_files import (
    load_newer_versions,
    load_transaction_log,
    remember_snapshot,
)
from icechunk_format.repository.state import conflict_errors
from icechunk_format.repository.state.branch_tip import BranchTip, CommitsSince
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.object_keys import transaction_log_key
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.spec.transaction_log import TransactionLog
from icechunk_format.storage.protocol import Storage

DEFAULT_REBASE_TRIES: Final = 1000
"""Rebases before a commit gives up; in each lost race, another writer's commit landed."""

_log = logging.getLogger(__name__)

OnConflict = Literal["rebase", "fail"]
Resolve = Literal["ours", "theirs"]
WhenMoved = Callable[["Snapshot", "Sequence[TheirCommit]"], None]


@dataclass(slots=True, kw_only=True, eq=False)
class SessionState:
    """The branch, changes and stored objects of a session."""

    storage: Storage
    tip: BranchTip
    tree: WorkingTree
    format: ManifestFormat
    assembler: ManifestAssembler
    written: Written = field(default_factory=Written)
    times_rebased: int = 0
    ended: str | None = None

    def check_open(self) -> None:
        """Raise ReadOnlyError if the session was committed."""
        if self.ended is not None:
            raise ReadOnlyError(
                f"this session has been {self.ended}; open another session to change more"
            )


def commit(
    state: SessionState,
    message: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    on_conflict: OnConflict = "rebase",
    resolve: Resolve | None = None,
    rebase_tries: int = DEFAULT_REBASE_TRIES,
    allow_empty: bool = False,
    when_moved: WhenMoved | None = None,
) -> CommitResult:
    """Commit the changes to the branch; see ``WriteSession.commit``."""
    _check_commit(state, on_conflict, resolve, allow_empty)
    if on_conflict == "rebase":
        # Rebasing before anything is stored costs no files.
        rebase(state, resolve=resolve, when_moved=when_moved)
    attempt = 0
    while True:
        began = time.monotonic()
        version = _store(
            state,
            message,
            metadata,
            parent_id=state.tree.base.id,
            attempt=attempt,
            beside=state.tip.copy_to_store(),
        )
        moved = state.tip.advance(version.info)
        if moved is None:
            return _landed(state, version, attempt)
        if on_conflict == "fail":
            raise conflict_errors.tip_moved(state.storage, moved, state.tree.base.id)
        attempt += 1
        if attempt > rebase_tries:
            raise ConflictError(
                f"branch {state.tip.branch!r} of {state.storage.root_url} was moved by other "
                f"writers {attempt} times during this commit; nothing was committed. Let "
                "fewer writers commit concurrently, or try again",
                branch=state.tip.branch,
                attempts=attempt,
            )
        _log.info(
            "attempt %d to commit to branch %s of %s lost a race: another writer committed %s"
            " first; checking for conflicts and trying again",
            *(attempt, state.tip.branch, state.storage.root_url, moved.tip),
        )
        pause_after_lost_race(attempt, time.monotonic() - began)
        rebase(state, resolve=resolve, when_moved=when_moved)


def amend(
    state: SessionState,
    message: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    allow_empty: bool = False,
) -> CommitResult:
    """Replace the newest snapshot of the branch; see ``WriteSession.amend``."""
    _check_commit(state, "fail", None, allow_empty)
    replaced = state.tip.amendable(state.tree.base.id)
    log = load_transaction_log(state.storage, state.tree.base.id)
    changes = state.tree.changes
    edited = not log.is_empty and not log.moved_nodes
    if (changes.moved and edited) or (changes.has_edits and log.moved_nodes):
        raise InvalidInputError(
            "a commit that moves nodes cannot be amended with other changes, nor the other way "
            "round; commit instead"
        )
    version = _store(
        state,
        message,
        metadata,
        parent_id=replaced.parent_id,
        pruned=replaced.pruned_ancestor_tx_logs,
        before=log,
    )
    moved = state.tip.amend(state.tree.base.id, version.info)
    if moved is not None:
        raise conflict_errors.tip_moved(state.storage, moved, state.tree.base.id)
    return _landed(state, version)


def flush(
    state: SessionState,
    message: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    allow_empty: bool = False,
) -> SnapshotId:
    """Store the changes as a detached snapshot; see ``WriteSession.flush``."""
    _check_commit(state, "fail", None, allow_empty)
    version = _store(state, message, metadata, parent_id=state.tree.base.id)
    state.tip.add_detached(version.info)
    return _landed(state, version).snapshot_id


def rebase(
    state: SessionState, *, resolve: Resolve | None = None, when_moved: WhenMoved | None = None
) -> int:
    """Rebase the changes over the newest snapshot of the branch; see ``WriteSession.rebase``."""
    state.check_open()
    check_choice("resolve", resolve, (None, "ours", "theirs"))
    since = state.tip.commits_since(state.tree.base.id)
    if since is None:
        return 0
    if not since.is_ancestor:
        raise conflict_errors.history_left(
            state.storage, state.tip.branch, state.tree.base.id, since.tip
        )
    theirs, tip = _versions_of(state, since)
    if when_moved is not None:
        when_moved(tip, theirs)
    changes = state.tree.changes
    detector = ConflictDetector(changes=changes, base=state.tree.base, tip=tip, theirs=theirs)
    found = list(detector.conflicts())
    remaining = conflict_rules.resolved(found, resolve)
    if remaining:
        raise conflict_errors.conflicting(state.storage, state.tip.branch, remaining)
    conflict_rules.rebased(changes, tip=tip, conflicts=found, resolve=resolve)
    state.tree = WorkingTree(tip, changes)
    state.times_rebased += 1
    if commits := since.commits:
        plural, conflicts = "s" * (len(commits) > 1), f"{len(found)} resolved" if found else "no"
        _log.info(
            "rebased on %d newer commit%s of other writers to branch %s of %s, with %s conflicts;"
            " the newest is %s: %s",
            *(len(commits), plural, state.tip.branch, state.storage.root_url, conflicts),
            *(since.tip, commits[-1].message),
        )
    return len(since.commits)


def _check_commit(
    state: SessionState, on_conflict: str, resolve: str | None, allow_empty: bool
) -> None:
    state.check_open()
    check_choice("on_conflict", on_conflict, ("rebase", "fail"))
    check_choice("resolve", resolve, (None, "ours", "theirs"))
    if not allow_empty and state.tree.changes.is_empty:
        raise InvalidInputError(
            f"nothing to commit: this session on branch {state.tip.branch!r} has changed nothing; "
            "allow_empty=True makes a snapshot without changes",
            branch=state.tip.branch,
        )


def _store(
    state: SessionState,
    message: str,
    metadata: Mapping[str, Any] | None,
    *,
    parent_id: SnapshotId | None,
    pruned: Sequence[SnapshotId] = (),
    before: TransactionLog | None = None,
    attempt: int = 0,
    beside: Iterable[tuple[str, bytes]] = (),
) -> StoredVersion:
    """Store manifests, snapshot and transaction log, before anything refers to them."""
    spec_version, tree = state.format.spec_version, state.tree
    snapshot_id = new_snapshot_id()
    # Raises for metadata that are not JSON, and too many chunks for one log, before anything is
    # stored.
    items = commit_metadata(metadata, spec_version=spec_version, rebased=state.times_rebased)
    log = planned_log(tree.changes, snapshot_id, before=before, spec_version=spec_version)
    # After a lost race small manifests are not joined, so that stored ones are reused.
    nodes, files = store_nodes(state.assembler, tree, joins_small=attempt == 0)
    return store_snapshot(
        state.storage,
        state.format,
        snapshot_id=snapshot_id,
        base=tree.base,
        nodes=nodes,
        files=files,
        log=log,
        parent_id=parent_id,
        pruned_ancestor_tx_logs=pruned,
        message=message,
        metadata=items,
        written=state.written,
        clock_is_known=attempt > 0,
        beside=beside,
    )


def _landed(state: SessionState, version: StoredVersion, lost: int = 0) -> CommitResult:
    state.ended = f"committed as snapshot {version.info.id}"
    state.written.add("manifests", state.assembler.files_written, state.assembler.bytes_written)
    state.tree = WorkingTree(version.snapshot, ChangeSet())
    remember_snapshot(state.storage, version.snapshot)
    races = f" ({lost} lost {'race' if lost == 1 else 'races'} before)" if lost else ""
    _log.info(
        "committed %s to branch %s of %s: %s%s",
        *(version.info.id, state.tip.branch, state.storage.root_url, version.info.message, races),
    )
    return version.landed(state.tip.branch, rebased=state.times_rebased)


def _versions_of(state: SessionState, since: CommitsSince) -> tuple[list[TheirCommit], Snapshot]:
    """Return the commits of other writers, oldest first, and the newest snapshot."""
    versions = {
        log_id: info.id
        for info in since.commits
        for log_id in (*info.pruned_ancestor_tx_logs, info.id)
    }
    try:
        logs, tip = load_newer_versions(state.storage, list(versions), since.tip)
    except NotFoundError as error:
        if error.facts.get("file_type") != "transaction log":
            raise
        missing = next(i for i in versions if transaction_log_key(i) == error.facts["key"])
        raise conflict_errors.log_missing(
            state.storage, state.tip.branch, missing, versions[missing]
        ) from error
    commits = zip(versions.values(), logs, strict=True)
    return [TheirCommit(snapshot_id=version, log=log) for version, log in commits], tip


def check_choice(name: str, found: object, allowed: tuple[object, ...]) -> None:
    """Raise InvalidInputError if an argument is not one of the allowed values."""
    if found not in allowed:
        raise InvalidInputError(
            f"{name} is {found!r}; {', '.join(map(repr, allowed))} are allowed",
            found=found,
            allowed=allowed,
        )
