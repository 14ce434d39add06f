"""`SnapshotList`, the snapshots of a repository as columns; reads and writes them in bulk.

Every commit reads and writes the whole list. Ten thousand snapshots take a few milliseconds as
columns and a tenth of a second as objects, so an object is made where it is asked for.

Rules of this file
------------------
1. Rows are sorted by id, and a list never changes: `with_snapshot` returns another one.
2. Messages and values of metadata lie in one block of bytes, as the file stores them: each with its
   length before it and zeros behind it. Writing copies the block.
3. Objects stand for the rows that columns cannot hold: those that have pruned logs, or metadata in
   the encoding of another spec version.
4. All texts are checked when the file is read, as if all objects were made.

Specification: "Repo Info File", table ``SnapshotInfo``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import FormatError
from icechunk_format.spec.id_columns import id_keys, rows_of_ids
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.lists import (
    MIN_ROWS,
    is_shared_too_often,
    places_of,
    point,
    texts_of,
)
from icechunk_format.spec.repo_info.state import SnapshotInfo
from icechunk_format.spec.tables.bulk_reader import Ranges, VectorReader
from icechunk_format.spec.tables.bulk_writer import (
    TableLayout,
    bytes_field,
    number_field,
    offset_field,
)
from icechunk_format.spec.tables.byte_ranges import collect
from icechunk_format.spec.tables.ragged import ragged_rows, starts_of, tables_of
from icechunk_format.spec.tables.reader import Table
from icechunk_format.spec.tables.writer import TableWriter, pack_blobs, pack_ranges
from icechunk_format.spec.values.metadata_items import NO_ITEMS, MetadataItems

# One object costs as much as the columns of a hundred; who asks for many gets all at once.
_ASKED_SINGLY: Final = 64
_NO_PARENT: Final = -1
_LENGTH: Final = 4

_SNAPSHOT_LAYOUT: Final = TableLayout(
    {
        "id": bytes_field(0, SnapshotId.SIZE),
        "parent_offset": number_field(1, "<i4"),
        "flushed_at": number_field(2, "<u8"),
        "message": offset_field(3),
        "metadata": offset_field(4),
    }
)
_ITEM_LAYOUT: Final = TableLayout({"name": offset_field(0), "value": offset_field(1)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotColumns:
    """Columns of snapshots, sorted by id.

    Parameters
    ----------
    ids
        uint8, shape (n, 12).
    parents
        int32, shape (n,): the row of the parent, or -1.
    flushed_at
        uint64, shape (n,).
    texts
        uint8: the block of rule 2.
    messages
        int64, shape (n,): where in the block.
    item_counts
        int64, shape (n,): how many items of metadata a row has.
    item_names, item_values
        int64, shape (m,): numbers of names, which ascend within a row; and where in the block.
    names
        Distinct names of items, sorted.
    odd
        Rows of rule 3.
    spec_version, origin
        Encoding of the values, and the key of the object that they were read from.
    """

    ids: NDArray[np.uint8]
    parents: NDArray[np.int32]
    flushed_at: NDArray[np.uint64]
    texts: NDArray[np.uint8]
    messages: NDArray[np.int64]
    item_counts: NDArray[np.int64]
    item_names: NDArray[np.int64]
    item_values: NDArray[np.int64]
    names: tuple[str, ...]
    odd: Mapping[int, SnapshotInfo]
    spec_version: int
    origin: str


class SnapshotList(Mapping[SnapshotId, SnapshotInfo]):
    """Summaries of snapshots by id, sorted by id.

    Threads may share it: what it remembers is replaced in one step.
    """

    def __init__(self, columns: SnapshotColumns) -> None:
        self.columns = columns
        self._asked = 0
        self._objects: dict[SnapshotId, SnapshotInfo] | None = None

    def __len__(self) -> int:
        return len(self.columns.parents)

    def __iter__(self) -> Iterator[SnapshotId]:
        joined, size = self.columns.ids.tobytes(), SnapshotId.SIZE
        return (SnapshotId(joined[at : at + size]) for at in range(0, len(joined), size))

    def __contains__(self, snapshot_id: object) -> bool:
        return isinstance(snapshot_id, SnapshotId) and self.rows_of([snapshot_id])[0] >= 0

    def __getitem__(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        if self._objects is None:
            self._asked += 1
            if self._asked <= _ASKED_SINGLY:
                (row,) = self.rows_of([snapshot_id])
                if row < 0:
                    raise KeyError(snapshot_id)
                return self._infos(np.array([row]))[0]
            self._objects = dict(zip(self, self._infos(np.arange(len(self))), strict=True))
        return self._objects[snapshot_id]

    def rows_of(self, ids: Sequence[SnapshotId]) -> list[int]:
        """Return the row of each snapshot, -1 where it is not in the list."""
        joined = np.frombuffer(b"".join(one.raw for one in ids), dtype=np.uint8)
        rows = rows_of_ids(self.columns.ids, joined.reshape(-1, SnapshotId.SIZE))
        found: list[int] = rows.tolist()
        return found

    def _infos(self, rows: NDArray[np.int64]) -> list[SnapshotInfo]:
        """Return the objects of some rows."""
        held = self.columns
        texts = held.texts.data
        first_items = starts_of(held.item_counts)[rows]
        counts = held.item_counts[rows]
        items = ragged_rows(first_items, counts)
        values = _cut(held.texts, held.item_values[items])
        named = [
            (held.names[number], bytes(texts[start:end]))
            for number, (start, end) in zip(held.item_names[items].tolist(), values, strict=True)
        ]
        found: list[SnapshotInfo] = []
        at = 0
        for row, parent, flushed_at, (start, end), count in zip(
            rows.tolist(),
            held.parents[rows].tolist(),
            held.flushed_at[rows].tolist(),
            _cut(held.texts, held.messages[rows]),
            counts.tolist(),
            strict=True,
        ):
            at += count
            if row in held.odd:
                found.append(held.odd[row])
                continue
            metadata_items = NO_ITEMS
            if count:
                metadata_items = MetadataItems(
                    items=tuple(named[at - count : at]),
                    spec_version=held.spec_version,
                    origin=held.origin,
                )
            found.append(
                SnapshotInfo(
                    id=SnapshotId(held.ids[row].tobytes()),
                    parent_id=None
                    if parent == _NO_PARENT
                    else SnapshotId(held.ids[parent].tobytes()),
                    flushed_at=flushed_at,
                    message=str(texts[start:end], "utf-8"),
                    metadata_items=metadata_items,
                )
            )
        return found


def _cut(texts: NDArray[np.uint8], heads: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return first and last place of the texts whose lengths lie at these places of the block."""
    ends = heads + _LENGTH + texts.view("<u4")[heads // _LENGTH]
    return list(zip((heads + _LENGTH).tolist(), ends.tolist(), strict=True))


# -- from objects ----------------------------------------------------------------------------------


def list_of(infos: Sequence[SnapshotInfo], spec_version: int) -> SnapshotList | None:
    """Return a list of snapshots that are sorted by id.

    None where a parent is not among them, or a number does not fit: writing them one at a time
    then finds the first fault, and names it.
    """
    rows = {info.id.raw: row for row, info in enumerate(infos)}
    raw = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, SnapshotId.SIZE)
    odd = {row: info for row, info in enumerate(infos) if not _is_plain(info, spec_version)}
    items = [() if n in odd else info.metadata_items.items for n, info in enumerate(infos)]
    names = tuple(sorted({name for each in items for name, _ in each}))
    numbers = {name: number for number, name in enumerate(names)}
    try:
        parents = [
            _NO_PARENT if info.parent_id is None else rows[info.parent_id.raw] for info in infos
        ]
        flushed_at = np.array([info.flushed_at for info in infos], dtype=np.uint64)
        messages = [info.message.encode() for info in infos]
    except (KeyError, OverflowError, UnicodeEncodeError):
        return None
    texts, heads = pack_blobs([*messages, *(value for each in items for _, value in each)])
    return SnapshotList(
        SnapshotColumns(
            ids=raw,
            parents=np.array(parents, dtype=np.int32),
            flushed_at=flushed_at,
            texts=texts,
            messages=heads[: len(infos)],
            item_counts=np.array([len(each) for each in items], dtype=np.int64),
            item_names=np.array([numbers[n] for each in items for n, _ in each], dtype=np.int64),
            item_values=heads[len(infos) :],
            names=names,
            odd=odd,
            spec_version=spec_version,
            origin="<bytes>",
        )
    )


def _is_plain(info: SnapshotInfo, spec_version: int) -> bool:
    items = info.metadata_items
    is_of_version = not items.items or items.spec_version == spec_version
    return is_of_version and not info.pruned_ancestor_tx_logs


def with_snapshot(
    snapshots: Mapping[SnapshotId, SnapshotInfo], info: SnapshotInfo
) -> Mapping[SnapshotId, SnapshotInfo]:
    """Return snapshots and one more, which they do not have; a list stays one where it can."""
    if isinstance(snapshots, SnapshotList):
        grown = _inserted(snapshots, info)
        if grown is not None:
            return grown
    return {**snapshots, info.id: info}


def _inserted(snapshots: SnapshotList, info: SnapshotInfo) -> SnapshotList | None:
    held = snapshots.columns
    parents_row = [] if info.parent_id is None else snapshots.rows_of([info.parent_id])
    # Its parent is another row, so the one row is made as a root.
    alone = list_of([replace(info, parent_id=None)], held.spec_version)
    if _NO_PARENT in parents_row or alone is None:
        return None
    one = alone.columns
    at = int(np.searchsorted(id_keys(held.ids), id_keys(one.ids))[0])
    first_item = int(held.item_counts[:at].sum())
    names = tuple(sorted({*held.names, *one.names}))
    parents = np.insert(held.parents, at, parents_row or _NO_PARENT)
    parents += parents >= at
    shift = held.texts.size
    return SnapshotList(
        replace(
            held,
            ids=np.insert(held.ids, at, one.ids, axis=0),
            parents=parents,
            flushed_at=np.insert(held.flushed_at, at, one.flushed_at),
            texts=np.concatenate([held.texts, one.texts]),
            messages=np.insert(held.messages, at, one.messages + shift),
            item_counts=np.insert(held.item_counts, at, one.item_counts),
            item_names=np.insert(_renumbered(held, names), first_item, _renumbered(one, names)),
            item_values=np.insert(held.item_values, first_item, one.item_values + shift),
            names=names,
            odd={row + (row >= at): odd for row, odd in held.odd.items()}
            | dict.fromkeys([at] if one.odd else [], info),
        )
    )


def _renumbered(held: SnapshotColumns, names: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the numbers of the items' names among more names."""
    if held.names == names:
        return held.item_names
    numbers = np.array([names.index(name) for name in held.names], dtype=np.int64)
    return numbers[held.item_names]


# -- from and into the file ------------------------------------------------------------------------


class StoredIds(Sequence[SnapshotId]):
    """Ids over the bytes of all, uint8 of shape (n, 12): each is made where it is asked for."""

    def __init__(self, raw: NDArray[np.uint8]) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, row: Any) -> Any:
        return SnapshotId(self._raw[row].tobytes())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredSnapshots:
    """The list as it was read.

    Parameters
    ----------
    columns
        Sorted by id, without objects for ``odd_rows``.
    ids
        In stored order.
    odd_rows
        In stored order: rows that have pruned logs.
    row_of_stored
        int64, shape (n,): the row in ``columns`` of each stored one.
    """

    columns: SnapshotColumns
    ids: StoredIds
    odd_rows: list[int]
    row_of_stored: NDArray[np.int64]


def read_snapshots(root: Table, spec_version: int) -> StoredSnapshots | None:
    """Read the snapshots of a repo info file; None where the caller has to read them one by one."""
    span = root.vector("snapshots", 4)
    if span is None or span[1] < MIN_ROWS:
        return None
    reader = VectorReader(root.payload, object_key=root.object_key, file_type=root.file_type)
    try:
        tables = reader.tables_between(*span, "snapshots")
        if not (tables.has_all(0, "id") and tables.has_all(3, "message")):
            return None
        messages = tables.ranges(3, "message")
        is_odd = tables.has(5, "pruned_ancestor_tx_logs")
        items = _read_items(reader, tables.ranges(4, "metadata", 4), is_odd)
        ids = tables.structs(0, "id", SnapshotId.SIZE)
        parents = tables.scalars(1, "parent_offset", "<i4")
        flushed_at = tables.scalars(2, "flushed_at", "<u8")
    except FormatError:
        return None
    count = len(ids)
    is_inside = (parents >= _NO_PARENT) & (parents < count)
    if items is None or not is_inside.all() or not _are_texts(reader, messages):
        return None
    names, counts, item_names, values = items
    texts, heads = pack_ranges(
        reader.data,
        np.concatenate([messages.starts, values.starts]),
        np.concatenate([np.where(is_odd, 0, messages.lengths), values.lengths]),
    )
    order = np.argsort(id_keys(ids), kind="stable")
    row_of_stored = np.empty(count, dtype=np.int64)
    row_of_stored[order] = np.arange(count)
    # With -1 behind the last one, -1 is the row of no parent.
    new_parents = np.append(row_of_stored, _NO_PARENT)[parents[order]].astype(np.int32)
    moved_items = ragged_rows(starts_of(counts)[order], counts[order])
    columns = SnapshotColumns(
        ids=ids[order],
        parents=new_parents,
        flushed_at=flushed_at[order].astype(np.uint64),
        texts=texts,
        messages=heads[:count][order],
        item_counts=counts[order],
        item_names=item_names[moved_items],
        item_values=heads[count:][moved_items],
        names=names,
        odd={},
        spec_version=spec_version,
        origin=root.object_key,
    )
    odd_rows = np.flatnonzero(is_odd).tolist()
    return StoredSnapshots(
        columns=columns, ids=StoredIds(ids), odd_rows=odd_rows, row_of_stored=row_of_stored
    )


def _are_texts(reader: VectorReader, ranges: Ranges) -> bool:
    """Tell whether all ranges are UTF-8, and are not shared far too often."""
    if is_shared_too_often(reader, ranges):
        return False
    joined, _ = collect(reader.data, ranges.starts, ranges.lengths)
    return joined.tobytes().isascii() or texts_of(reader, ranges) is not None


def _read_items(
    reader: VectorReader, spans: Ranges, is_odd: NDArray[np.bool_]
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64], Ranges] | None:
    """Return names, and columns of the items of all rows; None to read them one by one.

    The columns are the number of items of each row, and for each item the number of its name, and
    its value.
    """
    counts = spans.lengths
    if int(counts.sum()) * 4 > reader.data.size:
        return None
    tables = tables_of(reader, spans, "snapshots.metadata")
    if not (tables.has_all(0, "name") and tables.has_all(1, "value")):
        return None
    stored_names, values = tables.ranges(0, "name"), tables.ranges(1, "value")
    if int(values.lengths.sum()) > reader.data.size:
        return None
    # Most files store a name once, or next to its value.
    _, firsts, spelled = np.unique(stored_names.starts, return_index=True, return_inverse=True)
    spellings = texts_of(reader, stored_names.take(firsts))
    if spellings is None:
        return None
    names = tuple(sorted(set(spellings)))
    numbers = {name: number for number, name in enumerate(names)}
    item_names = np.array([numbers[name] for name in spellings], dtype=np.int64)[spelled]
    rows = np.repeat(np.arange(len(counts)), counts)
    keys = rows * max(1, len(names)) + item_names
    kept = np.arange(len(keys))
    if (keys[1:] <= keys[:-1]).any():
        # Of two items with one name the first counts.
        kept = np.unique(keys, return_index=True)[1]
    kept = kept[~is_odd[rows[kept]]]
    new_counts = np.bincount(rows[kept], minlength=len(counts)).astype(np.int64)
    return names, new_counts, item_names[kept], values.take(kept)


def write_snapshots(writer: TableWriter, held: SnapshotColumns) -> NDArray[np.int64]:
    """Write the rows that are not odd.

    Returns
    -------
    NDArray
        int64, shape (n,): the handles of the tables; 0 for odd rows.
    """
    plain: Any = slice(None)
    if held.odd:
        plain = np.setdiff1d(np.arange(len(held.parents)), list(held.odd))
    block = writer.block(held.texts.tobytes())
    metadata = _write_items(writer, held, block - held.item_values)
    rows = np.zeros(len(held.parents[plain]), dtype=_SNAPSHOT_LAYOUT.dtype)
    rows["id"] = held.ids[plain]
    rows["parent_offset"] = held.parents[plain]
    rows["flushed_at"] = held.flushed_at[plain]
    vtable = writer.block(_SNAPSHOT_LAYOUT.vtable, alignment=2)
    places = places_of(writer, rows)
    point(
        rows,
        places,
        _SNAPSHOT_LAYOUT,
        vtable=vtable,
        message=block - held.messages[plain],
        metadata=metadata[plain],
    )
    writer.block(rows.tobytes(), alignment=8)
    handles = np.zeros(len(held.parents), dtype=np.int64)
    handles[plain] = places
    return handles


def _write_items(
    writer: TableWriter, held: SnapshotColumns, values: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Write a vector of metadata items per row; returns their handles."""
    counts = held.item_counts
    names = np.array([writer.text(name) for name in held.names], dtype=np.int64)
    vtable = writer.block(_ITEM_LAYOUT.vtable, alignment=2)
    tables = np.zeros(len(values), dtype=_ITEM_LAYOUT.dtype)
    places = places_of(writer, tables)
    point(tables, places, _ITEM_LAYOUT, vtable=vtable, name=names[held.item_names], value=values)
    writer.block(tables.tobytes(), alignment=8)
    heads = starts_of(counts + 1)
    words = np.zeros(len(values) + len(counts), dtype="<u4")
    first = writer.handle_of(words.nbytes)
    words[heads] = counts
    cells = ragged_rows(heads + 1, counts)
    words[cells] = first - 4 * cells - places
    writer.block(words.tobytes())
    handles: NDArray[np.int64] = first - 4 * heads
    return handles
