"""``Sides``: the two sides of a merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.groups.changing import Destination
from icechunk_format.repository.changes import ChunkChanges, TheirCommit


class CannotMerge(Exception):
    """The arrays of a group cannot be merged by their labels; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The common snapshot, both tips, and the changes of each side.

    Parameters
    ----------
    destination
        The target, as the destination of a write.
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
    destination: Destination
    base: Snapshot
    source: Snapshot
    target: Snapshot
    theirs: Sequence[TheirCommit]
    ours: TransactionLog
    is_picked: bool
    chunks_changed: Callable[[NodeId], ChunkChanges]
