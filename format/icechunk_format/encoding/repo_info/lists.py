"""Reads and writes the long lists of the repo info file in bulk: refs and log entries.

Every commit reads and writes the whole file. A thousand tables take tens of milliseconds if read
one by one, and a few milliseconds as columns.

Rules of this file
------------------
1. Only common rows are handled: refs, and log entries of commits. The caller reads and writes other
   rows one at a time. Snapshots are in `snapshot_list`.
2. A list with any fault is read again table by table, which locates the first fault.
3. Memory is bounded by the file: so is a list whose rows share strings so often that copies would
   take several times its size.

Specification: "Repo Info File", tables ``Ref``, ``Update`` and ``NewCommitUpdate``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.manifest.strings import cut_strings
from icechunk_format.encoding.tables.bulk_reader import Ranges, Tables, VectorReader
from icechunk_format.encoding.tables.bulk_writer import (
    TableLayout,
    point_rows,
    row_handles_of,
    write_rows,
)
from icechunk_format.encoding.tables.reader import Table
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.errors import FormatError

_MAX_SHARING: Final = 4
MIN_ROWS: Final = 16
"""Shorter lists are faster table by table."""

_T = TypeVar("_T")

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


def read_in_bulk(
    root: Table, field_name: str, schema: TableSchema, read: Callable[[Tables], _T]
) -> _T | None:
    """Read a vector of tables; None if the caller must read them one by one.

    ``read`` raises FormatError for a list with any fault.
    """
    span = root.vector(field_name, 4)
    if span is None or span[1] < MIN_ROWS:
        return None
    reader = VectorReader(root.payload, object_key=root.object_key, file_type=root.file_type)
    try:
        return read(reader.tables_between(*span, schema, field_name))
    except FormatError:
        return None


def read_commits(updates: Tables, kind: int) -> list[Commit | None]:
    """Read the log entries of commits; entries of other kinds are None."""
    is_commit = updates.column("update_type_type") == kind
    is_commit &= updates.has("backup_path")
    rows = np.flatnonzero(is_commit)
    targets = updates.targets("update_type")[rows]
    commits = Tables(updates.reader, targets, _NEW_COMMIT, "latest_updates.update_type")
    commits.require("branch", "new_snap_id")
    entries = zip(
        strings_of(updates.reader, commits.ranges("branch")),
        SnapshotId.many(commits.column("new_snap_id").tobytes()),
        updates.column("updated_at")[rows].tolist(),
        strings_of(updates.reader, updates.ranges("backup_path").take(rows)),
        strict=True,
    )
    found: list[Commit | None] = [None] * len(is_commit)
    for row, entry in zip(rows.tolist(), entries, strict=True):
        found[row] = entry
    return found


def read_refs(refs: Tables) -> tuple[list[str], list[int]]:
    """Read names and unchecked indices of refs."""
    refs.require("name")
    return strings_of(refs.reader, refs.ranges("name")), refs.column("snapshot_index").tolist()


def check_sharing(reader: VectorReader, ranges: Ranges, element_size: int = 1) -> None:
    """Raise FormatError if copies of ranges would take several times the size of the file."""
    if int(ranges.lengths.sum()) * element_size > _MAX_SHARING * reader.data.size:
        reader.fail("the file refers to the same bytes too many times", "repo")


def strings_of(reader: VectorReader, ranges: Ranges) -> list[str]:
    """Return strings; FormatError if any is not UTF-8 or they are shared too often (rule 3)."""
    check_sharing(reader, ranges)
    try:
        return cut_strings(reader.data, ranges.starts, ranges.starts + ranges.lengths)
    except UnicodeDecodeError:
        reader.fail("a text is not UTF-8", "repo")


def write_refs(
    writer: TableWriter, names: Sequence[str], indices: Sequence[int]
) -> NDArray[np.int64]:
    """Write branches or tags, each a name and the index of a snapshot; return their handles."""
    rows = np.zeros(len(names), dtype=_REF.dtype)
    rows["snapshot_index"] = indices
    return write_rows(writer, rows, _REF, name=writer.string_list(names))


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
    names = {name: writer.string(name) for name in dict.fromkeys(branches)}
    strings = writer.string_list(backups)
    update_vtable = writer.block(_UPDATE.vtable, alignment=2)
    commit_vtable = writer.block(_COMMIT.vtable, alignment=2)
    rows = np.zeros(len(branches), dtype=_COMMIT_UPDATE)
    row_handles = row_handles_of(writer, rows)
    update, commit = rows["update"], rows["commit"]
    update["update_type_type"] = kind
    update["update_type"] = _UPDATE.dtype.itemsize - _UPDATE.offsets["update_type"]
    update["updated_at"] = times
    commit["new_snap_id"] = SnapshotId.rows(snapshot_ids)
    point_rows(update, row_handles, _UPDATE, vtable=update_vtable, backup_path=strings)
    point_rows(
        commit,
        row_handles - _UPDATE.dtype.itemsize,
        _COMMIT,
        vtable=commit_vtable,
        branch=[names[branch] for branch in branches],
    )
    writer.block(rows.tobytes(), alignment=8)
    return row_handles
