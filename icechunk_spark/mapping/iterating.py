"""Iterates over the rows of blocks in Arrow batches, a partition at a time.

Why Arrow
---------
Spark returns rows to Python as pickled values, one object for each number of an array, and bytes
as text. For patches of 100 kB this takes more time than reading and decoding them. Arrow batches
are copied.

Rules of this file
------------------
1. Only rows that derive from `read_blocks` and have arrays or binary columns are sent as batches:
   tasks of `read_blocks` bound the bytes of a batch.
2. Rows have the same Python values as those of ``collect``.
3. Spark before 4.1 cannot bound the rows of a batch, so its rows are pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T

#: Name of the function of `read_blocks` in Spark's plans.
ROWS_OF_BLOCKS: Final = "rows_of_blocks"
_ROWS_OF_A_BATCH: Final = 64
_NUMBERS: Final = (
    T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType,
)  # fmt: skip
_PLAIN: Final = (*_NUMBERS, T.BooleanType, T.StringType)
_TIMES: Final = (T.DateType, T.TimestampType, T.TimestampNTZType)


def iterator_of(frame: DataFrame) -> Callable[[bool], Iterator[Row]]:
    """Return a function that starts an iterator of the rows of a classic DataFrame.

    Its argument is True if the next partition is computed meanwhile.
    """
    return _batches_of(frame) or (lambda prefetch: frame.rdd.toLocalIterator(prefetch))


def _batches_of(frame: DataFrame) -> Callable[[bool], Iterator[Row]] | None:
    """Return a function that iterates over Arrow batches; None if rows must be pickled."""
    schema = frame.schema
    if not _is_supported(schema):
        return None
    jvm_frame: Any = frame._jdf
    if f" {ROWS_OF_BLOCKS}(" not in str(jvm_frame.queryExecution().analyzed().toString()):
        return None
    try:
        # Times are micros since 1970 in every time zone; no field is a struct or a large string.
        batches = jvm_frame.toArrowBatchRdd(_ROWS_OF_A_BATCH, "UTC", True, False)
    except Py4JJavaError:
        raise
    except Py4JError:
        return None  # Spark 4.0 has no such method
    as_bytes = _returns_bytes(frame)
    return lambda prefetch: _rows(frame, batches, schema, as_bytes=as_bytes, prefetch=prefetch)


def _is_supported(schema: T.StructType) -> bool:
    types = [field.dataType for field in schema]
    is_array = [isinstance(own, T.ArrayType) for own in types]
    large = any(is_array) or any(isinstance(own, T.BinaryType) for own in types)
    plain = all(
        type(own.elementType) in _PLAIN
        if isinstance(own, T.ArrayType)
        else type(own) in (*_PLAIN, *_TIMES, T.BinaryType)
        for own in types
    )
    return large and plain and len(set(schema.names)) == len(schema.names)


def _returns_bytes(frame: DataFrame) -> bool:
    """Return True if Spark returns binary values as bytes rather than bytearrays."""
    try:
        found = frame.sparkSession.conf.get("spark.sql.execution.pyspark.binaryAsBytes", "true")
    except Exception:  # an unknown setting
        return False
    return found == "true"


def _rows(
    frame: DataFrame, batches: Any, schema: T.StructType, *, as_bytes: bool, prefetch: bool
) -> Iterator[Row]:
    from pyspark.serializers import NoOpSerializer
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.util import _local_iterator_from_socket

    context: Any = frame.sparkSession.sparkContext
    served = context._jvm.PythonRDD.toLocalIteratorAndServe(batches, prefetch)
    messages = _local_iterator_from_socket(served, NoOpSerializer())
    arrow = to_arrow_schema(schema, timezone="UTC")
    return _rows_of(messages, arrow, schema, as_bytes)


def _rows_of(
    messages: Iterator[bytes], arrow: pa.Schema, schema: T.StructType, as_bytes: bool
) -> Iterator[Row]:
    from pyspark.sql.types import _create_row

    names, types = schema.names, [field.dataType for field in schema]
    for message in messages:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), arrow)
        columns = [
            _python_values(column, own, as_bytes)
            for column, own in zip(batch.columns, types, strict=True)
        ]
        for values in zip(*columns, strict=True):
            yield _create_row(names, values)


def _python_values(column: pa.Array, own: T.DataType, as_bytes: bool) -> list[Any]:
    """Return the values of a column as those of ``collect``."""
    if isinstance(own, T.BinaryType) and not as_bytes:
        return [None if one is None else bytearray(one) for one in column.to_pylist()]
    if isinstance(own, _TIMES):
        internal = column.cast(pa.int32() if isinstance(own, T.DateType) else pa.int64())
        return [None if one is None else own.fromInternal(one) for one in internal.to_pylist()]
    is_numbers = isinstance(own, T.ArrayType) and isinstance(own.elementType, _NUMBERS)
    if not is_numbers or column.null_count or column.values.null_count:
        return list(column.to_pylist())
    # NumPy makes lists of numbers several times faster than Arrow does.
    numbers: np.ndarray[Any, Any] = column.values.to_numpy()
    ends = column.offsets.to_pylist()
    return [numbers[a:b].tolist() for a, b in pairwise(ends)]
