"""Marks and sweeps in this process; Spark has a separate collector."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Protocol

from icechunk_format.maintenance.garbage.marks import distinct_manifests, referenced_chunks
from icechunk_format.maintenance.garbage.object_listing import list_ids
from icechunk_format.maintenance.garbage.result import DeleteReport, Phase
from icechunk_format.maintenance.garbage.sweep import delete_unneeded
from icechunk_format.progress import ProgressOption
from icechunk_format.spec.id_columns import IdSet
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.object_keys import SNAPSHOTS
from icechunk_format.storage.protocol import Storage


class Collector(Protocol):
    """Does the work of a collection; every method may be called again after a restart."""

    def old_snapshots(self, candidates: frozenset[SnapshotId]) -> frozenset[SnapshotId]:
        """Return those of some snapshots whose files are listed and older than the cutoff."""
        ...

    def mark(self, kept: frozenset[SnapshotId]) -> None:
        """Read kept snapshots and their manifests, and remember what they need."""
        ...

    def mark_also(self, added: frozenset[SnapshotId]) -> None:
        """Remember what more snapshots need, beside those of the last ``mark``."""
        ...

    def sweep(self, phase: Phase, kept: frozenset[SnapshotId] | None) -> DeleteReport:
        """Delete what is old and not needed; ``kept`` are ids, or None for those of ``mark``."""
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
        """Return those of some snapshots whose files are listed and older than the cutoff."""
        wanted = IdSet.of(candidates)
        pages = list_ids(self.storage, SNAPSHOTS, older_than=self.older_than)
        found = (page.ids[wanted.contains(page.ids)] for page in pages)
        return frozenset(SnapshotId(row.tobytes()) for ids in found for row in ids)

    def mark(self, kept: frozenset[SnapshotId]) -> None:
        """Read kept snapshots and their manifests, and remember what they need."""
        self._marks = {Phase.MANIFESTS: IdSet(), Phase.CHUNKS: IdSet()}
        self.mark_also(kept)

    def mark_also(self, added: frozenset[SnapshotId]) -> None:
        """Read more snapshots, and those of their manifests that were not read yet."""
        storage, known, progress = self.storage, self._marks[Phase.MANIFESTS], self.progress
        found = distinct_manifests(storage, sorted(added), known, progress)
        for ids in referenced_chunks(storage, found, progress):
            self._marks[Phase.CHUNKS].add(ids)

    def sweep(self, phase: Phase, kept: frozenset[SnapshotId] | None) -> DeleteReport:
        """Delete what is old and not needed."""
        needed = self._marks[phase] if kept is None else IdSet.of(kept)
        return delete_unneeded(
            self.storage,
            phase.prefix,
            needed,
            self.older_than,
            dry_run=self.dry_run,
            progress=self.progress,
        )
