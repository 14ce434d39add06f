"""Defines the repository and the arrays that tasks write to, and ``TaskReceipt``, their result.

All are pickled, so they hold no connection, and their size does not grow with the number of chunks.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import ROOT, NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.groups.array_reader import ArrayReader
from icechunk_format.groups.opened import SnapshotArrays, SnapshotSource
from icechunk_format.groups.variable import Variable
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.files import ManifestFormat, ManifestReceipt
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage
from icechunk_format.zarr.zarr_json import ArrayMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The repository that a write changes, and the snapshot on which it is based."""

    location: Location
    base: SnapshotId | None
    """None if the repository does not exist yet."""
    manifest_format: ManifestFormat
    chunk_source: ChunkSource
    """Fetches chunks of ``base``."""

    def open_storage(self) -> Storage:
        """Open the storage of the repository in this process."""
        return open_storage(self.location)

    def open_base(self) -> SnapshotArrays:
        """Open the arrays of ``base``, which must exist, in this process."""
        assert self.base is not None
        return SnapshotSource(self.chunk_source, self.base).open()

    def reader(self, snapshot: Snapshot, variable: Variable) -> ArrayReader:
        """Return a reader of the stored values of an array of a snapshot."""
        return SnapshotArrays(self.chunk_source, snapshot).reader_of(variable)

    @property
    def inline_threshold(self) -> int:
        """The largest size of an inline chunk in bytes."""
        return self.manifest_format.config.inline_chunk_threshold_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTarget:
    """An array that tasks write to."""

    name: str
    path: str
    node_id: NodeId
    dims: tuple[str, ...]
    metadata: ArrayMetadata
    """The document of the array after the write."""
    old_shape: tuple[int, ...] | None = None
    """None for a new array."""

    def old_end(self, lower: Sequence[int], upper: Sequence[int]) -> list[int] | None:
        """Return the end of a box within the old array; None if the box is outside of it."""
        old = self.old_shape
        if old is None or any(low >= size for low, size in zip(lower, old, strict=True)):
            return None
        return [min(high, size) for high, size in zip(upper, old, strict=True)]

    @classmethod
    def of_new(cls, metadata: ArrayMetadata) -> Self:
        """Return the target for a new array, with a new id."""
        names = metadata.dimension_names or (None,) * metadata.ndim
        return cls(
            name=metadata.node_path.rpartition("/")[2],
            path=metadata.node_path,
            node_id=new_node_id(),
            dims=tuple(dim or f"dim_{axis}" for axis, dim in enumerate(names)),
            metadata=metadata,
        )

    @classmethod
    def of_existing(cls, variable: Variable, metadata: ArrayMetadata) -> Self:
        """Return the target for an array of the repository, with its metadata after the write."""
        return cls(
            name=variable.name,
            path=variable.path,
            node_id=variable.node.id,
            dims=variable.dims,
            metadata=metadata,
            old_shape=variable.shape,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReceipt:
    """The files that a task has stored, and the chunks to delete, for the commit."""

    part: int = 0
    """Number of the part."""
    rows: int = 0
    manifests: Mapping[str, tuple[ManifestReceipt, ...]]
    """By path of the array."""
    cleared: Mapping[str, NDArray[np.uint32]] = field(default_factory=dict)
    """By path of the array, chunks to delete, ``uint32 (n, ndim)``."""
    files: int = 0
    nbytes: int = 0
    """Number and bytes of chunk objects, without inline chunks."""
    prefixes: tuple[str, ...] = ()
    """URL prefixes of virtual references that need a container."""

    @property
    def chunks(self) -> int:
        """Number of chunks written by the task."""
        return sum(receipt.num_chunk_refs for found in self.manifests.values() for receipt in found)


def new_node_id() -> NodeId:
    """Generate the id of a new array."""
    return NodeId(secrets.token_bytes(NodeId.SIZE))


def cleared_by(receipts: Iterable[TaskReceipt]) -> dict[str, NDArray[np.uint32]]:
    """Return the chunks that tasks delete, by path of the array."""
    joined: dict[str, list[NDArray[np.uint32]]] = {}
    for receipt in receipts:
        for path, coords in receipt.cleared.items():
            joined.setdefault(path, []).append(coords)
    return {path: np.concatenate(parts) for path, parts in joined.items()}


def path_in(group: NodePath, name: str) -> str:
    """Return the path of an array of a group."""
    return f"{'' if group == ROOT else group}/{name}"
