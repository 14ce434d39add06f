"""What executors run: a context that all tasks share, and small tasks.

Rules of this file
------------------
1. Contexts and tasks are recipes: numbers, names and settings. Executors open their own storage.
2. A task is tuples of integers. A driver may hold a hundred thousand of them.
3. This module and what it imports need neither sqlglot nor Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_format.dataset.reading.layouts.cells import run_cells
from icechunk_format.dataset.reading.layouts.chunk_refs import run_refs
from icechunk_format.dataset.reading.layouts.chunks import run_chunks
from icechunk_format.dataset.reading.layouts.summary import run_summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icechunk_format.dataset.selection.positions import DimSelection
    from icechunk_format.dataset.selection.where.condition import Residual
    from icechunk_format.dataset.table.table import Table
    from icechunk_format.repository.chunks.source import ChunkSource
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.storage.location import Location

DEFAULT_READ_AHEAD_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A part of a scan.

    Parameters
    ----------
    parts
        Boxes, each ``(array, start_0, stop_0, start_1, stop_1, ...)``. ``array`` counts in
        ``Table.arrays`` and is 0 where boxes belong to the whole table. Bounds are elements of
        the table's dimensions (``cells``, ``summary``) or chunks of the array (``chunks``,
        ``refs``).
    rows
        Rows of the task before any condition on values; for ``refs`` an upper bound, for
        ``summary`` the cells that are summarised.
    """

    parts: tuple[tuple[int, ...], ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanContext:
    """What all tasks of a scan share; small and picklable.

    Parameters
    ----------
    location
        The repository.
    snapshot_id
        The version that is read.
    chunk_source
        How to fetch chunks.
    table
        The columns to produce.
    selections
        What is selected, by dimension; a dimension that is absent is whole.
    residual
        The condition on values, or None.
    skip_missing
        Leave out cells of which no variable has a chunk.
    read_ahead_bytes
        Bytes that one task may hold ahead of the consumer.
    """

    location: Location
    snapshot_id: SnapshotId
    chunk_source: ChunkSource
    table: Table
    selections: Mapping[str, DimSelection]
    residual: Residual | None = None
    skip_missing: bool = False
    read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every batch: all fields nullable, without metadata."""
        return pa.schema(
            [pa.field(c.name, c.arrow_type, nullable=True) for c in self.table.columns]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """The tasks of a scan.

    Parameters
    ----------
    context
        What they share.
    tasks
        The tasks; none when nothing is selected.
    """

    context: ScanContext
    tasks: list[ScanTask]

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self.context.arrow_schema

    @property
    def rows(self) -> int:
        """Rows of all tasks, as ``ScanTask.rows`` counts them."""
        return sum(task.rows for task in self.tasks)


def run_task(context: ScanContext, task: ScanTask | None) -> Iterator[pa.RecordBatch]:
    """Produce the rows of a task.

    Closing the returned generator stops the reading ahead.

    Parameters
    ----------
    context
        What the plan says about all tasks.
    task
        The task. None produces nothing: Spark puts one such task where a plan has none.

    Raises
    ------
    IcechunkError
        Reading failed; the subclass says what a caller would do about it.
    """
    if task is None:
        return
    layout = context.table.layout
    if layout == "cells":
        yield from run_cells(context, task)
    elif layout == "summary":
        yield from run_summary(context, task)
    elif layout == "chunks":
        yield from run_chunks(context, task)
    else:
        yield from run_refs(context, task)
