"""Tasks of a collection: each takes rows of packed ids, and returns packed ids or a report.

Rules of this file
------------------
1. The functions close over a location and little else, since every task unpickles them. The work
   itself is in ``icechunk_format.maintenance.collecting.parts``.
2. Rows of one part lie together in a partition, sorted by part.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import pyarrow as pa

from icechunk_format.maintenance.collecting import parts as collect_parts
from icechunk_format.maintenance.collecting.parts import SweepTask
from icechunk_format.storage.location import Location

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

PACKED = pa.schema([pa.field("part", pa.int64()), pa.field("ids", pa.binary())])
MANIFESTS = pa.schema(
    [
        *PACKED,
        pa.field("sizes", pa.binary()),
        pa.field("size", pa.int64()),
        pa.field("refs", pa.int64()),
    ]
)
REPORT = pa.schema([pa.field("report", pa.binary())])

# Rows of one batch: packed ids are large, and Spark holds a whole batch.
_ROWS_AT_ONCE = 64


def old_snapshots_task(location: Location, older_than: datetime, candidates: bytes) -> Task:
    """Return the function from parts to the candidates among their old snapshots."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, _ in _rows(batches):
            found = collect_parts.old_snapshots(location, older_than, candidates, [part])
            yield from _batches(((part, ids) for ids in found), PACKED)

    return run


def listed_manifests_task(location: Location) -> Task:
    """Return the function from packed snapshots to the manifests that they list."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        snapshots = (ids for _, ids in _rows(batches))
        yield from _batches(collect_parts.manifests_of_snapshots(location, snapshots), PACKED)

    return run


def distinct_manifests_task() -> Task:
    """Return the function from listed manifests, part by part, to each of them once."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, rows in groupby(_rows(batches), key=itemgetter(0)):
            found = collect_parts.distinct_manifest_rows(part, (listed for _, listed in rows))
            yield from _batches(
                ((row.part, row.ids, row.sizes, row.size, row.references) for row in found),
                MANIFESTS,
            )

    return run


def referenced_chunks_task(location: Location, depth: int) -> Task:
    """Return the function from manifests to the chunks that they refer to."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        manifests = ((ids, sizes) for _, ids, sizes, *_ in _rows(batches))
        found = collect_parts.chunks_of_manifests(location, manifests, depth)
        yield from _batches(found, PACKED)

    return run


def sweep_task(task: SweepTask) -> Task:
    """Return the function that sweeps the parts of a partition, and reports on each.

    Rows are part, packed ids, and how many ids the part must get: given once for each part.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part, rows in groupby(_rows(batches), key=itemgetter(0)):
            # One row of each part carries the number, the others the ids.
            kept: list[bytes] = []
            expected = 0
            for _, ids, number in rows:
                kept.append(ids)
                expected += number
            report = collect_parts.sweep_part(task, part, kept, expected)
            yield pa.RecordBatch.from_pydict({"report": [pickle.dumps(report)]}, schema=REPORT)

    return run


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        for row in range(batch.num_rows):
            yield tuple(column[row].as_py() for column in batch.columns)


def _batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = iter(rows)
    while held := list(islice(rows, _ROWS_AT_ONCE)):
        columns = zip(zip(*held, strict=True), schema, strict=True)
        arrays = [pa.array(values, field.type) for values, field in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
