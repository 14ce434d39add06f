"""Stores encoded chunks in batches, and the references of each unit as manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.dataset.writing.part import ArrayTarget, Destination, TaskReceipt
from icechunk_format.repository.files.chunk_files import store_chunks
from icechunk_format.repository.files.manifest_files import ManifestReceipt, store_manifests
from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE, ChunkRefs
from icechunk_format.storage.batches import sized_batches

_BATCH_BYTES: Final = 32 * 2**20
_BATCH_CHUNKS: Final = 1024


def store_in_batches(
    destination: Destination, ndim: int, chunks: Iterable[tuple[Sequence[int], bytes]]
) -> Iterator[ChunkRefs]:
    """Store encoded chunks with their coordinates; yield their references batch by batch."""
    storage = destination.open_storage()
    threshold = destination.inline_threshold
    sized = ((chunk, len(chunk[1])) for chunk in chunks)
    for batch in sized_batches(sized, _BATCH_CHUNKS, _BATCH_BYTES):
        coords = np.array([at for at, _ in batch], np.int64).reshape(len(batch), ndim)
        payloads = [payload for _, payload in batch]
        yield store_chunks(storage, coords, payloads, inline_threshold=threshold)


def padded(metadata: ArrayMetadata, values: NDArray[Any], coords: Sequence[int]) -> NDArray[Any]:
    """Pad a chunk at the edge of the array with fill values."""
    shape = metadata.grid.full_chunk_shape(coords)
    if values.shape == shape:
        return values
    whole = metadata.fill_array(shape)
    whole[tuple(slice(0, size) for size in values.shape)] = values
    return whole


class UnitFiles:
    """Stores the references of a task's units as manifests; holds those of one unit in memory."""

    def __init__(self, destination: Destination, part: int = 0) -> None:
        self._destination = destination
        self._part = part
        self._arrays: dict[str, ArrayTarget] = {}
        self._refs: dict[str, list[ChunkRefs]] = {}
        self._receipts: dict[str, list[ManifestReceipt]] = {}
        self._files = self._nbytes = 0

    def add(self, array: ArrayTarget, refs: Iterable[ChunkRefs]) -> None:
        """Add references to the current unit."""
        self._arrays[array.path] = array
        for batch in refs:
            self._refs.setdefault(array.path, []).append(batch)
            is_native = batch.kind == KIND_NATIVE
            self._files += int(is_native.sum())
            self._nbytes += int(batch.length[is_native].sum())

    def end_unit(self) -> None:
        """Store the references of the unit: one manifest for each array, or several if large."""
        arrays = [self._arrays[path] for path in self._refs]
        parts = ((array.node_id, [ChunkRefs.concat(self._refs[array.path])]) for array in arrays)
        destination = self._destination
        stored = store_manifests(destination.open_storage(), destination.manifest_format, parts)
        for array, receipts in zip(arrays, stored, strict=True):
            self._receipts.setdefault(array.path, []).extend(receipts)
        self._refs = {}

    def receipt(self, rows: int = 0, prefixes: Iterable[str] = ()) -> TaskReceipt:
        """Store the last unit; return the receipt of the task."""
        self.end_unit()
        return TaskReceipt(
            part=self._part,
            rows=rows,
            manifests={path: tuple(found) for path, found in self._receipts.items()},
            files=self._files,
            nbytes=self._nbytes,
            prefixes=tuple(prefixes),
        )
