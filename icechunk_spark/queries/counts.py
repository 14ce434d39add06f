"""Plans ``count(*)``: from the selection, or by tasks that return only numbers of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from icechunk_spark.queries.frames import frame_of
from icechunk_spark.queries.replanning import QueriedRead, cheapest_column, known_rows
from icechunk_spark.reading.plan import OpenedTable, shown_read
from icechunk_spark.reading.reader import IcechunkReader, IcechunkTasks
from icechunk_spark.schema import column_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from icechunk_spark.queries.aggregates import AggregateColumn

_ROWS: Final = StructType([StructField("rows", LongType())])
_ARROW_ROWS: Final = pa.schema([pa.field("rows", pa.int64())])


def replan_count(
    read: QueriedRead,
    conjuncts: Sequence[str],
    groups: Sequence[str],
    aggregates: Sequence[AggregateColumn],
) -> DataFrame | None:
    """Return ``count(*)`` of the rows that satisfy all conjuncts; None for other aggregates."""
    if groups or not aggregates or any(column.sql != "count(1)" for column in aggregates):
        return None
    table = read.opened.table
    if not isinstance(table, OpenedTable) or table.options.changes_since is not None:
        return None
    if table.options.layout != "cells":
        return None
    pruned = read.pruned(conjuncts)
    if not pruned.is_total:
        return None
    rows = known_rows(read, pruned)
    if rows is not None:
        columns = ", ".join(f"{rows}L AS `{number}`" for number in range(len(aggregates)))
        return read.spark.range(0, 1, 1, 1).selectExpr(*columns.split(", "))
    schema = cheapest_column(read)
    plan = read.scan(pruned.selection, column_names(schema, table.table.columns))
    name = shown_read(
        table.options,
        table.snapshot,
        pushed=" AND ".join(pruned.used),
        aggregate="count(*)",
        tasks=f"{len(plan.tasks):,}",
    )
    tasks = IcechunkTasks(IcechunkReader(plan, _ARROW_ROWS, run_counts), name, read.read.name)
    counted = frame_of(read.spark, tasks, _ROWS, len(plan.tasks) * 16)
    total = "coalesce(sum(rows), 0L)"
    return counted.selectExpr(*(f"{total} AS `{number}`" for number in range(len(aggregates))))


def run_counts(context: Any, task: Any) -> Iterator[pa.RecordBatch]:
    """Yield the number of rows of a task of a scan."""
    from icechunk_format.tables.reading.run import run_scan

    run: Callable[..., Iterator[pa.RecordBatch]] = run_scan
    rows = sum(batch.num_rows for batch in run(context, task))
    yield pa.RecordBatch.from_pydict({"rows": [rows]}, schema=_ARROW_ROWS)
