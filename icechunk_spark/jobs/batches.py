"""Sets how Spark cuts rows into Arrow batches, and fits batches to a schema.

Spark limits a batch by rows (10,000 by default) and by bytes (64 MiB). To count the bytes, it adds
up the buffers of all columns after each row, which takes half of the transfer time of numeric rows
to Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    TimestampNTZType,
    TimestampType,
)

_MAX_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_BOUND: Final = str(2**31 - 1)

_FIXED_WIDTH: Final = (
    BooleanType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    TimestampNTZType,
    TimestampType,
)


@contextlib.contextmanager
def bounded_by_rows(frame: DataFrame) -> Iterator[None]:
    """Make Spark limit batches only by rows within the block, if rows have a fixed width.

    The setting belongs to the session, so it also affects concurrent jobs of other threads. A value
    that the user has set is kept.
    """
    conf = frame.sparkSession.conf
    is_fixed = all(isinstance(field.dataType, _FIXED_WIDTH) for field in frame.schema)
    if not is_fixed or not conf.isModifiable(_MAX_BYTES) or conf.get(_MAX_BYTES, None) is not None:
        yield
        return
    conf.set(_MAX_BYTES, _NO_BOUND)
    try:
        yield
    finally:
        conf.unset(_MAX_BYTES)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the names and types of `schema`; columns correspond by position."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
