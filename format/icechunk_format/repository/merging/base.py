"""Finds the newest snapshot that two histories contain.

A history contains its ancestors, former ancestors that expired (``pruned_ancestor_tx_logs``), and
snapshots that an ancestor merged: merges record the tip of their source as ``merged_snapshot`` in
the metadata reserved for Icechunk libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from icechunk_format.errors import ConflictError, NotFoundError
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.history.history import History
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.file import SnapshotInfo
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.spec.values.metadata_items import RESERVED_METADATA
from icechunk_format.storage.protocol import Storage

MERGED: Final = "merged_snapshot"


def merge_base(
    storage: Storage, history: History, source: SnapshotId, target: SnapshotId
) -> Snapshot:
    """Return the newest snapshot that both histories contain.

    Raises ConflictError if the snapshot has expired and its file no longer exists, or the histories
    share none.
    """
    ours, theirs = _contained(history, source), _contained(history, target)
    shared = [i for i in ours if i in theirs]
    # Listed snapshots, newest first, then expired ones.
    listed = [info for i in shared if (info := ours[i] or theirs[i]) is not None]
    expired = [i for i in shared if ours[i] is None and theirs[i] is None]
    newest = max(listed, key=lambda info: info.flushed_at, default=None)
    if newest is not None and (newest.parent_id is not None or not expired):
        return load_snapshot(storage, newest.id)
    for snapshot_id in expired:
        try:
            return load_snapshot(storage, snapshot_id)
        except NotFoundError:
            break
    raise base_gone(storage, source, target)


def base_gone(storage: Storage, source: SnapshotId, target: SnapshotId) -> ConflictError:
    """Return the error for two snapshots whose newest common snapshot cannot be read."""
    return ConflictError(
        f"snapshots {source} and {target} of {storage.root_url} cannot be merged: their newest "
        "common snapshot has expired and was collected, so the changes of each side are unknown. "
        "Write the changes again in a session on the branch",
        source=str(source),
        target=str(target),
    )


def with_merged(metadata: Mapping[str, Any] | None, **notes: object) -> dict[str, Any]:
    """Add notes to the commit metadata reserved for Icechunk libraries."""
    values = dict(metadata or {})
    reserved = values.get(RESERVED_METADATA, {})
    if isinstance(reserved, Mapping):
        values[RESERVED_METADATA] = {**reserved, **{k: str(v) for k, v in notes.items()}}
    return values


def _contained(history: History, tip: SnapshotId) -> dict[SnapshotId, SnapshotInfo | None]:
    """Return the snapshots of a history with their entries; None for expired ones."""
    found: dict[SnapshotId, SnapshotInfo | None] = {}
    waiting = [tip]
    while waiting:
        for info in history.ancestry(waiting.pop()):
            if found.get(info.id) is not None:
                break
            found[info.id] = info
            for log_id in reversed(info.pruned_ancestor_tx_logs):
                found.setdefault(log_id, None)
            merged = _merged(info)
            if merged is None or found.get(merged) is not None:
                continue
            if history.snapshot_info(merged) is None:
                found.setdefault(merged, None)
            else:
                waiting.append(merged)
    return found


def _merged(info: SnapshotInfo) -> SnapshotId | None:
    notes = info.metadata.get(RESERVED_METADATA)
    text = notes.get(MERGED) if isinstance(notes, dict) else None
    try:
        return None if text is None else SnapshotId.parse(str(text))
    except ValueError:
        return None
