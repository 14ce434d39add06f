"""Writes one Arrow table in this process, with the steps of a distributed write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.groups.changing import TaskReceipt, WriteResult
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Place
from icechunk_format.storage.options import NO_ACCESS, VirtualAccess
from icechunk_format.tables.writing.cell_numbers import CELL
from icechunk_format.tables.writing.cells.regions import clear_region
from icechunk_format.tables.writing.cells.task import write_batches
from icechunk_format.tables.writing.chunks.plan import plan_layout_write
from icechunk_format.tables.writing.chunks.task import write_layout_table
from icechunk_format.tables.writing.commit import finish_write
from icechunk_format.tables.writing.part import WritePart
from icechunk_format.tables.writing.plan import WritePlan, plan_write
from icechunk_format.tables.writing.prepare import PreparedWrite, prepare_write
from icechunk_format.tables.writing.replanning.plan import check_order

_ROWS_PER_BATCH = 65_536


def write_table(
    location: Place,
    table: pa.Table,
    options: WriteOptions,
    access: VirtualAccess = NO_ACCESS,
) -> WriteResult:
    """Write a table of any layout in one commit.

    Raises the errors of ``prepare_write``, ``plan_write``, ``write_batches`` and ``finish_write``.
    """
    prepared = prepare_write(location, table.schema, options, access)
    if isinstance(prepared, WriteResult):
        return prepared
    return write_prepared_table(prepared, table)


def write_prepared_table(prepared: PreparedWrite, table: pa.Table) -> WriteResult:
    """Write a table with the result of ``prepare_write``."""
    if prepared.options.layout != "cells":
        plan = plan_layout_write(prepared)
        return finish_write(plan, [write_layout_table(plan, table)])
    coordinates = {dim: pc.unique(table.column(dim)) for dim in prepared.dims}
    plan = plan_write(prepared, coordinates, table.num_rows)
    check_order(plan)
    receipts = [write_part(plan, part, table) for part in plan.parts]
    more, cleared = clear_region(plan.arrays.values(), prepared.destination, receipts, map)
    return finish_write(plan, [*receipts, *more], cleared)


def write_part(plan: WritePlan, part: WritePart, table: pa.Table) -> TaskReceipt:
    """Write one part of a plan from a table of all its rows."""
    return write_batches(part, numbered_batches(plan, part, table))


def numbered_batches(plan: WritePlan, part: WritePart, table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part with their cell numbers, in ascending order."""
    if part.is_distinct:
        table = _distinct(table.select([*part.dims, *part.variables]))
    cells = np.zeros(table.num_rows, np.int64)
    for dim in part.dims:
        terms = plan.dimension_tables[dim]
        rows = pc.index_in(table.column(dim), terms.column("value")).to_numpy()
        cells += terms.column(f"cell_{part.number}").to_numpy()[rows]
    order = np.argsort(cells, kind="stable")
    numbered = pa.table(
        [pa.array(cells), *(table.column(name) for name in part.variables)],
        names=[CELL, *part.variables],
    )
    for start in range(0, len(order), _ROWS_PER_BATCH):
        taken = numbered.take(pa.array(order[start : start + _ROWS_PER_BATCH]))
        yield from taken.combine_chunks().to_batches()


def _distinct(table: pa.Table) -> pa.Table:
    """Return the distinct rows of a table."""
    if not table.num_columns or not table.num_rows:
        return table
    numbered = table.append_column("_row", pa.array(np.arange(table.num_rows)))
    # Grouping treats NULL and NaN as values, like DISTINCT in SQL.
    groups = numbered.group_by(table.column_names, use_threads=False).aggregate([("_row", "min")])
    return table.take(groups.column("_row_min"))
