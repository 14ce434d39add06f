"""Marks the manifests and chunk objects that kept snapshots use.

Rules of this file
------------------
1. A missing or damaged file ends the collection before anything is deleted, since the objects that
   it refers to are unknown. A readable manifest with another size or fewer references than listed
   in snapshots also does: chunks that only the undamaged file refers to would be deleted.
2. Files are fetched in batches of bounded size, decoded one at a time, and not cached, since each
   is read once.
3. Ids are handled as columns.

Specification: "Snapshot Files", "Chunk manifest files".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import FormatError
from icechunk_format.maintenance.fetching import decoded_manifest, fetched, sized_ids
from icechunk_format.progress import ProgressOption, counted, phase
from icechunk_format.repository.files.metadata_files import check_id
from icechunk_format.spec.ids import IdSet, ManifestId, SnapshotId
from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE
from icechunk_format.spec.manifest.decode import Manifest
from icechunk_format.spec.object_keys import manifest_key, snapshot_key
from icechunk_format.spec.snapshot import file as snapshot_file
from icechunk_format.storage.batches import batches
from icechunk_format.storage.protocol import Storage

_SNAPSHOTS_AT_ONCE: Final = 16
_MANIFESTS_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 64 * 2**20
_NEEDED_BY: Final = "a kept snapshot"
_ADVICE: Final = (
    "garbage cannot be identified while files are missing or damaged. Find the damage with verify, "
    "then restore the file, or delete or reset the refs that reach it"
)

LISTED: Final = np.dtype([("id", "u1", (ManifestId.SIZE,)), ("size", "<u8"), ("refs", "<u4")])
"""A manifest, with its size and number of references as listed in a snapshot."""


def listed_manifests(
    storage: Storage, snapshot_ids: Iterable[SnapshotId], known: IdSet
) -> Iterator[NDArray[np.void]]:
    """Yield distinct manifests (``LISTED``) of snapshots, without ``known`` ones."""
    for batch in batches(snapshot_ids, _SNAPSHOTS_AT_ONCE):
        keys = [snapshot_key(snapshot_id) for snapshot_id in batch]
        contents = fetched(storage, keys, _NEEDED_BY, _ADVICE)
        for wanted, key, data in zip(batch, keys, contents, strict=True):
            found = snapshot_file.decode(data, object_key=key)
            check_id(found.id, wanted, key, "snapshot")
            files = found.manifest_files
            is_new = ~known.contains(files.ids)
            listed = np.empty(int(is_new.sum()), dtype=LISTED)
            listed["id"] = files.ids[is_new]
            listed["size"] = files.size_bytes[is_new]
            listed["refs"] = files.num_chunk_refs[is_new]
            known.add(listed["id"])
            yield listed


def distinct_manifests(
    storage: Storage,
    snapshot_ids: Collection[SnapshotId],
    known: IdSet | None = None,
    progress: ProgressOption = None,
) -> NDArray[np.void]:
    """Return the manifests of ``listed_manifests`` as one array."""
    parts = listed_manifests(storage, snapshot_ids, IdSet() if known is None else known)
    parts = counted(parts, progress, "Reading snapshots", len(snapshot_ids))
    return np.concatenate([np.empty(0, dtype=LISTED), *parts])


def referenced_chunks(
    storage: Storage, listed: NDArray[np.void], progress: ProgressOption = None
) -> Iterator[NDArray[np.uint8]]:
    """Yield the ids of chunk objects in manifests, with repeats.

    Manifests are ``LISTED``, with size 0 if unknown; yields ids ``uint8 (k, 12)`` manifest by
    manifest.
    """
    rows = iter(listed)
    with phase(progress, "Reading manifests", len(listed)) as advance:
        for batch in sized_ids(listed["id"], listed["size"], _MANIFESTS_AT_ONCE, _BYTES_AT_ONCE):
            keys = [manifest_key(ManifestId(raw)) for raw in batch]
            contents = fetched(storage, keys, _NEEDED_BY, _ADVICE)
            for position, (raw, key) in enumerate(zip(batch, keys, strict=True)):
                found = decoded_manifest(contents[position], key, raw)
                _check_listed(next(rows), len(contents[position]), found, key)
                contents[position] = b""  # free the encoded bytes after decoding
                for array in found.arrays:
                    refs = array.refs
                    yield refs.chunk_id[refs.kind == KIND_NATIVE]
                advance(1)


def _check_listed(listed: np.void, size: int, found: Manifest, key: str) -> None:
    for field, is_other, problem in (
        ("size_bytes", listed["size"] not in (0, size), f"{size} bytes, and {listed['size']}"),
        (
            "num_chunk_refs",
            found.num_chunk_refs < listed["refs"],
            f"{found.num_chunk_refs} references, and {listed['refs']}",
        ),
    ):
        if is_other:
            raise FormatError(
                f"it has {problem} are listed in {_NEEDED_BY}; {_ADVICE}",
                object_key=key,
                file_type="manifest",
                field=field,
            )
