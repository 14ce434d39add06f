"""Collects the distinct coordinates of a DataFrame, and counts its rows, in one Spark job.

Rules of this file
------------------
1. The rows are read once, since the source may be slow: one aggregate gathers the sets of all
   dimensions.
2. NULL and NaN are not coordinates, but Spark's sets omit NULL, and contain NaN once per row. So
   both are counted separately and returned once each, for the planner to refuse.
3. 0.0 and -0.0 are one coordinate here, as they are in Spark's joins.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StringType

from icechunk_spark.jobs.task_rows import collected
from icechunk_spark.schema import quoted


def label_column(frame: DataFrame, name: str) -> Column:
    """Return the column of a dimension; strings are compared by their bytes, without collation."""
    return quoted(name).cast(label_type(frame, name))


def label_type(frame: DataFrame, name: str) -> DataType:
    """Return the type of a dimension's labels."""
    kind = frame.schema[name].dataType
    return StringType() if isinstance(kind, StringType) else kind


def collect_coordinates(
    frame: DataFrame, dims: Sequence[str], schema: pa.Schema
) -> tuple[dict[str, pa.Array], int]:
    """Return the distinct coordinates along some dimensions, and the number of rows.

    The coordinates have the types of `schema`, in any order, with NULL and NaN at most once.
    Without dimensions, only the rows are counted.
    """
    aggregates: list[Column] = [F.count(F.lit(1)).alias("rows")]
    for number, name in enumerate(dims):
        column = label_column(frame, name)
        is_float = isinstance(frame.schema[name].dataType, FloatType | DoubleType)
        is_nan = F.isnan(column) if is_float else F.lit(False)
        aggregates += [
            F.collect_set(F.when(~is_nan, column)).alias(f"set_{number}"),
            F.count_if(column.isNull()).alias(f"nulls_{number}"),
            F.count_if(is_nan).alias(f"nans_{number}"),
        ]
    # Not `toArrow`: in classic sessions it reports failed tasks as bare errors of the JVM gateway.
    [found] = collected(
        frame.agg(*aggregates), lambda batches: (batch for batch in batches if batch.num_rows)
    )
    labels: dict[str, pa.Array] = {}
    for number, name in enumerate(dims):
        kind = schema.field(name).type
        parts = [found.column(f"set_{number}").flatten().cast(kind)]
        if found.column(f"nulls_{number}")[0].as_py():
            parts.append(pa.nulls(1, kind))
        if found.column(f"nans_{number}")[0].as_py():
            parts.append(pa.array([float("nan")], kind))
        labels[name] = pa.concat_arrays(parts)
    return labels, found.column("rows")[0].as_py()
