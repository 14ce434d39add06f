"""Defines ``WritePart``, the context of a write's tasks, and ``TaskReceipt``, their result.

Both are pickled, so they hold no connection, and their size does not grow with the number of
chunks.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import ROOT, NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.groups import ArrayReader, DimSelection, SnapshotSource, Variable
from icechunk_format.groups.opened import SnapshotArrays
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.repository.files.manifest_files import ManifestFormat, ManifestReceipt
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage
from icechunk_format.zarr.zarr_json import ArrayMetadata

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_format.tables.cf.encode import VariableEncoder
    from icechunk_format.tables.writing.cell_numbers import CellNumbers

UNIT = "_unit"
BLOCK = "_block"
"""Columns with the unit number and the block number of a row, in the layouts of chunks."""


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
    encoder: VariableEncoder | None = None
    """Encodes the column; None in the layouts of chunks."""
    old_shape: tuple[int, ...] | None = None
    """None for a new array."""
    region: tuple[DimSelection, ...] | None = None
    """Old positions along each axis that ``replaceWhere`` selects; cells without a row become
    missing."""

    @classmethod
    def of_new(cls, metadata: ArrayMetadata, encoder: VariableEncoder | None = None) -> ArrayTarget:
        """Return the target for a new array, with a new id."""
        names = metadata.dimension_names or (None,) * metadata.ndim
        return cls(
            name=metadata.node_path.rpartition("/")[2],
            path=metadata.node_path,
            node_id=new_node_id(),
            dims=tuple(dim or f"dim_{axis}" for axis, dim in enumerate(names)),
            metadata=metadata,
            encoder=encoder,
        )

    @classmethod
    def of_existing(
        cls, variable: Variable, metadata: ArrayMetadata, encoder: VariableEncoder | None = None
    ) -> ArrayTarget:
        """Return the target for an array of the repository, with its metadata after the write."""
        return cls(
            name=variable.name,
            path=variable.path,
            node_id=variable.node.id,
            dims=variable.dims,
            metadata=metadata,
            encoder=encoder,
            old_shape=variable.shape,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePart:
    """The context of the tasks of arrays that are written together."""

    destination: Destination
    number: int
    dims: tuple[str, ...]
    arrays: tuple[ArrayTarget, ...]
    units: int
    """Number of units; one task writes all rows of a unit."""
    input_schema: pa.Schema
    """The schema of the batches that tasks take."""
    numbers: CellNumbers | None = None
    """None in the layouts of chunks."""
    table_dims: tuple[str, ...] = ()
    """All dimensions of the write."""
    labels: Mapping[str, pa.Array] = field(default_factory=dict)
    """Labels by dimension for messages, without very long dimensions."""
    decoded: bool = True
    """In the layout ``chunks``: True if data are values."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(array.name for array in self.arrays)

    @property
    def is_distinct(self) -> bool:
        """True if rows repeat along other dimensions of the table, and must be made distinct."""
        return len(self.dims) < len(self.table_dims)

    def cell(self, indices: Mapping[str, int]) -> str:
        """Return the labels of a cell, such as ``time=2024-01-01, x[7]``, for messages."""
        parts = []
        for dim, index in indices.items():
            labels = self.labels.get(dim)
            if labels is None or index >= len(labels):
                parts.append(f"{dim}[{index}]")
            else:
                parts.append(f"{dim}={labels[index].as_py()}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReceipt:
    """The files that a task has stored, and that ``finish_write`` commits."""

    part: int
    """Number of the part."""
    rows: int
    manifests: Mapping[str, tuple[ManifestReceipt, ...]]
    """By path of the array."""
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


def joined_chunks(found: Iterable[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Join coordinates of chunks, given by path of the array."""
    joined: dict[str, list[NDArray[Any]]] = {}
    for chunks in found:
        for path, coords in chunks.items():
            joined.setdefault(path, []).append(coords)
    return {path: np.concatenate(parts) for path, parts in joined.items()}


def path_in(group: NodePath, name: str) -> str:
    """Return the path of an array of a group."""
    return f"{'' if group == ROOT else group}/{name}"
