"""Stores encoded chunks of one array, many with one call to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icechunk_format.repository.files.chunk_files import store_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icechunk_format.arrays.zarr_json import ArrayMetadata
    from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
    from icechunk_format.storage.protocol import Storage

_BATCH_BYTES: Final = 32 * 2**20
_BATCH_CHUNKS: Final = 1024


class ChunkBatches:
    """Takes chunks one by one, and stores them in batches of bounded size."""

    def __init__(self, storage: Storage, ndim: int, *, inline_threshold: int) -> None:
        self._storage = storage
        self._ndim = ndim
        self._inline_threshold = inline_threshold
        self._found: list[ChunkRefs] = []
        self._coords: list[Sequence[int]] = []
        self._payloads: list[bytes] = []
        self._nbytes = 0

    def add(self, coords: Sequence[int], payload: bytes) -> None:
        """Take an encoded chunk; no two have the same coordinates."""
        self._coords.append(coords)
        self._payloads.append(payload)
        self._nbytes += len(payload)
        if self._nbytes >= _BATCH_BYTES or len(self._payloads) >= _BATCH_CHUNKS:
            self._store()

    def finish(self) -> list[ChunkRefs]:
        """Store what is left; return the references of all chunks, batch by batch."""
        if self._payloads:
            self._store()
        return self._found

    def _store(self) -> None:
        at = np.array(self._coords, np.int64).reshape(len(self._coords), self._ndim)
        refs = store_chunks(
            self._storage, at, self._payloads, inline_threshold=self._inline_threshold
        )
        self._found.append(refs)
        self._coords, self._payloads, self._nbytes = [], [], 0


def padded(metadata: ArrayMetadata, values: NDArray[Any], coords: Sequence[int]) -> NDArray[Any]:
    """Return the values of a chunk with fill values beyond the edge of the array."""
    shape = metadata.grid.full_chunk_shape(coords)
    if values.shape == shape:
        return values
    whole = metadata.fill_array(shape)
    whole[tuple(slice(0, size) for size in values.shape)] = values
    return whole
