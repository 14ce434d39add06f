"""Reads and writes the repo info file, the one mutable object, where every read starts.

Rules of this file
------------------
1. The stored lists refer to snapshots by their place in the sorted list; the value refers to them
   by id. Indices exist only inside ``decode`` and ``encode``.
2. ``parent_offset`` has a trap: absent means index 0, and only an explicit -1 means "no parent".
3. Parts that this library does not interpret are kept: the configuration stays bytes, feature flags
   stay numbers, an absent flag list stays absent. ``extra`` bytes are dropped, as by every writer.
4. A log entry of an unknown kind cannot be written again. Its backup holds this entry and all older
   ones, so ``encode`` ends the log there, and ``repo_before_updates`` points to that backup.

Specification: "Repo Info File", schema ``repo.fbs`` (slot 5 of SnapshotInfo is from spec 2.1).
"""

from __future__ import annotations

from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from icechunk_format.errors import (
    InvalidInputError,
    UnsupportedError,
)
from icechunk_format.spec import object_keys
from icechunk_format.spec.envelope import (
    DEFAULT_LEVEL,
    DEFAULT_MAX_SIZE,
    SPEC_V2,
    FileType,
    unwrap,
    wrap,
)
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.lists import (
    MIN_ROWS,
    read_refs,
    read_snapshots,
    write_refs,
    write_snapshots,
)
from icechunk_format.spec.repo_info.state import RepoInfo, SnapshotInfo
from icechunk_format.spec.repo_info.updates import (
    REPO_STATUS,
    Update,
    UpdateKind,
    read_backup_name,
    read_status,
    read_updates,
    write_status,
    write_updates,
)
from icechunk_format.spec.tables.reader import read_root
from icechunk_format.spec.tables.schema import TableSchema
from icechunk_format.spec.tables.writer import TableWriter
from icechunk_format.spec.values.metadata_items import (
    NO_ITEMS,
    MetadataItems,
    read_items,
    write_items,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icechunk_format.spec.tables.reader import Table

__all__ = ["NO_PARENT", "RepoInfo", "SnapshotInfo", "decode", "encode"]

NO_PARENT = -1

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
REF = TableSchema("Ref", name="offset", snapshot_index="u32")
SNAPSHOT_INFO = TableSchema(
    "SnapshotInfo",
    id="id12",
    parent_offset="i32",
    flushed_at="u64",
    message="offset",
    metadata="offset",
    pruned_ancestor_tx_logs="offset",
)


def decode(
    data: bytes, *, object_key: str = object_keys.REPO, max_size: int = DEFAULT_MAX_SIZE
) -> RepoInfo:
    """Read a repo info file or a backup of one.

    Raises
    ------
    FormatError
        When the bytes are damaged or contradict themselves.
    UnsupportedError
        When the repository has a newer spec version or an unknown status.
    """
    envelope = unwrap(data, file_type=FileType.REPO_INFO, object_key=object_key, max_size=max_size)
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
    infos = _read_snapshot_infos(root, envelope.spec_version)
    ids = [info.id for info in infos]
    snapshots = {info.id: info for info in sorted(infos, key=lambda info: info.id.raw)}
    if len(snapshots) != len(ids):
        raise root.error(
            "snapshots", f"{len(ids) - len(snapshots)} ids are listed twice; ids are unique"
        )
    return RepoInfo(
        spec_version=spec_version,
        tags=_read_refs(root, "tags", ids),
        branches=_read_refs(root, "branches", ids),
        deleted_tags=tuple(sorted(root.texts("deleted_tags"))),
        snapshots=snapshots,
        status=read_status(root.child("status", REPO_STATUS)),
        latest_updates=read_updates(root),
        repo_before_updates=read_backup_name(root, "repo_before_updates"),
        metadata_items=read_items(root, "metadata", spec_version=envelope.spec_version),
        config=root.optional_blob("config"),
        enabled_feature_flags=_read_flags(root, "enabled_feature_flags"),
        disabled_feature_flags=_read_flags(root, "disabled_feature_flags"),
    )


def _read_snapshot_infos(root: Table, spec_version: int) -> list[SnapshotInfo]:
    """Return all snapshots in stored order."""
    found = read_snapshots(root)
    if found is None or not NO_PARENT <= min(found.parents) <= max(found.parents) < len(found.ids):
        tables = list(root.children("snapshots", SNAPSHOT_INFO))
        ids = [SnapshotId(table.raw_id("id")) for table in tables]
        return [
            _read_snapshot_info(table, snapshot_id, ids, spec_version)
            for snapshot_id, table in zip(ids, tables, strict=True)
        ]
    ids = found.ids
    metadata_items = {
        row: MetadataItems(
            items=tuple(sorted(items.items())), spec_version=spec_version, origin=root.object_key
        )
        for row, items in found.items.items()
    }
    # With None behind the last one, -1 is the index of no parent.
    parent_ids = [*ids, None]
    infos = [
        SnapshotInfo(
            id=snapshot_id,
            parent_id=parent_ids[parent],
            flushed_at=flushed_at,
            message=message,
            metadata_items=metadata_items.get(row, NO_ITEMS),
        )
        for row, (snapshot_id, parent, flushed_at, message) in enumerate(
            zip(ids, found.parents, found.flushed_at, found.messages, strict=True)
        )
    ]
    if found.odd_rows:
        odd = root.children_at("snapshots", SNAPSHOT_INFO, found.odd_rows)
        for row, table in zip(found.odd_rows, odd, strict=True):
            infos[row] = _read_snapshot_info(table, ids[row], ids, spec_version)
    return infos


def _read_snapshot_info(
    table: Table, snapshot_id: SnapshotId, ids: list[SnapshotId], spec_version: int
) -> SnapshotInfo:
    parent = table.number("parent_offset")
    if not NO_PARENT <= parent < len(ids):
        raise table.error(
            "parent_offset",
            f"{parent} is no index into the {len(ids)} snapshots, and not -1 for none",
        )
    pruned: tuple[SnapshotId, ...] = ()
    if table.has("pruned_ancestor_tx_logs"):
        raw = table.records("pruned_ancestor_tx_logs", "V12").tobytes()
        size = SnapshotId.SIZE
        pruned = tuple(SnapshotId(raw[i : i + size]) for i in range(0, len(raw), size))
    return SnapshotInfo(
        id=snapshot_id,
        parent_id=None if parent == NO_PARENT else ids[parent],
        flushed_at=table.number("flushed_at"),
        message=table.text("message"),
        metadata_items=read_items(table, "metadata", spec_version=spec_version),
        pruned_ancestor_tx_logs=pruned,
    )


def _read_refs(root: Table, field_name: str, ids: list[SnapshotId]) -> dict[str, SnapshotId]:
    found = read_refs(root, field_name)
    if found is not None:
        names, indices = found
        if max(indices) < len(ids) and len(set(names)) == len(names):
            return dict(sorted(zip(names, map(ids.__getitem__, indices), strict=True)))
    refs: dict[str, SnapshotId] = {}
    for table in root.children(field_name, REF):
        name, index = table.text("name"), table.number("snapshot_index")
        if index >= len(ids):
            raise table.error(
                "snapshot_index", f"{index} is no index into the {len(ids)} snapshots"
            )
        if name in refs:
            raise table.error("name", f"{name!r} is listed twice; names are unique")
        refs[name] = ids[index]
    return dict(sorted(refs.items()))


def _read_flags(root: Table, field_name: str) -> tuple[int, ...] | None:
    flags = root.optional_records(field_name, "<u2")
    return None if flags is None else tuple(sorted(flags.tolist()))


def encode(repo: RepoInfo, *, level: int = DEFAULT_LEVEL) -> bytes:
    """Write a repo info file.

    Parameters
    ----------
    repo
        The state to write; lists are sorted as the format wants them.
    level
        zstd level.

    Raises
    ------
    InvalidInputError
        When a ref or a parent names a snapshot that is not listed, or the newest log entry has a
        backup (the format reserves that for older ones), or a value does not fit its field.
    UnsupportedError
        When the newest log entry is of a kind that this library does not know.
    """
    writer = TableWriter()
    infos = sorted(repo.snapshots.values(), key=attrgetter("id.raw"))
    index_of = {info.id.raw: index for index, info in enumerate(infos)}
    updates, repo_before_updates = _writable_log(repo)
    root = writer.table(
        REPO,
        snapshots=_write_snapshot_infos(writer, repo, infos, index_of),
        tags=_write_refs(writer, repo.tags, index_of),
        branches=_write_refs(writer, repo.branches, index_of),
        deleted_tags=writer.offsets([writer.text(name) for name in sorted(repo.deleted_tags)]),
        status=write_status(writer, repo.status),
        metadata=write_items(writer, repo.metadata_items, spec_version=repo.spec_version),
        latest_updates=write_updates(writer, updates),
        repo_before_updates=(
            None if repo_before_updates is None else writer.text(repo_before_updates)
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
        level=level,
    )


def _writable_log(repo: RepoInfo) -> tuple[tuple[Update, ...], str | None]:
    """Return the log entries that can be written, and the backup that holds the others."""
    updates = repo.latest_updates
    if updates and updates[0].backup_path is not None:
        raise InvalidInputError(
            f"the newest log entry has the backup {updates[0].backup_path!r}; only entries below "
            "it may have one, because others refuse such a repository",
            found=updates[0].backup_path,
            allowed=None,
        )
    for position, update in enumerate(updates):
        if update.kind is not UpdateKind.UNKNOWN:
            continue
        if update.backup_path is None:
            raise UnsupportedError(
                f"a newer library recorded an operation {update.details!r} that this one cannot "
                "write again; upgrade icechunk-spark to change this repository",
                found=repr(update.details),
            )
        return updates[:position], update.backup_path
    return updates, repo.repo_before_updates


def _index(index_of: dict[bytes, int], snapshot_id: SnapshotId, of: str) -> int:
    index = index_of.get(snapshot_id.raw)
    if index is None:
        raise InvalidInputError(
            f"{of} names snapshot {snapshot_id}, which is not listed in the repository",
            found=str(snapshot_id),
            allowed="a listed snapshot",
        )
    return index


def _write_snapshot_infos(
    writer: TableWriter,
    repo: RepoInfo,
    infos: list[SnapshotInfo],
    index_of: dict[bytes, int],
) -> int:
    is_plain = [not info.pruned_ancestor_tx_logs for info in infos]
    handles = np.zeros(len(infos), dtype=np.int64)
    plain = list(compress(infos, is_plain))
    if len(plain) >= MIN_ROWS:
        written = write_snapshots(
            writer,
            ids=[info.id for info in plain],
            parents=_parent_indices(plain, index_of),
            flushed_at=[info.flushed_at for info in plain],
            messages=[info.message for info in plain],
            items=[info.metadata_items.in_version(repo.spec_version).items for info in plain],
        )
        if written is not None:
            handles[is_plain] = written
    for row in np.flatnonzero(handles == 0).tolist():
        handles[row] = _write_snapshot_info(writer, repo, infos[row], index_of)
    return writer.offsets(handles)


def _parent_indices(infos: list[SnapshotInfo], index_of: dict[bytes, int]) -> list[int]:
    try:
        return [
            NO_PARENT if info.parent_id is None else index_of[info.parent_id.raw] for info in infos
        ]
    except KeyError:
        return [_parent_index(info, index_of) for info in infos]


def _parent_index(info: SnapshotInfo, index_of: dict[bytes, int]) -> int:
    parent = info.parent_id
    if parent is None:
        return NO_PARENT
    index = index_of.get(parent.raw)
    return _index(index_of, parent, f"snapshot {info.id}") if index is None else index


def _write_snapshot_info(
    writer: TableWriter, repo: RepoInfo, info: SnapshotInfo, index_of: dict[bytes, int]
) -> int:
    pruned = info.pruned_ancestor_tx_logs
    return writer.table(
        SNAPSHOT_INFO,
        id=info.id.raw,
        parent_offset=_parent_index(info, index_of),
        flushed_at=info.flushed_at,
        message=writer.text(info.message),
        metadata=write_items(writer, info.metadata_items, spec_version=repo.spec_version),
        pruned_ancestor_tx_logs=(
            writer.records(b"".join(i.raw for i in pruned), count=len(pruned)) if pruned else None
        ),
    )


def _write_refs(
    writer: TableWriter, refs: Mapping[str, SnapshotId], index_of: dict[bytes, int]
) -> int:
    names = sorted(refs)
    indices = [_index(index_of, refs[name], f"ref {name!r}") for name in names]
    return writer.offsets(write_refs(writer, names, indices))


def _write_flags(writer: TableWriter, flags: Iterable[int] | None) -> int | None:
    if flags is None:
        return None
    ordered = sorted(flags)
    if ordered and not 0 <= ordered[0] <= ordered[-1] < 2**16:
        raise InvalidInputError(
            f"feature flags are numbers from 0 to 65535, but {ordered} were given",
            found=ordered,
            allowed=(0, 2**16 - 1),
        )
    content = b"".join(flag.to_bytes(2, "little") for flag in ordered)
    return writer.records(content, count=len(ordered), alignment=2)
