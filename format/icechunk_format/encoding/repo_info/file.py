"""Reads and writes the repo info file: the only mutable object, where every read starts.

Rules of this file
------------------
1. The file refers to snapshots by their index in the sorted list, ``RepoInfo`` by id.
2. An absent ``parent_offset`` is index 0; only an explicit -1 means "no parent".
3. Uninterpreted parts are kept: the configuration as bytes, feature flags as numbers, an absent
   list of flags as absent. ``extra`` bytes are dropped, as by every writer.
4. A log entry of an unknown kind cannot be written again. Its backup holds this entry and all older
   ones, so ``encode`` ends the log there, and ``repo_before_updates`` points to that backup.

Specification: "Repo Info File", schema ``repo.fbs`` (slot 5 of SnapshotInfo is from spec 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from icechunk_format.encoding import object_keys
from icechunk_format.encoding.envelope import SPEC_V2, FileType, unwrap, wrap
from icechunk_format.encoding.ids import SnapshotId, id_keys
from icechunk_format.encoding.repo_info.lists import REF, read_in_bulk, read_refs, write_refs
from icechunk_format.encoding.repo_info.snapshot_list import NONE, SnapshotList, list_of, unlisted
from icechunk_format.encoding.repo_info.state import RepoInfo, SnapshotIds, SnapshotInfo
from icechunk_format.encoding.repo_info.stored_snapshots import (
    SNAPSHOT_INFO,
    read_snapshots,
    write_snapshots,
)
from icechunk_format.encoding.repo_info.updates import (
    REPO_STATUS,
    UnknownUpdate,
    Update,
    read_backup_name,
    read_status,
    read_updates,
    write_status,
    write_updates,
)
from icechunk_format.encoding.tables.reader import Table, read_root
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.encoding.values.metadata_items import read_items, write_items
from icechunk_format.errors import InvalidInputError, UnsupportedError

# Each commit writes the whole file. Level 1 takes half the time of level 3, for 1 % more bytes.
_LEVEL: Final = 1

__all__ = ["RepoInfo", "SnapshotInfo", "decode", "encode"]

REPO = TableSchema(
    "Repo",
    spec_version="u8",
    tags="offset",
    branches="offset",
    deleted_tags="offset",
    snapshots="offset",
    status="offset",
    metadata="offset",
    latest_updates="offset",
    repo_before_updates="offset",
    config="offset",
    enabled_feature_flags="offset",
    disabled_feature_flags="offset",
    extra="offset",
)


def decode(data: bytes, *, object_key: str = object_keys.REPO) -> RepoInfo:
    """Read a repo info file or a backup of one."""
    envelope = unwrap(data, file_type=FileType.REPO_INFO, object_key=object_key)
    root = read_root(
        envelope.payload, REPO, object_key=object_key, file_type=FileType.REPO_INFO.label
    )
    spec_version = root.number("spec_version")
    if spec_version > SPEC_V2:
        raise UnsupportedError(
            f"repository {object_key!r} has spec version {spec_version}, but this library reads 1 "
            f"and {SPEC_V2}; upgrade icechunk-spark to read this repository",
            object_key=object_key,
            found=spec_version,
            allowed=(1, SPEC_V2),
        )
    if spec_version == 0:
        raise root.error("spec_version", "it is 0 or absent; 1 or 2 is expected")
    snapshots, ids = _read_snapshot_infos(root, envelope.spec_version)
    return RepoInfo(
        spec_version=spec_version,
        tags=_read_refs(root, "tags", ids),
        branches=_read_refs(root, "branches", ids),
        deleted_tags=tuple(sorted(root.strings("deleted_tags"))),
        snapshots=snapshots,
        status=read_status(root.child("status", REPO_STATUS)),
        latest_updates=read_updates(root),
        repo_before_updates=read_backup_name(root, "repo_before_updates"),
        metadata_items=read_items(root, spec_version=envelope.spec_version),
        config=root.optional_blob("config"),
        enabled_feature_flags=_read_flags(root, "enabled_feature_flags"),
        disabled_feature_flags=_read_flags(root, "disabled_feature_flags"),
    )


def _read_snapshot_infos(
    root: Table, spec_version: int
) -> tuple[Mapping[SnapshotId, SnapshotInfo], Sequence[SnapshotId]]:
    """Return all snapshots, sorted by id, and their ids in stored order."""
    found = read_in_bulk(
        root,
        "snapshots",
        SNAPSHOT_INFO,
        lambda tables: read_snapshots(tables, spec_version, root.object_key),
    )
    if found is not None:
        columns, stored_ids = found
        keys = id_keys(columns.ids)
        _check_distinct(root, int((keys[1:] == keys[:-1]).sum()))
        return SnapshotList(columns), stored_ids
    tables = list(root.children("snapshots", SNAPSHOT_INFO))
    ids = [SnapshotId(table.raw_id("id")) for table in tables]
    infos = [
        _read_snapshot_info(table, snapshot_id, ids, spec_version)
        for snapshot_id, table in zip(ids, tables, strict=True)
    ]
    infos.sort(key=attrgetter("id.raw"))
    snapshots = {info.id: info for info in infos}
    _check_distinct(root, len(ids) - len(snapshots))
    return snapshots, ids


def _check_distinct(root: Table, repeated: int) -> None:
    if repeated:
        raise root.error("snapshots", f"{repeated} ids are listed twice; ids must be unique")


def _read_snapshot_info(
    table: Table, snapshot_id: SnapshotId, ids: Sequence[SnapshotId], spec_version: int
) -> SnapshotInfo:
    parent = table.number("parent_offset")
    if not NONE <= parent < len(ids):
        raise table.error(
            "parent_offset",
            f"{parent} is not an index into the {len(ids)} snapshots, nor -1 for none",
        )
    pruned: Sequence[SnapshotId] = ()
    if table.has("pruned_ancestor_tx_logs"):
        raw = table.records("pruned_ancestor_tx_logs", "V12")
        pruned = SnapshotIds(raw.view(np.uint8).reshape(-1, SnapshotId.SIZE))
    return SnapshotInfo(
        id=snapshot_id,
        parent_id=None if parent == NONE else ids[parent],
        flushed_at=table.number("flushed_at"),
        message=table.string("message"),
        metadata_items=read_items(table, spec_version=spec_version),
        pruned_ancestor_tx_logs=pruned,
    )


def _read_refs(root: Table, field_name: str, ids: Sequence[SnapshotId]) -> dict[str, SnapshotId]:
    found = read_in_bulk(root, field_name, REF, read_refs)
    if found is not None:
        names, indices = found
        if max(indices) < len(ids) and len(set(names)) == len(names):
            return dict(sorted(zip(names, map(ids.__getitem__, indices), strict=True)))
    refs: dict[str, SnapshotId] = {}
    for table in root.children(field_name, REF):
        name, index = table.string("name"), table.number("snapshot_index")
        if index >= len(ids):
            raise table.error(
                "snapshot_index", f"{index} is not an index into the {len(ids)} snapshots"
            )
        if name in refs:
            raise table.error("name", f"{name!r} is listed twice; names must be unique")
        refs[name] = ids[index]
    return dict(sorted(refs.items()))


def _read_flags(root: Table, field_name: str) -> tuple[int, ...] | None:
    flags = root.optional_records(field_name, "<u2")
    return None if flags is None else tuple(sorted(flags.tolist()))


def encode(repo: RepoInfo) -> bytes:
    """Return a repo info file.

    Raises InvalidInputError if a ref or a parent is not listed, or the newest log entry has a
    backup, which the format reserves for older ones.
    """
    writer = TableWriter()
    listed = _listed(repo)
    updates, repo_before_updates = _writable_log(repo)
    root = writer.table(
        REPO,
        snapshots=writer.offsets(write_snapshots(writer, listed.columns)),
        tags=_write_refs(writer, repo.tags, listed),
        branches=_write_refs(writer, repo.branches, listed),
        deleted_tags=writer.offsets([writer.string(name) for name in sorted(repo.deleted_tags)]),
        status=write_status(writer, repo.status),
        metadata=write_items(writer, repo.metadata_items, spec_version=repo.spec_version),
        latest_updates=write_updates(writer, updates),
        repo_before_updates=(
            None if repo_before_updates is None else writer.string(repo_before_updates)
        ),
        config=None if repo.config is None else writer.blob(repo.config),
        enabled_feature_flags=_write_flags(writer, repo.enabled_feature_flags),
        disabled_feature_flags=_write_flags(writer, repo.disabled_feature_flags),
        spec_version=repo.spec_version,
    )
    return wrap(
        writer.finish(root),
        file_type=FileType.REPO_INFO,
        spec_version=repo.spec_version,
        level=_LEVEL,
    )


def _writable_log(repo: RepoInfo) -> tuple[tuple[Update, ...], str | None]:
    """Return the log entries that can be written, and the backup that holds all older ones."""
    updates = repo.latest_updates
    if updates and updates[0].backup_path is not None:
        raise InvalidInputError(
            f"the newest log entry has the backup {updates[0].backup_path!r}; only older entries "
            "may have one, because other libraries refuse such a repository",
            found=updates[0].backup_path,
            allowed=None,
        )
    for index, update in enumerate(updates):
        if not isinstance(update.details, UnknownUpdate):
            continue
        if update.backup_path is None:
            raise UnsupportedError(
                f"a newer library recorded the operation {update.details!r}, which this one cannot "
                "write; upgrade icechunk-spark to change this repository",
                found=repr(update.details),
            )
        return updates[:index], update.backup_path
    return updates, repo.repo_before_updates


def _listed(repo: RepoInfo) -> SnapshotList:
    """Return the snapshots as columns of the spec version."""
    held = repo.snapshots
    if isinstance(held, SnapshotList) and held.columns.spec_version == repo.spec_version:
        return held
    return list_of(sorted(held.values(), key=attrgetter("id.raw")), repo.spec_version)


def _write_refs(writer: TableWriter, refs: Mapping[str, SnapshotId], listed: SnapshotList) -> int:
    names = sorted(refs)
    ids = [refs[name] for name in names]
    rows = listed.rows_of(ids)
    for name, snapshot_id, row in zip(names, ids, rows, strict=True):
        if row == NONE:
            raise unlisted(f"ref {name!r}", snapshot_id)
    return writer.offsets(write_refs(writer, names, rows))


def _write_flags(writer: TableWriter, flags: Iterable[int] | None) -> int | None:
    if flags is None:
        return None
    ordered = sorted(flags)
    if ordered and not 0 <= ordered[0] <= ordered[-1] < 2**16:
        raise InvalidInputError(
            f"feature flags must be numbers from 0 to 65535, found {ordered}",
            found=ordered,
            allowed=(0, 2**16 - 1),
        )
    content = b"".join(flag.to_bytes(2, "little") for flag in ordered)
    return writer.records(content, count=len(ordered), alignment=2)
