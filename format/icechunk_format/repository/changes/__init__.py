"""Uncommitted changes of a session, and conflicts with the changes of other writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.repository.changes.change_set import ChangeSet, metadata_of, move_of
    from icechunk_format.repository.changes.chunk_changes import ChunkChanges
    from icechunk_format.repository.changes.conflicts import (
        Conflict,
        ConflictDetector,
        ConflictKind,
        TheirCommit,
        rebased,
        resolved,
    )
    from icechunk_format.repository.changes.group_lengths import changed_groups, length_conflicts
    from icechunk_format.repository.changes.meaning import (
        MISSING,
        OF_VALUES,
        PACKING,
        same_aspects,
        same_meaning,
    )
    from icechunk_format.repository.changes.working_tree import WorkingTree

__all__ = [
    "MISSING",
    "OF_VALUES",
    "PACKING",
    "ChangeSet",
    "ChunkChanges",
    "Conflict",
    "ConflictDetector",
    "ConflictKind",
    "TheirCommit",
    "WorkingTree",
    "changed_groups",
    "length_conflicts",
    "metadata_of",
    "move_of",
    "rebased",
    "resolved",
    "same_aspects",
    "same_meaning",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".change_set": ["ChangeSet", "metadata_of", "move_of"],
        ".chunk_changes": ["ChunkChanges"],
        ".conflicts": [
            "Conflict",
            "ConflictDetector",
            "ConflictKind",
            "TheirCommit",
            "rebased",
            "resolved",
        ],
        ".group_lengths": ["changed_groups", "length_conflicts"],
        ".meaning": ["MISSING", "OF_VALUES", "PACKING", "same_aspects", "same_meaning"],
        ".working_tree": ["WorkingTree"],
    },
)
