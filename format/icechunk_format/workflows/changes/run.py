"""Runs one task of a change feed and yields its rows as Arrow batches.

Executors import this module; it needs neither sqlglot nor Spark.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import NotFoundError
from icechunk_format.groups import ArrayReader
from icechunk_format.tables.reading import (
    Column,
    CostCounter,
    ReadCost,
    ScanContext,
    ScanTask,
    run_scan,
    task_cost,
)

Change = Literal["written", "deleted"]
LookedUp = Callable[[ArrayReader, NDArray[np.int64]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeScan:
    """The values that all tasks of one scan of a feed share."""

    context: ScanContext
    columns: tuple[tuple[str, str, pa.DataType], ...]
    """Name, source and type of each column of the feed; those not in the scan are NULL."""
    change: Change
    snapshot_id: str
    committed_at: int
    """Microseconds since 1970."""
    keys: tuple[Column, ...] = ()
    """The dimension columns, if the scan yields positions instead of labels."""
    check: ScanContext | None = None
    """A snapshot; rows that it also stores are dropped. None drops no rows."""


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """A task, and its serialized ``ChangeScan``, which several tasks share."""

    scan: bytes
    task: ScanTask


def run_changes(
    _: None, task: ChangeTask | None, looked_up: LookedUp = lambda _, __: None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; None yields nothing.

    ``looked_up`` is called with each array and its chunks that are looked up in the other snapshot.
    """
    if task is None:
        return
    scan = loaded_scan(task.scan)
    rows = cast("Generator[pa.RecordBatch, None, None]", run_scan(scan.context, task.task))
    left = None if scan.check is None else _Missing(scan, looked_up)
    with closing(rows):
        for batch in rows:
            kept = batch if left is None else left.of(batch)
            if kept.num_rows:
                yield _as_changes(scan, kept)


@lru_cache(maxsize=4)
def loaded_scan(serialized: bytes) -> ChangeScan:
    """Deserialize the scan of a task."""
    # Safe to unpickle: made by the planner of the same query, not read from a repository.
    scan: ChangeScan = pickle.loads(zlib.decompress(serialized))
    return scan


def _as_changes(scan: ChangeScan, batch: pa.RecordBatch) -> pa.RecordBatch:
    sources = [column.source for column in scan.keys or scan.context.table.columns]
    found = dict(zip(sources, batch.columns, strict=True))
    values = {
        "_change": scan.change,
        "_snapshot_id": scan.snapshot_id,
        "_committed_at": scan.committed_at,
    }
    columns = []
    for _, source, kind in scan.columns:
        if source in found:
            columns.append(found[source])
        elif source in values:
            columns.append(pa.repeat(pa.scalar(values[source], kind), batch.num_rows))
        else:
            columns.append(pa.nulls(batch.num_rows, kind))
    schema = pa.schema([pa.field(name, kind) for name, _, kind in scan.columns])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def change_cost(_: None, task: ChangeTask) -> ReadCost:
    """Return the cost of one task of a feed.

    Tasks that compare two snapshots are run to count their rows, without reading chunks. Raises the
    errors of running the task.
    """
    scan, counter = loaded_scan(task.scan), CostCounter()
    cost = task_cost(scan.context, task.task, counter)
    if scan.check is not None:
        cost.rows = sum(batch.num_rows for batch in run_changes(None, task, counter.looked_up))
    return cost


class _Missing:
    """Drops the rows that another snapshot also stores."""

    def __init__(self, scan: ChangeScan, looked_up: LookedUp) -> None:
        assert scan.check is not None
        self._scan, self._looked_up = scan, looked_up
        self._arrays = scan.check.open_arrays()
        self._older = scan.context.open_arrays()
        self._labels: dict[str, pa.Array] = {}

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._scan.context.table.layout == "cells":
            return self._of_cells(batch)
        names = batch.column(0).to_pylist()
        keep = np.zeros(batch.num_rows, dtype=bool)
        for name in set(names):
            rows = np.flatnonzero([name == other for other in names])
            lists = batch.column(1).take(pa.array(rows))
            coords = np.asarray(lists.flatten(), dtype=np.int64).reshape(len(rows), -1)
            keep[rows] = ~self._stored(name, coords)
        return batch.filter(pa.array(keep))

    def _of_cells(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        dims = self._scan.context.table.dims
        positions = dict(zip(dims, (np.asarray(column) for column in batch.columns), strict=True))
        is_stored = np.zeros(batch.num_rows, dtype=bool)
        assert self._scan.check is not None
        for path in self._scan.check.table.arrays:
            variable, axes = self._arrays.variable(path), self._arrays.reader(path).axes
            coords = np.empty((batch.num_rows, len(axes)), dtype=np.int64)
            for number, (dim, axis) in enumerate(zip(variable.dims, axes, strict=True)):
                coords[:, number] = axis.chunk_of(positions[dim])
            distinct, rows = np.unique(coords, axis=0, return_inverse=True)
            is_stored |= self._stored(path, distinct)[rows.reshape(-1)]
        rows_left = np.flatnonzero(~is_stored)
        columns = [
            self._labels_of(key).take(pa.array(positions[key.source][rows_left]))
            for key in self._scan.keys
        ]
        return pa.RecordBatch.from_arrays(columns, names=[key.name for key in self._scan.keys])

    def _stored(self, path: str, coords: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.zeros(len(coords), dtype=bool)
        try:
            if self._scan.context.table.layout == "refs":
                at = self._arrays.lookup(path).find(coords.astype(np.uint32)).positions
            else:
                reader = self._arrays.reader(path)
                self._looked_up(reader, coords)
                at = reader.stored(coords)
        except NotFoundError:  # the array was deleted
            return found
        found[at] = True
        return found

    def _labels_of(self, key: Column) -> Any:
        if key.source not in self._labels:
            table = self._scan.context.table
            size = table.sizes[table.dims.index(key.source)]
            self._labels[key.source] = key.labels(self._older, size)
        return self._labels[key.source]
