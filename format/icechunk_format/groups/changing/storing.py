"""Cuts values into chunks, and stores the chunks and the manifests of a task.

Rules of this file
------------------
1. A block of stored values begins and ends at edges of (outer) chunks, or at the end of the array.
   No two tasks write the same chunk.
2. A chunk of a block with only the fill value, compared bit by bit, is not stored.
3. If the array exists, the commit deletes the stored chunks of a block that became empty.
4. Memory is the block, one encoded batch, and the references of one unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE, ChunkRefs
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing.clearing import chunks_before, emptied
from icechunk_format.groups.changing.targets import ArrayTarget, Destination, TaskReceipt
from icechunk_format.groups.opened import SnapshotArrays
from icechunk_format.repository.files import ManifestReceipt, store_manifests
from icechunk_format.repository.files.chunk_files import store_chunks
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.measures import timed
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.fill_values import is_all_fill
from icechunk_format.zarr.zarr_json import ArrayMetadata

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


def chunks_in(
    grid: ChunkGrid, start: Sequence[int], shape: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Yield the coordinates, first elements and ends of the chunks of a block."""
    stop = [low + size for low, size in zip(start, shape, strict=True)]
    for at in itertools.product(*map(range, *grid.chunks_of_box(start, stop))):
        yield at, *grid.box_of(at)


def padded(metadata: ArrayMetadata, values: NDArray[Any], coords: Sequence[int]) -> NDArray[Any]:
    """Pad a chunk at the edge of the array with fill values."""
    shape = metadata.grid.full_chunk_shape(coords)
    if values.shape == shape:
        return values
    whole = metadata.fill_array(shape)
    whole[tuple(map(slice, values.shape))] = values
    return whole


def index_of_box(origin: Sequence[int], lower: Sequence[int], upper: Sequence[int]) -> Any:
    """Return the index of the elements ``[lower, upper)`` in a block that begins at ``origin``."""
    bounds = zip(origin, lower, upper, strict=True)
    # With the ellipsis, an array without axes remains an array.
    return (*[slice(low - at, high - at) for at, low, high in bounds], ...)


def chunks_of(
    metadata: ArrayMetadata, start: Sequence[int], values: NDArray[Any]
) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
    """Yield the chunks of a block that begins at `start`, with their coordinates.

    Raises InvalidInputError if the block begins or ends inside of a chunk.
    """
    stop = [low + size for low, size in zip(start, values.shape, strict=True)]
    for at, lower, upper in chunks_in(metadata.grid, start, values.shape):
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
        yield at, values[index_of_box(start, lower, upper)]


def encoded_chunks(
    metadata: ArrayMetadata, start: Sequence[int], values: NDArray[Any]
) -> tuple[NDArray[np.int64], list[bytes]]:
    """Return the coordinates and the bytes of all chunks of a block that begins at `start`."""
    codecs, coords, payloads = metadata.chunk_codecs(), [], []
    for at, chunk in chunks_of(metadata, start, values):
        coords.append(at)
        payloads.append(codecs.encode(padded(metadata, chunk, at)))
    return np.array(coords, np.int64).reshape(len(coords), metadata.ndim), payloads


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
        metadata = self.metadata
        lower = [self.start, *[0] * metadata.ndim][: metadata.ndim]
        coords, payloads = encoded_chunks(metadata, lower, self.values)
        if payloads:
            session.set_chunks(metadata.node_path, coords, payloads)


class TaskFiles:
    """Stores the chunks of a task, and one manifest for each array and unit, or several if large.

    Examples
    --------
    >>> files = TaskFiles(destination)
    >>> files.write(target, (0, 0), values)
    >>> receipt = files.receipt()
    """

    def __init__(self, destination: Destination, part: int = 0) -> None:
        self._destination = destination
        self._part = part
        self._codecs: dict[str, ChunkCodecs] = {}
        self._refs: dict[str, tuple[NodeId, list[ChunkRefs]]] = {}
        self._receipts: dict[str, list[ManifestReceipt]] = {}
        self._cleared: dict[str, list[NDArray[np.uint32]]] = {}
        self._files = self._nbytes = 0

    @cached_property
    def base(self) -> SnapshotArrays:
        """The arrays of the base, opened once for the task."""
        return self._destination.open_base()

    def read_into(
        self,
        values: NDArray[Any],
        array: ArrayTarget,
        lower: Sequence[int],
        upper: Sequence[int],
    ) -> None:
        """Copy the old values of a box of an array into ``values`` of the same shape."""
        end = array.old_end(lower, upper)
        if end is not None:
            old = self.base.reader(array.path).read_box(lower, end)
            values[index_of_box(lower, lower, end)] = old

    def codecs(self, array: ArrayTarget) -> ChunkCodecs:
        """Return the codecs of an array, made once for the task."""
        if array.path not in self._codecs:
            self._codecs[array.path] = array.metadata.chunk_codecs()
        return self._codecs[array.path]

    def write(
        self, array: ArrayTarget, start: Sequence[int], values: NDArray[Any]
    ) -> list[ChunkRefs]:
        """Store the values of the block that begins at the index `start`.

        Returns the references of the chunks that were stored. The commit deletes the others.

        Raises
        ------
        InvalidInputError
            The block ends or begins inside of a chunk or outside of the array, or the values have
            another data type.
        """
        fill = array.metadata.fill_value
        chunks = chunks_of(array.metadata, start, values)
        stored = self.write_chunks(array, (one for one in chunks if not is_all_fill(one[1], fill)))
        if array.old_shape is not None:
            stop = [low + size for low, size in zip(start, values.shape, strict=True)]
            block = chunks_before(array.metadata.grid, start, stop, array.metadata.shape)
            self.clear(array, block, stored)
        return stored

    def clear(
        self, array: ArrayTarget, coords: NDArray[Any], stored: Iterable[ChunkRefs] = ()
    ) -> None:
        """Delete the existing chunks among ``coords``, except the stored ones, in the commit."""
        empty = emptied(coords, stored)
        if len(empty):
            found = self.base.lookup(array.path).find(empty).positions
            self._cleared.setdefault(array.path, []).append(empty[found])

    def write_chunks(
        self, array: ArrayTarget, chunks: Iterable[tuple[Sequence[int], NDArray[Any]]]
    ) -> list[ChunkRefs]:
        """Encode and store chunks, clipped to the array; return their references."""
        encode, metadata = self.codecs(array).encode, array.metadata
        return self.write_encoded(
            array,
            ((at, timed("encode", encode, padded(metadata, chunk, at))) for at, chunk in chunks),
        )

    def write_encoded(
        self, array: ArrayTarget, chunks: Iterable[tuple[Sequence[int], bytes]]
    ) -> list[ChunkRefs]:
        """Store encoded chunks; return their references."""
        stored = list(store_in_batches(self._destination, array.metadata.ndim, chunks))
        for batch in stored:
            is_native = batch.kind == KIND_NATIVE
            self._files += int(is_native.sum())
            self._nbytes += int(batch.length[is_native].sum())
        self.add(array, stored)
        return stored

    def add(self, array: ArrayTarget, refs: Iterable[ChunkRefs]) -> None:
        """Add references to the current unit."""
        for batch in refs:
            self._refs.setdefault(array.path, (array.node_id, []))[1].append(batch)

    def end_unit(self) -> None:
        """Store the references of the unit: one manifest for each array, or several if large."""
        parts = ((node_id, [ChunkRefs.concat(refs)]) for node_id, refs in self._refs.values())
        destination = self._destination
        stored = store_manifests(destination.open_storage(), destination.manifest_format, parts)
        for path, receipts in zip(self._refs, stored, strict=True):
            if receipts:
                self._receipts.setdefault(path, []).extend(receipts)
        self._refs = {}

    def receipt(self, rows: int = 0, prefixes: Iterable[str] = ()) -> TaskReceipt:
        """Store the last unit; return the receipt of the task."""
        self.end_unit()
        return TaskReceipt(
            part=self._part,
            rows=rows,
            manifests={path: tuple(found) for path, found in self._receipts.items()},
            cleared={path: np.concatenate(parts) for path, parts in self._cleared.items()},
            files=self._files,
            nbytes=self._nbytes,
            prefixes=tuple(prefixes),
        )
