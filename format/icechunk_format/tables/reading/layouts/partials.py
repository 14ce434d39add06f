"""Yields partial aggregates: one row for each combination of labels of the grouped dimensions.

A query that groups cells by dimensions, or by expressions of dimensions, needs only sums and
extremes of each label. Tasks compute them where they read the data; the caller merges the rows of
all tasks, and evaluates its expressions on their labels.

Rules of this file
------------------
1. Rows are grouped by positions along the dimensions, so labels that are repeated, NaN or NULL need
   no rule: the caller groups them.
2. A row has the labels, the number of its cells, and the columns of each measure. Rows without
   cells are left out, as are cells that the condition of the scan drops.
3. Sums and extremes are NULL if a row has no value of the measure.
4. This module and its imports need neither sqlglot nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.grid.axes import RegularAxis
from icechunk_format.tables.reading.layouts.batches import BATCH_ROWS, join_thin
from icechunk_format.tables.reading.layouts.segments import Measure, Reduction, Segments
from icechunk_format.tables.reading.layouts.statistics import Statistics
from icechunk_format.tables.reading.scan import ScanContext, ScanTask
from icechunk_format.tables.table.table import Column, Table

CELLS = "icechunk_cells"
"""The column with the number of cells of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialContext:
    """Values that all tasks of partial aggregates share; small and picklable."""

    scan: ScanContext
    """The context of the cells. The columns of its table are the dimensions to group by."""
    measures: tuple[Measure, ...]
    """The measures of each row."""

    @property
    def location(self) -> str:
        """The location of the repository, for logs."""
        return str(self.scan.source.chunk_source.location)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every batch."""
        fields = [(column.name, column.arrow_type) for column in self.scan.table.columns]
        fields.append((CELLS, pa.int64()))
        for number, measure in enumerate(self.measures):
            kinds = measure_types(measure, self.scan.table)
            fields += [(measure_name(number, field), kind) for field, kind in kinds.items()]
        return pa.schema(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialPlan:
    """The tasks of partial aggregates, and their context; ``rows`` limits their rows."""

    context: PartialContext
    tasks: list[ScanTask]
    rows: int


def measure_name(number: int, field: str) -> str:
    """Return the column of a measure with a field of `Statistics`."""
    return f"icechunk_{number}_{field}"


def measure_types(measure: Measure, table: Table) -> dict[str, pa.DataType]:
    """Return the columns of a measure: fields of `Statistics` and their types."""
    kinds: dict[str, pa.DataType] = {"count": pa.int64()}
    if measure.wanted & {"low", "high"}:
        kind = measured_column(measure, table).arrow_type
        if any(step.operation == "double" for step in measure.steps):
            kind = pa.float64()
        kinds.update((field, kind) for field in ("low", "high") if field in measure.wanted)
    if "total" in measure.wanted:
        kinds["total"] = pa.int64() if measure.exact_sum else pa.float64()
    if "moments" in measure.wanted:
        kinds |= {"mean": pa.float64(), "m2": pa.float64()}
    return kinds


def measured_column(measure: Measure, table: Table) -> Column:
    """Return the column of a measure that has one."""
    return next(column for column in table.value_columns if column.source == measure.source)


def run_partials(context: PartialContext, task: ScanTask | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; None, of a plan without tasks, yields nothing.

    Raises the errors of ``run_scan``.
    """
    if task is not None:
        yield from join_thin(_batches(context, task), context.arrow_schema)


def _batches(context: PartialContext, task: ScanTask) -> Iterator[pa.RecordBatch]:
    scan, table = context.scan, context.scan.table
    grouped = {column.source for column in table.columns}
    sources = {measure.source for measure in context.measures}
    for residual in (scan.residual, *(measure.condition for measure in context.measures)):
        sources.update(() if residual is None else residual.columns)
    columns = {column.source: column for column in table.columns}
    for column in table.value_columns:
        if column.source in sources:
            columns.setdefault(column.source, column)
    axes = [
        RegularAxis(size, 1 if dim in grouped else max(1, size))
        for dim, size in zip(table.dims, table.sizes, strict=True)
    ]
    reduction = Reduction(scan, task, context.measures, list(columns.values()), axes)
    for segments in reduction.segments():
        yield from _rows(context, segments, reduction)


def _rows(
    context: PartialContext, segments: Segments, reduction: Reduction
) -> Iterator[pa.RecordBatch]:
    cells = segments.cells.reshape(-1)
    # A large batch is cut, since Spark holds whole batches in memory.
    chosen = np.flatnonzero(cells)
    table = context.scan.table
    for first in range(0, len(chosen), BATCH_ROWS):
        rows = chosen[first : first + BATCH_ROWS]
        along = np.unravel_index(rows, segments.shape) if segments.shape else ()
        arrays = [
            reduction.labels.take(segments.whole, dim, along[dim])
            for dim in (table.dims.index(column.source) for column in table.columns)
        ]
        arrays.append(pa.array(cells[rows]))
        for number, measure in enumerate(context.measures):
            found = segments.statistics[number]
            arrays += _columns(measure, table, found, rows)
        yield pa.RecordBatch.from_arrays(arrays, schema=context.arrow_schema)


def _columns(
    measure: Measure, table: Table, found: Statistics, rows: NDArray[np.int64]
) -> Sequence[pa.Array]:
    count = found.count.reshape(-1)[rows]
    arrays = []
    for field, kind in measure_types(measure, table).items():
        values: NDArray[Any] = getattr(found, field).reshape(-1)[rows]
        if field == "count":
            arrays.append(pa.array(values))
        elif field in ("low", "high") and not measure.steps:
            decoder = measured_column(measure, table).decoder
            assert decoder is not None
            arrays.append(decoder.to_arrow(values, count > 0))
        else:
            arrays.append(pa.array(values, type=kind, mask=count == 0))
    return arrays
