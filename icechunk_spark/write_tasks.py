"""What executors run in a planned write: rows in, chunks stored, one receipt out.

Rules of this file
------------------
1. The functions close over small contexts only; every task unpickles them.
2. Each partition answers with exactly one row, also an empty one.
3. A row without a place belongs to coordinates that the plan has not seen, and is an error.
4. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_format.dataset.write_layouts import write_layout_batches
from icechunk_format.dataset.write_task import write_batches
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_format.dataset.write_plan import WriteContext

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
        receipt = write_batches(context, (placed_batch(batch, schema) for batch in batches))
        yield receipt_batch(receipt)

    return run


def layout_task(context: WriteContext) -> Task:
    """Return the function that writes one partition of chunks or of chunk references."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield receipt_batch(write_layout_batches(context, batches))

    return run


def placed_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` with the columns of `schema`, after a look at the places of its rows.

    Raises
    ------
    InvalidInputError
        A row has no place.
    """
    if batch.column(0).null_count:
        raise InvalidInputError(
            "a row has coordinates that were not there when the write was planned: the DataFrame"
            " gives other rows each time it is computed; write a cached or stored copy of it, as"
            " in df.localCheckpoint()"
        )
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def receipt_batch(receipt: object) -> pa.RecordBatch:
    """Return the one row that carries a receipt to the driver."""
    return pa.RecordBatch.from_pydict(
        {"receipt": pa.array([pickle.dumps(receipt)], pa.binary())}
    )
