"""Plans an aggregate of a read, which tasks reduce where they read the data.

Rules of this file
------------------
1. No Filter stays above the new read, so it has to apply each condition exactly. If it cannot, or
   an aggregate cannot be merged from parts, the query keeps its own aggregate.
2. Spark evaluates the expressions of the query, grouping included, on rows of partial aggregates.
3. Few rows are merged in one partition, since shuffling them to 200 takes longer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from icechunk_format.errors import IcechunkError
from icechunk_format.tables.aggregates import plan_partials
from icechunk_format.tables.reading.layouts.partials import run_partials
from icechunk_spark.jobs.session import TIME_ZONE, cores_of
from icechunk_spark.queries.aggregate_calls import AggregateCalls
from icechunk_spark.queries.frames import frame_of
from icechunk_spark.queries.operands import NotRewritten
from icechunk_spark.queries.replanning import (
    shortened,
    shortened_sql,
    shown_conditions,
    shown_tasks,
)
from icechunk_spark.reading.plan import OpenedTable, shown_read
from icechunk_spark.reading.reader import IcechunkReader, IcechunkTasks
from icechunk_spark.schema import arrow_target, row_bytes, spark_struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from icechunk_spark.queries.replanning import QueriedRead

_log = logging.getLogger("icechunk_spark.queries")

# Rows that one task merges in less time than a shuffle takes.
_FEW_ROWS: Final = 100_000
# Rows whose moments Spark collects in the memory of one task.
_MOST_MOMENTS: Final = 1_000_000
_ANSI: Final = "spark.sql.ansi.enabled"
_LEGACY_MOMENTS: Final = "spark.sql.legacy.statisticalAggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateColumn:
    """A column of an aggregate: its expression in SQL, and the type of its values."""

    sql: str
    type: DataType


def replan_aggregate(
    read: QueriedRead,
    conjuncts: Sequence[str],
    groups: Sequence[str],
    aggregates: Sequence[AggregateColumn],
) -> DataFrame | None:
    """Return an aggregate of the rows that satisfy all conjuncts, or None to leave it to Spark.

    Parameters
    ----------
    conjuncts
        All conditions below the aggregate. Spark does not evaluate them again.
    groups
        Grouping expressions. Names of columns are quoted. Spark takes -0.0 and 0.0 for one group.
    aggregates
        The columns of the result in order, with exactly these types. They consist of grouping
        expressions and functions such as ``avg(`t2m`)``.
    """
    is_legacy = read.spark.conf.get(_LEGACY_MOMENTS, "false") == "true"
    sqls = tuple(column.sql for column in aggregates)
    key = ("aggregate", read.time_zone, read.ansi, is_legacy, tuple(conjuncts), tuple(groups), sqls)
    try:
        found = read.opened.plan(
            key, lambda: _aggregated(read, conjuncts, groups, aggregates, is_legacy)
        )
    except (NotRewritten, IcechunkError, PySparkException) as error:
        _log.debug("%s: only Spark aggregates: %s", read.read.name, shortened(str(error)))
        return None
    types = [field.dataType for field in found.schema]
    if types != [column.type for column in aggregates]:
        _log.debug("%s: only Spark aggregates: types are %s", read.read.name, types)
        return None
    return found


def _aggregated(
    read: QueriedRead,
    conjuncts: Sequence[str],
    groups: Sequence[str],
    aggregates: Sequence[AggregateColumn],
    is_legacy: bool,
) -> DataFrame:
    table, spark = read.opened.table, read.spark
    if not isinstance(table, OpenedTable):
        raise NotRewritten("only cells are aggregated in tasks")
    options = table.options
    if options.layout != "cells" or options.changes_since is not None:
        raise NotRewritten("only cells are aggregated in tasks")
    settings = spark.conf.get(TIME_ZONE), spark.conf.get(_ANSI) == "true"
    if settings != (read.time_zone, read.ansi):
        raise NotRewritten("the query has other settings than the session of the read")
    calls = AggregateCalls(table.table, ansi=read.ansi)
    grouped = [calls.group(sql) for sql in groups]
    merged = [calls.aggregate(column.sql) for column in aggregates]
    if calls.has_moments and is_legacy:
        raise NotRewritten(f"{_LEGACY_MOMENTS} is set")
    pruned = read.pruned(conjuncts)
    if not pruned.is_total:
        reasons = [f"{shortened_sql(sql)}: {shortened(reason)}" for sql, reason in pruned.left]
        reason = reasons[0] if reasons else "a condition may fail on some values"
        raise NotRewritten(f"not all conditions are evaluated in tasks: {reason}")
    plan = plan_partials(
        options,
        table.dataset,
        table.table,
        dims=list(calls.dims),
        measures=calls.measures,
        selection=pruned.selection,
        time_zone=read.time_zone,
        cores=cores_of(spark),
    )
    if calls.has_moments and plan.rows > _MOST_MOMENTS:
        raise NotRewritten(f"{plan.rows:,} rows of moments are too many to collect")
    schema = spark_struct(plan.context.arrow_schema)
    name = shown_read(
        options,
        table.snapshot,
        conditions=shown_conditions(pruned.used),
        aggregate=shortened_sql(", ".join(column.sql for column in aggregates)) or "distinct",
        by=",".join(calls.dims),
        tasks=shown_tasks(read.read, len(plan.tasks)),
    )
    reader = IcechunkReader(plan, arrow_target(schema), run_partials)
    tasks = IcechunkTasks(reader, name, read.read.name)
    rows = frame_of(spark, tasks, schema, plan.rows * row_bytes(schema))
    if grouped and len(plan.tasks) > 1 and plan.rows <= _FEW_ROWS:
        rows = rows.repartition(1)
    # Names are in the SQL, since `alias` needs nine calls of the JVM.
    named = [F.expr(f"{sql} AS c{number}") for number, sql in enumerate(merged)]
    keys = [F.expr(f"{sql} AS g{number}") for number, sql in enumerate(grouped)]
    # Without an aggregate function, groups are distinct all the same.
    found = rows.groupBy(*keys).agg(*named, F.expr("count(1) AS rows"))
    return found.selectExpr(*(f"c{number}" for number in range(len(named))))
