"""Defines the collector interface, and the collector that runs in this process."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Protocol

from icechunk_format.maintenance.garbage.marks import distinct_manifests, referenced_chunks
from icechunk_format.maintenance.garbage.object_listing import list_ids
from icechunk_format.maintenance.garbage.result import DeleteReport, Phase
from icechunk_format.maintenance.garbage.sweep import delete_unneeded
from icechunk_format.progress import ProgressOption
from icechunk_format.spec.ids import IdSet, SnapshotId
from icechunk_format.spec.object_keys import SNAPSHOTS
from icechunk_format.storage.protocol import Storage


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
