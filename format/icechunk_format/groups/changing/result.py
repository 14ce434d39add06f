"""Defines ``WriteResult``, and finds a write that is already committed by its transaction id."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing.shortened import has_expired
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.measures import Measures

if TYPE_CHECKING:
    from icechunk_format.encoding.repo_info.file import SnapshotInfo
    from icechunk_format.repository import RepositoryReader
    from icechunk_format.repository.commit import CommitResult

_log = logging.getLogger(__name__)

TXN_APP_ID: Final = "txnAppId"
TXN_VERSION: Final = "txnVersion"
#: Key of a commit's metadata that holds the id of the streaming query, as in its checkpoint.
TXN_QUERY: Final = "txnQuery"


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The result of a write.

    Attributes
    ----------
    branch
        The written branch.
    snapshot_id
        The tip of the branch after the write; unchanged if the write was skipped.
    is_skipped
        True if nothing was committed.
    reason
        Why the write was skipped; None otherwise.
    message
        The message of the commit; None if the write was skipped.
    dry_run
        True if the write was only planned.
    rows
        Number of written rows.
    chunks
        Number of written chunks of variables, without those of labels. Small chunks are stored in
        manifests, so there may be fewer objects. A dry run counts all chunks that the labels of the
        rows select, even if some have no row. Chunks of the ``replaceWhere`` region without rows
        are not counted.
    manifests
        Number of manifests that tasks have stored.
    commit
        The commit, and the files that it and the tasks have stored; None if the write was skipped.
    totals
        Requests, bytes, chunks and codec times of Spark's tasks; None for a write in this process.
    """

    branch: str
    snapshot_id: SnapshotId | None
    is_skipped: bool = False
    reason: str | None = None
    message: str | None = None
    dry_run: bool = False
    rows: int = 0
    chunks: int = 0
    manifests: int = 0
    commit: CommitResult | None = None
    totals: Measures | None = None

    @classmethod
    def skipped(
        cls, options: WriteOptions, snapshot_id: SnapshotId | None, reason: str
    ) -> WriteResult:
        """Return the result of a write that committed nothing."""
        return cls(branch=options.branch, snapshot_id=snapshot_id, is_skipped=True, reason=reason)


def txn_metadata(options: WriteOptions) -> dict[str, Any]:
    """Return the metadata of the commit: the user's, txnAppId and txnVersion."""
    found = dict(options.metadata or {})
    if options.txn_app_id is not None:
        found[TXN_APP_ID] = options.txn_app_id
        found[TXN_VERSION] = options.txn_version
    return found


def find_committed(repository: RepositoryReader, options: WriteOptions) -> WriteResult | None:
    """Return the result if exactly this txnVersion is already committed, else None.

    The skipped write is logged at WARNING. Raises InvalidInputError if the history cannot show
    whether the version was committed.
    """
    info = committed_before(repository, options)
    if info is None:
        return None
    reason = (
        f"txnAppId {options.txn_app_id!r} has already committed txnVersion {options.txn_version},"
        f" in snapshot {info.id}"
    )
    _log.warning(
        "skipped a write to branch %r of %s: %s; its rows were not stored again",
        options.branch,
        repository.location,
        reason,
    )
    return WriteResult.skipped(options, repository.resolve(branch=options.branch), reason)


def committed_before(repository: RepositoryReader, options: WriteOptions) -> SnapshotInfo | None:
    """Return the commit of exactly this txnVersion on the branch, or None.

    Versions may be committed in any order, so the whole history is read, except for batches of a
    stream. Raises InvalidInputError for a version below others if snapshots of this history have
    expired, since it may have been committed in one of them.
    """
    wanted, newest = options.txn_version, -1
    if wanted is None:
        return None
    for info in _commits_of(repository, options):
        version = info.metadata[TXN_VERSION]
        if version == wanted:
            return info
        newest = max(newest, version)
        if TXN_QUERY in info.metadata and newest < wanted:
            return None
    if newest > wanted and has_expired(repository, options.branch):
        raise InvalidInputError(
            f"txnVersion {wanted} of {options.txn_app_id!r} is older than its newest"
            f" one, {newest}, and older snapshots of branch {options.branch!r} have expired, so it"
            " cannot be determined whether it was committed: give a higher txnVersion, or another"
            " txnAppId",
            option=TXN_VERSION,
        )
    return None


def last_committed(repository: RepositoryReader, options: WriteOptions) -> SnapshotInfo | None:
    """Return the newest commit of the writer (txnAppId) on its branch, or None."""
    return next(_commits_of(repository, options), None)


def _commits_of(repository: RepositoryReader, options: WriteOptions) -> Iterator[SnapshotInfo]:
    """Yield the commits of the writer (txnAppId) on its branch, newest first."""
    if options.txn_app_id is None or options.branch not in repository.branches():
        return
    for info in repository.ancestry(branch=options.branch):
        items = info.metadata_items
        is_of_writer = items.get(TXN_APP_ID) == options.txn_app_id
        if is_of_writer and isinstance(items.get(TXN_VERSION), int):
            yield info
