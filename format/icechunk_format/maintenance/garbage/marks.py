"""Marks the manifests and chunk objects that kept snapshots use, and defines collectors.

Rules of this file
------------------
1. A missing or damaged file ends the collection before anything is deleted, since the objects that
   it refers to are unknown. A readable manifest with another size or fewer references than listed
   in snapshots also does: chunks that only the undamaged file refers to would be deleted.
2. Files are fetched in batches of bounded size, decoded one at a time, and not cached, since each
   is read once.
3. Ids are handled as columns.
4. A ``Collector`` marks and sweeps; this one does so in this process, another one with Spark.

Specification: "Snapshot Files", "Chunk manifest files".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import IdSet, ManifestId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE
from icechunk_format.encoding.manifest.decode import Manifest
from icechunk_format.encoding.object_keys import SNAPSHOTS, manifest_key, snapshot_key
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.errors import FormatError
from icechunk_format.maintenance.fetching import decoded_manifest, fetched, sized_ids
from icechunk_format.maintenance.garbage.object_listing import list_ids
from icechunk_format.maintenance.garbage.result import DeleteReport, Phase
from icechunk_format.maintenance.garbage.sweep import delete_unneeded
from icechunk_format.progress import ProgressOption, counted, phase
from icechunk_format.repository.files.metadata_files import check_id
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
    for name, is_other, problem in (
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
                field=name,
            )


# -- collectors ---------------------------------------------------------------------------------


class Collector(Protocol):
    """Marks and sweeps for a collection; every method may be called again after a restart."""

    def old_snapshots(self, candidates: frozenset[SnapshotId]) -> frozenset[SnapshotId]:
        """Return the candidates whose files are listed and older than the cutoff."""
        ...

    def mark(self, kept: frozenset[SnapshotId]) -> None:
        """Read kept snapshots and their manifests, and mark what they use."""
        ...

    def mark_also(self, added: frozenset[SnapshotId]) -> None:
        """Also mark what more snapshots use, in addition to those of ``mark``."""
        ...

    def sweep(self, phase: Phase, kept: frozenset[SnapshotId] | None) -> DeleteReport:
        """Delete old objects that are not kept; ``kept`` are ids, or None for those of ``mark``."""
        ...


@dataclass(eq=False)
class OneProcessCollector:
    """Collects in this process."""

    storage: Storage
    older_than: datetime
    _: KW_ONLY
    dry_run: bool = False
    progress: ProgressOption = None
    _marks: dict[Phase, IdSet] = field(default_factory=dict, init=False)

    def old_snapshots(self, candidates: frozenset[SnapshotId]) -> frozenset[SnapshotId]:
        """Return the candidates whose files are listed and older than the cutoff."""
        wanted = IdSet.of(candidates)
        pages = list_ids(self.storage, SNAPSHOTS, older_than=self.older_than)
        found = (page.ids[wanted.contains(page.ids)] for page in pages)
        return frozenset(SnapshotId(row.tobytes()) for ids in found for row in ids)

    def mark(self, kept: frozenset[SnapshotId]) -> None:
        """Read kept snapshots and their manifests, and mark what they use."""
        self._marks = {Phase.MANIFESTS: IdSet(), Phase.CHUNKS: IdSet()}
        self.mark_also(kept)

    def mark_also(self, added: frozenset[SnapshotId]) -> None:
        """Read more snapshots, and their manifests that were not yet read."""
        storage, known, progress = self.storage, self._marks[Phase.MANIFESTS], self.progress
        found = distinct_manifests(storage, sorted(added), known, progress)
        for ids in referenced_chunks(storage, found, progress):
            self._marks[Phase.CHUNKS].add(ids)

    def sweep(self, phase: Phase, kept: frozenset[SnapshotId] | None) -> DeleteReport:
        """Delete old objects that are not kept."""
        needed = self._marks[phase] if kept is None else IdSet.of(kept)
        return delete_unneeded(
            self.storage,
            phase.prefix,
            needed,
            self.older_than,
            dry_run=self.dry_run,
            progress=self.progress,
        )
