"""The state of a repository in the repo info file: refs, history and log.

``RepoInfo`` refers to snapshots by id; the file by their index in a list.

Specification: "Repo Info File".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.encoding import object_keys
from icechunk_format.encoding.envelope import SPEC_V2, FileType
from icechunk_format.encoding.ids import IdSet, SnapshotId
from icechunk_format.encoding.repo_info.updates import RepoStatus, Update
from icechunk_format.encoding.values.metadata_items import NO_ITEMS, MetadataItems
from icechunk_format.errors import FormatError, NotFoundError


class SnapshotIds(Sequence[SnapshotId]):
    """Sequence of ids stored as uint8 of shape (n, 12); each object is made on access."""

    __slots__ = ("raw",)

    def __init__(self, raw: NDArray[np.uint8]) -> None:
        self.raw = raw

    @classmethod
    def of(cls, ids: Sequence[SnapshotId]) -> SnapshotIds:
        """Convert a sequence of ids."""
        return ids if isinstance(ids, cls) else cls(SnapshotId.rows(ids))

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, at: Any) -> Any:
        found = self.raw[at]
        return SnapshotIds(found) if isinstance(at, slice) else SnapshotId(found.tobytes())

    def __iter__(self) -> Iterator[SnapshotId]:
        return iter(SnapshotId.many(self.raw.tobytes()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))


@shown_by("history.info")
@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """Summary of a snapshot, without its nodes.

    Attributes
    ----------
    id
        The snapshot.
    parent_id
        Its parent; None for the root of a history.
    flushed_at
        Time of the commit, in microseconds since 1970-01-01T00:00:00Z.
    message
        Message of the commit.
    metadata_items
        Commit metadata as stored; ``metadata`` decodes it.
    pruned_ancestor_tx_logs
        Transaction logs of former ancestors between the parent and this snapshot, oldest first.
    """

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: int
    message: str
    metadata_items: MetadataItems = NO_ITEMS
    pruned_ancestor_tx_logs: Sequence[SnapshotId] = ()

    @property
    def metadata(self) -> dict[str, Any]:
        """Commit metadata as JSON values; FormatError if a value is damaged."""
        return self.metadata_items.decode()


class SnapshotLines(Mapping[SnapshotId, SnapshotInfo]):
    """Mapping of snapshots with a fast walk along parents."""

    @abstractmethod
    def line(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Yield a listed snapshot and its ancestors; raise FormatError if parents form a cycle."""


def broken_line(snapshot_id: SnapshotId, problem: str) -> FormatError:
    """Return the error for a history that does not end at a root."""
    return FormatError(
        f"snapshot {snapshot_id} {problem}; history must end at a snapshot without parent",
        object_key=object_keys.REPO,
        file_type=FileType.REPO_INFO.label,
        field="snapshots.parent_offset",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoInfo:
    """The state of a repository: its refs, its history and its log.

    Parameters
    ----------
    tags, branches
        Name to snapshot.
    deleted_tags
        Names of deleted tags, sorted; they cannot be reused.
    snapshots
        Id to summary, for all snapshots, sorted by id.
    latest_updates
        The newest part of the operations log, newest first.
    repo_before_updates
        Name below ``overwritten/`` of the backup that continues the log; None if it is complete.
    metadata_items
        Metadata of the repository as stored; ``metadata`` decodes it.
    config
        Configuration as the stored FlexBuffer; None for the defaults.
    enabled_feature_flags, disabled_feature_flags
        Numbers of the flags, ascending; None if no flag was ever set.
    """

    spec_version: int = SPEC_V2
    tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    branches: Mapping[str, SnapshotId] = field(default_factory=dict)
    deleted_tags: tuple[str, ...] = ()
    snapshots: Mapping[SnapshotId, SnapshotInfo] = field(default_factory=dict)
    status: RepoStatus
    latest_updates: tuple[Update, ...] = ()
    repo_before_updates: str | None = None
    metadata_items: MetadataItems = NO_ITEMS
    config: bytes | None = None
    enabled_feature_flags: tuple[int, ...] | None = None
    disabled_feature_flags: tuple[int, ...] | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the repository as JSON values; FormatError if a value is damaged."""
        return self.metadata_items.decode()

    def check_listed(self, snapshot_id: SnapshotId) -> None:
        """Raise NotFoundError if the repository does not list a snapshot."""
        if snapshot_id not in self.snapshots:
            raise NotFoundError(
                f"snapshot {snapshot_id} is not among the {len(self.snapshots)} snapshots of "
                "this repository",
                kind="snapshot",
                name=str(snapshot_id),
            )

    def transaction_logs(self) -> frozenset[SnapshotId]:
        """Return the ids of all logs that the state refers to."""
        found = IdSet.of(self.snapshots)
        for snapshot in self.snapshots.values():
            found.add(SnapshotIds.of(snapshot.pruned_ancestor_tx_logs).raw)
        return frozenset(SnapshotId.many(found.ids().tobytes()))

    def ancestry(self, snapshot_id: SnapshotId) -> list[SnapshotInfo]:
        """Return a snapshot and its ancestors, newest first; FormatError for a cycle of parents."""
        return list(self.walk(snapshot_id))

    def walk(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Yield the snapshots of ``ancestry`` on demand."""
        self.check_listed(snapshot_id)
        if isinstance(self.snapshots, SnapshotLines):
            return self.snapshots.line(snapshot_id)
        return self._line(snapshot_id)

    def _line(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        seen: set[SnapshotId] = set()
        next_id: SnapshotId | None = snapshot_id
        while next_id is not None:
            info = self.snapshots.get(next_id)
            if next_id in seen or info is None:
                what = "is its own ancestor" if info else "is a parent, but is not listed"
                raise broken_line(next_id, what)
            seen.add(next_id)
            yield info
            next_id = info.parent_id
