"""The snapshots of a repository as columns.

Every commit reads and writes the whole list. Ten thousand snapshots take a few milliseconds as
columns and a tenth of a second as objects, so objects are made on demand.

Rules of this file
------------------
1. Rows are sorted by id. A list is immutable: `with_snapshot` returns a new one.
2. Messages and metadata values are in one block of bytes, as in the file: a length, the bytes, and
   padding with zeros. Writing copies the block.
3. Pruned logs are in the same block, shorter lists first. After an expiry that keeps n tags they
   hold on the order of n² ids, but each list begins like the one before it, which compresses well.

Specification: "Repo Info File", table ``SnapshotInfo``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.frozen_values import frozen_values
from icechunk_format.encoding.ids import SnapshotId, id_keys, rows_of_ids
from icechunk_format.encoding.repo_info.state import (
    SnapshotIds,
    SnapshotInfo,
    SnapshotLines,
    broken_line,
)
from icechunk_format.encoding.tables.byte_ranges import starts_of
from icechunk_format.encoding.tables.writer import pack_blobs, pack_ranges, utf8
from icechunk_format.encoding.values.metadata_items import NO_ITEMS, MetadataItems
from icechunk_format.errors import InvalidInputError

# Objects are made singly up to this many, then for all rows together, which is far cheaper per row.
_ASKED_SINGLY: Final = 64
_MADE_AT_ONCE: Final = 4096
NONE: Final = -1
"""Marks a missing parent or missing logs in columns of rows and offsets."""
_LENGTH: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotColumns:
    """Columns of snapshots, sorted by id.

    Parameters
    ----------
    parents
        The row of the parent, or -1.
    strings
        The block of rule 2.
    messages
        Offsets in the block.
    item_counts
        The number of metadata items of each row.
    item_names, item_values
        Indices into ``names``, ascending within a row; and offsets in the block.
    names
        Distinct names of items, sorted.
    pruned
        Offsets in the block of the number of pruned logs and their ids; -1 if there are none.
    spec_version, origin
        Encoding of the values, and the key of their object.
    """

    ids: NDArray[np.uint8]
    parents: NDArray[np.int32]
    flushed_at: NDArray[np.uint64]
    strings: NDArray[np.uint8]
    messages: NDArray[np.int64]
    item_counts: NDArray[np.int64]
    item_names: NDArray[np.int64]
    item_values: NDArray[np.int64]
    names: tuple[str, ...]
    pruned: NDArray[np.int64]
    spec_version: int
    origin: str


class SnapshotList(SnapshotLines):
    """Mapping from id to the summary of a snapshot, sorted by id.

    Threads may share it: its cache is replaced in one step.
    """

    def __init__(self, columns: SnapshotColumns) -> None:
        self.columns = columns
        self._asked = 0
        self._objects: dict[SnapshotId, SnapshotInfo] | None = None

    def __len__(self) -> int:
        return len(self.columns.parents)

    def __iter__(self) -> Iterator[SnapshotId]:
        return iter(SnapshotId.many(self.columns.ids.tobytes()))

    def __contains__(self, snapshot_id: object) -> bool:
        return isinstance(snapshot_id, SnapshotId) and self.rows_of([snapshot_id])[0] >= 0

    def __getitem__(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        if self._objects is None:
            self._asked += 1
            if self._asked <= _ASKED_SINGLY:
                if snapshot_id not in self:
                    raise KeyError(snapshot_id)
                return next(self.line(snapshot_id))
            ids = list(self)
            above = [None if row == NONE else ids[row] for row in self.columns.parents.tolist()]
            strings = self.columns.strings.tobytes()
            infos = self._infos(np.arange(len(self)), ids, above, strings)
            self._objects = dict(zip(ids, infos, strict=True))
        return self._objects[snapshot_id]

    def rows_of(self, ids: Sequence[SnapshotId]) -> list[int]:
        """Return the row of each snapshot, -1 if it is not in the list."""
        found: list[int] = rows_of_ids(self.columns.ids, SnapshotId.rows(ids)).tolist()
        return found

    def line(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Yield a listed snapshot and its ancestors; raise FormatError if parents form a cycle."""
        ids, parents = self.columns.ids, self.columns.parents.data
        strings: bytes | memoryview = self.columns.strings.data
        is_done = bytearray(len(self))
        (row,) = self.rows_of([snapshot_id])
        count = 1
        while row != NONE:
            rows: list[int] = []
            while row != NONE and not is_done[row] and len(rows) < count:
                rows.append(row)
                is_done[row] = True
                row = parents[row]
            made = SnapshotId.many(ids[[*rows, row]].tobytes())
            above = [*made[1:-1], None if row == NONE else made[-1]]
            yield from self._infos(np.array(rows), made[:-1], above, strings)
            if row != NONE and is_done[row]:
                raise broken_line(made[-1], "is its own ancestor")
            # Most callers need a few; larger batches are faster per object.
            if count < _MADE_AT_ONCE <= 4 * count:
                strings = self.columns.strings.tobytes()
            count = min(4 * count, _MADE_AT_ONCE)

    def _infos(
        self,
        rows: NDArray[np.int64],
        ids: Sequence[SnapshotId],
        parent_ids: Sequence[SnapshotId | None],
        strings: bytes | memoryview,
    ) -> list[SnapshotInfo]:
        """Return the objects of some rows, given the ids of these and of their parents.

        ``strings`` is the block of rule 2: bytes are sliced faster than a memoryview, but need a
        copy.
        """
        held = self.columns
        return frozen_values(
            SnapshotInfo,
            len(rows),
            id=ids,
            parent_id=parent_ids,
            flushed_at=held.flushed_at[rows].tolist(),
            message=[str(m, "utf-8") for m in _cut(held.strings, held.messages[rows], strings)],
            metadata_items=self._metadata(rows),
            pruned_ancestor_tx_logs=[
                () if pruned == NONE else _logs_at(held.strings, pruned)
                for pruned in held.pruned[rows].tolist()
            ],
        )

    def _metadata(self, rows: NDArray[np.int64]) -> Iterable[MetadataItems]:
        held = self.columns
        counts = held.item_counts[rows]
        if not counts.any():
            return repeat(NO_ITEMS)
        made = frozen_values(
            MetadataItems,
            len(rows),
            spec_version=repeat(held.spec_version),
            origin=repeat(held.origin),
            _read=repeat(self._items),
            _first=starts_of(held.item_counts)[rows].tolist(),
            _count=counts.tolist(),
        )
        pairs = zip(made, counts.tolist(), strict=True)
        return made if counts.all() else [items if count else NO_ITEMS for items, count in pairs]

    def _items(self, first: int, count: int) -> tuple[tuple[str, bytes], ...]:
        """Return consecutive metadata items as pairs of name and value."""
        held, rows = self.columns, slice(first, first + count)
        names = map(held.names.__getitem__, held.item_names[rows].tolist())
        values = _cut(held.strings, held.item_values[rows], held.strings.data)
        return tuple(zip(names, map(bytes, values), strict=True))


def _cut(
    strings: NDArray[np.uint8], heads: NDArray[np.int64], source: bytes | memoryview
) -> list[bytes | memoryview]:
    """Slice ``source`` at strings, given the offsets of their lengths."""
    starts = heads + _LENGTH
    ends = starts + strings.view("<u4")[heads // _LENGTH]
    return [source[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _logs_at(strings: NDArray[np.uint8], at: int) -> SnapshotIds:
    count, start = int(strings[at : at + _LENGTH].view("<u4")[0]), at + _LENGTH
    return SnapshotIds(strings[start : start + count * SnapshotId.SIZE].reshape(count, -1))


def with_logs(
    strings: NDArray[np.uint8],
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Append pruned logs to a block; return the new block and the column ``pruned``."""
    rows = np.argsort(counts, kind="stable")[int((counts == 0).sum()) :]
    content, heads = pack_ranges(source, starts[rows], counts[rows] * SnapshotId.SIZE)
    content.view("<u4")[heads // _LENGTH] = counts[rows]
    pruned = np.full(len(counts), NONE, dtype=np.int64)
    pruned[rows] = heads + strings.size
    return np.concatenate([strings, content]), pruned


# -- from objects ----------------------------------------------------------------------------------


def unlisted(of: str, snapshot_id: SnapshotId) -> InvalidInputError:
    """Return the error for a snapshot that something refers to, but that does not exist."""
    return InvalidInputError(
        f"{of} refers to snapshot {snapshot_id}, which the repository does not list",
        found=str(snapshot_id),
        allowed="a listed snapshot",
    )


def list_of(infos: Sequence[SnapshotInfo], spec_version: int) -> SnapshotList:
    """Build a list from snapshots that are sorted by id.

    Metadata is translated to the spec version. Raises InvalidInputError if a parent is not among
    the snapshots, or a value does not fit.
    """
    rows = {info.id.raw: row for row, info in enumerate(infos)}
    raw = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, SnapshotId.SIZE)
    items = [info.metadata_items.in_version(spec_version).items for info in infos]
    names = tuple(sorted({name for each in items for name, _ in each}))
    numbers = {name: number for number, name in enumerate(names)}
    parents = []
    for info in infos:
        above = info.parent_id
        if above is not None and above.raw not in rows:
            raise unlisted(f"snapshot {info.id}", above)
        parents.append(NONE if above is None else rows[above.raw])
    times = [info.flushed_at for info in infos]
    try:
        flushed_at = np.array(times, dtype=np.uint64)
    except OverflowError as error:
        raise InvalidInputError(
            f"flushed_at of SnapshotInfo does not fit into 64 bits, found {min(times)} to "
            f"{max(times)}",
            found=(min(times), max(times)),
            allowed=(0, 2**64 - 1),
        ) from error
    messages = [utf8(info.message) for info in infos]
    strings, heads = pack_blobs([*messages, *(value for each in items for _, value in each)])
    logs = [SnapshotIds.of(info.pruned_ancestor_tx_logs).raw for info in infos]
    counts = np.array([*map(len, logs)], dtype=np.int64)
    ids = np.concatenate([raw[:0], *logs]).reshape(-1)
    strings, pruned = with_logs(strings, ids, starts_of(counts) * SnapshotId.SIZE, counts)
    return SnapshotList(
        SnapshotColumns(
            ids=raw,
            parents=np.array(parents, dtype=np.int32),
            flushed_at=flushed_at,
            strings=strings,
            messages=heads[: len(infos)],
            item_counts=np.array([len(each) for each in items], dtype=np.int64),
            item_names=np.array([numbers[n] for each in items for n, _ in each], dtype=np.int64),
            item_values=heads[len(infos) :],
            names=names,
            pruned=pruned,
            spec_version=spec_version,
            origin="<bytes>",
        )
    )


def with_snapshot(
    snapshots: Mapping[SnapshotId, SnapshotInfo], info: SnapshotInfo
) -> Mapping[SnapshotId, SnapshotInfo]:
    """Add a snapshot; a ``SnapshotList`` stays one."""
    if not isinstance(snapshots, SnapshotList):
        return {**snapshots, info.id: info}
    held = snapshots.columns
    parents_row = NONE
    if info.parent_id is not None:
        [parents_row] = snapshots.rows_of([info.parent_id])
        if parents_row == NONE:
            raise unlisted(f"snapshot {info.id}", info.parent_id)
    # The parent is not in this list of one, so the row is made as a root.
    one = list_of([replace(info, parent_id=None)], held.spec_version).columns
    at = int(np.searchsorted(id_keys(held.ids), id_keys(one.ids))[0])
    first_item = int(held.item_counts[:at].sum())
    names = tuple(sorted({*held.names, *one.names}))
    parents = np.insert(held.parents, at, parents_row)
    parents += parents >= at
    shift = held.strings.size
    return SnapshotList(
        replace(
            held,
            ids=np.insert(held.ids, at, one.ids, axis=0),
            parents=parents,
            flushed_at=np.insert(held.flushed_at, at, one.flushed_at),
            strings=np.concatenate([held.strings, one.strings]),
            messages=np.insert(held.messages, at, one.messages + shift),
            item_counts=np.insert(held.item_counts, at, one.item_counts),
            item_names=np.insert(_renumbered(held, names), first_item, _renumbered(one, names)),
            item_values=np.insert(held.item_values, first_item, one.item_values + shift),
            names=names,
            pruned=np.insert(held.pruned, at, one.pruned + (one.pruned != NONE) * shift),
        )
    )


def _renumbered(held: SnapshotColumns, names: tuple[str, ...]) -> NDArray[np.int64]:
    """Return ``item_names`` as indices into other names, which include the current ones."""
    if held.names == names:
        return held.item_names
    numbers = np.array([names.index(name) for name in held.names], dtype=np.int64)
    return numbers[held.item_names]
