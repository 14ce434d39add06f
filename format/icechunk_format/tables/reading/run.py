"""Runs one task of a scan and yields its rows as Arrow batches.

Executors import this module; it needs neither sqlglot nor Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from icechunk_format.tables.reading.layouts.cells import run_cells
from icechunk_format.tables.reading.layouts.chunk_refs import run_refs
from icechunk_format.tables.reading.layouts.chunks import run_chunks
from icechunk_format.tables.reading.layouts.summary import run_summary
from icechunk_format.tables.reading.scan import ScanContext, ScanTask
from icechunk_format.tables.table.table import Layout

RunOfLayout = Callable[[ScanContext, ScanTask], Iterator[pa.RecordBatch]]

RUN_BY_LAYOUT: Final[Mapping[Layout, RunOfLayout]] = {
    "cells": run_cells,
    "chunks": run_chunks,
    "refs": run_refs,
    "summary": run_summary,
}


def run_scan(context: ScanContext, task: ScanTask | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; closing the generator stops reading ahead.

    None yields nothing: Spark runs it if a plan has no tasks.
    """
    if task is not None:
        yield from RUN_BY_LAYOUT[context.table.layout](context, task)
