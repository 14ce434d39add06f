"""What executors run in a planned write: rows in, chunks stored, one receipt out.

Rules of this file
------------------
1. The functions close over small contexts only; every task unpickles them.
2. Each partition answers with exactly one row, also an empty one.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_format.dataset.writing.cells.task import write_batches
from icechunk_format.dataset.writing.chunks.plan import write_layout_batches
from icechunk_spark.session.batches import fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_format.dataset.writing.context import WriteContext

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def cell_task(context: WriteContext, schema: pa.Schema) -> Task:
    """Return the function that writes one partition of cells.

    Parameters
    ----------
    context
        What the plan says to the tasks of this part.
    schema
        The columns that a task gets; Spark's batches may differ in time zone and width of offsets.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        receipt = write_batches(context, (fitted(batch, schema) for batch in batches))
        yield receipt_batch(receipt)

    return run


def layout_task(context: WriteContext, schema: pa.Schema) -> Task:
    """Return the function that writes one partition of chunks or of chunk references.

    Parameters
    ----------
    context
        What the plan says to the tasks.
    schema
        The columns of the DataFrame.
    """
    place = [pa.field("_unit", pa.int64()), pa.field("_block", pa.int64())]
    placed = pa.schema([*place, *schema])

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        receipt = write_layout_batches(context, (fitted(batch, placed) for batch in batches))
        yield receipt_batch(receipt)

    return run


def receipt_batch(receipt: object) -> pa.RecordBatch:
    """Return the one row that carries a receipt to the driver."""
    return pa.RecordBatch.from_pydict({"receipt": pa.array([pickle.dumps(receipt)], pa.binary())})
