"""Selects by conditions that a query engine evaluates again: rows may be left in, never out.

An engine passes the conjuncts of a filter. Each is compiled by itself; those that cannot be
compiled are returned with the reason, and select nothing.

Rules of this file
------------------
1. A conjunct that cannot be computed for some row, as after a division by zero, removes no row of
   that batch: the engine may not evaluate it there, or has its own error or NULL.
2. Functions whose last digit differs between libraries are refused.
3. Conjuncts on dimensions alone select exactly; see ``Pruned.is_exact``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.groups import DimSelection
from icechunk_format.tables.selection.elements import with_elements
from icechunk_format.tables.selection.select import Selection
from icechunk_format.tables.selection.where.condition import (
    Call,
    Expression,
    Residual,
    columns_of,
)

if TYPE_CHECKING:
    from icechunk_format.tables.selection.where.split import PlannedWhere

# NumPy and Arrow may differ from the JVM in the last digit, or in letters of rare languages.
_INEXACT: Final = frozenset(
    ("exp", "sin", "cos", "tan", "ln", "power", "radians", "degrees", "lower", "upper")
)
# Parts of a time: small integers, which are cast to the type that Spark gives them.
_PARTS: Final = ("year", "quarter", "month", "day", "hour", "minute", "second")
# Operations that return a value, or NULL, for all arguments.
_TOTAL: Final = frozenset(
    (
        *("and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "null_safe_eq", "in"),
        *("is_null", "is_nan", "coalesce", "starts_with", "ends_with", "contains"),
        *_PARTS,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning(Residual):
    """A required condition, or None, and further ones that only prune."""

    required: Residual | None
    optional: tuple[Residual, ...]

    @property
    def needs_zone(self) -> bool:
        """True if the required condition needs a time zone; other conditions have a zone."""
        return self.required is not None and self.required.needs_zone

    def in_zone(self, zone: str) -> Residual:
        """Return the condition with the session time zone set."""
        assert self.required is not None
        return replace(self, required=self.required.in_zone(zone))

    def evaluate(self, columns: Mapping[str, pa.Array | pa.Scalar], length: int) -> pa.BooleanArray:
        """Return True for each row to keep; only errors of the required condition are raised."""
        kept = None if self.required is None else self.required.evaluate(columns, length)
        for condition in self.optional:
            try:
                found = condition.evaluate(columns, length)
            except InvalidInputError:
                continue
            kept = found if kept is None else pc.and_(kept, found)
        return pa.repeat(True, length) if kept is None else kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The rows that conjuncts select."""

    selection: Selection
    """The selection before, restricted by the conjuncts."""
    used: tuple[str, ...] = ()
    """The conjuncts that restrict it."""
    left: tuple[tuple[str, str], ...] = ()
    """The other conjuncts, each with the reason."""
    is_exact: bool = True
    """True if the selected cells are those of the selection before that satisfy all conjuncts."""
    is_total: bool = True
    """True if all conjuncts are used, and evaluating them on values raises no error."""
    rows: Residual | None = None
    """The condition to evaluate on the rows of a layout without cells, or None."""


def prune(
    conjuncts: Sequence[str],
    base: Selection,
    *,
    dims: Mapping[str, int],
    columns: Mapping[str, pa.DataType],
    coordinate: Callable[[str], pa.Array | range],
    time_zone: str,
) -> Pruned:
    """Restrict a selection by conditions in SQL that an engine evaluates again.

    Parameters
    ----------
    conjuncts
        Conditions on `columns`, all of which a row has to satisfy.
    coordinate
        Returns the labels of a dimension, or the range of its positions; called for each conjunct
        on it.
    """
    dims_of, optional = dict(base.dims), []
    used: list[str] = []
    left: list[tuple[str, str]] = []
    is_total = True
    for sql in conjuncts:
        try:
            found, residual = _compiled(sql, dims, columns, coordinate, time_zone)
        except IcechunkError as error:
            left.append((sql, error.message))
            continue
        used.append(sql)
        for name, selection in found.items():
            before = dims_of.get(name) or DimSelection.whole(dims[name])
            dims_of[name] = before.intersect(selection)
        if residual is not None:
            optional.append(residual)
            is_total = is_total and _is_total(residual.expression)
    kept = base.residual
    if optional:
        terms = [one.expression for one in (base.residual, *optional) if one is not None]
        expression = terms[0] if len(terms) == 1 else Call("and", tuple(terms))
        kept = Pruning(
            expression=expression,
            columns=columns_of(expression),
            sql=" AND ".join(one.sql for one in optional),
            required=base.residual,
            optional=tuple(optional),
        )
    return Pruned(
        selection=Selection(dims=dims_of, residual=kept),
        used=tuple(used),
        left=tuple(left),
        is_exact=not left and not optional,
        is_total=is_total and not left,
    )


def _compiled(
    sql: str,
    dims: Mapping[str, int],
    columns: Mapping[str, pa.DataType],
    coordinate: Callable[[str], pa.Array | range],
    time_zone: str,
) -> tuple[dict[str, DimSelection], Residual | None]:
    # Imported here because it is slow to import and most reads have no condition.
    from icechunk_format.tables.selection.where.unlabelled import selected

    planned = plan_conjunct(sql, columns, dims.keys(), time_zone)
    if planned.never:
        return {name: DimSelection.empty(size) for name, size in dims.items()}, planned.residual
    found = {
        name: selected(condition, name, coordinate(name))
        for name, condition in planned.dimension_conditions.items()
    }
    return found, planned.residual


def plan_conjunct(
    sql: str,
    columns: Mapping[str, pa.DataType],
    dims: Collection[str],
    time_zone: str,
    lists: Collection[str] = (),
) -> PlannedWhere:
    """Compile a conjunct and split it; raise InvalidInputError if its result may differ.

    Elements of ``lists`` that it names are dimensions, too: see ``elements``.
    """
    # Imported here because it is slow to import and most reads have no condition.
    from icechunk_format.tables.selection.where.split import plan_where

    sql, elements = with_elements(sql, lists)
    columns = {**columns, **dict.fromkeys(elements, pa.int64())}
    planned = plan_where(sql, columns, {*dims, *elements}, time_zone)
    conditions = [*planned.dimension_conditions.values()]
    if planned.residual is not None:
        conditions.append(planned.residual)
    for condition in conditions:
        _check_exact(condition.expression)
    return planned


def held(
    conditions: Sequence[Residual], name: str, values: pa.Array
) -> tuple[NDArray[np.bool_], bool]:
    """Return the values of a column that meet all conditions, and whether all can be evaluated."""
    kept = np.ones(len(values), dtype=bool)
    is_sure = True
    for condition in conditions:
        try:
            found = condition.evaluate({name: values}, len(values))
        except InvalidInputError:
            is_sure = False
        else:
            kept &= found.to_numpy(zero_copy_only=False)
    return kept, is_sure


def condition_on_rows(
    conjuncts: Sequence[str], columns: Mapping[str, pa.DataType], time_zone: str
) -> Pruned:
    """Return the conjuncts as a condition on columns of rows, in the field ``rows``."""
    none = Selection(dims={})
    found = prune(
        conjuncts, none, dims={}, columns=columns, coordinate=pa.array, time_zone=time_zone
    )
    return replace(found, selection=none, rows=found.selection.residual)


def condition_on_values(
    sql: str, columns: Mapping[str, pa.DataType], time_zone: str
) -> Residual | None:
    """Return a condition that gives the engine's result for each cell; None if it always holds.

    Raises InvalidInputError if it cannot be compiled, if it may fail on some value, or if its
    result may differ from that of the engine.
    """
    found = plan_conjunct(sql, columns, (), time_zone).residual
    if found is not None and not _is_total(found.expression):
        raise InvalidInputError(f"where: {sql!r} may fail on some values", option="where")
    return found


def _check_exact(expression: Expression) -> None:
    if isinstance(expression, Call):
        if expression.operation in _INEXACT:
            raise InvalidInputError(
                f"{expression.operation} may differ in the last digit", option="where"
            )
        for argument in expression.arguments:
            _check_exact(argument)


def _is_total(expression: Expression) -> bool:
    if not isinstance(expression, Call):
        return True
    match expression:
        case Call("cast", (Call(operation=part) as time,)) if part in _PARTS:
            return _is_total(time)
    return expression.operation in _TOTAL and all(map(_is_total, expression.arguments))
