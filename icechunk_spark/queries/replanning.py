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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from icechunk_format.tables.requested import requested_scan, selecting
from icechunk_format.tables.selection.pruning import Pruned, prune
from icechunk_format.tables.selection.select import Selection
from icechunk_format.tables.table.table import LAYOUTS
from icechunk_spark.queries.frames import frame_of
from icechunk_spark.queries.reads import Opened, Read
from icechunk_spark.reading.plan import OpenedTable, shown_read
from icechunk_spark.reading.reader import IcechunkReader, IcechunkTasks
from icechunk_spark.schema import arrow_target, column_names, row_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icechunk_format.tables.reading.scan import ScanPlan

_log = logging.getLogger("icechunk_spark.queries")
# Most rows of a range that stands for a read without columns in each partition.
_ROWS_OF_A_RANGE: Final = 50_000_000
_MOST_CHARACTERS: Final = 200
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
    read
        The read.
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
        table = self.opened.table
        assert isinstance(table, OpenedTable)
        return prune(
            conjuncts,
            self._base(),
            dims=dict(zip(table.table.dims, table.table.sizes, strict=True)),
            columns={column.name: column.arrow_type for column in table.table.value_columns},
            coordinate=self.labels,
            time_zone=self.time_zone,
            has_values=LAYOUTS[table.options.layout].has_values,
        )

    def labels(self, dim: str) -> Any:
        """Return the labels of a dimension, which are read once."""
        known = self.opened.labels
        if dim not in known:
            table = self.opened.table
            assert isinstance(table, OpenedTable)
            known[dim] = table.dataset.labels(table.table, dim)
        return known[dim]

    def scan(self, selection: Selection, columns: Sequence[str]) -> ScanPlan:
        """Plan a scan of columns of the table, of cells or of chunks."""
        table = self.opened.table
        assert isinstance(table, OpenedTable)
        return requested_scan(
            table.options, table.dataset, table.table, columns=columns, selection=selection
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
        schema = schema if schema.fields else StructType(read.columns.fields[:1])
        reader, size_bytes = table.planned(schema)
        return _frame(queried, reader, schema, size_bytes, ())
    if table.options.changes_since is not None:
        return _changes(queried, need, schema)
    pruned = queried.pruned(need.conjuncts)
    log_left(read.name, pruned.left)
    rows = known_rows(queried, pruned)
    if not schema.fields:
        if rows is not None and rows <= _ROWS_OF_A_RANGE * max(1, read.tasks):
            return queried.spark.range(0, rows, 1, max(1, min(read.tasks, rows)))
        schema = cheapest_column(queried)
    plan = queried.scan(pruned.selection, column_names(schema, table.table.columns))
    if rows is not None and need.limit is not None and need.is_complete and pruned.is_exact:
        plan = limited(plan, need.limit)
    size_bytes = table.size_bytes(schema, len(plan.tasks), plan.rows)
    reader = IcechunkReader(plan, arrow_target(schema))
    return _frame(queried, reader, schema, size_bytes, pruned.used)


def _changes(queried: QueriedRead, need: Need, schema: StructType) -> DataFrame:
    read, table = queried.read, queried.opened.table
    assert isinstance(table, OpenedTable)
    used: tuple[str, ...] = ()
    if table.options.where is None or table.time_zone == queried.time_zone:
        # A row that no longer satisfies a condition on values would be another change.
        pruned = queried.pruned(need.conjuncts)
        used = tuple(sql for sql in pruned.used if queried.pruned([sql]).is_exact)
    where = " AND ".join(f"({sql})" for sql in (table.options.where, *used) if sql)
    zone = queried.time_zone if used else table.time_zone
    options = replace(table.options, where=where or None)
    schema = schema if schema.fields else StructType(read.columns.fields[:1])
    narrowed = replace(table, options=options, time_zone=zone)
    reader, size_bytes = narrowed.planned(schema, read.since)
    return _frame(queried, reader, schema, size_bytes, used)


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
        replace(read.options, where=None),
        queried.opened.table.snapshot,
        where=" AND ".join(filter(None, (read.options.where, *_shown_conditions(used)))),
        columns=names,
        tasks=f"{count:,}" if read.is_fresh else f"{count:,} of {read.tasks:,}",
    )
    _log.debug("planned %s", name)
    tasks = IcechunkTasks(reader, name, read.name)
    return frame_of(queried.spark, tasks, schema, size_bytes)


def _shown_conditions(used: Sequence[str]) -> list[str]:
    """Return conditions for a plan, without the tests for NULL that Spark adds to each."""
    shown = [sql[1:-1] if sql[:1] == "(" and sql[-1:] == ")" else sql for sql in used]
    return [sql for sql in shown if not sql.endswith("` IS NOT NULL")] or shown


def known_rows(queried: QueriedRead, pruned: Pruned) -> int | None:
    """Return the number of rows of a selection of cells, if no chunk has to be read for it."""
    table = queried.opened.table
    if not isinstance(table, OpenedTable) or table.options.changes_since is not None:
        return None
    selection, options = pruned.selection, table.options
    if options.layout != "cells" or options.missing_chunks == "skip" or selection.residual:
        return None
    rows = 1
    for one in table.table.selections(selection.dims):
        rows *= one.count
    return rows


def limited(plan: ScanPlan, limit: int) -> ScanPlan:
    """Return a plan with as many tasks as a number of rows needs."""
    enough = sum(before < limit for before in accumulate((t.rows for t in plan.tasks), initial=0))
    return replace(plan, tasks=plan.tasks[: min(enough, len(plan.tasks))])


def cheapest_column(queried: QueriedRead) -> StructType:
    """Return the column of the read whose values cost the least, a dimension if there is one."""
    table, fields = queried.opened.table, queried.read.columns.fields
    assert isinstance(table, OpenedTable)
    roles = {column.name: column.role for column in table.table.columns}
    ranks = [(roles.get(f.name) != "dimension", row_bytes(StructType([f]))) for f in fields]
    return StructType([fields[ranks.index(min(ranks))]])


def log_left(name: str, left: Sequence[tuple[str, str]]) -> None:
    """Log the conditions that are not pushed, and the reasons."""
    for sql, reason in left:
        _log.debug("%s: only Spark evaluates %s: %s", name, shortened_sql(sql), reason)


def shortened_sql(sql: str) -> str:
    """Return a condition of limited length, for the log."""
    return sql if len(sql) <= _MOST_CHARACTERS else f"{sql[: _MOST_CHARACTERS - 1]}…"
