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
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import StorageError
from icechunk_format.maintenance.garbage.object_listing import list_ids
from icechunk_format.maintenance.garbage.result import DeleteReport, distinct_errors
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.spec.ids import IdSet, encode_many
from icechunk_format.storage.protocol import Storage

DELETE_BATCH: Final = 1000
"""Objects of one request: the limit of S3."""

MAX_FAILURES_IN_A_ROW: Final = 20

_MOST_REQUESTS: Final = 8
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
_THROTTLED_STATUS: Final = (429, 503)
_THROTTLED_WORDS: Final = ("SlowDown", "Throttl", "TooManyRequests", "ServerBusy")


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

    def keys_of(start: int, stop: int) -> list[str]:
        return [f"{prefix}{name}" for name in encode_many(ids[start:stop])]

    with phase(None if dry_run else progress, f"Deleting from {prefix}", len(ids)) as advance:
        return delete_keys(
            storage, len(ids), keys_of, np.concatenate(sizes), dry_run=dry_run, advance=advance
        )


def delete_keys(
    storage: Storage,
    count: int,
    keys_of: Callable[[int, int], list[str]],
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
    if dry_run:
        return DeleteReport(deleted_objects=count, deleted_bytes=int(sizes.sum()))
    total = DeleteReport()
    requests, delay, in_a_row, start = 1, 0.0, 0, 0
    while start < count:
        stop = min(count, start + requests * DELETE_BATCH)
        keys = keys_of(start, stop)
        step, is_throttled = _delete(storage, keys, sizes[start:stop])
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
