"""One small Spark job that answers what coordinates a DataFrame has, and how many rows.

Rules of this file
------------------
1. One pass, whatever the number of dimensions: the source may be slow. Tasks reduce their rows to
   distinct values column by column in Arrow; Spark merges what they found, so that the driver gets
   every value once.
2. NULL and NaN are no coordinates. Each comes back as one value, for the planner to refuse.
3. 0.0 and -0.0 are one coordinate here, as they are in Spark's joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from icechunk_spark.arrow_batches import bounded_by_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_BYTES: Final = StructType([StructField("stream", BinaryType())])

# Values of a column that wait before a task merges them, at least.
_PENDING_VALUES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """What one pass over the dimension columns found."""

    labels: dict[str, pa.Array]
    """Distinct values by dimension, in any order, of the DataFrame's type; NULL and NaN at most
    once."""
    row_count: int


def quoted(name: str) -> Column:
    """Return the column called exactly `name`, dots and backticks included."""
    return F.col("`" + name.replace("`", "``") + "`")


def label_type(frame: DataFrame, name: str) -> DataType:
    """Return the type of a dimension's labels; texts are told apart by their bytes."""
    kind = frame.schema[name].dataType
    return StringType() if isinstance(kind, StringType) else kind


def label_column(frame: DataFrame, name: str, axis: int) -> Column:
    """Return the column of a dimension as ``_at_`` and the number of the axis."""
    return quoted(name).cast(label_type(frame, name)).alias(f"_at_{axis}")


def collect_coordinates(frame: DataFrame, dims: Sequence[str], schema: pa.Schema) -> Coordinates:
    """Run the job.

    A task holds the distinct values of its rows, and at most as many again that wait to be merged.

    Parameters
    ----------
    frame
        The rows to write.
    dims
        Names of the dimension columns; with none, only the rows are counted.
    schema
        Arrow types of the columns, by name.
    """
    columns = [quoted(name).alias(f"_at_{axis}") for axis, name in enumerate(dims)]
    found_fields = [
        StructField("_axis", IntegerType()),
        StructField("_rows", LongType()),
        *[
            StructField(f"_at_{axis}", frame.schema[name].dataType)
            for axis, name in enumerate(dims)
        ],
    ]
    # Without dimensions there is still something to count.
    rows = frame.select(*columns) if columns else frame.select(F.lit(0).alias("_at_0"))
    distinct = partial(_distinct_values, axes=len(dims))
    merged = (
        rows.mapInArrow(distinct, StructType(found_fields))
        .groupBy("_axis", *[f"_at_{axis}" for axis in range(len(dims))])
        .agg(F.sum("_rows").alias("_rows"))
    )
    with bounded_by_rows(rows):
        # Not `toArrow`: classic sessions report its failed tasks as bare errors of the gateway.
        answers = merged.mapInArrow(_as_bytes, _BYTES).collect()
    pieces: list[list[pa.Array]] = [[] for _ in dims]
    row_count = 0
    for answer in answers:
        found = pa.ipc.open_stream(bytes(answer[0])).read_all().combine_chunks()
        of_axis = found.column("_axis")
        row_count += pc.sum(found.column("_rows")).as_py() or 0
        for axis, name in enumerate(dims):
            own = found.filter(pc.equal(of_axis, axis)).column(f"_at_{axis}")
            pieces[axis] += own.cast(schema.field(name).type).chunks
    labels = {
        name: pa.concat_arrays([pa.nulls(0, schema.field(name).type), *own])
        for name, own in zip(dims, pieces, strict=True)
    }
    return Coordinates(labels=labels, row_count=row_count)


class _DistinctValues:
    """The distinct values of one column, while batches come in."""

    def __init__(self) -> None:
        self._values: list[pa.Array] = []
        self._pending = 0
        self._limit = _PENDING_VALUES

    def add(self, column: pa.Array) -> None:
        """Take in a column of a batch."""
        found = column.unique()
        self._values.append(found)
        self._pending += len(found)
        if self._pending > self._limit:
            self.merged()

    def merged(self) -> pa.Array:
        """Return the values."""
        merged = pa.concat_arrays(self._values).unique()
        # Merging again only after as many more keeps the whole effort linear.
        self._values, self._pending = [merged], 0
        self._limit = max(_PENDING_VALUES, len(merged))
        return merged


def _distinct_values(batches: Iterator[pa.RecordBatch], *, axes: int) -> Iterator[pa.RecordBatch]:
    """Yield the distinct values of each column in rows of their own, and the number of rows."""
    columns = [_DistinctValues() for _ in range(axes)]
    kinds: list[pa.DataType] = []
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        rows += batch.num_rows
        kinds = [column.type for column in batch.columns[:axes]]
        for values, column in zip(columns, batch.columns, strict=False):
            values.add(column)
    if not rows:
        return
    yield _rows_of(-1, pa.array([rows], pa.int64()), [pa.nulls(1, kind) for kind in kinds])
    for axis, values in enumerate(columns):
        own = values.merged()
        labels = [own if a == axis else pa.nulls(len(own), kind) for a, kind in enumerate(kinds)]
        yield _rows_of(axis, pa.array(np.zeros(len(own), np.int64)), labels)


def _rows_of(axis: int, rows: pa.Array, labels: list[pa.Array]) -> pa.RecordBatch:
    axes = pa.array(np.full(len(rows), axis, np.int32))
    names = ["_axis", "_rows", *[f"_at_{number}" for number in range(len(labels))]]
    return pa.RecordBatch.from_arrays([axes, rows, *labels], names=names)


def _as_bytes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return rows as an Arrow stream, in which no value changes on the way."""
    for batch in batches:
        if batch.num_rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"stream": [sink.getvalue().to_pybytes()]})
