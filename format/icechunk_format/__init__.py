"""The Icechunk format in Python: versioned Zarr v3 arrays on object storage, without Spark.

Start with ``Repository.open(url)``. Names are loaded on first use, because Spark's planner imports
this package at the first lookup of any data source, usually of another one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from icechunk_format.errors import (
    AlreadyExistsError,
    ChunkModifiedError,
    CommitOutcomeUnknownError,
    ConflictError,
    FormatError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    UnauthorizedVirtualChunkError,
    UnsupportedError,
)
from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.encoding.ids import SnapshotId
    from icechunk_format.storage.location import Location
    from icechunk_format.workflows.merging.repository import Repository

# Silent until a program configures logging.
logging.getLogger("icechunk_format").addHandler(logging.NullHandler())

__all__ = [
    "AlreadyExistsError",
    "ChunkModifiedError",
    "CommitOutcomeUnknownError",
    "ConflictError",
    "FormatError",
    "IcechunkError",
    "InvalidInputError",
    "Location",
    "NotFoundError",
    "ReadOnlyError",
    "Repository",
    "SnapshotId",
    "StorageError",
    "UnauthorizedVirtualChunkError",
    "UnsupportedError",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".storage.location": ["Location"],
        ".workflows.merging.repository": ["Repository"],
        ".encoding.ids": ["SnapshotId"],
        ".maintenance": ["maintenance"],
    },
    *__all__,
)
