"""Restores an earlier snapshot by committing it again; later snapshots stay in history.

The new snapshot has the nodes and manifests of the old one, with their ids, so no chunk and no
manifest is written. Its transaction log lists the chunks that differ from the tip, so that diffs
are complete and other writers detect conflicts.

Rules of this file
------------------
1. The branch must be at the snapshot that the log is relative to. If it moved, nothing is
   committed.
2. The old snapshot is protected from a concurrent garbage collection: see ``branch_tip``.

Specification: "Snapshot Files", "Transaction Log Files".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.commit.assemble import manifest_files_of
from icechunk_format.repository.commit.commit import (
    CommitResult,
    Written,
    commit_metadata,
    new_snapshot_id,
    store_snapshot,
)
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.lifecycle.difference import difference
from icechunk_format.repository.state import conflict_errors
from icechunk_format.repository.state.branch_tip import BranchTip
from icechunk_format.storage.protocol import Storage


def restore_snapshot(
    storage: Storage,
    tip: BranchTip,
    format: ManifestFormat,
    seen: SnapshotId,
    old_id: SnapshotId,
    *,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> CommitResult:
    """Commit an old snapshot again on top of a branch, whose expected tip was ``seen``.

    Errors are those of ``Repository.restore``.
    """
    branch = tip.branch
    current, old = load_snapshot(storage, seen), load_snapshot(storage, old_id)
    log = difference(storage, current, old, snapshot_id=new_snapshot_id())
    if log.is_empty:
        raise InvalidInputError(
            f"nothing to restore: branch {branch!r} of {storage.root_url} has the content of "
            f"snapshot {old_id}",
            branch=branch,
            snapshot=str(old_id),
        )
    tip = tip.using(old)
    stored = store_snapshot(
        storage,
        format,
        base=current,
        nodes=old.nodes,
        files=manifest_files_of(old.nodes, old),
        log=log,
        message=f"Restore snapshot {old_id}" if message is None else message,
        metadata=commit_metadata(metadata, spec_version=format.spec_version),
        written=Written(),
        beside=tip.copy_to_store(),
    )
    moved = tip.advance(stored.info)
    if moved is not None:
        raise conflict_errors.tip_moved(storage, moved, seen)
    return stored.result(branch)
