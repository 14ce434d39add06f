"""Reads and changes repositories: refs, history, snapshots, manifests, chunks and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.repository.lifecycle.upgrade import UpgradeReport
    from icechunk_format.repository.reader import RepositoryReader
    from icechunk_format.repository.repository import Repository

__all__ = ["Repository", "RepositoryReader", "UpgradeReport"]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".lifecycle.upgrade": ["UpgradeReport"],
        ".reader": ["RepositoryReader"],
        ".repository": ["Repository"],
    },
)
