"""Evaluates conditions on Arrow batches: a picklable expression tree.

The driver parses a ``where`` once with sqlglot. Executors get this tree, which needs only pyarrow,
and evaluate it on every batch.

Rules of this file
------------------
1. The planner resolves all types, so evaluation never coerces.
2. A row is kept where the condition is TRUE; FALSE and NULL drop it.
3. A failure on the data (overflow, division by zero) is an ``InvalidInputError`` that shows the
   condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.selection.where.kernels import KERNELS, Datum, EvaluationError
from icechunk_format.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """The values of a column, by its name as the table spells it."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all rows."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """An operation of ``where.kernels.KERNELS`` on sub-expressions.

    ``options`` are plain values that follow the arguments.
    """

    operation: str
    arguments: tuple[Expression, ...]
    options: tuple[Any, ...] = ()


Expression = ColumnRef | Constant | Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A condition on rows.

    Attributes
    ----------
    expression
        The condition, of type boolean.
    columns
        The columns that it needs, in order of first use.
    sql
        The condition as text, for errors.
    """

    expression: Expression
    columns: tuple[str, ...]
    sql: str

    def evaluate(self, columns: Mapping[str, pa.Array | pa.Scalar], length: int) -> pa.BooleanArray:
        """Return which rows to keep.

        Parameters
        ----------
        columns
            Values of (at least) :attr:`columns`; a scalar stands for all rows.
        length
            How many rows there are.

        Returns
        -------
        BooleanArray
            One value per row and no nulls.

        Raises
        ------
        InvalidInputError
            If the condition cannot be computed for a row: overflow, division by zero, a bad cast.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selected positions of dimensions, and the condition that executors evaluate on the rest.

    A dimension that is absent from ``dims`` is selected whole.
    """

    dims: dict[str, DimSelection]
    residual: Residual | None = None


def evaluate(expression: Expression, columns: Mapping[str, pa.Array | pa.Scalar]) -> Datum:
    """Return the value of an expression: an array, or a scalar that stands for all rows."""
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, ColumnRef):
        values = columns[expression.name]
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            return values.cast(pa.timestamp("us"))
        return values
    arguments = [evaluate(argument, columns) for argument in expression.arguments]
    return KERNELS[expression.operation](*arguments, *expression.options)


def columns_of(expression: Expression) -> tuple[str, ...]:
    """Return the columns that an expression names, in order of first use."""
    if isinstance(expression, ColumnRef):
        return (expression.name,)
    if isinstance(expression, Constant):
        return ()
    names = (name for argument in expression.arguments for name in columns_of(argument))
    return tuple(dict.fromkeys(names))


def dimension_selection(condition: Residual, dimension: str, coordinate: pa.Array) -> DimSelection:
    """Return the positions at which a condition on one dimension is TRUE.

    Parameters
    ----------
    condition
        A condition that names no column but ``dimension``.
    coordinate
        The values of the dimension, one per position.
    """
    kept = condition.evaluate({dimension: coordinate}, len(coordinate))
    return DimSelection.of_mask(kept.to_numpy(zero_copy_only=False))
