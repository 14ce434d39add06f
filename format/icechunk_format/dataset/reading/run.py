"""Runs one task of a scan: the rows of its layout.

Executors import this module; it needs neither sqlglot nor Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.dataset.reading.layouts.cells import run_cells
from icechunk_format.dataset.reading.layouts.chunk_refs import run_refs
from icechunk_format.dataset.reading.layouts.chunks import run_chunks
from icechunk_format.dataset.reading.layouts.summary import run_summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from icechunk_format.dataset.reading.scan import ScanContext, ScanTask


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
