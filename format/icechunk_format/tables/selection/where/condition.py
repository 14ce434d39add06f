"""Evaluates conditions on Arrow batches: a picklable expression tree.

The driver parses a ``where`` once with sqlglot. Executors evaluate this tree, which needs only
pyarrow, on every batch.

Rules of this file
------------------
1. The planner resolves all types, so evaluation never coerces.
2. A row is kept if the condition is TRUE; FALSE and NULL drop it.
3. A failure on the data (overflow, division by zero) is an ``InvalidInputError`` that shows the
   condition.
4. Operations between TIMESTAMP_NTZ and TIMESTAMP values have None as time zone until ``in_zone``
   sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DimSelection
from icechunk_format.tables.selection.where.kernels import KERNELS, ZONED, Datum, EvaluationError
from icechunk_format.tables.selection.where.time_zones import time_zone

# The operation of CASE: conditions and values in turn, and the value of all other rows.
CASE: Final = "case"


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """The values of a column, by its exact name in the table."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all rows, or the values of an IN list."""

    value: Any


@dataclass(frozen=True, slots=True)
class Call:
    """An operation of ``where.kernels.KERNELS`` on sub-expressions.

    ``options`` are plain values, passed after the arguments.
    """

    operation: str
    arguments: tuple[Expression, ...]
    options: tuple[Any, ...] = ()


Expression = ColumnRef | Constant | Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A condition on rows."""

    expression: Expression
    columns: tuple[str, ...]
    """Names of the columns in the condition, in order of first use."""
    sql: str
    """The condition as a string, for errors."""

    @property
    def needs_zone(self) -> bool:
        """True if :meth:`in_zone` has to set a time zone before the condition is evaluated."""
        return needs_zone(self.expression)

    def in_zone(self, zone: str) -> Residual:
        """Return the condition with the session time zone set."""
        try:
            return replace(self, expression=in_zone(self.expression, zone))
        except (EvaluationError, pa.ArrowException) as error:
            raise InvalidInputError(f"where {self.sql}: {error}", sql=self.sql) from error

    def evaluate(self, columns: Mapping[str, pa.Array | pa.Scalar], length: int) -> pa.BooleanArray:
        """Return True for each row to keep, without nulls.

        ``columns`` are values of (at least) :attr:`columns`; a scalar is the value of all
        ``length`` rows. Raises InvalidInputError if the condition cannot be computed for a row:
        overflow, division by zero, a failed cast.
        """
        try:
            kept = evaluate(self.expression, columns)
        except EvaluationError as error:
            raise InvalidInputError(f"where {self.sql}: {error}", sql=self.sql) from error
        except pa.ArrowException as error:
            raise InvalidInputError(
                f"where {self.sql}: cannot be computed for some row: {error}", sql=self.sql
            ) from error
        if isinstance(kept, pa.Scalar):
            return pa.array(np.full(length, kept.as_py() is True))
        return kept.fill_null(False) if kept.null_count else kept

    def positions(self, dimension: str, labels: pa.Array) -> DimSelection:
        """Return the positions of a dimension at which a condition on it alone is TRUE."""
        kept = self.evaluate({dimension: labels}, len(labels))
        return DimSelection.of_mask(kept.to_numpy(zero_copy_only=False))


def evaluate(expression: Expression, columns: Mapping[str, pa.Array | pa.Scalar]) -> Datum:
    """Evaluate an expression to an array, or to a scalar for all rows."""
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, ColumnRef):
        return columns[expression.name]
    if expression.operation == CASE:
        return _case(expression.arguments, columns)
    arguments = [evaluate(argument, columns) for argument in expression.arguments]
    return KERNELS[expression.operation](*arguments, *expression.options)


def _case(arguments: tuple[Expression, ...], columns: Mapping[str, Datum]) -> Datum:
    """Evaluate conditions and values in turn, each for the rows that no condition before kept."""
    arrays = {name: column for name, column in columns.items() if not isinstance(column, pa.Scalar)}
    length = len(next(iter(arrays.values()))) if arrays else 1
    left, rows, values = pa.array(np.arange(length)), [], []
    for condition, value in zip(arguments[:-1:2], arguments[1::2], strict=True):
        held = dict(columns) | {name: column.take(left) for name, column in arrays.items()}
        kept = _filled(evaluate(condition, held), len(left)).fill_null(False)
        chosen = {name: column.filter(kept) for name, column in held.items() if name in arrays}
        rows.append(left.filter(kept))
        values.append(_filled(evaluate(value, held | chosen), len(rows[-1])))
        left = left.filter(pc.invert(kept))
    held = dict(columns) | {name: column.take(left) for name, column in arrays.items()}
    rows.append(left)
    values.append(_filled(evaluate(arguments[-1], held), len(left)))
    found = pa.concat_arrays(values).take(pc.array_sort_indices(pa.concat_arrays(rows)))
    return found if arrays else found[0]


def _filled(value: Datum, length: int) -> pa.Array:
    return pa.repeat(value, length) if isinstance(value, pa.Scalar) else value


def needs_zone(expression: Expression) -> bool:
    """Return True if an expression depends on a time zone that is not set."""
    if not isinstance(expression, Call):
        return False
    if expression.operation in ZONED and expression.options == (None,):
        return True
    return any(map(needs_zone, expression.arguments))


def in_zone(expression: Expression, zone: str) -> Expression:
    """Set the time zone of an expression, and fold its constants."""
    if not isinstance(expression, Call) or not needs_zone(expression):
        return expression
    time_zone(zone)
    arguments = tuple(in_zone(argument, zone) for argument in expression.arguments)
    options = (zone,) if expression.operation in ZONED else expression.options
    found = Call(expression.operation, arguments, options)
    if all(isinstance(argument, Constant) for argument in arguments):
        return Constant(evaluate(found, {}))
    return found


def columns_of(expression: Expression) -> tuple[str, ...]:
    """Return the columns that an expression names, in order of first use."""
    if isinstance(expression, ColumnRef):
        return (expression.name,)
    if isinstance(expression, Constant):
        return ()
    names = (name for argument in expression.arguments for name in columns_of(argument))
    return tuple(dict.fromkeys(names))
