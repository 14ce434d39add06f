"""Stores blocks of arrays as chunks and manifests, in the task that made the values.

Rules of this file
------------------
1. A block holds stored values, and begins and ends at edges of (outer) chunks, or at the end of the
   array. No two tasks write the same chunk.
2. A chunk with only the fill value, compared bit by bit, is not stored.
3. Memory is the block, one encoded batch, and the references of the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from icechunk_format.arrays.codecs.chain import ChunkCodecs
from icechunk_format.arrays.fill_values import is_all_fill
from icechunk_format.dataset.writing.part import ArrayTarget, Destination, TaskReceipt
from icechunk_format.dataset.writing.storing import UnitFiles, chunks_of, padded, store_in_batches
from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
from icechunk_format.storage.measures import timed


class ArrayBlocks:
    """Writes the blocks of one task, with one manifest for each array, or several if large.

    Examples
    --------
    >>> blocks = ArrayBlocks(destination)
    >>> blocks.write(target, (0, 0), values)
    >>> receipt = blocks.receipt()
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._files = UnitFiles(destination)
        self._codecs: dict[str, ChunkCodecs] = {}

    def write(
        self, array: ArrayTarget, start: Sequence[int], values: NDArray[Any]
    ) -> list[ChunkRefs]:
        """Store the values of the block that begins at the index `start`.

        Returns the references of the chunks that were stored.

        Raises
        ------
        InvalidInputError
            The block ends or begins inside of a chunk or outside of the array, or the values have
            another data type.
        StorageError
            Storage failed.
        """
        if array.path not in self._codecs:
            self._codecs[array.path] = array.metadata.chunk_codecs()
        codecs, metadata = self._codecs[array.path], array.metadata
        encoded = (
            (at, timed("encode", codecs.encode, padded(metadata, chunk, at)))
            for at, chunk in chunks_of(metadata, start, values)
            if not is_all_fill(chunk, metadata.fill_value)
        )
        stored = list(store_in_batches(self._destination, metadata.ndim, encoded))
        self._files.add(array, stored)
        return stored

    def add(self, array: ArrayTarget, refs: Iterable[ChunkRefs]) -> None:
        """Add references to stored chunks."""
        self._files.add(array, refs)

    def receipt(self) -> TaskReceipt:
        """Store the manifests and return the receipt of the task."""
        return self._files.receipt()
