"""Defines offsets of a stream in the history of a branch, and finds the end of a batch.

An offset is readable JSON: ``{"snapshot": "…", "position": 12}``. The stream has yielded all rows
up to and including this snapshot; the position is its number in the history, from 1. Before the
first batch of a stream from the beginning, the snapshot is null and the position 0.

Rules of this file
------------------
1. No state is kept between calls: everything is in an offset and the repository.
2. Without new snapshots the same offset is returned, since Spark compares offsets as strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.repository.files.metadata_files import load_transaction_log
from icechunk_format.repository.history.history import snapshots_after
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.file import SnapshotInfo
from icechunk_format.workflows.changes.steps import logs_of

if TYPE_CHECKING:
    from icechunk_format.repository import RepositoryReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The last snapshot whose rows a stream has yielded."""

    snapshot: SnapshotId | None
    position: int

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> Self:
        """Parse an offset from a checkpoint of Spark."""
        snapshot, position = json.get("snapshot"), json.get("position")
        if not isinstance(position, int) or not isinstance(snapshot, str | None):
            raise InvalidInputError(
                f"the checkpoint holds the offset {dict(json)!r}, which is not icechunk's:"
                " give the stream a separate checkpointLocation",
                offset=dict(json),
            )
        parsed = None if snapshot is None else SnapshotId.parse(snapshot)
        return cls(snapshot=parsed, position=position)

    def as_json(self) -> dict[str, Any]:
        """Return the offset as JSON for a checkpoint."""
        snapshot = None if self.snapshot is None else str(self.snapshot)
        return {"snapshot": snapshot, "position": self.position}


BEGINNING = Offset(snapshot=None, position=0)


def offset_of(repository: RepositoryReader, snapshot_id: SnapshotId) -> Offset:
    """Return the offset of a snapshot from its history, many files in spec version 1."""
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
    """Return the end of the batch after ``start``: at least one snapshot, within the limits.

    With ``any_history``, ``start`` may be missing in the history of ``tip``; the batch then ends at
    ``tip``.
    """
    if start.snapshot == tip:
        return start
    ancestry = repository.ancestry(snapshot=tip)
    if start.snapshot is None:
        newer: list[SnapshotInfo] | None = list(ancestry)
    else:
        newer = snapshots_after(start.snapshot, ancestry)
    if newer is None:
        if any_history:
            return offset_of(repository, tip)
        raise InvalidInputError(
            f"snapshot {start.snapshot}, the last one that the stream has read, is no longer in the"
            f" history of {tip}, in {repository.location}: {_why(repository, start.snapshot)}."
            " Set onHistoryChange=restart to continue with the differences of the two snapshots",
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
    """Return the number of snapshots within a limit of changed chunks; at least one."""
    total = 0
    for number, info in enumerate(infos):
        for log_id in logs_of([info]):
            try:
                log = load_transaction_log(repository.storage, log_id)
            except NotFoundError:  # first snapshots of version 1; planning raises for others
                continue
            total += sum(map(len, log.updated_chunks.values()))
        if total > max_chunks:
            return max(1, number)
    return len(infos)
