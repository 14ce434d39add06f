"""A small repo info file, and ones written table by table, as this project would not write them."""

from __future__ import annotations

from typing import Any

from icechunk_format.encoding.envelope import FileType, wrap
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import REPO, RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.lists import REF
from icechunk_format.encoding.repo_info.stored_snapshots import SNAPSHOT_INFO
from icechunk_format.encoding.repo_info.updates import (
    REPO_STATUS,
    Availability,
    NewCommitUpdate,
    RepoInitializedUpdate,
    RepoStatus,
    RepoStatusChangedUpdate,
    Update,
)
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.encoding.values.metadata_items import MetadataItems

ROOT_ID = SnapshotId(b"r" * 12)
TIP_ID = SnapshotId(b"a" * 12)


def small_repository() -> RepoInfo:
    """Two snapshots, all lists filled; the root sorts after the tip."""
    return RepoInfo(
        tags={"v1": ROOT_ID},
        branches={"main": TIP_ID, "other": ROOT_ID},
        deleted_tags=("v0",),
        snapshots={
            TIP_ID: SnapshotInfo(
                id=TIP_ID,
                parent_id=ROOT_ID,
                flushed_at=1_700_000_000_000_001,
                message="second",
                metadata_items=MetadataItems.of({"author": "someone", "count": 3}),
                pruned_ancestor_tx_logs=(SnapshotId(b"p" * 12),),
            ),
            ROOT_ID: SnapshotInfo(
                id=ROOT_ID, parent_id=None, flushed_at=1_700_000_000_000_000, message="first"
            ),
        },
        status=RepoStatus(
            availability=Availability.READ_ONLY, set_at=5, reason="moving to another region"
        ),
        latest_updates=(
            Update(details=NewCommitUpdate(branch="main", new_snap_id=TIP_ID), updated_at=3),
            Update(
                details=RepoStatusChangedUpdate(status=RepoStatus(set_at=2)),
                updated_at=2,
                backup_path="repo.2",
            ),
            Update(details=RepoInitializedUpdate(), updated_at=1, backup_path="repo.1"),
        ),
        repo_before_updates="repo.0",
        metadata_items=MetadataItems.of({"title": "weather", "list": [1, {"a": None}]}),
        config=b"\x00\x01\x02",
        enabled_feature_flags=(3,),
        disabled_feature_flags=(),
    )


def made(*, header_version: int = 2, **changes: Any) -> bytes:
    """Write a repository table by table; ``changes`` are fields, or functions of the writer."""
    writer = TableWriter()
    fields: dict[str, Any] = {
        "spec_version": 2,
        "tags": writer.offsets([]),
        "branches": writer.offsets([writer.table(REF, name=writer.string("main"))]),
        "deleted_tags": writer.offsets([]),
        "snapshots": lambda w: w.offsets([snapshot_table(w)]),
        "status": writer.table(REPO_STATUS, set_at=1),
        "latest_updates": writer.offsets([]),
    }
    fields |= changes
    resolved = {name: v(writer) if callable(v) else v for name, v in fields.items()}
    root = writer.table(REPO, **resolved)
    return wrap(
        writer.finish(root), file_type=FileType.REPO_INFO, spec_version=header_version, level=1
    )


def snapshot_table(w: TableWriter, **changes: Any) -> int:
    """Write the entry of the tip, as a root; ``changes`` replace its fields."""
    fields: dict[str, Any] = {"id": TIP_ID.raw, "parent_offset": -1, "message": w.string("m")}
    return w.table(SNAPSHOT_INFO, **(fields | changes))
