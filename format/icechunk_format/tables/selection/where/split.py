"""Splits the option ``where`` into selections of dimensions and a residual condition.

A condition on a dimension decides which chunks are fetched; any other condition is evaluated on the
rows by executors. Only the driver imports this module, ``compiler`` and ``syntax``, which need
sqlglot.

Algorithm
---------
1. sqlglot parses the string as Spark SQL. Every construct is compiled to the expressions of
   ``condition``; constructs that are not in the tables of ``syntax`` are refused by name.
2. NOT is pushed inward and the conjunction is split. A conjunct without columns is evaluated
   immediately.
3. A conjunct on one dimension alone becomes an exact selection.
4. Every other conjunct stays in the residual. If it implies a condition on a single dimension (each
   branch of an OR restricts it), that also becomes a selection: fewer chunks, same rows.

Semantics are Spark's under ANSI mode; see ``types`` and ``kernels``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.where.condition import (
    Call,
    ColumnRef,
    Constant,
    Expression,
    Residual,
    columns_of,
    in_zone,
    needs_zone,
)
from icechunk_format.tables.selection.where.kernels import EvaluationError
from icechunk_format.tables.selection.where.types import BIGINT, BOOLEAN, TIMESTAMP_NTZ, Typed

_NEGATED = {"eq": "ne", "ne": "eq"}
# The comparisons that each comparison implies; used with bounds widened for any time zone.
_BOUNDED_BY = {"eq": ("ge", "le"), "lt": ("le",), "le": ("le",), "gt": ("ge",), "ge": ("ge",)}
_CONVERSIONS = ("to_wall_time", "to_timestamp", "day_to_timestamp", "cast")
# The parser needs about 110 bytes for each character.
_MOST_CHARACTERS = 1_000_000
_MOST_OFFSETS = 3 * 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWhere:
    """The conditions that a ``where`` splits into."""

    never: bool
    """True if no row can satisfy the condition."""
    dimension_conditions: dict[str, Residual]
    """For each restricted dimension, the condition on it alone."""
    residual: Residual | None
    """The condition to evaluate on rows, or None."""


def plan_where(
    sql: str,
    columns: Mapping[str, pa.DataType],
    dimensions: Collection[str],
    time_zone: str | None = "UTC",
) -> PlannedWhere:
    """Parse a boolean expression in Spark SQL and split it.

    ``columns`` are the types of all columns that it may name (case-insensitive, as in Spark);
    ``dimensions`` lists those that are dimensions of the table. ``time_zone`` is the zone of
    timestamps without a time zone, as ``spark.sql.session.timeZone``; if it is None, terms that
    depend on it stay in the residual, for :meth:`Residual.in_zone`.
    """
    parts = None
    try:
        expression = _compile(sql, columns).expression
        if time_zone is not None:
            expression = in_zone(expression, time_zone)
        parts = _conjuncts(_push_not(expression, negate=False))
    except (EvaluationError, pa.ArrowException) as error:
        raise InvalidInputError(f"where: {sql!r}: {error}", option="where") from error
    except RecursionError:
        pass  # Release the many frames of the traceback before the error is raised.
    if parts is None:
        raise InvalidInputError(
            "where: the expression is nested too deeply; split it, or use df.where(...)",
            option="where",
        )
    conditions: dict[str, list[Expression]] = {}
    rest: list[Expression] = []
    never = False
    for part in parts:
        names = columns_of(part)
        if isinstance(part, Constant):
            never = never or part.value.as_py() is not True
        elif len(names) == 1 and names[0] in dimensions and not needs_zone(part):
            conditions.setdefault(names[0], []).append(part)
        else:
            rest.append(part)
            for name in names:
                implied = _implied(part, name) if name in dimensions else None
                if implied is not None:
                    conditions.setdefault(name, []).append(implied)
    if never and not dimensions:
        # Without dimensions no selection can be empty, so a false condition drops the row.
        rest = [Constant(pa.scalar(False))]
    return PlannedWhere(
        never=never,
        dimension_conditions={name: _residual(terms, sql) for name, terms in conditions.items()},
        residual=_residual(rest, sql) if rest else None,
    )


def _compile(sql: str, columns: Mapping[str, pa.DataType]) -> Typed:
    # Imported here because it is slow to import and most reads have no condition.
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from icechunk_format.tables.selection.where.compiler import Compiler
    from icechunk_format.tables.selection.where.long_lists import cut_lists
    from icechunk_format.tables.selection.where.syntax import WhereDialect

    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"where: {sql!a} is not Unicode: letter {error.start + 1} is half of a surrogate pair",
            option="where",
        ) from None
    shorter, lists = cut_lists(sql)
    if len(shorter) > _MOST_CHARACTERS:
        raise InvalidInputError(
            f"where has {len(shorter):,} characters besides its IN lists, and at most "
            f"{_MOST_CHARACTERS:,} are parsed; put values in an IN list, or join with a table",
            option="where",
            found=len(shorter),
            allowed=_MOST_CHARACTERS,
        )
    try:
        tree = sqlglot.parse_one(shorter, dialect=WhereDialect)
    except SqlglotError as error:
        details = getattr(error, "errors", None) or [{}]
        what = details[0].get("description") or str(error)
        if "<class" in what:
            what = "an operand is missing"
        column = details[0].get("col")
        near = f" near character {column}" if column else ""
        raise InvalidInputError(
            f"where: {sql!r} is not an SQL expression{near}: {what}; write it like "
            f"\"time >= '2024-07-01' AND latitude BETWEEN 35 AND 45\"",
            option="where",
        ) from error
    if not isinstance(tree, exp.Expression):
        raise InvalidInputError(f"where: {sql!r} is not one SQL expression", option="where")
    typed = Compiler(columns, lists).compile(tree)
    if pa.types.is_null(typed.type):
        return Typed(Constant(pa.scalar(None, BOOLEAN)), BOOLEAN)
    if typed.type != BOOLEAN:
        raise InvalidInputError(
            f"where: {sql!r} is not a condition but a value of type {typed.type}; compare it with "
            f"something",
            option="where",
        )
    return typed


def _push_not(expression: Expression, *, negate: bool) -> Expression:
    """Move NOT through AND and OR, which three-valued logic allows."""
    if isinstance(expression, Call):
        if expression.operation == "not":
            return _push_not(expression.arguments[0], negate=not negate)
        if expression.operation in ("and", "or"):
            operation = expression.operation
            if negate:
                operation = "or" if operation == "and" else "and"
            terms = tuple(_push_not(term, negate=negate) for term in expression.arguments)
            return Call(operation, terms)
        if negate and expression.operation in _NEGATED:
            return Call(_NEGATED[expression.operation], expression.arguments)
    return Call("not", (expression,)) if negate else expression


def _conjuncts(expression: Expression) -> list[Expression]:
    if isinstance(expression, Call) and expression.operation == "and":
        return [part for term in expression.arguments for part in _conjuncts(term)]
    return [expression]


def _implied(expression: Expression, dimension: str) -> Expression | None:
    """Return a condition on one dimension that is implied by an expression."""
    if columns_of(expression) == (dimension,):
        return _widened(expression) if needs_zone(expression) else expression
    if not isinstance(expression, Call) or expression.operation not in ("and", "or"):
        return None
    terms = [_implied(term, dimension) for term in expression.arguments]
    found = [term for term in terms if term is not None]
    if expression.operation == "or" and len(found) < len(terms):
        return None
    if len(found) < 2:
        return found[0] if found else None
    return Call(expression.operation, tuple(found))


def _widened(comparison: Expression) -> Expression | None:
    """Return a condition that a comparison of times implies in every time zone."""
    if not isinstance(comparison, Call) or comparison.operation not in _BOUNDED_BY:
        return None
    left, right = map(_unzoned, comparison.arguments)
    bounds = _BOUNDED_BY[comparison.operation]
    if isinstance(left, Constant):
        left, right = right, left
        bounds = tuple({"ge": "le", "le": "ge"}[bound] for bound in bounds)
    if not isinstance(left, ColumnRef) or not isinstance(right, Constant):
        return None
    micros = right.value.cast(TIMESTAMP_NTZ).cast(BIGINT).as_py()
    if micros is None:
        return None
    column = Call("cast", (left,), (BIGINT,))
    terms = [
        Call(bound, (column, Constant(pa.scalar(micros + slack, BIGINT))))
        for bound in bounds
        for slack in [_MOST_OFFSETS if bound == "le" else -_MOST_OFFSETS]
    ]
    return terms[0] if len(terms) == 1 else Call("and", tuple(terms))


def _unzoned(expression: Expression) -> Expression:
    """Remove the time zone conversion of an expression."""
    while isinstance(expression, Call) and expression.operation in _CONVERSIONS:
        expression = expression.arguments[0]
    return expression


def _residual(terms: list[Expression], sql: str) -> Residual:
    expression = terms[0] if len(terms) == 1 else Call("and", tuple(terms))
    return Residual(expression=expression, columns=columns_of(expression), sql=sql)
