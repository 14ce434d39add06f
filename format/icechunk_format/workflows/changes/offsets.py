"""Positions of a stream in the history of a branch, and how far the next batch goes.

An offset is JSON that people can read: ``{"snapshot": "…", "position": 12}``. The stream has told
all rows up to that snapshot; the position counts the snapshots before it and itself. Before the
first batch of a stream from the beginning, the snapshot is null and the position 0.

Rules of this file
------------------
1. Nothing is kept between two calls: an offset and the repository say everything.
2. An offset that did not move is returned unchanged, since Spark compares offsets as texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.repository.files.metadata_files import load_transaction_log
from icechunk_format.repository.history.history import versions_after
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.file import SnapshotInfo

if TYPE_CHECKING:
    from icechunk_format.repository.reader import RepositoryReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """How far a stream has come."""

    snapshot: SnapshotId | None
    position: int

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Self:
        """Read an offset that Spark kept.

        Raises
        ------
        InvalidInputError
            It is none of a stream from a repository.
        """
        snapshot, position = told.get("snapshot"), told.get("position")
        if not isinstance(position, int) or not isinstance(snapshot, str | None):
            raise InvalidInputError(
                f"the checkpoint holds the offset {dict(told)!r}, which is none of icechunk: give"
                " the stream a checkpointLocation of its own",
                offset=dict(told),
            )
        parsed = None if snapshot is None else SnapshotId.parse(snapshot)
        return cls(snapshot=parsed, position=position)

    def as_json(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it."""
        snapshot = None if self.snapshot is None else str(self.snapshot)
        return {"snapshot": snapshot, "position": self.position}


BEGINNING = Offset(snapshot=None, position=0)


def offset_of(repository: RepositoryReader, snapshot_id: SnapshotId) -> Offset:
    """Return the offset of a version; reads its history, which version 1 keeps in many files."""
    count = sum(1 for _ in repository.ancestry(snapshot=snapshot_id))
    return Offset(snapshot=snapshot_id, position=count)


def next_offset(
    repository: RepositoryReader,
    start: Offset,
    tip: SnapshotId,
    *,
    max_snapshots: int | None = None,
    max_chunks: int | None = None,
    any_history: bool = False,
) -> Offset:
    """Return where the batch after ``start`` ends.

    Parameters
    ----------
    tip
        The newest version that the stream may tell.
    max_snapshots, max_chunks
        Limits of a batch; it takes one snapshot at least.
    any_history
        Whether ``start`` may have left the history of ``tip``; the batch then goes to ``tip``.

    Raises
    ------
    InvalidInputError
        ``start`` has left the history of ``tip``.
    """
    if start.snapshot == tip:
        return start
    ancestry = repository.ancestry(snapshot=tip)
    if start.snapshot is None:
        newer: list[SnapshotInfo] | None = list(ancestry)
    else:
        newer = versions_after(start.snapshot, ancestry)
    if newer is None:
        if any_history:
            return offset_of(repository, tip)
        raise InvalidInputError(
            f"snapshot {start.snapshot}, up to which the stream has come, is not in the history of"
            f" {tip} any more, in {repository.location}: {_why(repository, start.snapshot)}."
            " Set onHistoryChange=restart to go on with the differences of the two versions",
            snapshot_id=str(start.snapshot),
        )
    taken = newer[::-1][:max_snapshots]
    if max_chunks is not None:
        taken = taken[: _within(repository, taken, max_chunks)]
    return Offset(snapshot=taken[-1].id, position=start.position + len(taken))


def _why(repository: RepositoryReader, snapshot_id: SnapshotId | None) -> str:
    try:
        repository.resolve(snapshot=snapshot_id)
    except NotFoundError:
        return "it has expired, or its branch was deleted"
    return "the branch was reset, or the commit was amended"


def _within(repository: RepositoryReader, infos: Sequence[SnapshotInfo], max_chunks: int) -> int:
    """Return how many snapshots changed no more chunks than a limit; one at least."""
    total = 0
    for number, info in enumerate(infos):
        for log_id in (*info.pruned_ancestor_tx_logs, info.id):
            try:
                log = load_transaction_log(repository.storage, log_id)
            except NotFoundError:  # of a first snapshot in version 1; planning reports others
                continue
            total += sum(map(len, log.updated_chunks.values()))
        if total > max_chunks:
            return max(1, number)
    return len(infos)
