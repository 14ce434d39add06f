"""Sweeps one kind of object: lists all objects, and deletes those that are not marked.

Rules of this file
------------------
1. Only objects whose names are canonical ids are considered; others are kept.
2. The listing is complete before the first deletion, since some storages list a folder unreliably
   during deletions. Garbage is held as columns, 20 bytes for each object.
3. An object that no longer exists counts as deleted.
4. Deletions begin with one request of 1000 objects. Success increases the number of parallel
   requests; throttling reduces it, after a pause. Too many consecutive failures abort the
   deletions.
5. Backups in ``overwritten/`` are kept if they are in the chain of the operations log, regardless
   of their age. Other old backups are deleted: of updates that lost a race or were interrupted, of
   the ``config.yaml`` of spec version 1, and before a gap in the chain, where a backup was deleted
   manually.

Specification: "Updates to the repo info file".
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import IdSet, SnapshotId, encode_many
from icechunk_format.encoding.object_keys import OVERWRITTEN, STAGING
from icechunk_format.encoding.repo_info.file import RepoInfo
from icechunk_format.errors import StorageError
from icechunk_format.maintenance.garbage.object_listing import is_older, list_ids
from icechunk_format.maintenance.garbage.result import DeleteReport, distinct_errors
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.repository.state.repo_file import read_operations
from icechunk_format.storage.protocol import Storage

DELETE_BATCH: Final = 1000
"""Objects of one request: the limit of S3."""

MAX_FAILURES_IN_A_ROW: Final = 20

_MOST_REQUESTS: Final = 8
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
_THROTTLED_STATUS: Final = (429, 503)
_THROTTLED_WORDS: Final = ("SlowDown", "Throttl", "TooManyRequests", "ServerBusy")
_STAGED: Final = re.compile(rf"{STAGING}[0-9a-f]{{32}}/.+")
_BACKUP: Final = re.compile(r"(?:repo|config\.yaml)\.\d{14}\.([0-9A-Z]{20})")


def delete_unneeded(
    storage: Storage,
    prefix: str,
    kept: IdSet,
    older_than: datetime,
    *,
    within: str = "",
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> DeleteReport:
    """Delete the objects below ``prefix`` that are older than the cutoff and not kept.

    Lists only names that begin with ``within``.
    """
    found = [np.empty((0, 12), dtype=np.uint8)]
    sizes = [np.empty(0, dtype=np.uint64)]
    with phase(progress, f"Listing {prefix}") as advance:
        for page in list_ids(storage, prefix, within, older_than=older_than):
            is_garbage = ~kept.contains(page.ids)
            found.append(page.ids[is_garbage])
            sizes.append(page.sizes[is_garbage].astype(np.uint64))
            advance(len(page.ids))
    ids = np.concatenate(found)

    def keys_of(rows: slice) -> list[str]:
        return [f"{prefix}{name}" for name in encode_many(ids[rows])]

    with phase(None if dry_run else progress, f"Deleting from {prefix}", len(ids)) as advance:
        return delete_keys(
            storage, keys_of, np.concatenate(sizes), dry_run=dry_run, advance=advance
        )


def delete_keys(
    storage: Storage,
    keys_of: Callable[[slice], list[str]],
    sizes: NDArray[np.uint64],
    *,
    dry_run: bool = False,
    pause: Callable[[float], None] = time.sleep,
    advance: Callable[[int], None] = lambda _: None,
) -> DeleteReport:
    """Delete objects, adapting to the rate limit of the storage.

    ``keys_of`` returns the keys of a range of objects, ``sizes`` are their bytes. ``pause`` waits a
    number of seconds; ``advance`` is called with the number of objects finished since its last
    call.
    """
    count = len(sizes)
    if dry_run:
        return DeleteReport(deleted_objects=count, deleted_bytes=int(sizes.sum()))
    total = DeleteReport()
    requests, delay, in_a_row, start = 1, 0.0, 0, 0
    while start < count:
        stop = min(count, start + requests * DELETE_BATCH)
        rows = slice(start, stop)
        step, is_throttled = _delete(storage, keys_of(rows), sizes[rows])
        if is_throttled:
            at_longest = delay >= _LONGEST_PAUSE
            requests = max(1, requests // 2)
            delay = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, delay * 2))
            in_a_row += at_longest
            total += DeleteReport(throttled_requests=1)
            if in_a_row < MAX_FAILURES_IN_A_ROW:
                pause(delay)
                continue
        total += step
        advance(stop - start)
        in_a_row = in_a_row + 1 if step.failed_objects else 0
        start = stop
        if in_a_row >= MAX_FAILURES_IN_A_ROW:
            return total + DeleteReport(failed_objects=count - start, gave_up=True)
        requests, delay = min(_MOST_REQUESTS, requests * 2), 0.0
    return total


def _delete(
    storage: Storage, keys: list[str], sizes: NDArray[np.uint64]
) -> tuple[DeleteReport, bool]:
    """Send one round of deletions; return the report, and whether it was throttled."""
    try:
        failures = storage.delete_many(keys)
    except StorageError as error:
        reason = str(error.facts.get("reason") or error)
        report = DeleteReport(failed_objects=len(keys), errors=(reason,))
        return report, _is_throttled(error.facts.get("status"), [reason])
    reasons = [failure.reason for failure in failures]
    if failures and _is_throttled(None, reasons):
        # Repeat all objects: deleting an object twice is harmless.
        return DeleteReport(failed_objects=len(failures), errors=distinct_errors(reasons)), True
    failed = {failure.key for failure in failures}
    gone = np.array([key not in failed for key in keys], dtype=bool)
    return DeleteReport(
        deleted_objects=int(gone.sum()),
        deleted_bytes=int(sizes[gone].sum()),
        failed_objects=int((~gone).sum()),
        errors=distinct_errors(reasons),
    ), False


def _is_throttled(status: object, reasons: list[str]) -> bool:
    if status in _THROTTLED_STATUS:
        return True
    return all(any(word in reason for word in _THROTTLED_WORDS) for reason in reasons)


# -- backups ------------------------------------------------------------------------------------


def needed_copies(storage: Storage, info: RepoInfo) -> set[str]:
    """Return the names of the backups in the operations log of a state.

    Raises
    ------
    FormatError
        A backup is damaged, or the chain of backups has a cycle, so that the needed backups are
        unknown.
    """
    named = {update.backup_path for update in read_operations(storage, info)}
    return {name for name in (*named, info.repo_before_updates) if name is not None}


def trim_overwritten(
    storage: Storage, needed: set[str], older_than: datetime, *, dry_run: bool = False
) -> DeleteReport:
    """Delete old backups that are not needed.

    Memory: one key for each deleted backup.
    """
    keys: list[str] = []
    sizes: list[int] = []
    for found in storage.list(OVERWRITTEN):
        name = found.key[len(OVERWRITTEN) :]
        is_copy = _BACKUP.fullmatch(name)
        if is_copy is None or SnapshotId.parse_exact(is_copy[1]) is None or name in needed:
            continue
        if is_older(found.last_modified, older_than):
            keys.append(found.key)
            sizes.append(found.size)
    return delete_keys(storage, keys.__getitem__, np.array(sizes, dtype=np.uint64), dry_run=dry_run)


def delete_staging(
    storage: Storage, older_than: datetime, *, dry_run: bool = False
) -> DeleteReport:
    """Delete intermediate files of killed writers; other names in the folder are not touched.

    Memory: one key for each deleted file.
    """
    found = [
        one for one in storage.list(STAGING)
        if _STAGED.fullmatch(one.key) and is_older(one.last_modified, older_than)
    ]  # fmt: skip
    keys, sizes = [one.key for one in found], np.array([one.size for one in found], np.uint64)
    return delete_keys(storage, keys.__getitem__, sizes, dry_run=dry_run)
