"""Copies manifests and their chunks from one storage to another.

Ids of chunks, with the length that references need, are serialized in 20 bytes each: ten million
chunks take 200 MB.

Rules of this file
------------------
1. Objects are copied unchanged. The bytes of an id never change, so an object that exists in the
   target with the same size is skipped, and a repeated copy continues an interrupted one.
2. Memory: a batch in each of ``_THREADS``, of at most ``_BYTES_AT_ONCE``, or one larger object.
3. In the target nothing is deleted, and only ``chunks/`` is listed.

Specification: "Chunk manifest files", "Chunk files".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ChunkId, ManifestId
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE
from icechunk_format.encoding.manifest.decode import Manifest
from icechunk_format.encoding.object_keys import CHUNKS, chunk_key, manifest_key
from icechunk_format.maintenance.fetching import decoded_manifest, fetched, sized_ids
from icechunk_format.maintenance.garbage.object_listing import ObjectListing, list_ids
from icechunk_format.maintenance.garbage.parts import (
    distinct_rows,
    part_prefix,
    parts_of,
    rows_by_part,
)
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.storage.batches import batches
from icechunk_format.storage.concurrency import PacedThreads
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage

_THREADS: Final = PacedThreads(4)
# Batches that are given to the threads together; few ids are then waiting as Python objects.
_BATCHES_AT_ONCE: Final = 32
_BYTES_AT_ONCE: Final = 16 * 2**20
_OBJECTS_AT_ONCE: Final = 256

CHUNK_ROW: Final = np.dtype([("id", "u1", (ChunkId.SIZE,)), ("end", "<u8")])
"""A chunk object, and the end of the bytes that references use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyContext:
    """The context of all tasks of a copy."""

    source: Location
    target: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Number of stored objects and bytes, and of objects that existed."""

    objects: int = 0
    bytes: int = 0
    skipped: int = 0

    def __add__(self, other: Copied) -> Copied:
        return Copied(
            objects=self.objects + other.objects,
            bytes=self.bytes + other.bytes,
            skipped=self.skipped + other.skipped,
        )


def copy_manifests(
    context: CopyContext, listed: NDArray[np.void], advance: Callable[[int], None] = lambda _: None
) -> tuple[Copied, NDArray[np.void]]:
    """Copy manifests (``LISTED``); return the counts, and the manifests' distinct chunks.

    ``advance`` is called with the number of manifests copied since its last call.
    """
    source, target = open_storage(context.source), open_storage(context.target)
    found: list[NDArray[np.void]] = []
    copied = Copied()
    for batch in sized_ids(listed["id"], listed["size"], _OBJECTS_AT_ONCE, _BYTES_AT_ONCE):
        keys = [manifest_key(ManifestId(raw)) for raw in batch]
        contents, stored = _moved(source, target, keys)
        copied += stored
        for position, (raw, key) in enumerate(zip(batch, keys, strict=True)):
            found.append(_chunks_in(decoded_manifest(contents[position], key, raw)))
            contents[position] = b""
        if len(found) > 1:
            found = [distinct_chunks(found)]
        advance(len(batch))
    return copied, distinct_chunks(found)


def _chunks_in(manifest: Manifest) -> NDArray[np.void]:
    parts = []
    for array in manifest.arrays:
        refs = array.refs
        own = refs.kind == KIND_NATIVE
        rows = np.empty(int(own.sum()), dtype=CHUNK_ROW)
        rows["id"] = refs.chunk_id[own]
        rows["end"] = refs.offset[own] + refs.length[own]
        parts.append(rows)
    return distinct_chunks(parts)


def distinct_chunks(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Return distinct chunks, sorted by id, with the largest end that references use."""
    return distinct_rows(np.concatenate([np.empty(0, dtype=CHUNK_ROW), *parts]), "end")


def chunks_by_part(rows: NDArray[np.void], depth: int) -> Iterator[tuple[int, bytes]]:
    """Yield the serialized chunks of each part of the id space; the input is sorted."""
    return rows_by_part(rows, parts_of(rows["id"], depth))


def copy_part(context: CopyContext, chunks: Iterable[bytes], part: int, depth: int) -> Copied:
    """Copy the chunks of one part of the id space that do not exist in the target.

    The serialized chunks may repeat; ``part`` and ``depth`` are as in ``garbage.parts``.
    """
    rows = distinct_chunks([np.frombuffer(one, dtype=CHUNK_ROW) for one in chunks])
    return copy_chunks(context, rows, within=part_prefix(part, depth))


def copy_chunks(
    context: CopyContext,
    rows: NDArray[np.void],
    *,
    within: str = "",
    progress: ProgressOption = None,
) -> Copied:
    """Copy chunks that do not exist in the target.

    ``rows`` are distinct chunks, and all ids begin with ``within``. After an error, the next
    attempt skips copied chunks.
    """
    source, target = open_storage(context.source), open_storage(context.target)
    is_there = _stored_already(source, target, rows, within)
    wanted = rows[~is_there]

    def move(batch: list[bytes]) -> Copied:
        return _moved(source, target, [chunk_key(ChunkId(raw)) for raw in batch])[1]

    sized = sized_ids(wanted["id"], wanted["end"], _OBJECTS_AT_ONCE, _BYTES_AT_ONCE)
    total = Copied(skipped=int(is_there.sum()))
    with phase(progress, "Copying chunks", len(wanted)) as advance:
        for some in batches(sized, _BATCHES_AT_ONCE):
            for copied in _THREADS.map(move, some):
                total += copied
                advance(copied.objects)
    return total


def _stored_already(
    source: Storage, target: Storage, rows: NDArray[np.void], within: str
) -> NDArray[np.bool_]:
    """Return a mask of the chunks that exist in the target with the size in the source."""
    is_there = np.zeros(len(rows), dtype=np.bool_)
    if not len(rows):
        return is_there
    # Both are sorted by id, so they have the same rows.
    known = ObjectListing(rows["id"], rows["end"])
    longer: list[tuple[int, int]] = []
    for page in list_ids(target, CHUNKS, within):
        sizes, at = page.sizes.astype(np.uint64), known.find(page.ids)
        sizes, at = sizes[at >= 0], at[at >= 0]
        is_there[at[sizes == rows["end"][at]]] = True
        beyond = sizes > rows["end"][at]
        longer += zip(at[beyond].tolist(), sizes[beyond].tolist(), strict=True)
    for row, size in longer:
        # References may use only a part of an object that holds several chunks.
        found = source.head(chunk_key(ChunkId(rows["id"][row].tobytes())))
        is_there[row] = found is not None and found.size == size
    return is_there


def _moved(source: Storage, target: Storage, keys: list[str]) -> tuple[list[bytes], Copied]:
    """Copy a batch of objects; return their bytes and the counts."""
    advice = "nothing was published. Find the damage with verify, and copy a snapshot without it"
    contents = fetched(source, keys, "a snapshot to copy", advice)
    target.put_many(zip(keys, contents, strict=True))
    return contents, Copied(objects=len(keys), bytes=sum(map(len, contents)))
