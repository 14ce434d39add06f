"""Reads and writes a group as tables: CF decoding, selections, metadata tables, plans and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.tables.dataset import Dataset, MissingChunks, open_dataset

__all__ = ["Dataset", "MissingChunks", "open_dataset"]

__getattr__, __dir__ = loaded_on_use(__name__, {".dataset": __all__})
