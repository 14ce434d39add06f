"""Tasks of a planned write: each takes rows, stores chunks, and returns one receipt.

Rules of this file
------------------
1. The functions close over small contexts only, since every task unpickles them.
2. Each partition returns exactly one row, even an empty partition.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_format.dataset.writing.cells.task import write_batches
from icechunk_format.dataset.writing.chunks.task import write_layout_batches
from icechunk_spark.session.batches import fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_format.dataset.writing.context import WriteContext

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def cell_task(context: WriteContext, schema: pa.Schema) -> Task:
    """Return the function that writes one partition of cells with the columns of `schema`.

    Spark's batches may differ from it in time zone and width of offsets.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        receipt = write_batches(context, (fitted(batch, schema) for batch in batches))
        yield receipt_batch(receipt)

    return run


def layout_task(context: WriteContext, schema: pa.Schema) -> Task:
    """Return the function that writes one partition of chunks or of chunk references.

    `schema` has the columns of the DataFrame; the unit and the block of a row stand before them.
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
