"""Opens arrays of a snapshot in the process of a task, from a picklable ``SnapshotSource``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import NotFoundError
from icechunk_format.groups.array_reader import ArrayReader, DecodedChunks
from icechunk_format.groups.positions import DimSelection
from icechunk_format.groups.variable import Variable
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.files import Loaded, load_snapshot, metadata_cache
from icechunk_format.repository.files.chunk_lookup import ChunkLookup
from icechunk_format.storage.location import open_storage
from icechunk_format.storage.protocol import Storage


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A snapshot of a repository and the access to its chunks; picklable."""

    chunk_source: ChunkSource
    snapshot_id: SnapshotId

    def open(self, kept_bytes: int = 0) -> SnapshotArrays:
        """Open the arrays in this process; see ``SnapshotArrays``."""
        storage = open_storage(self.chunk_source.location)
        snapshot = pinned_snapshot(storage, self.snapshot_id)
        return SnapshotArrays(self.chunk_source, snapshot, kept_bytes)


class SnapshotArrays:
    """Opens the arrays of a snapshot, each once for one task.

    ``kept_bytes`` limits the decoded chunks kept for neighbouring blocks.
    """

    def __init__(self, chunk_source: ChunkSource, snapshot: Snapshot, kept_bytes: int = 0) -> None:
        self.snapshot = snapshot
        self._chunk_source = chunk_source
        self._storage = open_storage(chunk_source.location)
        self._kept = DecodedChunks(kept_bytes) if kept_bytes else None
        self._variables: dict[str, Variable] = {}
        self._readers: dict[str, ArrayReader] = {}

    def variable(self, path: str) -> Variable:
        """Return an array of the snapshot by its path."""
        if path not in self._variables:
            node = self.snapshot.node(path)
            if node is None or node.array is None:
                raise NotFoundError(
                    f"snapshot {self.snapshot.id} has no array {path}; plan the job again",
                    kind="variable",
                    name=path,
                )
            self._variables[path] = Variable(node)
        return self._variables[path]

    def reader(self, path: str) -> ArrayReader:
        """Return the reader of an array by its path."""
        if path not in self._readers:
            self._readers[path] = self.reader_of(self.variable(path))
        return self._readers[path]

    def reader_of(self, variable: Variable) -> ArrayReader:
        """Return the reader of an array, which may be absent from the snapshot."""
        return ArrayReader(
            lookup=ChunkLookup(self._storage, variable.node),
            variable=variable,
            chunk_source=self._chunk_source,
            kept=self._kept,
        )

    def lookup(self, path: str) -> ChunkLookup:
        """Return the chunk lookup of an array; it does not need the codecs."""
        return ChunkLookup(self._storage, self.variable(path).node)

    def stored_labels(self, path: str, size: int, start: int, stop: int) -> NDArray[np.generic]:
        """Return labels ``[start, stop)`` of a dimension in their stored form."""

        def load(_: list[int]) -> list[Loaded[NDArray[Any]]]:
            values = self.reader(path).read([DimSelection.span(size, start, stop)])
            item = 64 if values.dtype.hasobject else values.dtype.itemsize
            return [Loaded(values, values.size * item + 500)]

        scope = self._chunk_source.cache_scope
        key = ("labels", scope, str(self.snapshot.id), path, start, stop)
        return metadata_cache().get_many([key], load)[0]


def pinned_snapshot(storage: Storage, snapshot_id: SnapshotId) -> Snapshot:
    """Load a snapshot once per process.

    ``load_snapshot`` reads a snapshot of spec version 1 each time, since expiration rewrites its
    parent id. A scan needs only the arrays, which never change.
    """

    def load(_: list[int]) -> list[Loaded[Snapshot]]:
        snapshot = load_snapshot(storage, snapshot_id)
        if snapshot.spec_version != 1:
            return [Loaded(snapshot, None)]
        return [Loaded(snapshot, snapshot.nodes.columns.nbytes)]

    key = ("pinned snapshot", storage.cache_scope, str(snapshot_id))
    return metadata_cache().get_many([key], load)[0]
