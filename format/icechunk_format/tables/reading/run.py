"""Runs one task of a scan and yields its rows as Arrow batches.

Executors import this module; it needs neither sqlglot nor Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from icechunk_format.tables.reading.layouts.batches import BATCH_ROWS, join_thin
from icechunk_format.tables.reading.layouts.cells import cell_batches
from icechunk_format.tables.reading.layouts.chunk_refs import ref_batches
from icechunk_format.tables.reading.layouts.chunks import chunk_batches
from icechunk_format.tables.reading.layouts.summary import summary_batches
from icechunk_format.tables.reading.scan import ScanContext, ScanTask
from icechunk_format.tables.table.table import Layout

RunOfLayout = Callable[[ScanContext, ScanTask], Iterator[pa.RecordBatch]]

RUN_BY_LAYOUT: Final[Mapping[Layout, RunOfLayout]] = {
    "cells": cell_batches,
    "chunks": chunk_batches,
    "refs": ref_batches,
    "summary": summary_batches,
}
# Rows of a chunk are large.
_CHUNKS_OF_A_BATCH: Final = 1_024


def run_scan(context: ScanContext, task: ScanTask | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; closing the generator stops reading ahead.

    None yields nothing: Spark runs it if a plan has no tasks.
    """
    if task is None:
        return
    layout = context.table.layout
    batches = RUN_BY_LAYOUT[layout](context, task)
    if layout == "cells" and context.residual is None and not context.skip_missing:
        yield from batches
    else:
        rows = _CHUNKS_OF_A_BATCH if layout == "chunks" else BATCH_ROWS
        yield from join_thin(batches, context.arrow_schema, rows)
