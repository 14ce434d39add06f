"""``WriteContext``, which every task of a write receives, and ``TaskReceipt``, which it returns.

Both are pickled, so they hold no connection, no session, and nothing that grows with the number of
chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE
from icechunk_format.storage.location import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from icechunk_format.arrays.zarr_json import ArrayMetadata
    from icechunk_format.dataset.cf.encode import VariableEncoder
    from icechunk_format.dataset.writing.cell_numbers import CellNumbers
    from icechunk_format.repository.chunks.source import ChunkSource
    from icechunk_format.repository.files.manifest_files import ManifestFormat, ManifestReceipt
    from icechunk_format.spec.ids import NodeId, SnapshotId
    from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
    from icechunk_format.storage.location import Location
    from icechunk_format.storage.protocol import Storage

UNIT = "_unit"
BLOCK = "_block"
"""In the layouts of chunks, the columns that say where rows belong."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """What all tasks of one part of a write share.

    Parameters
    ----------
    numbers
        How its cells are numbered; None in the layouts of chunks.
    table_dims
        All dimensions of the write, for messages.
    base
        The version that partial chunks are patched from.
    chunk_source
        How to fetch chunks of that version.
    labels
        Labels by dimension, for messages; those of very long dimensions are left out.
    decoded
        In the layout ``chunks``: whether data are values.
    """

    location: Location
    part: int
    dims: tuple[str, ...]
    numbers: CellNumbers | None = None
    arrays: tuple[ArrayTarget, ...]
    table_dims: tuple[str, ...] = ()
    base: SnapshotId | None
    chunk_source: ChunkSource
    manifest_format: ManifestFormat
    labels: Mapping[str, pa.Array] = field(default_factory=dict)
    decoded: bool = True

    def open_storage(self) -> Storage:
        """Return the repository's objects, opened in this process."""
        return open_storage(self.location)

    @property
    def inline_threshold(self) -> int:
        """Encoded chunks of up to so many bytes become part of their reference."""
        return self.manifest_format.config.inline_chunk_threshold_bytes

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


def native_sizes(refs: ChunkRefs) -> tuple[int, int]:
    """Return how many references are to objects of the repository, and the bytes of these."""
    own = refs.kind == KIND_NATIVE
    return int(own.sum()), int(refs.length[own].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReceipt:
    """What a task has written; it counts once it is handed to ``finish_write``.

    Parameters
    ----------
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
        """How many chunks the task has written."""
        return sum(receipt.num_chunk_refs for found in self.manifests.values() for receipt in found)
