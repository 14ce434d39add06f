"""Defines the counts of a collection: of a batch, of a phase, and in total."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from icechunk_format.display import shown_by
from icechunk_format.encoding.object_keys import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icechunk_format.storage.measures import Measures

MAX_SHOWN_ERRORS: Final = 10


class Phase(Enum):
    """Kinds of objects in the order of deletion: those that refer to others first.

    An interrupted collection therefore never leaves a reference to a deleted object.
    """

    SNAPSHOTS = "snapshots"
    TRANSACTION_LOGS = "transaction_logs"
    MANIFESTS = "manifests"
    CHUNKS = "chunks"
    OVERWRITTEN = "overwritten"
    STAGED = "staged"

    @property
    def prefix(self) -> str:
        """The prefix of keys of this kind of object."""
        return _PREFIXES[self]


_PREFIXES: Final = {
    Phase.SNAPSHOTS: SNAPSHOTS,
    Phase.TRANSACTION_LOGS: TRANSACTIONS,
    Phase.MANIFESTS: MANIFESTS,
    Phase.CHUNKS: CHUNKS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport:
    """The outcome of deletions, or of a dry run.

    Parameters
    ----------
    throttled_requests
        Requests that the storage throttled; each was repeated.
    errors
        Distinct reasons of failures, at most ``MAX_SHOWN_ERRORS``.
    gave_up
        True if the deletions were aborted after too many consecutive failures.
    """

    deleted_objects: int = 0
    deleted_bytes: int = 0
    failed_objects: int = 0
    throttled_requests: int = 0
    errors: tuple[str, ...] = ()
    gave_up: bool = False

    def __add__(self, other: DeleteReport) -> DeleteReport:
        return DeleteReport(
            deleted_objects=self.deleted_objects + other.deleted_objects,
            deleted_bytes=self.deleted_bytes + other.deleted_bytes,
            failed_objects=self.failed_objects + other.failed_objects,
            throttled_requests=self.throttled_requests + other.throttled_requests,
            errors=distinct_errors(self.errors, other.errors),
            gave_up=self.gave_up or other.gave_up,
        )


def distinct_errors(*parts: Iterable[str]) -> tuple[str, ...]:
    """Return the first distinct reasons, in order."""
    return tuple(dict.fromkeys(string for part in parts for string in part))[:MAX_SHOWN_ERRORS]


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """The result of a garbage collection or of its dry run.

    Attributes
    ----------
    bytes_deleted
        Bytes of all deleted objects, from the listing.
    snapshots_deleted, transaction_logs_deleted, manifests_deleted, chunks_deleted
        Number of deleted objects of each kind.
    overwritten_deleted
        Number of deleted backups of ``repo`` and ``config.yaml``.
    staged_deleted
        Number of deleted unfinished and intermediate files of killed writers.
    objects_failed_to_delete
        Number of objects that could not be deleted; the next collection tries again.
    throttled_requests
        Requests that the storage refused for their rate; each was sent again.
    delete_errors
        Distinct reasons of failures, at most 10.
    skipped_phases
        Kinds that were skipped, because objects that may refer to them could not be deleted.
    dry_run
        True if nothing was changed.
    totals
        Requests and bytes of Spark's tasks; None for a call in this process.
    """

    bytes_deleted: int = 0
    snapshots_deleted: int = 0
    transaction_logs_deleted: int = 0
    manifests_deleted: int = 0
    chunks_deleted: int = 0
    overwritten_deleted: int = 0
    staged_deleted: int = 0
    objects_failed_to_delete: int = 0
    throttled_requests: int = 0
    delete_errors: tuple[str, ...] = ()
    skipped_phases: tuple[str, ...] = field(default=())
    dry_run: bool = False
    totals: Measures | None = field(default=None, compare=False)

    def with_phase(self, phase: Phase, report: DeleteReport) -> CollectResult:
        """Add the counts of one phase."""
        counted = f"{phase.value}_deleted"
        return replace(
            self,
            bytes_deleted=self.bytes_deleted + report.deleted_bytes,
            objects_failed_to_delete=self.objects_failed_to_delete + report.failed_objects,
            throttled_requests=self.throttled_requests + report.throttled_requests,
            delete_errors=distinct_errors(self.delete_errors, report.errors),
            **{counted: getattr(self, counted) + report.deleted_objects},
        )

    def with_skipped(self, phase: Phase) -> CollectResult:
        """Add a skipped phase."""
        return replace(self, skipped_phases=(*self.skipped_phases, phase.value))
