"""Plans a read again for a query: with its conditions, columns and limit.

Rules of this file
------------------
1. A read is planned again at its pinned snapshot: no branch or tag is resolved. A view resolves the
   newest snapshot once for each query.
2. Conditions only prune, since Spark evaluates them again. Conditions on dimensions select exactly;
   those on values are evaluated in the tasks.
3. A limit drops tasks only if the number of rows of each task is known.
4. A read of no column is a range of as many rows, if their number is known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from icechunk_format.tables import Selection, requested_scan, selecting
from icechunk_format.tables.aggregates import rows_of_tasks
from icechunk_format.tables.reading.task_cutting import DEFAULT_ROWS_PER_PARTITION
from icechunk_format.tables.row_pruning import blocks_of_tasks, prune_rows, rows_of_selection
from icechunk_format.tables.selection.pruning import Pruned, condition_on_rows, prune
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.queries.frames import frame_of
from icechunk_spark.queries.reads import Opened, Read
from icechunk_spark.reading.plan import MetadataRead, OpenedTable, shown_read, without_long_lists
from icechunk_spark.reading.reader import IcechunkReader, IcechunkTasks
from icechunk_spark.schema import arrow_target, column_names, row_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icechunk_format.tables.reading import ScanPlan

_log = logging.getLogger("icechunk_spark.queries")
# Most rows of a range that stands for a read without columns in each partition.
_ROWS_OF_A_RANGE: Final = 50_000_000
_MOST_CHARACTERS: Final = 200
# Tasks into which chunks are cut so that a limit fetches few of them.
_MOST_TASKS_OF_A_LIMIT: Final = 2_000
# Longest conditions of a plan that is kept for later queries.
_MOST_KEPT_CHARACTERS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The part of a read that a query needs.

    Attributes
    ----------
    conjuncts
        Conditions in SQL, by the names of the table's columns.
    columns
        Positions of columns in the read's DataFrame.
    limit
        The number of rows that suffice, or None.
    is_complete
        True if the conjuncts are all conditions between the read and its limit.
    """

    conjuncts: tuple[str, ...]
    columns: tuple[int, ...]
    limit: int | None = None
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriedRead:
    """A read within one query.

    Attributes
    ----------
    opened
        Its table at the snapshot that the query reads.
    time_zone
        The session's time zone in this query.
    ansi
        True if the query follows ANSI SQL.
    """

    read: Read
    opened: Opened
    time_zone: str
    ansi: bool

    @property
    def spark(self) -> SparkSession:
        """The session of the read."""
        return self.read.spark

    def pruned(self, conjuncts: Sequence[str]) -> Pruned:
        """Return the selection of the options, restricted by conditions of the query."""
        table, base = self.opened.table, self._base()
        assert isinstance(table, OpenedTable)
        if table.options.layout != "cells":
            return prune_rows(conjuncts, base, table.dataset, table.table, self.time_zone)
        return prune(
            conjuncts,
            base,
            dims=dict(zip(table.table.dims, table.table.sizes, strict=True)),
            columns={column.name: column.arrow_type for column in table.table.value_columns},
            coordinate=self.labels,
            time_zone=self.time_zone,
        )

    def labels(self, dim: str) -> Any:
        """Return the labels of a dimension, which are read once, or the range of its positions."""
        known = self.opened.labels
        if dim not in known:
            table = self.opened.table
            assert isinstance(table, OpenedTable)
            known[dim] = table.dataset.coordinate(table.table, dim)
        return known[dim]

    def scan(
        self, selection: Selection, columns: Sequence[str], rows_per_partition: int | None = None
    ) -> ScanPlan:
        """Plan a scan of columns of the table; a number of rows replaces that of the options."""
        table = self.opened.table
        assert isinstance(table, OpenedTable)
        options = table.options
        if rows_per_partition is not None:
            options = replace(options, rows_per_partition=rows_per_partition)
        usual_rows = DEFAULT_ROWS_PER_PARTITION
        if options.layout == "summary":
            # Blocks may have a part in each chunk, which each task would read again.
            cells = prod(one.count for one in table.table.selections(selection.dims))
            usual_rows = rows_of_tasks(cells, cores_of(self.spark))
        return requested_scan(
            options,
            table.dataset,
            table.table,
            columns=columns,
            selection=selection,
            usual_rows=usual_rows,
        )

    def _base(self) -> Selection:
        """Return the selection of the options, which is resolved once in each time zone."""
        table = self.opened.table
        assert isinstance(table, OpenedTable)
        zone = self.time_zone if self.read.is_fresh else table.time_zone
        key = str(zone)
        found = self.opened.bases.get(key)
        if found is None:
            found = table.dataset.choose(table.table, **selecting(table.options, zone))
            self.opened.bases[key] = found
        return found


def replanned(queried: QueriedRead, need: Need) -> DataFrame:
    """Return the DataFrame of the part of a read that a query needs."""
    if sum(map(len, need.conjuncts)) > _MOST_KEPT_CHARACTERS:
        return _replanned(queried, need)
    key = (queried.time_zone, need)
    return queried.opened.plan(key, lambda: _replanned(queried, need))


def _replanned(queried: QueriedRead, need: Need) -> DataFrame:
    read, table = queried.read, queried.opened.table
    schema = StructType([read.columns.fields[position] for position in need.columns])
    if not isinstance(table, OpenedTable):
        return _metadata(queried, need, schema)
    if table.options.changes_since is not None:
        return _changes(queried, need, schema)
    pruned = queried.pruned(need.conjuncts)
    log_left(read.name, pruned.left)
    rows = known_rows(queried, pruned)
    if not schema.fields:
        if rows is not None and rows <= _ROWS_OF_A_RANGE * max(1, read.tasks):
            parts = min(read.tasks, -(-rows // DEFAULT_ROWS_PER_PARTITION))
            return queried.spark.range(0, rows, 1, max(1, parts))
        schema = cheapest_column(queried)
    names = column_names(schema, table.table.columns)
    plan = queried.scan(pruned.selection, names)
    if rows is not None and need.limit is not None and need.is_complete and pruned.is_exact:
        if table.options.layout == "chunks" and plan.tasks and plan.tasks[0].rows > need.limit:
            least = -(-rows // _MOST_TASKS_OF_A_LIMIT)
            plan = queried.scan(pruned.selection, names, max(1, need.limit, least))
        counts: Iterable[int] = (task.rows for task in plan.tasks)
        if table.options.layout == "summary":
            counts = blocks_of_tasks(table.dataset, table.table, pruned.selection, plan.tasks)
        plan = limited(plan, need.limit, counts)
    size_bytes = table.size_bytes(schema, len(plan.tasks), plan.rows)
    reader = IcechunkReader(plan, arrow_target(schema)).filtered(pruned.rows)
    return _frame(queried, reader, schema, size_bytes, pruned.used)


def _metadata(queried: QueriedRead, need: Need, schema: StructType) -> DataFrame:
    # Heavy, and most reads are of arrays.
    from icechunk_format.tables.metadata_tables.conditions import prune_inspection

    read, table = queried.read, queried.opened.table
    assert isinstance(table, MetadataRead)
    schema = schema if schema.fields else StructType(read.columns.fields[:1])
    names = column_names(schema, table.table.columns)
    conditions, pruned = prune_inspection(need.conjuncts, table.table, names, queried.time_zone)
    log_left(read.name, pruned.left)
    limit = need.limit if pruned.is_exact and need.is_complete else None
    reader = table.reader(schema, conditions=conditions, limit=limit).filtered(pruned.rows)
    size_bytes = table.size_bytes(schema, len(reader.partitions()))
    return _frame(queried, reader, schema, size_bytes, pruned.used)


def _changes(queried: QueriedRead, need: Need, schema: StructType) -> DataFrame:
    # Heavy, and most reads are of no changes.
    from icechunk_format.workflows.changes import change_conditions

    read, table = queried.read, queried.opened.table
    assert isinstance(table, OpenedTable)
    options = table.options
    on_dims: tuple[str, ...] = ()
    if options.layout == "cells" and (
        options.where is None or table.time_zone == queried.time_zone
    ):
        # A row that no longer satisfies a condition on values would be another change.
        pruned = queried.pruned(need.conjuncts)
        on_dims = tuple(sql for sql in pruned.used if queried.pruned([sql]).is_exact)
    where = " AND ".join(f"({sql})" for sql in (options.where, *on_dims) if sql)
    zone = queried.time_zone if on_dims else table.time_zone
    schema = schema if schema.fields else StructType(read.columns.fields[:1])
    names = column_names(schema, table.table.columns)
    types = {column.name: column.arrow_type for column in table.table.columns}
    shown = {name: kind for name, kind in types.items() if name in names}
    of_rows = condition_on_rows(need.conjuncts, shown, queried.time_zone)
    on_changes = (
        change_conditions(need.conjuncts, queried.time_zone) if options.change_columns else []
    )
    used = {*on_dims, *of_rows.used, *(sql for sql, _ in on_changes)}
    log_left(read.name, [(sql, reason) for sql, reason in of_rows.left if sql not in used])
    narrowed = replace(table, options=replace(options, where=where or None), time_zone=zone)
    reader, size_bytes = narrowed.planned(
        schema, read.since, [condition for _, condition in on_changes]
    )
    reader = reader.filtered(of_rows.rows)
    used_in_order = [sql for sql in need.conjuncts if sql in used]
    return _frame(queried, reader, schema, size_bytes, used_in_order)


def _frame(
    queried: QueriedRead,
    reader: IcechunkReader,
    schema: StructType,
    size_bytes: int,
    used: Sequence[str],
) -> DataFrame:
    read = queried.read
    count = len(reader.partitions())
    names = ",".join(schema.names) if len(schema) < len(read.columns) else None
    name = shown_read(
        read.options,
        queried.opened.table.snapshot,
        conditions=shown_conditions(used),
        columns=names,
        tasks=shown_tasks(read, count),
    )
    _log.debug("planned %s", name)
    tasks = IcechunkTasks(reader, name, read.name)
    return frame_of(queried.spark, tasks, schema, size_bytes)


def shown_conditions(used: Sequence[str]) -> list[str]:
    """Return conditions for a plan, without the tests for NULL that Spark adds to each."""
    shown = [sql[1:-1] if sql[:1] == "(" and sql[-1:] == ")" else sql for sql in used]
    return [sql for sql in shown if not sql.endswith("` IS NOT NULL")] or shown


def known_rows(queried: QueriedRead, pruned: Pruned) -> int | None:
    """Return the number of rows of a selection, if nothing has to be read for it."""
    table = queried.opened.table
    if not isinstance(table, OpenedTable) or table.options.changes_since is not None:
        return None
    if pruned.rows is not None:
        return None
    skips = table.options.missing_chunks == "skip"
    return rows_of_selection(table.dataset, table.table, pruned.selection, skip_missing=skips)


def limited(plan: ScanPlan, limit: int, counts: Iterable[int]) -> ScanPlan:
    """Return a plan with as many tasks as a number of rows needs; `counts` are those of tasks."""
    enough = 0
    for before in accumulate(counts, initial=0):
        if before >= limit or enough == len(plan.tasks):
            break
        enough += 1
    return replace(plan, tasks=plan.tasks[:enough])


def cheapest_column(queried: QueriedRead) -> StructType:
    """Return the column of the read whose values cost the least, a dimension if there is one."""
    table, fields = queried.opened.table, queried.read.columns.fields
    assert isinstance(table, OpenedTable)
    roles = {column.name: column.role for column in table.table.columns}
    ranks = [(roles.get(f.name) != "dimension", row_bytes(StructType([f]))) for f in fields]
    return StructType([fields[ranks.index(min(ranks))]])


def shown_tasks(read: Read, tasks: int) -> str:
    """Return a number of tasks for a plan, with that of the whole read if it is known."""
    # A limit may cut a read into more tasks.
    if read.is_fresh or tasks > read.tasks:
        return f"{tasks:,}"
    return f"{tasks:,} of {read.tasks:,}"


def log_left(name: str, left: Sequence[tuple[str, str]]) -> None:
    """Log the conditions that are not pushed, and the reasons."""
    for sql, reason in left:
        _log.debug("%s: only Spark evaluates %s: %s", name, shortened_sql(sql), shortened(reason))


def shortened(reason: str) -> str:
    """Return the essence of an error of the option where, for the log."""
    # A list of all that is supported may precede it, and advice may follow it.
    essence = reason.strip().splitlines()[-1].removeprefix("where: ")
    return shortened_sql(essence.partition("; ")[0])


def shortened_sql(sql: str) -> str:
    """Return a condition of limited length, for the log."""
    sql = without_long_lists(sql)
    return sql if len(sql) <= _MOST_CHARACTERS else f"{sql[: _MOST_CHARACTERS - 1]}…"
