"""Plans ``count(*)``: from the selection, or by tasks that return only numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from icechunk_spark.queries.frames import frame_of
from icechunk_spark.queries.replanning import (
    QueriedRead,
    cheapest_column,
    known_rows,
    shown_conditions,
    shown_tasks,
)
from icechunk_spark.reading.plan import OpenedTable, shown_read
from icechunk_spark.reading.reader import IcechunkReader, IcechunkTasks
from icechunk_spark.reading.row_filters import FilteredRun, Run, scan_run
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
    pruned = read.pruned(conjuncts)
    if not pruned.is_total:
        return None
    rows = known_rows(read, pruned)
    if rows is not None:
        columns = ", ".join(f"{rows}L AS `{number}`" for number in range(len(aggregates)))
        return read.spark.range(0, 1, 1, 1).selectExpr(*columns.split(", "))
    schema = cheapest_column(read)
    if pruned.rows is not None:
        fields = {name.casefold(): read.read.columns[name] for name in read.read.columns.names}
        wanted = [fields.get(name.casefold()) for name in pruned.rows.columns]
        if not wanted or None in wanted:
            return None
        schema = StructType([field for field in wanted if field is not None])
    plan = read.scan(pruned.selection, column_names(schema, table.table.columns))
    name = shown_read(
        table.options,
        table.snapshot,
        conditions=shown_conditions(pruned.used),
        aggregate="count(*)",
        tasks=shown_tasks(read.read, len(plan.tasks)),
    )
    run = scan_run() if pruned.rows is None else FilteredRun(None, pruned.rows)
    reader = IcechunkReader(plan, _ARROW_ROWS, CountingRun(run))
    tasks = IcechunkTasks(reader, name, read.read.name)
    counted = frame_of(read.spark, tasks, _ROWS, len(plan.tasks) * 16)
    total = "coalesce(sum(rows), 0L)"
    return counted.selectExpr(*(f"{total} AS `{number}`" for number in range(len(aggregates))))


class CountingRun:
    """A generator function of a reader that yields only the number of rows of a task."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, context: Any, task: Any) -> Iterator[pa.RecordBatch]:
        """Yield one row with the number of rows that the task has."""
        rows = sum(batch.num_rows for batch in self._run(context, task))
        yield pa.RecordBatch.from_pydict({"rows": [rows]}, schema=_ARROW_ROWS)
