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
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import FormatError
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.manifest.texts import cut_texts
from icechunk_format.spec.tables.bulk_reader import Ranges, Tables, VectorReader
from icechunk_format.spec.tables.bulk_writer import (
    TableLayout,
    point_rows,
    row_handles_of,
    write_rows,
)
from icechunk_format.spec.tables.reader import Table
from icechunk_format.spec.tables.schema import TableSchema
from icechunk_format.spec.tables.writer import TableWriter

_MAX_SHARING: Final = 4
MIN_ROWS: Final = 16
"""Shorter lists are faster table by table."""

REF: Final = TableSchema("Ref", name="offset", snapshot_index="u32")
UPDATE: Final = TableSchema(
    "Update", update_type_type="u8", update_type="offset", updated_at="u64", backup_path="offset"
)
_NEW_COMMIT: Final = TableSchema("NewCommitUpdate", branch="offset", new_snap_id="id12")
_REF: Final = TableLayout(REF)
_UPDATE: Final = TableLayout(UPDATE)
_COMMIT: Final = TableLayout(_NEW_COMMIT)
# Each entry is directly followed by its details: offsets that are equal in all rows compress well.
_COMMIT_UPDATE: Final = np.dtype(
    {
        "names": ["update", "commit"],
        "formats": [_UPDATE.dtype, _COMMIT.dtype],
        "offsets": [0, _UPDATE.dtype.itemsize],
        "itemsize": (_UPDATE.dtype.itemsize + _COMMIT.dtype.itemsize + 7) & ~7,
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
        updates = reader.tables_between(*span, UPDATE, "latest_updates")
        is_commit = updates.column("update_type_type") == kind
        is_commit &= updates.has("backup_path")
        rows = np.flatnonzero(is_commit)
        targets = updates.targets("update_type")[rows]
        commits = Tables(reader, targets, _NEW_COMMIT, "latest_updates.update_type")
        commits.require("branch", "new_snap_id")
        branches = texts_of(reader, commits.ranges("branch"))
        raw_ids = commits.column("new_snap_id").tobytes()
        backups = texts_of(reader, updates.ranges("backup_path").take(rows))
        updated_at = updates.column("updated_at")[rows]
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
        tables = reader.tables_between(*span, REF, field_name)
        tables.require("name")
        names = texts_of(reader, tables.ranges("name"))
        indices = tables.column("snapshot_index")
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
    rows = np.zeros(len(names), dtype=_REF.dtype)
    rows["snapshot_index"] = indices
    return write_rows(writer, rows, _REF, name=writer.text_list(names))


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
    update_vtable = writer.block(_UPDATE.vtable, alignment=2)
    commit_vtable = writer.block(_COMMIT.vtable, alignment=2)
    rows = np.zeros(len(branches), dtype=_COMMIT_UPDATE)
    row_handles = row_handles_of(writer, rows)
    update, commit = rows["update"], rows["commit"]
    update["update_type_type"] = kind
    update["update_type"] = _UPDATE.dtype.itemsize - _UPDATE.offsets["update_type"]
    update["updated_at"] = times
    commit["new_snap_id"] = SnapshotId.rows(snapshot_ids)
    point_rows(update, row_handles, _UPDATE, vtable=update_vtable, backup_path=texts)
    point_rows(
        commit,
        row_handles - _UPDATE.dtype.itemsize,
        _COMMIT,
        vtable=commit_vtable,
        branch=[names[branch] for branch in branches],
    )
    writer.block(rows.tobytes(), alignment=8)
    return row_handles
