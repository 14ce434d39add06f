"""Counts the reads of a scan's tasks from manifests and shard indexes, without reading chunks.

Rules of this file
------------------
1. A count follows `run_scan`: the same blocks, kept chunks and requests. It equals the reads of the
   job, with two exceptions: a process of the job may have cached the index of a shard in an earlier
   task, and blocks that share chunks of more than half of ``readAheadBytes`` may join other ranges,
   depending on which block is fetched first.
2. Snapshots, manifests and labels of dimensions are not counted: each process reads them once.
3. Executors import this module; it needs neither sqlglot nor Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.groups import ArrayReader
from icechunk_format.groups.array_reader import BlockRequest
from icechunk_format.tables.reading.layouts.block_reads import cell_reads
from icechunk_format.tables.reading.layouts.chunk_refs import refs_of_part
from icechunk_format.tables.reading.layouts.chunks import blocks_of_chunks
from icechunk_format.tables.reading.scan import ScanContext, ScanTask
from icechunk_format.tables.table.table import Layout

# Chunks of each block that are checked for unauthorized ones.
_LOOKED_AT: Final = 1_000


@dataclass(slots=True, kw_only=True)
class ReadCost:
    """Counts of the reads of tasks; fields as in ``Estimate``."""

    chunks: int = 0
    stored_bytes: int = 0
    decoded_bytes: int = 0
    requests: int = 0
    cells: int = 0
    rows: int = 0


class CostCounter:
    """Adds up the reads of one task."""

    def __init__(self) -> None:
        self.cost = ReadCost()
        # Indexes of shards that the task has read.
        self._indexes: set[Hashable] = set()

    def chunks(self, reader: ArrayReader, coords: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the reads of chunks; return the positions of those that exist."""
        if reader.shards is None:
            found = reader.lookup.find(coords.astype(np.uint32))
            positions = found.positions
            self._add(reader.chunk_source.planned_reads(found.refs, found.rows))
        else:
            positions, reads = reader.shards.planned_reads(coords, self._indexes)
            for one in reads:
                self._add(one)
        self.cost.chunks += len(positions)
        self.cost.decoded_bytes += reader.item_bytes * _cells(reader, coords[positions])
        return positions

    def block(self, reader: ArrayReader, request: BlockRequest) -> None:
        """Count the reads of a block, and keep the chunks that later blocks share."""
        positions = self.chunks(reader, request.coords[request.wanted])
        lost = reader.assume_decoded(request, request.wanted[positions])
        if len(lost):
            self.chunks(reader, request.coords[lost])

    def looked_up(self, reader: ArrayReader, coords: NDArray[np.int64]) -> None:
        """Count the reads that look up which chunks exist."""
        if reader.shards is not None:
            self._add(reader.shards.planned_index_reads(coords, self._indexes))

    def _add(self, reads: tuple[int, int]) -> None:
        self.cost.requests += reads[0]
        self.cost.stored_bytes += reads[1]


def task_cost(context: ScanContext, task: ScanTask, counter: CostCounter | None = None) -> ReadCost:
    """Return the cost of one task of a scan, added to that of ``counter`` if given.

    Raises the errors of running the task: an unauthorized virtual chunk, an unreadable manifest.
    """
    counter = counter or CostCounter()
    _COUNT_BY_LAYOUT[context.table.layout](context, task, counter)
    return counter.cost


def check_access(context: ScanContext, tasks: Sequence[ScanTask]) -> None:
    """Look up the first chunks of tasks, so that unauthorized virtual chunks fail early."""
    if context.table.layout == "refs":
        return
    counter = CostCounter()
    for number in sorted({0, len(tasks) // 2, len(tasks) - 1}) if tasks else ():
        if context.table.layout == "chunks":
            for block in islice(blocks_of_chunks(context, context.open_arrays(), tasks[number]), 1):
                counter.chunks(block.reader, block.coords[:_LOOKED_AT])
            continue
        reads = cell_reads(context)
        for slab in islice(reads.requested_slabs(tasks[number]), 1):
            for path, request in slab.requests.items():
                counter.chunks(reads.reader(path), request.coords[:_LOOKED_AT])


def summed(costs: Iterable[ReadCost]) -> ReadCost:
    """Return the sum of costs."""
    total = ReadCost()
    for cost in costs:
        for name in ReadCost.__slots__:
            setattr(total, name, getattr(total, name) + getattr(cost, name))
    return total


def _count_cells(context: ScanContext, task: ScanTask, counter: CostCounter) -> None:
    table, cost = context.table, counter.cost
    reads = cell_reads(context)
    for slab in reads.requested_slabs(task):
        for path, request in slab.requests.items():
            counter.block(reads.reader(path), request)
        for reader, coords in reads.looked_up(slab):
            counter.looked_up(reader, coords)
        cells = reads.stored_cells(slab)
        cost.cells += cells
        if table.layout == "cells":
            cost.rows += cells
        elif slab.completes:
            cost.rows += math.prod(
                selection.count_chunks(axis)
                for axis, selection in zip(reads.axes, slab.whole, strict=True)
            )


def _count_chunks(context: ScanContext, task: ScanTask, counter: CostCounter) -> None:
    has_data = any(column.source == "data" for column in context.table.columns)
    stored_only = context.skip_missing or not context.table.decoded
    for block in blocks_of_chunks(context, context.open_arrays(), task):
        reader, coords = block.reader, block.coords
        positions = np.arange(len(coords))
        if has_data:
            found = counter.chunks(reader, coords)
            positions = found if stored_only else positions
        elif stored_only:
            counter.looked_up(reader, coords)
            positions = reader.stored(coords)
        counter.cost.rows += len(positions)
        counter.cost.cells += _cells(reader, coords[positions], clipped=True)


def _count_refs(context: ScanContext, task: ScanTask, counter: CostCounter) -> None:
    arrays = context.open_arrays()
    for part in task.parts:
        for _, _, rows in refs_of_part(context, arrays, part):
            counter.cost.rows += len(rows)


_COUNT_BY_LAYOUT: Final[dict[Layout, Callable[[ScanContext, ScanTask, CostCounter], None]]] = {
    "cells": _count_cells,
    "summary": _count_cells,
    "chunks": _count_chunks,
    "refs": _count_refs,
}


def _cells(reader: ArrayReader, coords: NDArray[np.int64], *, clipped: bool = False) -> int:
    """Return the number of cells of stored chunks; ``clipped`` counts only those in the array."""
    cells = np.ones(len(coords), dtype=np.int64)
    for number, axis in enumerate(reader.axes):
        if axis.edges is None and not clipped:
            cells *= axis.step
        else:
            own = coords[:, number]
            cells *= axis.start_of(own + 1) - axis.start_of(own)
    return int(cells.sum())
