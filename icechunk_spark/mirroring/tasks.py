"""Writes the files of a copy in ``mapInArrow``, on executors.

Rules of this file
------------------
1. The function closes over both stores with their credentials; rows hold boxes alone.
2. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import pyarrow as pa

from icechunk_format.mirroring.parquet import ADDED, FileContext, write_file
from icechunk_spark.session.errors import errors_on_one_line


def write_task(context: FileContext) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return the function from rows of pickled pieces to rows of the schema ``ADDED``."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_on_one_line():
            for batch in batches:
                for piece in batch.column("piece"):
                    row = write_file(context, pickle.loads(piece.as_py()))
                    yield pa.RecordBatch.from_pylist([row], schema=ADDED)

    return write
