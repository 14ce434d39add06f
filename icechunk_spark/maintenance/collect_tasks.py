"""Runs the tasks of a garbage collection, from rows of serialized ids to serialized ids or reports.

Rules of this file
------------------
1. The functions have small arguments, such as a location, since every task unpickles them. They
   call ``icechunk_format.maintenance.garbage.parts``.
2. Rows of one part are together in a partition, sorted by part.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from icechunk_format.maintenance.garbage import parts as collect_parts
from icechunk_format.maintenance.garbage.parts import SweepTask
from icechunk_format.maintenance.garbage.result import DeleteReport
from icechunk_format.storage.location import Location
from icechunk_spark.jobs.task_rows import COUNTS, batches_of, rows_of

Batches = Iterator[pa.RecordBatch]

PART_IDS = pa.schema([pa.field("part", pa.int64()), pa.field("ids", pa.binary())])
MANIFESTS = pa.schema(
    [
        *PART_IDS,
        pa.field("listed", pa.binary()),
        pa.field("size", pa.int64()),
        pa.field("refs", pa.int64()),
    ]
)


def old_snapshots(
    location: Location, older_than: datetime, candidates: bytes, batches: Batches
) -> Batches:
    """Yield the candidates among the old snapshots of parts."""
    for part, _ in rows_of(batches):
        found = collect_parts.old_snapshots(location, older_than, candidates, [part])
        yield from batches_of(((part, ids) for ids in found), PART_IDS)


def listed_manifests(location: Location, batches: Batches) -> Batches:
    """Yield the manifests that serialized snapshots list."""
    snapshots = (ids for _, ids in rows_of(batches))
    yield from batches_of(collect_parts.manifests_of_snapshots(location, snapshots), PART_IDS)


def distinct_manifests(batches: Batches) -> Batches:
    """Yield each of the listed manifests once, part by part, and the counts of tasks."""
    for part, rows in groupby(rows_of(batches), key=itemgetter(0)):
        if part == COUNTS:
            counts = ((part, receipt, None, 0, 0) for _, receipt in rows)
            yield from batches_of(counts, MANIFESTS)
            continue
        found = collect_parts.distinct_manifest_rows(part, (listed for _, listed in rows))
        yield from batches_of(found, MANIFESTS)


def referenced_chunks(location: Location, depth: int, batches: Batches) -> Batches:
    """Yield the chunks that manifests refer to."""
    manifests = (listed for _, _, listed, *_ in rows_of(batches))
    yield from batches_of(collect_parts.chunks_of_manifests(location, manifests, depth), PART_IDS)


def sweep(task: SweepTask, batches: Batches) -> Iterator[DeleteReport]:
    """Sweep the parts of a partition, and report on each.

    Rows are part, serialized ids, and the expected number of ids, which one row of each part has.
    """
    for part, rows in groupby(rows_of(batches), key=itemgetter(0)):
        # One row of each part has the number, the others the ids.
        kept: list[bytes] = []
        expected = 0
        for _, ids, number in rows:
            kept.append(ids)
            expected += number
        yield collect_parts.sweep_part(task, part, kept, expected)
