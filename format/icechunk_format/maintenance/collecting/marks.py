"""Marks the manifests and chunk objects that retained snapshots need.

Rules of this file
------------------
1. A missing or damaged file ends the collection before anything is deleted, since the objects that
   it refers to are not known.
2. Files are fetched in batches bounded in bytes, decoded one at a time, and not cached, since each
   is read once.
3. Ids are handled as columns.

Specification: "Snapshot Files", "Chunk manifest files".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from icechunk_format.errors import FormatError, NotFoundError
from icechunk_format.spec.id_columns import IdSet
from icechunk_format.spec.ids import ManifestId
from icechunk_format.spec.manifest import decode as manifest_file
from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE
from icechunk_format.spec.object_keys import manifest_key, snapshot_key
from icechunk_format.spec.snapshot import file as snapshot_file
from icechunk_format.storage.protocol import ReadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.spec.snapshot.manifest_lists import ManifestFiles
    from icechunk_format.storage.protocol import Storage

_SNAPSHOTS_AT_ONCE: Final = 16
_MANIFESTS_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 64 * 2**20
# What a manifest may have whose size its snapshot does not list.
_UNKNOWN_SIZE: Final = 2**20


def listed_manifests(
    storage: Storage, snapshot_ids: Sequence[SnapshotId]
) -> Iterator[ManifestFiles]:
    """Yield the list of manifests of each snapshot.

    Raises
    ------
    NotFoundError
        A snapshot file is not there.
    FormatError
        A snapshot file is damaged, or belongs to another id.
    """
    for first in range(0, len(snapshot_ids), _SNAPSHOTS_AT_ONCE):
        batch = snapshot_ids[first : first + _SNAPSHOTS_AT_ONCE]
        keys = [snapshot_key(snapshot_id) for snapshot_id in batch]
        for wanted, key, data in zip(batch, keys, _contents(storage, keys), strict=True):
            found = snapshot_file.decode(data, object_key=key)
            _check_id(found.id, wanted, key, "snapshot")
            yield found.manifest_files


def distinct_manifests(
    storage: Storage, snapshot_ids: Iterable[SnapshotId]
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return the manifests that snapshots list, each once.

    Returns
    -------
    ids
        uint8, shape (n, 12).
    sizes
        uint64, shape (n,): the bytes that snapshots list for them.
    """
    known = IdSet()
    ids: list[NDArray[np.uint8]] = []
    sizes: list[NDArray[np.uint64]] = []
    for files in listed_manifests(storage, sorted(snapshot_ids)):
        is_new = ~known.contains(files.ids)
        ids.append(files.ids[is_new])
        sizes.append(files.size_bytes[is_new])
        known.add(ids[-1])
    if not ids:
        return known.ids(), np.empty(0, dtype=np.uint64)
    return np.concatenate(ids), np.concatenate(sizes)


def referenced_chunks(
    storage: Storage, manifest_ids: NDArray[np.uint8], sizes: NDArray[np.uint64]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the ids of the chunk objects that manifests refer to, repeats included.

    Parameters
    ----------
    storage
        Of the repository.
    manifest_ids
        uint8, shape (n, 12): the manifests, each once.
    sizes
        uint64, shape (n,): bytes of their files as listed, 0 where that is not known.

    Yields
    ------
    uint8, shape (k, 12), for one manifest after the other.

    Raises
    ------
    NotFoundError
        A manifest is not there.
    FormatError
        A manifest is damaged, or belongs to another id.
    """
    bounded = np.where(sizes == 0, _UNKNOWN_SIZE, sizes).astype(np.uint64)
    for start, stop in _batches(bounded):
        wanted = [ManifestId(row.tobytes()) for row in manifest_ids[start:stop]]
        keys = [manifest_key(manifest_id) for manifest_id in wanted]
        contents = _contents(storage, keys)
        for position, (manifest_id, key) in enumerate(zip(wanted, keys, strict=True)):
            found = manifest_file.decode(contents[position], object_key=key)
            contents[position] = b""  # so that a batch is never held both encoded and decoded
            _check_id(found.id, manifest_id, key, "manifest")
            for array in found.arrays:
                refs = array.refs
                yield refs.chunk_id[refs.kind == KIND_NATIVE]


def _batches(sizes: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Cut rows into runs of few files and few bytes; a larger file is a run of its own."""
    start, held = 0, 0
    for row, size in enumerate(sizes.tolist()):
        if row > start and (held + size > _BYTES_AT_ONCE or row - start == _MANIFESTS_AT_ONCE):
            yield start, row
            start, held = row, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)


def _contents(storage: Storage, keys: list[str]) -> list[bytes]:
    try:
        return storage.get_many([ReadRequest(key=key) for key in keys])
    except NotFoundError as error:
        if error.facts.get("kind") != "object":
            raise
        missing = error.facts["key"]
        raise NotFoundError(
            f"{missing!r} is not in {storage.root_url}, although a version that is kept needs it; "
            "garbage cannot be told apart while files are missing. Find the damage with verify, "
            "and delete or reset the refs that reach it",
            kind="object",
            key=missing,
            root_url=storage.root_url,
        ) from error


def _check_id(found: object, wanted: object, key: str, file_type: str) -> None:
    if found != wanted:
        raise FormatError(
            f"the file says that it is {found}, its key says {wanted}; another file was copied "
            "over it",
            object_key=key,
            file_type=file_type,
            field="id",
        )
