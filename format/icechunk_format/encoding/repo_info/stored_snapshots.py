"""Reads and writes the snapshots of the repo info file in bulk, as columns.

Reading raises FormatError for a list with any fault, by rules 2 and 3 of `lists`. All strings are
checked when the file is read.

Specification: "Repo Info File", table ``SnapshotInfo``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import SnapshotId, id_keys
from icechunk_format.encoding.repo_info.lists import check_sharing, strings_of
from icechunk_format.encoding.repo_info.snapshot_list import NONE, SnapshotColumns, with_logs
from icechunk_format.encoding.repo_info.state import SnapshotIds
from icechunk_format.encoding.tables.bulk_reader import Ranges, Tables, VectorReader
from icechunk_format.encoding.tables.bulk_writer import TableLayout, write_rows
from icechunk_format.encoding.tables.byte_ranges import collect, ragged_rows, starts_of
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter, pack_ranges
from icechunk_format.encoding.values.metadata_items import METADATA_ITEM

SNAPSHOT_INFO: Final = TableSchema(
    "SnapshotInfo",
    id="id12",
    parent_offset="i32",
    flushed_at="u64",
    message="offset",
    metadata="offset",
    pruned_ancestor_tx_logs="offset",
)
_LAYOUT: Final = TableLayout(
    SNAPSHOT_INFO, ("id", "parent_offset", "flushed_at", "message", "metadata")
)
_LAYOUT_WITH_LOGS: Final = TableLayout(SNAPSHOT_INFO)
_ITEM_LAYOUT: Final = TableLayout(METADATA_ITEM)


def read_snapshots(
    tables: Tables, spec_version: int, object_key: str
) -> tuple[SnapshotColumns, SnapshotIds]:
    """Read snapshots as columns sorted by id, and their ids in stored order."""
    reader = tables.reader
    tables.require("id", "message")
    messages = tables.ranges("message")
    logs = tables.ranges("pruned_ancestor_tx_logs", SnapshotId.SIZE)
    names, counts, item_names, values = _read_items(reader, tables.ranges("metadata", 4))
    ids, parents = tables.column("id"), tables.column("parent_offset")
    count = len(ids)
    if not ((parents >= NONE) & (parents < count)).all():
        reader.fail("a parent is not an index of a snapshot", "snapshots.parent_offset")
    _check_strings(reader, messages)
    check_sharing(reader, logs, SnapshotId.SIZE)
    strings, heads = pack_ranges(
        reader.data,
        np.concatenate([messages.starts, values.starts]),
        np.concatenate([messages.lengths, values.lengths]),
    )
    strings, pruned = with_logs(strings, reader.data, logs.starts, logs.lengths)
    order = np.argsort(id_keys(ids), kind="stable")
    row_of_stored = np.empty(count, dtype=np.int64)
    row_of_stored[order] = np.arange(count)
    # The appended -1 maps a missing parent, -1, to itself.
    new_parents = np.append(row_of_stored, NONE)[parents[order]].astype(np.int32)
    moved_items = ragged_rows(starts_of(counts)[order], counts[order])
    columns = SnapshotColumns(
        ids=ids[order],
        parents=new_parents,
        flushed_at=tables.column("flushed_at")[order].astype(np.uint64),
        strings=strings,
        messages=heads[:count][order],
        item_counts=counts[order],
        item_names=item_names[moved_items],
        item_values=heads[count:][moved_items],
        names=names,
        pruned=pruned[order],
        spec_version=spec_version,
        origin=object_key,
    )
    return columns, SnapshotIds(ids)


def _check_strings(reader: VectorReader, ranges: Ranges) -> None:
    """Raise FormatError unless all ranges are UTF-8 and not shared too often (rule 3)."""
    check_sharing(reader, ranges)
    joined, _ = collect(reader.data, ranges.starts, ranges.lengths)
    if not joined.tobytes().isascii():
        strings_of(reader, ranges)


def _read_items(
    reader: VectorReader, spans: Ranges
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64], Ranges]:
    """Return distinct names, items per row, and the name's index and value range of each item."""
    counts = spans.lengths
    if int(counts.sum()) * 4 > reader.data.size:
        reader.fail("the lists of items exceed the object", "snapshots.metadata")
    tables = reader.tables_of(spans, METADATA_ITEM, "snapshots.metadata")
    tables.require("name", "value")
    stored_names, values = tables.ranges("name"), tables.ranges("value")
    if int(values.lengths.sum()) > reader.data.size:
        reader.fail("the values exceed the object", "snapshots.metadata.value")
    # Most files store a name once, or next to its value.
    _, firsts, spelled = np.unique(stored_names.starts, return_index=True, return_inverse=True)
    spellings = strings_of(reader, stored_names.take(firsts))
    names = tuple(sorted(set(spellings)))
    numbers = {name: number for number, name in enumerate(names)}
    item_names = np.array([numbers[name] for name in spellings], dtype=np.int64)[spelled]
    rows = np.repeat(np.arange(len(counts)), counts)
    keys = rows * max(1, len(names)) + item_names
    kept = np.arange(len(keys))
    if (keys[1:] <= keys[:-1]).any():
        # If a row has several items with one name, the first is used.
        kept = np.unique(keys, return_index=True)[1]
    new_counts = np.bincount(rows[kept], minlength=len(counts)).astype(np.int64)
    return names, new_counts, item_names[kept], values.take(kept)


def write_snapshots(writer: TableWriter, held: SnapshotColumns) -> NDArray[np.int64]:
    """Write all rows; return the handles of their tables: int64, shape (n,)."""
    block = writer.block(held.strings.tobytes())
    metadata = _write_items(writer, held, block - held.item_values)
    handles = np.zeros(len(held.parents), dtype=np.int64)
    has_logs = held.pruned != NONE
    for layout, chosen in ((_LAYOUT, ~has_logs), (_LAYOUT_WITH_LOGS, has_logs)):
        rows = np.zeros(int(chosen.sum()), dtype=layout.dtype)
        rows["id"] = held.ids[chosen]
        rows["parent_offset"] = held.parents[chosen]
        rows["flushed_at"] = held.flushed_at[chosen]
        targets = {"message": block - held.messages[chosen], "metadata": metadata[chosen]}
        if layout is _LAYOUT_WITH_LOGS:
            targets["pruned_ancestor_tx_logs"] = block - held.pruned[chosen]
        handles[chosen] = write_rows(writer, rows, layout, **targets)
    return handles


def _write_items(
    writer: TableWriter, held: SnapshotColumns, values: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Write a vector of metadata items for each row; return their handles."""
    counts = held.item_counts
    names = np.array([writer.string(name) for name in held.names], dtype=np.int64)
    tables = np.zeros(len(values), dtype=_ITEM_LAYOUT.dtype)
    tables_at = write_rows(writer, tables, _ITEM_LAYOUT, name=names[held.item_names], value=values)
    heads = starts_of(counts + 1)
    words = np.zeros(len(values) + len(counts), dtype="<u4")
    first = writer.handle_of(words.nbytes)
    words[heads] = counts
    cells = ragged_rows(heads + 1, counts)
    words[cells] = first - 4 * cells - tables_at
    writer.block(words.tobytes())
    handles: NDArray[np.int64] = first - 4 * heads
    return handles
