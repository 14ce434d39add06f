"""``Sides``: the two sides of a merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.repository.changes.change_set import ChangeSet
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.changes.conflicts import Conflict, TheirCommit
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.session import WriteSession
from icechunk_format.repository.session.committing import Resolve


class CannotMerge(Exception):
    """The arrays of a group cannot be merged by their labels; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The common snapshot, both tips, and the changes of each side.

    Parameters
    ----------
    theirs
        The commits of the target.
    ours
        The net log of the source.
    is_picked
        True if the base is the parent of a picked snapshot, which the target need not contain.
    chunks_changed
        Returns the changed chunks of an array of the source.
    """

    branch: str
    format: ManifestFormat
    chunk_source: ChunkSource
    base: Snapshot
    source: Snapshot
    target: Snapshot
    theirs: Sequence[TheirCommit]
    ours: TransactionLog
    is_picked: bool
    chunks_changed: Callable[[NodeId], ChunkChanges]


class GroupMerge:
    """Arrays of a group that are merged by their labels; this base class refuses to merge them."""

    group: NodePath

    def __init__(self, refusal: Conflict) -> None:
        self.refusal = refusal
        self.group = refusal.path

    def take_from(self, changes: ChangeSet) -> None:
        """Remove the changes of these arrays, except arrays that the source created."""

    def conflicts(self, resolve: Resolve | None, *, dry_run: bool) -> list[Conflict]:
        """Merge the chunks and store them unless ``dry_run``; return conflicts, settled or not."""
        return [self.refusal]

    def apply(self, session: WriteSession) -> None:
        """Apply the merged arrays to a session."""
