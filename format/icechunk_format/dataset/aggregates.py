"""Plans partial aggregates of a table: sums and extremes for each label of some dimensions.

Rules of this file
------------------
1. Conditions here replace those of the caller, which evaluates nothing afterwards. So a condition
   that might fail on some value is refused: the caller may never have evaluated it there.
2. A plan is worth its tasks only if its rows are few beside the cells.
3. Counts of cells read no chunk, so they are one task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa

from icechunk_format.dataset.cf.arrow_values import is_number
from icechunk_format.dataset.dataset import Dataset
from icechunk_format.dataset.reading.layouts.partials import PartialContext, PartialPlan
from icechunk_format.dataset.reading.layouts.segments import Measure
from icechunk_format.dataset.reading.layouts.statistics import Statistic
from icechunk_format.dataset.reading.scan import ScanPlan
from icechunk_format.dataset.reading.task_cutting import DEFAULT_ROWS_PER_PARTITION
from icechunk_format.dataset.requested import planning, selecting
from icechunk_format.dataset.selection.select import Selection
from icechunk_format.dataset.selection.where.condition import (
    Call,
    ColumnRef,
    Constant,
    Expression,
    Residual,
)
from icechunk_format.dataset.selection.where.split import plan_where
from icechunk_format.dataset.table.table import Column, Table
from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.read import ReadRequest

# Cells that a row of partial aggregates must replace, on average.
_FEWEST_CELLS_OF_A_ROW: Final = 8
# Tasks that return few rows may be larger than others: Spark spends about 60 ms on each.
_MOST_CELLS_OF_A_TASK: Final = 32_000_000

_NEVER_FAIL: Final = frozenset(
    "and or not eq ne lt le gt ge null_safe_eq is_null in matches abs_float is_nan coalesce nullif"
    " lower upper length trim slice starts_with ends_with contains year quarter month day hour"
    " minute second day_of_year week_of_year day_of_week weekday truncate to_wall_time"
    " to_timestamp day_to_timestamp to_timestamp_near sqrt exp sin cos tan radians degrees ln power"
    " round".split()
)
_PARTS_OF_TIMES: Final = frozenset(
    "year quarter month day hour minute second day_of_year week_of_year day_of_week weekday".split()
)
_FLOAT_ARITHMETIC: Final = frozenset({"add", "subtract", "multiply", "negate", "abs", "remainder"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """A measure by the name of its column; fields as in `Measure`, ``condition`` as SQL."""

    column: str | None = None
    wanted: frozenset[Statistic] = frozenset()
    exact_sum: bool = False
    half: Literal["upper", "lower"] | None = None
    condition: str | None = None


def plan_partials(
    options: ReadRequest,
    dataset: Dataset,
    table: Table,
    *,
    dims: Sequence[str],
    measures: Sequence[MeasureRequest],
    conditions: Sequence[str],
    time_zone: str,
    cores: int,
) -> PartialPlan:
    """Plan partial aggregates of the cells that options and conditions select.

    Parameters
    ----------
    table
        A table of the layout ``cells``.
    dims
        Names of the dimension columns to group by.
    conditions
        SQL conditions that hold for each cell, beside those of the options.
    cores
        Number of tasks that run at once.

    Raises
    ------
    InvalidInputError
        A condition cannot be evaluated here.
    UnsupportedError
        The rows would be too many beside the cells.
    """
    types = {column.name: column.arrow_type for column in table.value_columns}

    def checked(sql: str) -> Residual | None:
        found = plan_where(sql, types, (), time_zone).residual
        if found is not None and not never_fails(found.expression, types):
            raise UnsupportedError(f"where {sql}: may fail on some values", sql=sql)
        return found

    for sql in conditions:
        _check_residual(sql, types, table, time_zone)
    planned = tuple(
        Measure(
            source=None if one.column is None else table.column(one.column).source,
            wanted=one.wanted,
            exact_sum=one.exact_sum,
            half=one.half,
            condition=None if one.condition is None else checked(one.condition),
        )
        for one in measures
    )
    chosen = dataset.choose(table, **selecting(_with(options, conditions), time_zone))
    counts_only = (
        chosen.residual is None
        and options.missing_chunks == "fill"
        and all(one.source is None and one.condition is None for one in planned)
    )
    cells = math.prod(selection.count for selection in table.selections(chosen.dims))
    scan = _planned(options, dataset, table, chosen, dims, counts_only, cells, cores)
    rows = _most_rows(scan, len(table.dims))
    if rows * _FEWEST_CELLS_OF_A_ROW > scan.rows > 0 and rows > 1:
        raise UnsupportedError(
            f"{rows:,} groups of {scan.rows:,} cells are too many to aggregate in tasks", rows=rows
        )
    context = PartialContext(scan=scan.context, measures=planned)
    return PartialPlan(context=context, tasks=scan.tasks, rows=rows)


def _planned(
    options: ReadRequest,
    dataset: Dataset,
    table: Table,
    chosen: Selection,
    dims: Sequence[str],
    counts_only: bool,
    cells: int,
    cores: int,
) -> ScanPlan:
    keywords = planning(options)
    if counts_only:
        # Without arrays, tasks follow no manifests.
        table = replace(table, arrays=())
        keywords["rows_per_partition"] = max(1, cells)
    plan = dataset.plan(table, chosen, usual_rows=rows_of_tasks(cells, cores), **keywords)
    grouped = replace(
        plan.context.table, columns=tuple(plan.context.table.column(name) for name in dims)
    )
    return replace(plan, context=replace(plan.context, table=grouped))


def rows_of_tasks(cells: int, cores: int) -> int:
    """Return the target number of cells of tasks that return few rows."""
    return min(_MOST_CELLS_OF_A_TASK, max(DEFAULT_ROWS_PER_PARTITION, -(-cells // max(1, cores))))


def _most_rows(scan: ScanPlan, ndim: int) -> int:
    """Return the number of rows that tasks yield at most: the groups of each box."""
    table = scan.context.table
    chosen = table.selections(scan.context.selections)
    grouped = [table.dims.index(column.source) for column in table.columns]
    return sum(
        math.prod(
            chosen[dim].within(part[1 + 2 * dim], part[2 + 2 * dim]).count for dim in grouped
        )
        for task in scan.tasks
        for part in task.parts
    )


def _with(options: ReadRequest, conditions: Sequence[str]) -> ReadRequest:
    """Return the options with more conditions."""
    given = [*([] if options.where is None else [options.where]), *conditions]
    # Lines end comments.
    return replace(options, where=" AND ".join(f"({one}\n)" for one in given) or None)


def _check_residual(
    sql: str, types: Mapping[str, pa.DataType], table: Table, time_zone: str
) -> None:
    """Raise UnsupportedError if a condition on values may fail; labels are evaluated here."""
    dims = [column.name for column in table.value_columns if column.role == "dimension"]
    found = plan_where(sql, types, dims, time_zone).residual
    if found is not None and not never_fails(found.expression, types):
        raise UnsupportedError(f"where {sql}: may fail on some values", sql=sql)


def never_fails(expression: Expression, types: Mapping[str, pa.DataType]) -> bool:
    """Return True if no value can make an expression fail: no overflow, no division by zero."""
    if not isinstance(expression, Call):
        return True
    arguments, operation = expression.arguments, expression.operation
    if not all(never_fails(argument, types) for argument in arguments):
        return False
    if operation == "cast":
        return _always_fits(arguments[0], expression.options[0], types)
    if operation == "divide":
        divisor = arguments[1]
        return isinstance(divisor, Constant) and bool(divisor.value.as_py())
    if operation in _FLOAT_ARITHMETIC:
        kinds = [_type_of(argument, types) for argument in arguments]
        is_float = all(kind is not None and pa.types.is_floating(kind) for kind in kinds)
        return is_float and operation != "remainder"
    return operation in _NEVER_FAIL


def _always_fits(value: Expression, target: pa.DataType, types: Mapping[str, pa.DataType]) -> bool:
    """Return True if a cast cannot fail."""
    if isinstance(value, Call) and value.operation in _PARTS_OF_TIMES:
        return True
    source = _type_of(value, types)
    if source is None:
        return False
    if pa.types.is_floating(target):
        return is_number(source) or pa.types.is_boolean(source)
    if pa.types.is_integer(target):
        return pa.types.is_integer(source) and bool(source.bit_width <= target.bit_width)
    if pa.types.is_decimal(target):
        # The compiler chooses as many digits as the integer has.
        return pa.types.is_integer(source)
    return pa.types.is_temporal(target) and pa.types.is_temporal(source)


def _type_of(expression: Expression, types: Mapping[str, pa.DataType]) -> pa.DataType | None:
    """Return the type of an expression; None if it is not obvious."""
    if isinstance(expression, ColumnRef):
        return types[expression.name]
    if isinstance(expression, Constant):
        return expression.value.type
    if expression.operation == "cast":
        return expression.options[0]
    if expression.operation == "divide":
        return pa.float64()
    if expression.operation in _FLOAT_ARITHMETIC:
        return _type_of(expression.arguments[0], types)
    return None


def column_of(table: Table, name: str) -> Column | None:
    """Return a column by its name, or by the only name that differs in case alone; else None."""
    try:
        return table.column(name)
    except InvalidInputError:
        return None
