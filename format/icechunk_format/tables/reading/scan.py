"""Defines a planned scan: the context that all tasks share, and the tasks.

Rules of this file
------------------
1. Contexts and tasks hold picklable numbers, names and settings. Executors open their own storage.
2. A task consists of tuples of integers, since a driver may hold a hundred thousand tasks.
3. This module and its imports need neither sqlglot nor Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_format.display import shown_by
from icechunk_format.groups import DimSelection, SnapshotArrays, SnapshotSource
from icechunk_format.tables.table.table import Table

if TYPE_CHECKING:
    from icechunk_format.tables.selection.where.condition import Residual

DEFAULT_READ_AHEAD_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A part of a scan."""

    parts: tuple[tuple[int, ...], ...]
    """Boxes, each ``(array, start_0, stop_0, start_1, stop_1, ...)``. ``array`` is an index into
    ``Table.arrays``, 0 if boxes belong to the whole table. Bounds are elements of the table's
    dimensions (``cells``, ``summary``) or chunks of the array (``chunks``, ``refs``)."""
    rows: int
    """Rows of the task before any condition on values; for ``refs`` an upper bound, for ``summary``
    the cells that are summarized."""


def box_of_part(part: tuple[int, ...], chosen: Sequence[DimSelection]) -> tuple[DimSelection, ...]:
    """Return the chosen positions along each axis in a box of a task."""
    return tuple(one.within(part[1 + 2 * n], part[2 + 2 * n]) for n, one in enumerate(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanContext:
    """Values that all tasks of a scan share; small and picklable."""

    source: SnapshotSource
    table: Table = Table()  # noqa: RUF009 - frozen
    selections: Mapping[str, DimSelection] = field(default_factory=dict)
    """Selected positions by dimension; an absent dimension is selected whole."""
    residual: Residual | None = None
    """The condition on values, or None."""
    chunks: Mapping[str, tuple[DimSelection, ...]] | None = None
    """Selected chunks along each axis, by the path of an array: see ``Selection``."""
    skip_missing: bool = False
    """Leave out cells for which no variable of the table has a chunk."""
    read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES
    """Bytes that one task may hold ahead of its consumer."""

    def open_arrays(self) -> SnapshotArrays:
        """Open the arrays of the snapshot for one task."""
        # The other half of the budget is for the blocks themselves.
        return self.source.open(kept_bytes=self.read_ahead_bytes // 2)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every batch: all fields nullable, without metadata."""
        return pa.schema(
            [pa.field(c.name, c.arrow_type, nullable=True) for c in self.table.columns]
        )


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """The tasks of a scan (none for an empty selection), and their context."""

    context: ScanContext
    tasks: list[ScanTask]

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self.context.arrow_schema

    @property
    def rows(self) -> int:
        """Sum of ``ScanTask.rows``."""
        return sum(task.rows for task in self.tasks)
