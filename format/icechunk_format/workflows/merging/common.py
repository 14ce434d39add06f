"""Finds the common ancestor of the two sides of a merge.

The common ancestor is the newest snapshot that both histories contain. A history contains its
ancestors, former ancestors that expired (``pruned_ancestor_tx_logs``), and snapshots that an
ancestor merged.

Branches that merged one another (criss-cross) contain several newest snapshots, none of which
contains the other. Each would take the decisions of one side for granted, so the ancestor is the
newest snapshot that all of these contain.

Spec version 1 does not record expired ancestors: the first snapshot becomes the parent of the
oldest one that is kept. So a first snapshot that explains the oldest snapshots of neither side is
not the common ancestor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.values.metadata_items import RESERVED_METADATA
from icechunk_format.errors import ConflictError, NotFoundError
from icechunk_format.grid.coordinates import CoordinateOrder
from icechunk_format.repository.changes import metadata_of
from icechunk_format.repository.files import load_snapshot, load_transaction_log
from icechunk_format.repository.history import History
from icechunk_format.repository.lifecycle.difference import changed_chunks
from icechunk_format.storage.protocol import Storage

MERGED: Final = "merged_snapshot"
"""Name in the metadata of a merge that records the merged snapshot."""


def merge_base(
    storage: Storage, history: History, source: SnapshotId, target: SnapshotId
) -> Snapshot:
    """Return the common ancestor of two snapshots.

    Raises ConflictError if it has expired and cannot be read, or the histories share none.
    """
    ours, theirs = _contained(history, source), _contained(history, target)
    shared = {i: ours[i] or theirs[i] for i in ours if i in theirs}
    newest = _newest_of(shared)
    while len(newest) > 1:
        inside = [_contained(history, info.id) for info in newest]
        shared = {i: info for i, info in shared.items() if all(i in each for each in inside)}
        newest = _newest_of(shared)
    expired = [i for i, info in shared.items() if info is None]
    if newest and (newest[0].parent_id is not None or not expired):
        base = load_snapshot(storage, newest[0].id)
        if base.parent_id is None and _is_gap(storage, history, base, source, target):
            raise base_gone(storage, source, target)
        return base
    for snapshot_id in expired:
        try:
            return load_snapshot(storage, snapshot_id)
        except NotFoundError:
            break
    raise base_gone(storage, source, target)


def _newest_of(shared: Mapping[SnapshotId, SnapshotInfo | None]) -> list[SnapshotInfo]:
    """Return the listed snapshots that no other one contains directly."""
    listed = [info for info in shared.values() if info is not None]
    below: set[SnapshotId | None] = set()
    for info in listed:
        below |= {info.parent_id, _merged_snapshot(info), *info.pruned_ancestor_tx_logs}
    return [info for info in listed if info.id not in below]


def _is_gap(
    storage: Storage, history: History, base: Snapshot, source: SnapshotId, target: SnapshotId
) -> bool:
    """Return True if snapshots between a first snapshot and both sides have expired unrecorded."""
    oldest = []
    for tip in (source, target):
        infos = [info for info in history.ancestry(tip) if info.parent_id == base.id]
        if not infos or infos[0].pruned_ancestor_tx_logs:
            return False
        oldest.append(infos[0].id)
    return not any(_explains(storage, base, snapshot_id) for snapshot_id in oldest)


def _explains(storage: Storage, base: Snapshot, snapshot_id: SnapshotId) -> bool:
    """Return True if the log of a snapshot has all its differences from another snapshot."""
    snapshot = load_snapshot(storage, snapshot_id)
    try:
        log = load_transaction_log(storage, snapshot_id)
    except NotFoundError:
        return False
    new, gone = {*log.new_groups, *log.new_arrays}, {*log.deleted_groups, *log.deleted_arrays}
    before = {node.id: node for node in base.nodes}
    after = {node.id: node for node in snapshot.nodes}
    created, lost = after.keys() - before.keys(), before.keys() - after.keys()
    # A deleted node that neither the base nor this snapshot created is of one in between.
    if created - new or lost - gone or gone - new - before.keys():
        return False
    updated = {*log.updated_groups, *log.updated_arrays}
    for node_id in before.keys() & after.keys():
        was, node = before[node_id], after[node_id]
        if metadata_of(was) != metadata_of(node) and node_id not in updated:
            return False
        if node.array is None:
            continue
        coords = changed_chunks(storage, was, base, node, snapshot)
        known = log.updated_chunks.get(node_id, coords[:0])
        if len(coords) and (CoordinateOrder(known).find(coords) < 0).any():
            return False
    return True


def base_gone(storage: Storage, source: SnapshotId, target: SnapshotId) -> ConflictError:
    """Return the error for two snapshots whose newest common snapshot cannot be read."""
    return ConflictError(
        f"snapshots {source} and {target} of {storage.root_url} cannot be merged: their newest "
        "common snapshot has expired, so the changes of each side are unknown. "
        "Write the changes again in a session on the branch",
        source=str(source),
        target=str(target),
    )


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
            merged = _merged_snapshot(info)
            if merged is None or found.get(merged) is not None:
                continue
            if history.snapshot_info(merged) is None:
                found.setdefault(merged, None)
            else:
                waiting.append(merged)
    return found


def _merged_snapshot(info: SnapshotInfo) -> SnapshotId | None:
    notes = info.metadata_items.get(RESERVED_METADATA)
    string = notes.get(MERGED) if isinstance(notes, dict) else None
    try:
        return None if string is None else SnapshotId.parse(str(string))
    except ValueError:
        return None
