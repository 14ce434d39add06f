"""Collects garbage: deletes objects that no retained snapshot needs.

Steps
-----
1. Find the snapshots to keep: those that a branch, a tag or an extra root reaches, and new
   unreachable ones, whose files are newer than the cutoff by the storage's clock or not yet listed.
2. Mark: read each of these snapshots and each manifest once, and collect ids (``marks``).
3. Remove the other snapshots from ``repo``, in one conditional update, before any file is deleted.
   A kept snapshot whose parent is removed gets its nearest kept ancestor as parent, and lists the
   transaction logs in between. If a new snapshot descends from one to remove, or a ref points to
   one, start again. Also mark other snapshots added since step 1, since they may use data of a
   removed snapshot; later snapshots can only use what these use.
4. Sweep (``sweep``): delete snapshots, transaction logs, manifests and chunks, in this order. An
   object is deleted after all objects that refer to it, so an interrupted collection leaves the
   repository intact, and the next collection continues.

Rules of this file
------------------
1. A single process and Spark run the same steps, with different ``Collector`` classes.
2. Objects with a storage time at or after the cutoff are never deleted, and the time in a snapshot
   does not matter. Only this rule protects open writes, since nothing refers to their files before
   the commit.
3. Spec version 1 has no conditional update of ``repo``. Instead, refs are read again after
   snapshots were deleted, and reachable snapshots are restored; a writer checks after its change
   that the old snapshot still exists. At least one of the two therefore detects the other. The
   driver deletes these snapshots, with up to 64 MB of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

import numpy as np

from icechunk_format.encoding.envelope import SPEC_V1
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import REPO, SNAPSHOTS, snapshot_key
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.updates import GCRanUpdate
from icechunk_format.errors import ConflictError, NotFoundError, StorageError
from icechunk_format.maintenance.garbage.marks import Collector, OneProcessCollector
from icechunk_format.maintenance.garbage.object_listing import is_older
from icechunk_format.maintenance.garbage.result import (
    CollectResult,
    DeleteReport,
    Phase,
    distinct_errors,
)
from icechunk_format.maintenance.garbage.sweep import (
    MAX_FAILURES_IN_A_ROW,
    delete_keys,
    delete_staging,
    needed_copies,
    trim_overwritten,
)
from icechunk_format.progress import ProgressOption
from icechunk_format.repository import Repository
from icechunk_format.repository.history import History, parse_cutoff
from icechunk_format.repository.history.history import (
    RefFilesHistory,
    RepoInfoHistory,
    reached_from,
)
from icechunk_format.repository.history.resolve import Cutoff
from icechunk_format.repository.lifecycle.expire import with_nearest
from icechunk_format.repository.state import RaceLost, until_won
from icechunk_format.repository.state.publish import update_repo
from icechunk_format.repository.state.repo_file import read_state
from icechunk_format.repository.state.transitions import Transition, check_status
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.location import Place
from icechunk_format.storage.protocol import ReadRequest, StagingStorage, Storage, check_writable

_NOTHING: Final = "nothing was deleted. Collect when fewer branches are moved"
_SNAPSHOTS_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
_FILES: Final = (Phase.SNAPSHOTS, Phase.TRANSACTION_LOGS, Phase.MANIFESTS, Phase.CHUNKS)


def collect_garbage(
    location: Place,
    older_than: Cutoff,
    *,
    dry_run: bool = False,
    trim_overwritten_older_than: Cutoff | None = None,
    extra_roots: Iterable[SnapshotId | str] = (),
    progress: ProgressOption = None,
) -> CollectResult:
    """Delete the objects that no branch, tag or new snapshot of a repository reaches.

    Which cutoff to choose
    ----------------------
    Only ``older_than`` protects open writes: objects of a session are garbage until it commits. The
    cutoff must be before the start of the longest open write, including rebases and retries of its
    job, with a margin of minutes for clock differences: it is compared with the storage's times of
    objects. If no job writes for longer than a few hours, one day is enough; a week is almost
    always safe. Snapshots that no ref reaches (detached, amended, expired, or of deleted branches)
    are kept while their files are newer than the cutoff.

    Parameters
    ----------
    location
        The repository.
    older_than
        Objects written before this timestamp may be deleted: a `datetime` with a time zone, or an
        age, such as ``"7d"`` or a `timedelta`.
    dry_run
        Count what would be deleted, but change nothing.
    trim_overwritten_older_than
        Also delete backups in ``overwritten/`` that were made before this timestamp and that the
        operations log does not reach; None keeps all. It must be before any unfinished change of
        the repository: some minutes ago is enough.
    extra_roots
        Additional snapshots to keep with their ancestors, as if each had a tag.
    progress
        Called with the progress; see ``icechunk_format.progress``. An error raised by it ends the
        collection; the next collection continues.

    Returns
    -------
    CollectResult
        Counts of deleted objects. If objects could not be deleted, they are counted, and the kinds
        of objects that follow in order are left for the next run.

    Raises
    ------
    InvalidInputError
        A cutoff is neither a timestamp with a time zone nor an age, or an id is malformed.
    NotFoundError
        The repository or an extra root does not exist, or a file that a kept snapshot needs is
        missing; nothing was deleted.
    FormatError
        A file that a kept snapshot needs is damaged; nothing was deleted.
    ConflictError
        Other writers changed the repository during every attempt.
    ReadOnlyError
        The repository or the storage is read-only.
    CommitOutcomeUnknownError
        It is unknown whether ``repo`` was changed; no file was deleted.
    StorageError
        The storage failed. Another run completes the collection.

    Notes
    -----
    Memory: 12 bytes for each distinct kept chunk (up to about 80 during sorting), 20 bytes for each
    deleted object, and up to 64 MiB of manifests. If this is too much for one process, use
    ``icechunk_spark.maintenance.collect_garbage``.

    Examples
    --------
    >>> collect_garbage("weather", "7d", dry_run=True).chunks_deleted  # doctest: +SKIP
    """
    older_than = parse_cutoff(older_than, argument="older_than")
    repository = Repository.open(location)
    return collect_from(
        repository.storage,
        OneProcessCollector(repository.storage, older_than, dry_run=dry_run, progress=progress),
        spec_version=repository.spec_version,
        older_than=older_than,
        dry_run=dry_run,
        trim_overwritten_older_than=trim_overwritten_older_than,
        extra_roots=extra_roots,
    )


def collect_from(
    storage: Storage,
    collector: Collector,
    *,
    spec_version: int,
    older_than: datetime,
    dry_run: bool = False,
    trim_overwritten_older_than: Cutoff | None = None,
    extra_roots: Iterable[SnapshotId | str] = (),
) -> CollectResult:
    """Run the steps of a collection with a collector, which marks and sweeps.

    Other parameters and errors are those of ``collect_garbage``.
    """
    trim = trim_overwritten_older_than
    trim = None if trim is None else parse_cutoff(trim, argument="trim_overwritten_older_than")
    if not dry_run:
        check_writable(storage)
    extra = tuple(SnapshotId.parse(one) if isinstance(one, str) else one for one in extra_roots)
    if spec_version == SPEC_V1:
        info = None
        kept = logs = _marked_v1(storage, collector, extra)
    else:
        info = _marked_state(storage, collector, extra, dry_run=dry_run)
        kept, logs = frozenset(info.snapshots), info.transaction_logs()
    needed: set[str] = set()
    if trim is not None and info is not None:
        needed = needed_copies(storage, info)

    result = CollectResult(dry_run=dry_run)
    needed_ids = {Phase.SNAPSHOTS: kept, Phase.TRANSACTION_LOGS: logs}
    for phase in _FILES:
        if result.objects_failed_to_delete:
            result = result.with_skipped(phase)
            continue
        if info is None and phase is Phase.SNAPSHOTS and not dry_run:
            report, kept = _delete_snapshots_v1(storage, kept, older_than, extra)
            if kept != logs:
                collector.mark_also(kept - logs)
            needed_ids[Phase.TRANSACTION_LOGS] = kept
        else:
            report = collector.sweep(phase, needed_ids.get(phase))
        result = _counted(storage, result, phase, report)
    if trim is not None:
        report = trim_overwritten(storage, needed, trim, dry_run=dry_run)
        result = _counted(storage, result, Phase.OVERWRITTEN, report)
    report = delete_staging(storage, older_than, dry_run=dry_run)
    if isinstance(storage, StagingStorage):
        sizes, failures = storage.delete_staged(older_than, dry_run=dry_run)
        report += DeleteReport(
            deleted_objects=len(sizes),
            deleted_bytes=sum(sizes),
            failed_objects=len(failures),
            errors=distinct_errors(failure.reason for failure in failures),
        )
    return _counted(storage, result, Phase.STAGED, report)


def _marked_v1(
    storage: Storage, collector: Collector, extra: tuple[SnapshotId, ...]
) -> frozenset[SnapshotId]:
    """Mark the kept snapshots in spec version 1, which has no conditional update for refs."""

    def attempt(_: int) -> frozenset[SnapshotId] | RaceLost:
        kept = reachable(RefFilesHistory(storage), extra)
        if not kept:
            raise NotFoundError(
                f"{storage.root_url} has no branch and no tag, so everything in it would be "
                "garbage; nothing was deleted",
                kind="branch",
                root_url=storage.root_url,
            )
        collector.mark(kept)
        if storage.head(REPO) is not None:
            raise ConflictError(
                f"{storage.root_url} was upgraded to spec version 2 during the collection; "
                "nothing was deleted. Collect again"
            )
        return kept if _tips_v1(storage) <= kept else RaceLost()

    return until_won(attempt, storage.root_url, "a ref", outcome=_NOTHING)


def _delete_snapshots_v1(
    storage: Storage,
    kept: frozenset[SnapshotId],
    older_than: datetime,
    extra: tuple[SnapshotId, ...],
) -> tuple[DeleteReport, frozenset[SnapshotId]]:
    """Delete snapshots that are not kept; return the report and the kept snapshots.

    Descendants are deleted before ancestors, by file time, in batches. If a ref was moved to a
    deleted snapshot, its history is restored and kept.
    """
    total = DeleteReport()
    listed = sorted(
        (found.last_modified, found.key, found.size)
        for found in storage.list(SNAPSHOTS)
        if is_older(found.last_modified, older_than)
    )
    ids = ((SnapshotId.parse_exact(key.removeprefix(SNAPSHOTS)), n) for _, key, n in listed[::-1])
    garbage = [((one, size), size) for one, size in ids if one is not None and one not in kept]
    for batch in sized_batches(garbage, _SNAPSHOTS_AT_ONCE, _BYTES_AT_ONCE):
        if total.gave_up:
            break
        going = {one: size for one, size in batch if one not in kept}
        requests = [ReadRequest(key=snapshot_key(one)) for one in going]
        contents = dict(zip(going, storage.get_many(requests), strict=True))
        while going:
            keys = [snapshot_key(one) for one in going]
            sizes = np.array(list(going.values()), np.uint64)
            report = delete_keys(storage, keys.__getitem__, sizes)
            if _tips_v1(storage) <= kept:
                total += report
                break
            storage.put_many([(snapshot_key(one), contents[one]) for one in going])
            kept |= reachable(RefFilesHistory(storage), extra)
            going = {one: size for one, size in going.items() if one not in kept}
    return total, kept


def _tips_v1(storage: Storage) -> set[SnapshotId]:
    return set(RefFilesHistory(storage).known_snapshots())


def _marked_state(
    storage: Storage, collector: Collector, extra: tuple[SnapshotId, ...], *, dry_run: bool
) -> RepoInfo:
    """Mark the kept snapshots; return the state of ``repo`` that lists only these."""

    def attempt(_: int) -> RepoInfo | RaceLost:
        info = read_state(storage).info
        if not dry_run:
            check_status(info.status)
        reached = reachable(RepoInfoHistory(info), extra)
        candidates = frozenset(info.snapshots) - reached
        dropped = collector.old_snapshots(candidates) if candidates else frozenset()
        kept = frozenset(info.snapshots) - dropped
        collector.mark(kept)
        change = partial(without_dropped, kept=kept, dropped=dropped)
        if dry_run:
            planned = change(info)
            if isinstance(planned, RootsMoved):
                raise AssertionError(f"a state does not move by itself: {planned.why}")
            return planned.info
        published = update_repo(storage, change)
        if published.declined is not None:
            return RaceLost(why=published.declined.why)
        if added := frozenset(published.info.snapshots) - kept:
            collector.mark_also(added)
        return published.info

    return until_won(attempt, storage.root_url, "a ref", outcome=_NOTHING)


def _counted(
    storage: Storage, result: CollectResult, phase: Phase, report: DeleteReport
) -> CollectResult:
    """Add the counts of a phase; raise StorageError if the phase was aborted."""
    result = result.with_phase(phase, report)
    if report.gave_up:
        raise StorageError(
            f"deleting {phase.value.replace('_', ' ')} of {storage.root_url} was aborted after "
            f"{MAX_FAILURES_IN_A_ROW} failed requests in a row ({'; '.join(report.errors[:3])}); "
            f"{report.deleted_objects} were deleted, {report.failed_objects} are left. Check the "
            "permission to delete, then collect again to continue",
            phase=phase.value,
            result=result,
        )
    return result


# -- roots --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RootsMoved:
    """A change of the repository by other writers, after which roots must be found again."""

    why: str


def reachable(history: History, extra_roots: Iterable[SnapshotId] = ()) -> frozenset[SnapshotId]:
    """Return the snapshots that refs and extra roots reach; one read per snapshot in version 1."""
    tips = (*history.branches().values(), *history.tags().values(), *extra_roots)
    return frozenset(reached_from(history, tips))


def without_dropped(
    info: RepoInfo, kept: frozenset[SnapshotId], dropped: frozenset[SnapshotId]
) -> Transition | RootsMoved:
    """Return the state without the dropped snapshots, or the change that outdated the roots.

    ``kept`` and ``dropped`` are all snapshots that ``repo`` listed when the roots were found.
    """
    snapshots: dict[SnapshotId, SnapshotInfo] = {}
    for snapshot in info.snapshots.values():
        if snapshot.id in dropped:
            continue
        snapshots[snapshot.id] = snapshot
        if snapshot.parent_id in dropped:
            if snapshot.id not in kept:
                return RootsMoved(
                    why=f"snapshot {snapshot.id} was added on one that would be deleted"
                )
            nearest = with_nearest(info, snapshot, lambda ancestor: ancestor.id in kept)
            snapshots[snapshot.id] = nearest
    for name, tip in (*info.branches.items(), *info.tags.items()):
        if tip not in snapshots:
            return RootsMoved(why=f"{name!r} was moved to snapshot {tip}, which would be deleted")
    return Transition(info=replace(info, snapshots=snapshots), details=GCRanUpdate())
