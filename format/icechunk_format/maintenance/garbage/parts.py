"""Divides marking and sweeping into parts, for garbage collection on a cluster.

A part is the set of ids that begin with the same one or two characters, which can be listed;
``depth`` is the number of characters. Ids are serialized between processes: one byte string has all
ids of a part that a process found.

Rules of this file
------------------
1. Each function takes the rows of a task; the caller shuffles rows between tasks. Results do not
   depend on the order of rows, so a repeated task gives the same result.
2. A sweep task checks the number of received ids. If some are missing, it deletes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ALPHABET, IdSet, SnapshotId, id_columns
from icechunk_format.encoding.object_keys import SNAPSHOTS
from icechunk_format.errors import StorageError
from icechunk_format.maintenance.garbage.marks import LISTED, listed_manifests, referenced_chunks
from icechunk_format.maintenance.garbage.object_listing import list_ids
from icechunk_format.maintenance.garbage.result import DeleteReport, Phase
from icechunk_format.maintenance.garbage.sweep import delete_unneeded
from icechunk_format.storage.location import Location, open_storage

_BITS: Final = 5
_SIZE: Final = SnapshotId.SIZE
# Ids that a task collects and deduplicates before it yields them; they take 12 to 80 bytes each.
_GATHERED: Final = 2_000_000
# Maximum number of manifests in one row of a list.
_ROW_MANIFESTS: Final = 256
_ROW_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """The context of all tasks of one phase."""

    location: Location
    phase: Phase
    older_than: datetime
    depth: int
    dry_run: bool


def part_count(depth: int) -> int:
    """Return the number of parts: 32 or 1024."""
    return 1 << (_BITS * depth)


def part_prefix(part: int, depth: int) -> str:
    """Return the first characters of the ids of a part."""
    digits = [(part >> (_BITS * digit)) & (len(ALPHABET) - 1) for digit in reversed(range(depth))]
    return bytes(ALPHABET[digit] for digit in digits).decode("ascii")


def parts_of(raw: NDArray[np.uint8], depth: int) -> NDArray[np.int64]:
    """Return the part of each id: ids ``uint8 (n, 12)``, parts ``int64 (n,)``."""
    head = (raw[:, 0].astype(np.int64) << 8) | raw[:, 1]
    return head >> (16 - _BITS * depth)


def ids_by_part(raw: NDArray[np.uint8], depth: int) -> Iterator[tuple[int, bytes]]:
    """Yield the serialized ids of each part; the input is sorted."""
    return rows_by_part(raw, parts_of(raw, depth))


def rows_by_part(rows: NDArray[Any], parts: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    """Yield the serialized rows of each part; the input is sorted by part."""
    for start, stop in _runs(parts[np.newaxis]):
        yield int(parts[start]), rows[start:stop].tobytes()


def _runs(labels: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return start and end of each run of equal columns; labels have shape (k, n)."""
    starts = np.flatnonzero((np.diff(labels, prepend=-1) != 0).any(axis=0)).tolist()
    return list(zip(starts, [*starts[1:], labels.shape[1]], strict=True)) if starts else []


def distinct_rows(rows: NDArray[np.void], size: str) -> NDArray[np.void]:
    """Return the row with the largest ``size`` (a field name) for each ``id``, sorted by id."""
    high, low = id_columns(rows["id"])
    rows = rows[np.lexsort((rows[size], low, high))]
    is_last = np.ones(len(rows), dtype=np.bool_)
    is_last[:-1] = (rows["id"][1:] != rows["id"][:-1]).any(axis=1)
    return rows[is_last]


def ids_in(ids: bytes) -> NDArray[np.uint8]:
    """Deserialize ids to ``uint8 (n, 12)``."""
    return np.frombuffer(ids, dtype=np.uint8).reshape(-1, _SIZE)


def snapshot_rows(snapshot_ids: Iterable[SnapshotId], count: int) -> list[bytes]:
    """Serialize the ids of snapshots to at most ``count`` rows."""
    raw = IdSet.of(snapshot_ids).ids()
    step = max(1, -(-len(raw) // max(1, count)))
    return [raw[first : first + step].tobytes() for first in range(0, len(raw), step)]


def old_snapshots(
    location: Location, older_than: datetime, candidates: bytes, parts: Iterable[int]
) -> Iterator[bytes]:
    """Yield the candidates in some parts whose files are listed and older than the cutoff."""
    storage = open_storage(location)
    wanted = IdSet(ids_in(candidates))
    for part in parts:
        within = part_prefix(part, 1)
        for page in list_ids(storage, SNAPSHOTS, within, older_than=older_than):
            yield page.ids[wanted.contains(page.ids)].tobytes()


def manifests_of_snapshots(
    location: Location, rows: Iterable[bytes]
) -> Iterator[tuple[int, bytes]]:
    """Yield, by part, the manifests (``LISTED``) of snapshots, deduplicated per task."""
    storage = open_storage(location)
    ids = (SnapshotId(one.tobytes()) for row in rows for one in ids_in(row))
    for listed in listed_manifests(storage, ids, IdSet()):
        ordered = listed[np.argsort(parts_of(listed["id"], 1), kind="stable")]
        yield from rows_by_part(ordered, parts_of(ordered["id"], 1))


class ManifestRow(NamedTuple):
    """Manifests of one part for one task, serialized as ids and as ``LISTED``, with totals."""

    part: int
    ids: bytes
    listed: bytes
    size: int
    references: int


def distinct_manifest_rows(part: int, listed: Iterable[bytes]) -> Iterator[ManifestRow]:
    """Yield the distinct manifests of a part, sorted, in rows of bounded work."""
    # Sizes of a manifest are equal in an undamaged repository; otherwise the largest is a safe
    # bound.
    found = distinct_rows(np.frombuffer(b"".join(listed), dtype=LISTED), "size")
    before = np.cumsum(found["size"]) - found["size"]
    rows = np.arange(len(found)) // _ROW_MANIFESTS
    for start, stop in _runs(np.stack([rows, (before // _ROW_BYTES).astype(np.int64)])):
        some = found[start:stop]
        yield ManifestRow(
            part=part,
            ids=np.ascontiguousarray(some["id"]).tobytes(),
            listed=some.tobytes(),
            size=int(some["size"].sum()),
            references=int(some["refs"].sum(dtype=np.uint64)),
        )


def chunks_of_manifests(
    location: Location, rows: Iterable[bytes], depth: int
) -> Iterator[tuple[int, bytes]]:
    """Yield, by part, the chunks in manifests (``LISTED``), with few repeats."""
    storage = open_storage(location)
    found = IdSet()
    for row in rows:
        for chunks in referenced_chunks(storage, np.frombuffer(row, dtype=LISTED)):
            found.add(chunks)
            if found.approximate_size > _GATHERED:
                yield from ids_by_part(found.ids(), depth)
                found = IdSet()
    yield from ids_by_part(found.ids(), depth)


def sweep_part(task: SweepTask, part: int, kept: Iterable[bytes], expected: int) -> DeleteReport:
    """Delete the garbage of one part.

    ``kept`` are serialized ids to keep; ``expected`` is their number, including repeats.

    Raises
    ------
    StorageError
        Ids are missing; nothing was deleted.
    """
    ids, received = IdSet(), 0
    for row in kept:
        ids.add(ids_in(row))
        received += len(row) // _SIZE
    if received != expected:
        raise StorageError(
            f"{received} of {expected} ids of {task.phase.value} to keep were received, so some "
            "may have been lost between tasks; nothing was deleted in this part. Collect again",
            part=part,
            received=received,
            expected=expected,
        )
    storage = open_storage(task.location)
    within = part_prefix(part, task.depth)
    return delete_unneeded(
        storage, task.phase.prefix, ids, task.older_than, within=within, dry_run=task.dry_run
    )
