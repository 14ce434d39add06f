"""Stores the changes of a session as manifests, a snapshot and a transaction log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.repository.commit.commit import CommitResult, new_snapshot_id

__all__ = ["CommitResult", "new_snapshot_id"]

__getattr__, __dir__ = loaded_on_use(__name__, {".commit": ["CommitResult", "new_snapshot_id"]})
