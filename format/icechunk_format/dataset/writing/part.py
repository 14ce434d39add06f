"""``WritePart``, which every task of a write receives, and ``TaskReceipt``, which it returns.

Both are pickled, so they hold no connection, no session, and nothing that grows with the number of
chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.dataset.reading.arrays.array_reader import ArrayReader
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.repository.files.manifest_files import ManifestFormat, ManifestReceipt
from icechunk_format.spec.ids import NodeId, SnapshotId
from icechunk_format.spec.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_format.dataset.cf.encode import VariableEncoder
    from icechunk_format.dataset.writing.cell_numbers import CellNumbers

UNIT = "_unit"
BLOCK = "_block"
"""In the layouts of chunks, the columns that say where rows belong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The repository that a write goes to, and the version that the write starts from."""

    location: Location
    base: SnapshotId | None
    """None where there is no repository yet."""
    manifest_format: ManifestFormat
    chunk_source: ChunkSource
    """Fetches chunks of ``base``."""

    def open_storage(self) -> Storage:
        """Return the repository's objects, opened in this process."""
        return open_storage(self.location)

    def reader(self, version: Snapshot, node: NodeSnapshot) -> ArrayReader:
        """Return a reader of the stored values of an array in a version."""
        return ArrayReader(
            storage=self.open_storage(),
            snapshot=version,
            variable=Variable(node),
            chunk_source=self.chunk_source,
        )

    @property
    def inline_threshold(self) -> int:
        """Encoded chunks of up to so many bytes become part of their reference."""
        return self.manifest_format.config.inline_chunk_threshold_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTarget:
    """An array that tasks write to.

    Parameters
    ----------
    dims
        Its dimensions, in its own order.
    metadata
        As it will be after the write.
    encoder
        Turns the column into stored values; None in the layouts of chunks.
    old_shape
        Its shape before the write; None for a new array.
    """

    name: str
    path: str
    node_id: NodeId
    dims: tuple[str, ...]
    metadata: ArrayMetadata
    encoder: VariableEncoder | None = None
    old_shape: tuple[int, ...] | None = None

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
    """Arrays that are written together, with all that their tasks have to know.

    Parameters
    ----------
    units
        How many units of work the rows fall into; a unit never goes to two tasks.
    input_schema
        Of the batches that tasks take.
    numbers
        How its cells are numbered; None in the layouts of chunks.
    table_dims
        All dimensions of the write.
    labels
        Labels by dimension, for messages; those of very long dimensions are left out.
    decoded
        In the layout ``chunks``: whether data are values.
    """

    destination: Destination
    number: int
    dims: tuple[str, ...]
    arrays: tuple[ArrayTarget, ...]
    units: int
    input_schema: pa.Schema
    numbers: CellNumbers | None = None
    table_dims: tuple[str, ...] = ()
    labels: Mapping[str, pa.Array] = field(default_factory=dict)
    decoded: bool = True

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(array.name for array in self.arrays)

    @property
    def is_distinct(self) -> bool:
        """Whether rows repeat along dimensions that the part has not, and must be made distinct."""
        return len(self.dims) < len(self.table_dims)

    def cell(self, indices: Mapping[str, int]) -> str:
        """Return the coordinates of a cell as a user knows them."""
        parts = []
        for dim, index in indices.items():
            labels = self.labels.get(dim)
            if labels is None or index >= len(labels):
                parts.append(f"{dim}[{index}]")
            else:
                value: Any = labels[index].as_py()
                parts.append(f"{dim}={value}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReceipt:
    """The files that a task has written; they count once ``finish_write`` gets the receipt.

    Parameters
    ----------
    part
        Number of the part.
    manifests
        By path of the array: the manifests that the task has stored.
    files, nbytes
        Chunk objects that the task has stored, and their bytes; others became part of a manifest.
    places
        URL prefixes that virtual references need a container for.
    """

    part: int
    rows: int
    manifests: Mapping[str, tuple[ManifestReceipt, ...]]
    files: int = 0
    nbytes: int = 0
    places: tuple[str, ...] = ()

    @property
    def chunks(self) -> int:
        """Number of chunks that the task has written."""
        return sum(receipt.num_chunk_refs for found in self.manifests.values() for receipt in found)
