"""Reads history: branches, tags, snapshots, and the changes between two snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.repository.history.diff import Changes, add_up
    from icechunk_format.repository.history.graph import newest_first
    from icechunk_format.repository.history.history import History, snapshots_after
    from icechunk_format.repository.history.resolve import parse_cutoff

__all__ = ["Changes", "History", "add_up", "newest_first", "parse_cutoff", "snapshots_after"]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".diff": ["Changes", "add_up"],
        ".graph": ["newest_first"],
        ".history": ["History", "snapshots_after"],
        ".resolve": ["parse_cutoff"],
    },
)
