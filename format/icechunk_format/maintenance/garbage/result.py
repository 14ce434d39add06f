"""Counts the deletions of a collection: of one batch, of one phase, and in total."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from icechunk_format.display.lazily import shown_by
from icechunk_format.spec.object_keys import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icechunk_format.storage.measures import Measures

MAX_SHOWN_ERRORS: Final = 10


class Phase(Enum):
    """Kinds of objects in the order of their deletion: those that refer to others first.

    So a collection that dies leaves objects that nothing refers to, and never a reference to a
    deleted object.
    """

    SNAPSHOTS = "snapshots"
    TRANSACTION_LOGS = "transaction_logs"
    MANIFESTS = "manifests"
    CHUNKS = "chunks"
    OVERWRITTEN = "overwritten"
    STAGED = "staged"

    @property
    def prefix(self) -> str:
        """Prefix of the keys of this kind of object."""
        return _PREFIXES[self]


_PREFIXES: Final = {
    Phase.SNAPSHOTS: SNAPSHOTS,
    Phase.TRANSACTION_LOGS: TRANSACTIONS,
    Phase.MANIFESTS: MANIFESTS,
    Phase.CHUNKS: CHUNKS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport:
    """Outcome of deletions; in a dry run, of those that would be made.

    Parameters
    ----------
    failed_objects
        Objects that still exist, garbage for the next collection.
    throttled_requests
        Requests that the storage refused for their rate; each was sent again.
    errors
        Distinct reasons of failures, at most ``MAX_SHOWN_ERRORS``.
    gave_up
        Whether deletions ended because too many failed in a row.
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
    """Return the first few reasons, each once, in order."""
    return tuple(dict.fromkeys(text for part in parts for text in part))[:MAX_SHOWN_ERRORS]


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """Result of a collection, or of its dry run: the objects deleted.

    Parameters
    ----------
    bytes_deleted
        Bytes of all objects deleted, by the sizes in the listing.
    snapshots_deleted, transaction_logs_deleted, manifests_deleted, chunks_deleted
        Objects deleted of each kind.
    overwritten_deleted
        Old copies of ``repo`` and ``config.yaml`` that were deleted.
    staged_deleted
        Files that killed writers left unfinished in a local storage.
    objects_failed_to_delete
        Garbage that could not be deleted; the next collection tries again.
    throttled_requests
        Requests that the storage refused for their rate; each was sent again.
    delete_errors
        Distinct reasons of failures, at most 10.
    skipped_phases
        Kinds that were skipped because objects that may refer to them could not be deleted.
    dry_run
        Whether nothing was changed.
    totals
        What Spark's tasks have read, listed and deleted; None for a call in this process.
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
        """Add a phase that did not run."""
        return replace(self, skipped_phases=(*self.skipped_phases, phase.value))
