"""Cuts values into chunks, stores encoded chunks in batches, and references as manifests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.dataset.writing.part import ArrayTarget, Destination, TaskReceipt
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.files.chunk_files import store_chunks
from icechunk_format.repository.files.manifest_files import ManifestReceipt, store_manifests
from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE, ChunkRefs
from icechunk_format.storage.batches import sized_batches

if TYPE_CHECKING:
    from icechunk_format.repository.session import WriteSession

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


def chunks_of(
    metadata: ArrayMetadata, start: Sequence[int], values: NDArray[Any]
) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
    """Yield the chunks of a block that begins at `start`, with their coordinates.

    Raises InvalidInputError if the block begins or ends inside of a chunk.
    """
    grid = metadata.grid
    stop = [low + size for low, size in zip(start, values.shape, strict=True)]
    first, last = grid.chunks_of_box(start, stop)
    for at in itertools.product(*map(range, first, last)):
        lower, upper = grid.box_of(at)
        if any(a < low for a, low in zip(lower, start, strict=True)) or any(
            b > high for b, high in zip(upper, stop, strict=True)
        ):
            raise InvalidInputError(
                f"a block of array {metadata.node_path} has the elements {list(start)} to {stop}, "
                f"and its chunk {list(at)} those of {list(lower)} to {list(upper)}; blocks hold "
                "whole chunks",
                variable=metadata.node_path.rpartition("/")[2],
                chunk=at,
            )
        # Axis by axis: an empty index of an array without axes would return a scalar.
        chunk = values
        for axis, (low, high, origin) in enumerate(zip(lower, upper, start, strict=True)):
            chunk = chunk[(slice(None),) * axis + (slice(low - origin, high - origin),)]
        yield at, chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkValues:
    """Values of an array that the driver stores, from the beginning of a chunk on."""

    metadata: ArrayMetadata
    start: int
    """The first element along the first axis."""
    values: NDArray[Any]

    @classmethod
    def changed(cls, metadata: ArrayMetadata, values: NDArray[Any], first: int) -> ChunkValues:
        """Return the values of an array from the chunk of its first changed element on."""
        start = 0
        if first:
            axis = metadata.grid.axes[0]
            start = axis.bounds(int(axis.chunk_of(np.array([first]))[0]))[0]
        return cls(metadata=metadata, start=start, values=values[start:] if start else values)

    def store(self, session: WriteSession) -> None:
        """Store the values, also chunks with only the fill value."""
        metadata, codecs = self.metadata, self.metadata.chunk_codecs()
        lower = [self.start, *[0] * (metadata.ndim - 1)][: metadata.ndim]
        coords, payloads = [], []
        for at, chunk in chunks_of(metadata, lower, self.values):
            coords.append(at)
            payloads.append(codecs.encode(padded(metadata, chunk, at)))
        if coords:
            rows = np.array(coords, np.int64).reshape(len(coords), metadata.ndim)
            session.set_chunks(metadata.node_path, rows, payloads)


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
