"""Yields the layout ``cells``: one row for each element of the table's dimensions.

Blocks are read ahead (``block_reads``) and cut into batches (``batches``). The condition on values
is evaluated on each batch before rows are copied; columns that only it needs are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from icechunk_format.tables.reading.layouts.batches import BatchBuilder
from icechunk_format.tables.reading.layouts.block_reads import TaskLabels, cell_reads
from icechunk_format.tables.reading.scan import ScanContext, ScanTask


def cell_batches(context: ScanContext, task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task of the layout ``cells``; raises the errors of ``run_scan``."""
    schema, residual = context.arrow_schema, context.residual
    reads = cell_reads(context)
    labels = TaskLabels(reads, task)
    sources = [column.source for column in context.table.columns]
    builder = BatchBuilder()
    with closing(reads.read(task)) as blocks:
        for block in blocks:
            keep = None if block.stored is None else pa.array(block.stored.reshape(-1))
            for columns in builder.batches(labels.rows(block.block, block.values, keep)):
                if residual is not None:
                    mask = residual.evaluate(columns, len(next(iter(columns.values()))))
                    kept = mask.true_count
                    if not kept:
                        continue
                    if kept < len(mask):
                        columns = {n: columns[n].filter(mask) for n in sources}
                yield pa.RecordBatch.from_arrays([columns[n] for n in sources], schema=schema)
