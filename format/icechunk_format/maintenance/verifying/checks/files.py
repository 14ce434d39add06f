"""Checks files of a repository: snapshots, logs, backups and manifests.

A task receives a ``VerifyContext``.

Rules of this file
------------------
1. Files are read in batches: at most ``_FILES_AT_ONCE`` small files, or about 64 MB of manifests.
   Manifests are decoded one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from icechunk_format.encoding.object_keys import manifest_key, snapshot_key, transaction_log_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.maintenance.fetching import fetched_present
from icechunk_format.maintenance.verifying.checks.decoding import decode_chunks
from icechunk_format.maintenance.verifying.checks.manifests import UsedRefs, check_manifest
from icechunk_format.maintenance.verifying.checks.readable import reporting
from icechunk_format.maintenance.verifying.checks.snapshots import (
    SeenNodes,
    check_log,
    check_nodes,
    check_snapshot,
)
from icechunk_format.maintenance.verifying.checks.state import RankedSnapshot
from icechunk_format.maintenance.verifying.checks.uses import Claim, ManifestClaims
from icechunk_format.maintenance.verifying.checks.virtual import VirtualFiles
from icechunk_format.maintenance.verifying.findings import DEFAULT_MAX_FINDINGS, Report
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.storage.batches import batches, sized_batches
from icechunk_format.storage.location import open_storage
from icechunk_format.storage.protocol import Storage

_SNAPSHOTS_AT_ONCE: Final = 8
_FILES_AT_ONCE: Final = 32
_BYTES_AT_ONCE: Final = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyContext:
    """The context of all tasks of a verification; picklable.

    ``has_containers`` is False if the configuration could not be read.
    """

    source: ChunkSource
    has_containers: bool = True
    deep: bool = False
    max_findings: int = DEFAULT_MAX_FINDINGS

    @property
    def storage(self) -> Storage:
        """The storage of the repository in this process."""
        return open_storage(self.source.location)

    def new_report(self) -> Report:
        """Return an empty report for a task."""
        return Report(self.max_findings)


def check_snapshots(
    context: VerifyContext,
    snapshots: Iterable[RankedSnapshot],
    report: Report,
    advance: Callable[[int], None],
) -> Iterator[Claim]:
    """Check snapshots and transaction logs; yield their claims about manifests.

    ``advance`` is called with the number of snapshots finished since its last call.

    Memory: the files of ``_SNAPSHOTS_AT_ONCE`` snapshots, one of them decoded, and 16 bytes for
    each distinct node.
    """
    storage = context.storage
    seen, seen_logs = SeenNodes(), SeenNodes()
    for batch in batches(snapshots, _SNAPSHOTS_AT_ONCE):
        ids = [ranked.snapshot_id for ranked in batch]
        files = fetched_present(storage, [snapshot_key(snapshot_id) for snapshot_id in ids])
        logs = fetched_present(storage, [transaction_log_key(snapshot_id) for snapshot_id in ids])
        for ranked, data, log in zip(batch, files, logs, strict=True):
            snapshot = check_snapshot(ranked, data, report)
            if snapshot is not None:
                mark, deep = ranked.mark, context.deep
                yield from check_nodes(snapshot, mark, report, seen, with_documents=deep)
            check_log(ranked, ranked.snapshot_id, log, snapshot, report)
        pruned = [
            (ranked, log_id)
            for ranked in batch
            for log_id in ranked.pruned_logs
            if seen_logs.is_new(log_id.raw)
        ]
        for part in batches(pruned, _FILES_AT_ONCE):
            found = fetched_present(storage, [transaction_log_key(log_id) for _, log_id in part])
            for (ranked, log_id), log in zip(part, found, strict=True):
                check_log(ranked, log_id, log, None, report)
        advance(len(batch))


def check_backups(context: VerifyContext, object_keys: Iterable[str], report: Report) -> None:
    """Decode backups of ``repo``; skip those that were deleted meanwhile."""
    for batch in batches(object_keys, _FILES_AT_ONCE):
        for object_key, data in zip(batch, fetched_present(context.storage, batch), strict=True):
            if data is None:
                continue
            report.count("backups")
            with reporting(report.at(object_key=object_key), "backup-damaged"):
                repo_info.decode(data, object_key=object_key)


def check_manifests(
    context: VerifyContext, claims: Iterable[ManifestClaims], report: Report
) -> Iterator[UsedRefs]:
    """Check manifests, virtual files and, if deep, the content of chunks.

    Yields the references of manifests, array by array, for the check of objects.
    """
    source, storage = context.source, context.storage
    files = VirtualFiles(source, has_containers=context.has_containers)
    sized = ((one, one.expected_size or None) for one in claims)
    for batch in sized_batches(sized, _FILES_AT_ONCE, _BYTES_AT_ONCE):
        contents = fetched_present(storage, [manifest_key(c.manifest_id) for c in batch])
        while batch:
            # Popped, so that each file is freed after its check.
            one, data = batch.pop(), contents.pop()
            for used in check_manifest(one, data, report):
                files.check(used, report)
                if context.deep:
                    decode_chunks(used, source, report)
                yield used
