"""Chunk references of a draft as those of a released version, and the copying of chunks.

Rules of this file
------------------
1. A native chunk becomes an object of its own: exactly the bytes that its reference names, so that
   files which hold many chunks need not be in memory at once. Equal references share the copy.
2. Its id is a digest of the reference, so a repeated import writes the same objects again.
3. Memory: the references of one array, 64 MB of chunks (or one chunk, if that is larger), and some
   100 bytes for every chunk that was copied.

Specification: both drafts; "Chunk Files" and "ChunkRef" of released versions.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.spec.ids import ChunkId
from icechunk_format.spec.manifest.chunk_refs import (
    CHUNK_ID_SIZE,
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.spec.manifest.new_chunk_refs import inline_refs, native_refs, virtual_refs
from icechunk_format.spec.object_keys import chunk_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icechunk_format.drafts.model import DraftChunks, DraftRepository
    from icechunk_format.storage.protocol import Storage

_BYTES_PER_BATCH: Final = 64 * 2**20
_CHUNKS_PER_BATCH: Final = 1024


class ChunkConverter:
    """Copies chunks of a draft, each once.

    Parameters
    ----------
    draft
        Where they are.
    target
        Where they go; None to count only.

    Attributes
    ----------
    native, inline, virtual
        How many chunks of each kind were met; references that several versions share are met once.
    bytes_copied
        Bytes of native chunks.
    virtual_prefixes
        Scheme and host or bucket of all virtual chunks.
    """

    def __init__(self, draft: DraftRepository, target: Storage | None) -> None:
        self._draft = draft
        self._target = target
        self._copied: set[bytes] = set()
        self.native = 0
        self.inline = 0
        self.virtual = 0
        self.bytes_copied = 0
        self.virtual_prefixes: set[str] = set()

    def refs(self, chunks: DraftChunks) -> ChunkRefs:
        """Return references for a manifest, whose chunks are stored.

        Raises
        ------
        NotFoundError, StorageError
            A chunk is missing, shorter than its reference says, or cannot be stored.
        """
        parts = [ChunkRefs.empty(chunks.coords.shape[1])]
        rows = np.flatnonzero(chunks.kind == KIND_NATIVE)
        if len(rows):
            ids = self._copy(chunks, rows)
            parts.append(native_refs(chunks.coords[rows], ids, chunks.length[rows]))
        rows = np.flatnonzero(chunks.kind == KIND_INLINE)
        if len(rows):
            self.inline += len(rows)
            contents = chunks.payload.take(pa.array(rows)).to_pylist()
            parts.append(inline_refs(chunks.coords[rows], contents))
        rows = np.flatnonzero(chunks.kind == KIND_VIRTUAL)
        if len(rows):
            self.virtual += len(rows)
            parts.append(self._virtual(chunks, rows))
        return ChunkRefs.concat(parts)

    def _virtual(self, chunks: DraftChunks, rows: NDArray[np.intp]) -> ChunkRefs:
        texts = chunks.payload.take(pa.array(rows)).cast(pa.large_string()).dictionary_encode()
        found = pc.extract_regex(texts.dictionary, r"^(?P<place>[^:/?#]+://[^/?#]*)")
        places = pc.struct_field(found, "place").drop_null().unique()
        self.virtual_prefixes |= {f"{place}/" for place in places.to_pylist()}
        return virtual_refs(
            chunks.coords[rows],
            texts.dictionary.to_pylist(),
            chunks.offset[rows],
            chunks.length[rows],
            location_of_row=texts.indices.to_numpy(),
        )

    def _copy(self, chunks: DraftChunks, rows: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Copy what was not copied yet; returns uint8 of shape (len(rows), 12), the new ids."""
        keys = chunks.payload.take(pa.array(rows)).to_pylist()
        spans = np.stack([chunks.offset[rows], chunks.length[rows]], axis=1)
        digests = [
            hashlib.blake2b(key, digest_size=CHUNK_ID_SIZE, salt=span.tobytes()).digest()
            for key, span in zip(keys, spans, strict=True)
        ]
        waiting = []
        for row, digest in zip(rows.tolist(), digests, strict=True):
            if digest not in self._copied:
                self._copied.add(digest)
                waiting.append((row, ChunkId(digest)))
        self.native += len(waiting)
        for batch in _batches(waiting, chunks.length):
            self.bytes_copied += sum(int(chunks.length[row]) for row, _ in batch)
            if self._target is not None:
                contents = self._draft.read_chunks(chunks, [row for row, _ in batch])
                self._target.put_many(
                    (chunk_key(chunk_id), data)
                    for (_, chunk_id), data in zip(batch, contents, strict=True)
                )
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, CHUNK_ID_SIZE)


def _batches(
    waiting: list[tuple[int, ChunkId]], length: NDArray[np.uint64]
) -> Iterator[list[tuple[int, ChunkId]]]:
    batch: list[tuple[int, ChunkId]] = []
    size = 0
    for item in waiting:
        own = int(length[item[0]])
        if batch and (size + own > _BYTES_PER_BATCH or len(batch) >= _CHUNKS_PER_BATCH):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += own
    if batch:
        yield batch
