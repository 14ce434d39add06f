"""The Icechunk format in Python: versioned Zarr v3 arrays on object storage, without Spark.

``Repository.open(url)`` is where everything starts. Names are loaded when they are first used,
because Spark's planner imports this package at the first lookup of any data source, and most
lookups are of another one.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from icechunk_format.repository.repository import Repository
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.storage.location import Location

_HOME: Final = {
    "Location": "icechunk_format.storage.location",
    "Repository": "icechunk_format.repository.repository",
    "SnapshotId": "icechunk_format.spec.ids",
}

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


def __getattr__(name: str) -> Any:
    """Load a public name from the module where it lives."""
    if name == "maintenance":
        return import_module("icechunk_format.maintenance")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not loaded yet."""
    return [*__all__, "maintenance"]
