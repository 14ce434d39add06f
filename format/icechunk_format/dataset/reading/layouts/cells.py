"""Yields the layout ``cells``: one row for each element of the table's dimensions.

Blocks are read ahead (``block_reads``) and cut into batches (``batches``). The condition on values
is evaluated on each batch before rows are copied; columns that only it needs are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_format.dataset.reading.layouts.batches import BatchBuilder, BlockRows, join_thin
from icechunk_format.dataset.reading.layouts.block_reads import (
    BlockColumns,
    BlockReads,
    TaskLabels,
    cell_column,
)
from icechunk_format.dataset.reading.layouts.blocks import block_shape
from icechunk_format.dataset.reading.scan import ScanContext, ScanTask
from icechunk_format.dataset.table.table import Column, Table

if TYPE_CHECKING:
    from icechunk_format.dataset.selection.where.condition import Residual


def run_cells(context: ScanContext, task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task of the layout ``cells``; raises the errors of ``run_scan``."""
    table = context.table
    needed = needed_columns(table, context.residual)
    arrays = context.open_arrays()
    reads = BlockReads(context, arrays, [c for c in needed if c.role != "dimension"], cell_column)
    dimensions = [column for column in needed if column.role == "dimension"]
    labels = TaskLabels(arrays, table, dimensions, reads, task)
    batches = _batches(context, reads, labels, task)
    if context.residual is None and not context.skip_missing:
        yield from batches
    else:
        yield from join_thin(batches, context.arrow_schema)


def needed_columns(table: Table, residual: Residual | None) -> list[Column]:
    """Return the columns that rows or the condition need, one for each source.

    Scans identify columns by their source; only rows use the user's spelling of names.
    """
    needed = {column.source: column for column in table.columns}
    for column in table.value_columns:
        if residual is not None and column.source in residual.columns:
            needed.setdefault(column.source, column)
    return list(needed.values())


def _batches(
    context: ScanContext, reads: BlockReads, labels: TaskLabels, task: ScanTask
) -> Iterator[pa.RecordBatch]:
    schema, residual = context.arrow_schema, context.residual
    sources = [column.source for column in context.table.columns]
    builder = BatchBuilder()
    with closing(reads.read(task)) as blocks:
        for block in blocks:
            for columns in builder.batches(_rows(block, labels)):
                if residual is not None:
                    mask = residual.evaluate(columns, len(next(iter(columns.values()))))
                    kept = mask.true_count
                    if not kept:
                        continue
                    if kept < len(mask):
                        columns = {n: columns[n].filter(mask) for n in sources}
                yield pa.RecordBatch.from_arrays([columns[n] for n in sources], schema=schema)


def _rows(block: BlockColumns, labels: TaskLabels) -> BlockRows:
    keep = None if block.stored is None else pa.array(block.stored.reshape(-1))
    return BlockRows(
        shape=block_shape(block.block),
        labels=labels.of_block(block.block),
        keys=[(selection.start, selection.stop) for selection in block.block],
        values=block.values,
        keep=keep,
    )
