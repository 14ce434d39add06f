"""Computes the chunk of a point with Spark's expressions, so that points stay in the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, TimestampType

if TYPE_CHECKING:
    from icechunk_format.workflows.sampling.chunk_steps import ChunkSteps


def chunk_column(steps: Sequence[ChunkSteps], fields: Sequence[StructField]) -> Column:
    """Return the number of a point's chunk from its columns; NULL if a coordinate is NULL."""
    stride = 1
    terms = []
    for axis in reversed(steps):
        terms.append(_chunk(axis, _number(axis, fields[axis.point])) * F.lit(stride))
        stride *= axis.chunks
    return reduce(add, terms)


def _number(axis: ChunkSteps, field: StructField) -> Column:
    column = F.col(field.name)
    if not axis.is_time:
        return column.cast("double")
    if isinstance(field.dataType, TimestampType):
        return F.unix_micros(column).cast("double")
    # By its parts: a cast to TIMESTAMP would apply the session's time zone.
    seconds = F.unix_date(column.cast("date")).cast("double") * F.lit(86_400.0)
    if not isinstance(field.dataType, DateType):
        parts = ((F.hour, 3600.0), (F.minute, 60.0), (F.second, 1.0))
        seconds = reduce(add, (part(column) * F.lit(size) for part, size in parts), seconds)
    return seconds * F.lit(1e6)


def _chunk(axis: ChunkSteps, value: Column) -> Column:
    along = (value - F.lit(axis.first)) * F.lit(1.0 if axis.step > 0 else -1.0)
    if axis.period is not None:
        along = F.pmod(along, F.lit(axis.period))
    position = along / F.lit(abs(axis.step)) + F.lit(0.5 if axis.is_rounded else 0.0)
    # Infinite and huge numbers have no BIGINT, so the bounds come first.
    chunk = F.least(F.lit(float(axis.chunks - 1)), position / F.lit(float(axis.elements)))
    return F.floor(F.greatest(F.lit(0.0), chunk)).cast("long")
