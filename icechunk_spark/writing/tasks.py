"""Tasks of a planned write: each takes rows, stores chunks, and returns one receipt.

Rules of this file
------------------
1. The functions close over small contexts only, since every task unpickles them.
2. Each partition returns exactly one row, even an empty partition.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_spark.session.batches import fitted

if TYPE_CHECKING:
    from icechunk_format.dataset.writing.part import TaskReceipt, WritePart

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    Write = Callable[[WritePart, Iterable[pa.RecordBatch]], TaskReceipt]


def write_task(write: Write, part: WritePart) -> Task:
    """Return the function that writes one partition of the rows of a part.

    Spark's batches may differ from the part's schema in time zone and width of offsets.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        receipt = write(part, (fitted(batch, part.input_schema) for batch in batches))
        packed = pa.array([pickle.dumps(receipt)], pa.binary())
        yield pa.RecordBatch.from_pydict({"receipt": packed})

    return run
