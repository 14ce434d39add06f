"""Stores encoded chunks of one array, many with one call to the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.dataset.writing.part import Destination
from icechunk_format.repository.files.chunk_files import store_chunks
from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
from icechunk_format.storage.batches import sized_batches

_BATCH_BYTES: Final = 32 * 2**20
_BATCH_CHUNKS: Final = 1024


def store_in_batches(
    destination: Destination, ndim: int, chunks: Iterable[tuple[Sequence[int], bytes]]
) -> Iterator[ChunkRefs]:
    """Store encoded chunks, each with its coordinates; yield their references batch by batch."""
    storage = destination.open_storage()
    threshold = destination.inline_threshold
    sized = ((chunk, len(chunk[1])) for chunk in chunks)
    for batch in sized_batches(sized, _BATCH_CHUNKS, _BATCH_BYTES):
        at = np.array([place for place, _ in batch], np.int64).reshape(len(batch), ndim)
        payloads = [payload for _, payload in batch]
        yield store_chunks(storage, at, payloads, inline_threshold=threshold)


def padded(metadata: ArrayMetadata, values: NDArray[Any], coords: Sequence[int]) -> NDArray[Any]:
    """Return the values of a chunk with fill values beyond the edge of the array."""
    shape = metadata.grid.full_chunk_shape(coords)
    if values.shape == shape:
        return values
    whole = metadata.fill_array(shape)
    whole[tuple(slice(0, size) for size in values.shape)] = values
    return whole
