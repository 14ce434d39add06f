"""Tasks of a verification: each takes rows of one stage, and returns rows of the next.

Executors import this module, so it imports nothing that only a driver needs. The steps themselves
are in ``icechunk_format.maintenance.verifying.parts``.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from icechunk_spark.session.batches import fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def over_pieces(step: Callable[[Any], Iterator[pa.RecordBatch]]) -> Task:
    """Return the task that runs a step on each of its pieces of work."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for piece in batch.column("piece"):
                yield from step(pickle.loads(piece.as_py()))

    return run


def over_rows(step: Task, schema: pa.Schema) -> Task:
    """Return the task that runs a step on all of its rows, in the types of `schema`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from step(fitted(batch, schema) for batch in batches)

    return run
