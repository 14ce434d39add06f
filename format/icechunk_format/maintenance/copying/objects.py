"""Copies manifests, and the chunks that they refer to, from one store to another.

The ids of chunks, and the bytes that references need of them, are packed in 20 bytes each: ten
million chunks take 200 MB.

Rules of this file
------------------
1. Objects are copied unchanged. An id always stands for the same bytes, so an object that the
   target has in the same size is skipped; so a repeated copy continues an interrupted one.
2. Memory: ``_WORKERS`` batches of ``_BYTES_AT_ONCE``, or of one larger object each.
3. Nothing of the target is deleted or listed anywhere but below ``chunks/``.

Specification: "Chunk manifest files", "Chunk files".
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from icechunk_format.errors import FormatError, NotFoundError
from icechunk_format.maintenance.collecting.object_listing import (
    ObjectListing,
    list_ids,
)
from icechunk_format.maintenance.collecting.parts import part_prefix, parts_of
from icechunk_format.spec.id_columns import id_columns
from icechunk_format.spec.ids import ChunkId, ManifestId, encode_many
from icechunk_format.spec.manifest import decode as manifest_file
from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE
from icechunk_format.spec.object_keys import CHUNKS, manifest_key
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import ReadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from icechunk_format.storage.protocol import Storage

_WORKERS: Final = 4
_BYTES_AT_ONCE: Final = 16 * 2**20
_OBJECTS_AT_ONCE: Final = 256
# What an object may have whose size nobody listed.
_UNKNOWN_SIZE: Final = 2**20

CHUNK_ROW: Final = np.dtype([("id", "u1", (ChunkId.SIZE,)), ("end", "<u8")])
"""A chunk object, and the bytes of it that references reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyContext:
    """What every task of a copy has to know."""

    source: Location
    target: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Objects and bytes that were stored, and objects that were there already."""

    objects: int = 0
    bytes: int = 0
    skipped: int = 0

    def __add__(self, other: Copied) -> Copied:
        return Copied(
            objects=self.objects + other.objects,
            bytes=self.bytes + other.bytes,
            skipped=self.skipped + other.skipped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestPiece:
    """Manifests for one task.

    Parameters
    ----------
    ids
        Packed ids.
    sizes
        Bytes of their files, packed as little-endian uint64; 0 where that is not known.
    refs
        Numbers of their references, packed as little-endian uint32.
    """

    ids: bytes
    sizes: bytes
    refs: bytes


def copy_manifests(context: CopyContext, piece: ManifestPiece) -> tuple[Copied, bytes]:
    """Copy manifests; return what was stored, and the chunks that they refer to, packed.

    Raises
    ------
    NotFoundError, FormatError
        A manifest is missing or damaged.
    StorageError
        A store failed.
    """
    source, target = open_storage(context.source), open_storage(context.target)
    raw = np.frombuffer(piece.ids, dtype=np.uint8).reshape(-1, ManifestId.SIZE)
    sizes = np.frombuffer(piece.sizes, dtype="<u8").astype(np.int64)
    found: list[NDArray[np.void]] = []
    copied = Copied()
    for start, stop in _batches(sizes):
        ids = [ManifestId(row.tobytes()) for row in raw[start:stop]]
        keys = [manifest_key(manifest_id) for manifest_id in ids]
        contents = _fetched(source, keys, "manifest")
        target.put_many(zip(keys, contents, strict=True))
        copied += Copied(objects=len(keys), bytes=sum(map(len, contents)))
        for position, (manifest_id, key) in enumerate(zip(ids, keys, strict=True)):
            found.append(_chunks_in(contents[position], manifest_id, key))
            contents[position] = b""
        if len(found) > 1:
            found = [distinct_chunks(found)]
    return copied, distinct_chunks(found).tobytes()


def _chunks_in(data: bytes, manifest_id: ManifestId, key: str) -> NDArray[np.void]:
    manifest = manifest_file.decode(data, object_key=key)
    if manifest.id != manifest_id:
        raise FormatError(
            f"the file says that it is {manifest.id}; another file was copied over it",
            object_key=key,
            file_type="manifest",
            field="id",
        )
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
    """Return each chunk once, sorted by id, with the most that references need of it."""
    rows = np.concatenate([np.empty(0, dtype=CHUNK_ROW), *parts])
    high, low = id_columns(rows["id"])
    rows = rows[np.lexsort((rows["end"], low, high))]
    is_last = np.ones(len(rows), dtype=np.bool_)
    is_last[:-1] = (rows["id"][1:] != rows["id"][:-1]).any(axis=1)
    return rows[is_last]


def chunks_by_part(packed: bytes, depth: int) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks of each part of the id space, packed; they are sorted already."""
    rows = np.frombuffer(packed, dtype=CHUNK_ROW)
    parts = parts_of(rows["id"], depth)
    edges = [*np.flatnonzero(np.diff(parts, prepend=-1)).tolist(), len(rows)]
    for start, stop in pairwise(edges):
        yield int(parts[start]), rows[start:stop].tobytes()


def copy_part(context: CopyContext, packed: Iterable[bytes], part: int, depth: int) -> Copied:
    """Copy the chunks of one part of the id space that the target does not have.

    Parameters
    ----------
    packed
        The chunks of the part, repeats allowed.
    part, depth
        See ``collect_parts``.
    """
    rows = distinct_chunks([np.frombuffer(one, dtype=CHUNK_ROW) for one in packed])
    return copy_chunks(context, rows, within=part_prefix(part, depth))


def copy_chunks(context: CopyContext, rows: NDArray[np.void], *, within: str = "") -> Copied:
    """Copy chunks that the target does not have.

    Parameters
    ----------
    rows
        What ``distinct_chunks`` returned.
    within
        First characters that all of their names have.

    Raises
    ------
    NotFoundError
        A chunk is missing in the source.
    StorageError
        A store failed; what was copied stays, and is skipped the next time.
    """
    source, target = open_storage(context.source), open_storage(context.target)
    is_there = _stored_already(source, target, rows, within)
    wanted = rows[~is_there]
    sizes = wanted["end"].astype(np.int64)

    def move(start: int, stop: int) -> Copied:
        names = encode_many(np.ascontiguousarray(wanted["id"][start:stop]))
        keys = [f"{CHUNKS}{name}" for name in names]
        contents = _fetched(source, keys, "chunk")
        target.put_many(zip(keys, contents, strict=True))
        return Copied(objects=len(keys), bytes=sum(map(len, contents)))

    copied = sum(in_threads(move, _batches(sizes)), Copied())
    return copied + Copied(skipped=int(is_there.sum()))


def _stored_already(
    source: Storage, target: Storage, rows: NDArray[np.void], within: str
) -> NDArray[np.bool_]:
    """Tell for each chunk whether the target has it in the size that the source has."""
    is_there = np.zeros(len(rows), dtype=np.bool_)
    if not len(rows):
        return is_there
    # Both are sorted by id, so rows of one are rows of the other.
    known = ObjectListing(rows["id"], rows["end"])
    longer: list[tuple[int, int]] = []
    for page in list_ids(target, CHUNKS, within):
        sizes, at = page.sizes.astype(np.uint64), known.find(page.ids)
        sizes, at = sizes[at >= 0], at[at >= 0]
        is_there[at[sizes == rows["end"][at]]] = True
        beyond = sizes > rows["end"][at]
        longer += zip(at[beyond].tolist(), sizes[beyond].tolist(), strict=True)
    for row, size in longer:
        # References need only a part of it, as where an object holds several chunks.
        found = source.head(f"{CHUNKS}{ChunkId(rows['id'][row].tobytes())}")
        is_there[row] = found is not None and found.size == size
    return is_there


def _fetched(source: Storage, keys: list[str], what: str) -> list[bytes]:
    try:
        return source.get_many([ReadRequest(key=key) for key in keys])
    except NotFoundError as error:
        if error.facts.get("kind") != "object":
            raise
        missing = error.facts["key"]
        raise NotFoundError(
            f"the {what} {missing!r}, which a version to be copied needs, is not in "
            f"{source.root_url}; nothing was published. Find the damage with verify, and copy a "
            "version without it",
            kind="object",
            key=missing,
            root_url=source.root_url,
        ) from error


def _batches(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut rows into runs of few objects and few bytes; a larger object is a run of its own."""
    start, held = 0, 0
    for row, listed in enumerate(sizes.tolist()):
        size = listed or _UNKNOWN_SIZE
        if row > start and (held + size > _BYTES_AT_ONCE or row - start == _OBJECTS_AT_ONCE):
            yield start, row
            start, held = row, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)


def in_threads(
    move: Callable[[int, int], Copied], batches: Iterable[tuple[int, int]]
) -> Iterator[Copied]:
    """Run batches in a few threads; the first error ends the run."""
    waiting = iter(batches)
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="copy") as pool:
        running = {pool.submit(move, *batch) for batch in islice(waiting, _WORKERS)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(move, *batch) for batch in islice(waiting, len(done))}
                for future in done:
                    yield future.result()
        finally:
            for future in running:
                future.cancel()
