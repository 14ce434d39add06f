"""Reads and writes the long lists of the repo info file in bulk: refs and log entries.

Every commit reads and writes the whole file. A thousand tables take tens of milliseconds if read
one by one, and a few milliseconds as columns.

Rules of this file
------------------
1. Only common rows are handled: refs, and log entries of commits. The caller reads and writes other
   rows one at a time. Snapshots are in `snapshot_list`.
2. None is returned for a list with any fault. The caller then reads it table by table, which
   locates the first fault.
3. Memory is bounded by the file: None is also returned if rows share strings so often that copies
   would take several times its size.

Specification: "Repo Info File", tables ``Ref``, ``Update`` and ``NewCommitUpdate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import FormatError
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.manifest.texts import cut_texts
from icechunk_format.spec.tables.bulk_reader import Ranges, VectorReader
from icechunk_format.spec.tables.bulk_writer import (
    TableLayout,
    bytes_field,
    number_field,
    offset_field,
)
from icechunk_format.spec.tables.reader import Table
from icechunk_format.spec.tables.writer import TableWriter

_MAX_SHARING: Final = 4
MIN_ROWS: Final = 16
"""Shorter lists are faster table by table."""

_REF_LAYOUT: Final = TableLayout(
    {"name": offset_field(0), "snapshot_index": number_field(1, "<u4")}
)
_UPDATE_LAYOUT: Final = TableLayout(
    {
        "update_type_type": number_field(0, "<u1"),
        "update_type": offset_field(1),
        "updated_at": number_field(2, "<u8"),
        "backup_path": offset_field(3),
    }
)
_COMMIT_LAYOUT: Final = TableLayout(
    {"branch": offset_field(0), "new_snap_id": bytes_field(1, SnapshotId.SIZE)}
)
# Each entry is directly followed by its details: offsets that are equal in all rows compress well.
_COMMIT_UPDATE: Final = np.dtype(
    {
        "names": ["update", "commit"],
        "formats": [_UPDATE_LAYOUT.dtype, _COMMIT_LAYOUT.dtype],
        "offsets": [0, _UPDATE_LAYOUT.dtype.itemsize],
        "itemsize": (_UPDATE_LAYOUT.dtype.itemsize + _COMMIT_LAYOUT.dtype.itemsize + 7) & ~7,
    }
)


Commit: TypeAlias = tuple[str, SnapshotId, int, str]
"""A log entry of a commit with a backup: branch, snapshot, timestamp and backup."""


def read_commits(root: Table, kind: int) -> list[Commit | None] | None:
    """Read the log entries of commits; entries of other kinds are None.

    Returns None instead of a list if the caller must read the entries one by one.
    """
    span = root.vector("latest_updates", 4)
    if span is None or span[1] < MIN_ROWS:
        return None
    reader = VectorReader(root.payload, object_key=root.object_key, file_type=root.file_type)
    try:
        updates = reader.tables_between(*span, "latest_updates")
        if not updates.has_all(1, "update_type"):
            return None
        is_commit = updates.scalars(0, "update_type_type", "<u1") == kind
        is_commit &= updates.has(3, "backup_path")
        rows = np.flatnonzero(is_commit)
        targets = updates.targets(1, "update_type")[rows]
        commits = reader.tables(targets, "latest_updates.update_type")
        if not (commits.has_all(0, "branch") and commits.has_all(1, "new_snap_id")):
            return None
        branches = texts_of(reader, commits.ranges(0, "branch"))
        raw_ids = commits.structs(1, "new_snap_id", SnapshotId.SIZE).tobytes()
        backups = texts_of(reader, updates.ranges(3, "backup_path").take(rows))
        updated_at = updates.scalars(2, "updated_at", "<u8")[rows]
    except FormatError:
        return None
    if branches is None or backups is None:
        return None
    found: list[Commit | None] = [None] * len(is_commit)
    entries = zip(branches, SnapshotId.many(raw_ids), updated_at.tolist(), backups, strict=True)
    for row, entry in zip(rows.tolist(), entries, strict=True):
        found[row] = entry
    return found


def read_refs(root: Table, field_name: str) -> tuple[list[str], list[int]] | None:
    """Read names and unchecked indices of refs; None if the caller must read them one by one."""
    span = root.vector(field_name, 4)
    if span is None or span[1] < MIN_ROWS:
        return None
    reader = VectorReader(root.payload, object_key=root.object_key, file_type=root.file_type)
    try:
        tables = reader.tables_between(*span, field_name)
        if not tables.has_all(0, "name"):
            return None
        names = texts_of(reader, tables.ranges(0, "name"))
        indices = tables.scalars(1, "snapshot_index", "<u4")
    except FormatError:
        return None
    return None if names is None else (names, indices.tolist())


def is_shared_too_often(reader: VectorReader, ranges: Ranges, element_size: int = 1) -> bool:
    """Return True if copies of ranges would take several times the size of the file (rule 3)."""
    return int(ranges.lengths.sum()) * element_size > _MAX_SHARING * reader.data.size


def texts_of(reader: VectorReader, ranges: Ranges) -> list[str] | None:
    """Return strings; None if any is not UTF-8 or they are shared too often (rule 3)."""
    if is_shared_too_often(reader, ranges):
        return None
    try:
        return cut_texts(reader.data, ranges.starts, ranges.starts + ranges.lengths)
    except UnicodeDecodeError:
        return None


def write_refs(
    writer: TableWriter, names: Sequence[str], indices: Sequence[int]
) -> NDArray[np.int64]:
    """Write branches or tags, each a name and the index of a snapshot; return their handles."""
    rows = np.zeros(len(names), dtype=_REF_LAYOUT.dtype)
    rows["snapshot_index"] = indices
    return write_rows(writer, rows, _REF_LAYOUT, name=writer.text_list(names))


def write_commits(
    writer: TableWriter, kind: int, commits: Sequence[Commit]
) -> NDArray[np.int64] | None:
    """Write log entries of commits; return their handles.

    Returns None and writes nothing if a number does not fit.
    """
    branches, snapshot_ids, updated_at, backups = zip(*commits, strict=True)
    try:
        times = np.array(updated_at, dtype="<u8")
    except OverflowError:
        return None
    names = {name: writer.text(name) for name in dict.fromkeys(branches)}
    texts = writer.text_list(backups)
    update_vtable = writer.block(_UPDATE_LAYOUT.vtable, alignment=2)
    commit_vtable = writer.block(_COMMIT_LAYOUT.vtable, alignment=2)
    rows = np.zeros(len(branches), dtype=_COMMIT_UPDATE)
    row_handles = _row_handles(writer, rows)
    update, commit = rows["update"], rows["commit"]
    update["update_type_type"] = kind
    update["update_type"] = _UPDATE_LAYOUT.dtype.itemsize - _UPDATE_LAYOUT.offsets["update_type"]
    update["updated_at"] = times
    commit["new_snap_id"] = SnapshotId.rows(snapshot_ids)
    _point(update, row_handles, _UPDATE_LAYOUT, vtable=update_vtable, backup_path=texts)
    _point(
        commit,
        row_handles - _UPDATE_LAYOUT.dtype.itemsize,
        _COMMIT_LAYOUT,
        vtable=commit_vtable,
        branch=[names[branch] for branch in branches],
    )
    writer.block(rows.tobytes(), alignment=8)
    return row_handles


def write_rows(
    writer: TableWriter,
    rows: NDArray[Any],
    layout: TableLayout,
    **targets: Sequence[int] | NDArray[np.int64],
) -> NDArray[np.int64]:
    """Write tables of one layout whose named fields point to handles; return their handles."""
    vtable = writer.block(layout.vtable, alignment=2)
    row_handles = _row_handles(writer, rows)
    _point(rows, row_handles, layout, vtable=vtable, **targets)
    writer.block(rows.tobytes(), alignment=8)
    return row_handles


def _row_handles(writer: TableWriter, rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return the handles of the rows that are written next."""
    first, step = writer.handle_of(rows.nbytes, alignment=8), rows.dtype.itemsize
    return first - step * np.arange(len(rows), dtype=np.int64)


def _point(
    rows: NDArray[Any],
    row_handles: NDArray[np.int64],
    layout: TableLayout,
    *,
    vtable: int,
    **targets: Sequence[int] | NDArray[np.int64],
) -> None:
    """Set the offsets in tables, located by their handles, to the vtable and to ``targets``."""
    rows["vtable"] = vtable - row_handles
    for name, handles in targets.items():
        at = row_handles - layout.offsets[name]
        rows[name] = at - np.asarray(handles, dtype=np.int64)
