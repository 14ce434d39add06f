"""Stores encoded chunks: small ones in their reference, others as separate objects.

Objects have random names and are invisible until a commit refers to them, so repeated or failed
tasks leave only garbage.

Specification: "Chunk Files", ``inline_chunk_threshold_bytes``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from icechunk_format.encoding.ids import encode_many
from icechunk_format.encoding.manifest.chunk_refs import (
    CHUNK_ID_SIZE,
    ChunkRefs,
    inline_refs,
    native_refs,
)
from icechunk_format.encoding.object_keys import CHUNKS
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.coordinate_set import checked_coords
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.protocol import Storage

_OBJECTS_PER_BATCH: Final = 100_000
_BYTES_PER_BATCH: Final = 256 * 2**20


def store_chunks(
    storage: Storage, coords: ArrayLike, payloads: Sequence[bytes], *, inline_threshold: int
) -> ChunkRefs:
    """Store chunks of one array and return their references.

    Parameters
    ----------
    coords
        Integers, shape (n, ndim), distinct.
    payloads
        n encoded chunks, none empty.
    inline_threshold
        Chunks of up to this many bytes are stored in their reference.
    """
    at = checked_coords(coords)
    if len(at) != len(payloads):
        raise InvalidInputError(
            f"{len(payloads)} chunks were given for {len(at)} coordinates; each chunk has one"
        )
    sizes = np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))
    if (sizes == 0).any():
        row = int(np.argmin(sizes))
        raise InvalidInputError(
            f"the chunk at {tuple(at[row].tolist())} has no bytes; a chunk that holds nothing but "
            "the fill value is not stored at all",
            coords=tuple(at[row].tolist()),
        )
    is_inline = sizes <= inline_threshold
    inline_rows, own_rows = np.flatnonzero(is_inline), np.flatnonzero(~is_inline)
    raw = secrets.token_bytes(CHUNK_ID_SIZE * len(own_rows))
    ids = np.frombuffer(raw, dtype=np.uint8).reshape(-1, CHUNK_ID_SIZE)
    # Raises for repeated coordinates before anything is stored.
    kinds = [ChunkRefs.empty(at.shape[1])]
    if len(own_rows):
        kinds.append(native_refs(at[own_rows], ids, sizes[own_rows]))
    if len(inline_rows):
        kinds.append(inline_refs(at[inline_rows], [payloads[row] for row in inline_rows.tolist()]))
    refs = ChunkRefs.concat(kinds)
    own = zip(encode_many(ids), own_rows.tolist(), strict=True)
    objects = ((f"{CHUNKS}{name}", payloads[row]) for name, row in own)
    put_in_batches(storage, objects, _BYTES_PER_BATCH)
    return refs


def put_in_batches(storage: Storage, objects: Iterable[tuple[str, bytes]], max_bytes: int) -> None:
    """Store objects concurrently, in batches of about ``max_bytes``."""
    sized = ((item, len(item[1])) for item in objects)
    for batch in sized_batches(sized, _OBJECTS_PER_BATCH, max_bytes):
        storage.put_many(batch)
