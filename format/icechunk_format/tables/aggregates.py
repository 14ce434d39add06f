"""Plans partial aggregates of a table: sums and extremes for each label of some dimensions.

Rules of this file
------------------
1. The caller does not evaluate conditions of measures again. So a condition that might fail on some
   value is refused: the caller may never have evaluated it there.
2. A plan is worth its tasks only if its rows are few beside the cells.
3. Counts of cells read no chunk, so they are one task.
4. Tasks are divided by the cells of the chunks that they decode: a small box may need large chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from icechunk_format.errors import UnsupportedError
from icechunk_format.groups import chunk_axes, chunk_cells, chunk_selections
from icechunk_format.options.read import ReadRequest
from icechunk_format.tables.dataset import Dataset
from icechunk_format.tables.reading.layouts.partials import PartialContext, PartialPlan
from icechunk_format.tables.reading.layouts.segments import Measure
from icechunk_format.tables.reading.scan import ScanPlan, box_of_part
from icechunk_format.tables.reading.task_cutting import DEFAULT_ROWS_PER_PARTITION
from icechunk_format.tables.requested import planning
from icechunk_format.tables.selection.pruning import condition_on_values
from icechunk_format.tables.selection.select import Selection
from icechunk_format.tables.table.table import Table

# Cells that a row of partial aggregates must replace, on average.
_FEWEST_CELLS_OF_A_ROW: Final = 8
# Tasks that return few rows may be larger than others: Spark spends about 60 ms on each.
_MOST_CELLS_OF_A_TASK: Final = 32_000_000


class MeasureRequest(NamedTuple):
    """A measure without source and condition, the name of its column, and its condition as SQL."""

    column: str | None
    measure: Measure
    condition: str | None = None


def plan_partials(
    options: ReadRequest,
    dataset: Dataset,
    table: Table,
    *,
    dims: Sequence[str],
    measures: Sequence[MeasureRequest],
    selection: Selection,
    time_zone: str,
    cores: int,
) -> PartialPlan:
    """Plan partial aggregates of the selected cells.

    Parameters
    ----------
    table
        A table of the layout ``cells``.
    dims
        Names of the dimension columns to group by.
    selection
        The cells, with those of the options.
    time_zone
        The time zone of the conditions of measures.

    Raises
    ------
    InvalidInputError
        A condition cannot be evaluated here.
    UnsupportedError
        A condition may fail on some values, or the rows would be too many beside the cells.
    """
    if selection.residual is not None and selection.residual.needs_zone:
        raise UnsupportedError("the condition of the options depends on the zone of each task")
    types = {column.name: column.arrow_type for column in table.value_columns}
    planned = tuple(
        replace(
            one.measure,
            source=None if one.column is None else table.column(one.column).source,
            condition=(
                None
                if one.condition is None
                else condition_on_values(one.condition, types, time_zone)
            ),
        )
        for one in measures
    )
    counts_only = (
        selection.residual is None
        and options.missing_chunks == "fill"
        and all(one.source is None and one.condition is None for one in planned)
    )
    cells = math.prod(one.count for one in table.selections(selection.dims))
    usual_rows = rows_of_tasks(cells, cores, _decoded_cells(dataset, table, selection, planned))
    if counts_only:
        usual_rows = max(1, cells)
    scan = _planned(options, dataset, table, selection, dims, counts_only, usual_rows)
    rows = _most_rows(scan)
    if rows * _FEWEST_CELLS_OF_A_ROW > scan.rows > 0 and rows > 1:
        raise UnsupportedError(
            f"{rows:,} groups of {scan.rows:,} cells are too many to aggregate in tasks", rows=rows
        )
    context = PartialContext(scan=scan.context, measures=planned)
    return PartialPlan(context=context, tasks=scan.tasks, rows=rows)


def _planned(
    options: ReadRequest,
    dataset: Dataset,
    table: Table,
    chosen: Selection,
    dims: Sequence[str],
    counts_only: bool,
    usual_rows: int,
) -> ScanPlan:
    keywords = planning(options)
    if counts_only:
        # Without arrays, tasks follow no manifests.
        table = replace(table, arrays=())
        keywords["rows_per_partition"] = usual_rows
    plan = dataset.plan(table, chosen, usual_rows=usual_rows, **keywords)
    grouped = replace(
        plan.context.table, columns=tuple(plan.context.table.column(name) for name in dims)
    )
    return replace(plan, context=replace(plan.context, table=grouped))


def rows_of_tasks(cells: int, cores: int, decoded: int = 0) -> int:
    """Return the target number of cells of tasks that return few rows.

    ``decoded`` is the number of cells of the chunks that hold the cells.
    """
    decoded = max(cells, decoded)
    most = min(_MOST_CELLS_OF_A_TASK, max(DEFAULT_ROWS_PER_PARTITION, -(-decoded // max(1, cores))))
    return -(-cells // max(1, -(-decoded // most)))


def _decoded_cells(
    dataset: Dataset, table: Table, selection: Selection, measures: Sequence[Measure]
) -> int:
    """Return the number of cells in the chunks of the array that takes the most to decode."""
    sources = {measure.source for measure in measures}
    for residual in (selection.residual, *(measure.condition for measure in measures)):
        sources.update(() if residual is None else residual.columns)
    paths = {column.path for column in table.value_columns if column.source in sources}
    most = 0
    for variable in dataset.data_variables:
        if variable.path in paths:
            axes = chunk_axes(variable)
            chunks = chunk_selections(variable, selection.dims, axes)
            most = max(most, math.prod(one.count for one in chunks) * chunk_cells(axes))
    return most


def _most_rows(scan: ScanPlan) -> int:
    """Return the number of rows that tasks yield at most: the groups of each box."""
    table = scan.context.table
    chosen = table.selections(scan.context.selections)
    grouped = [table.dims.index(column.source) for column in table.columns]
    boxes = (box_of_part(part, chosen) for task in scan.tasks for part in task.parts)
    return sum(math.prod(box[dim].count for dim in grouped) for box in boxes)
