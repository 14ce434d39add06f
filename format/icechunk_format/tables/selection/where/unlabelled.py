"""Selects along a dimension without labels, whose positions may be too many to list.

Comparisons of the position with constants give spans and lists of positions, and so do their
conjunctions and disjunctions. Any other condition is evaluated on the positions that these leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.positions import DimSelection
from icechunk_format.tables.selection.where.condition import (
    Call,
    ColumnRef,
    Constant,
    Expression,
    Residual,
    columns_of,
    evaluate,
)
from icechunk_format.tables.selection.where.kernels import EvaluationError

# Positions that are held in memory for a dimension without labels: 2 GiB.
MOST_POSITIONS: Final = 1 << 28
# Positions of a disjunction that are listed; beyond, they are restricted to a span.
_MOST_LISTED: Final = 1 << 20
_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NEGATED: Final = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}

_Found = tuple[DimSelection, bool]
"""Positions at which a condition may be TRUE, and whether it is TRUE at all of them."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of a dimension without labels, which stand for its labels."""

    dim: str
    size: int

    def of(self, selection: DimSelection) -> pa.Array:
        """Return selected positions.

        Raises
        ------
        InvalidInputError
            They are too many to hold in memory.
        """
        if selection.count > MOST_POSITIONS:
            raise InvalidInputError(
                f"dimension {self.dim!r} has {self.size:,} elements and no labels, too many to "
                f"compare; select with isel={self.dim}=<positions>",
                dim=self.dim,
                found=self.size,
                allowed=MOST_POSITIONS,
            )
        return pa.array(selection.positions(), type=pa.int64())


def selected(condition: Residual, dim: str, labels: pa.Array | Positions) -> DimSelection:
    """Return the positions of a dimension at which a condition on it alone is TRUE.

    Raises
    ------
    InvalidInputError
        The condition cannot be computed for some position, or for so many.
    """
    if not isinstance(labels, Positions):
        return condition.positions(dim, labels)
    found, is_exact = _found(condition.expression, labels.size)
    if is_exact:
        return found
    positions = labels.of(found)
    kept = condition.evaluate({dim: positions}, len(positions))
    return DimSelection.of_indices(
        labels.size, found.positions()[kept.to_numpy(zero_copy_only=False)]
    )


def _found(expression: Expression, size: int) -> _Found:
    whole = DimSelection.whole(size)
    if isinstance(expression, Constant):
        return (whole if expression.value.as_py() is True else DimSelection.empty(size)), True
    if not isinstance(expression, Call):
        return whole, False
    operation, arguments = expression.operation, expression.arguments
    if operation in ("and", "or"):
        join = _both if operation == "and" else _either
        return reduce(join, (_found(argument, size) for argument in arguments))
    if operation == "not" and isinstance(arguments[0], Call):
        inner = arguments[0]
        if inner.operation == "is_null" and isinstance(inner.arguments[0], ColumnRef):
            return whole, True
        if inner.operation in _NEGATED:
            return _found(Call(_NEGATED[inner.operation], inner.arguments), size)
        return whole, False
    if operation == "is_null" and isinstance(arguments[0], ColumnRef):
        return DimSelection.empty(size), True
    if operation == "in" and isinstance(arguments[0], ColumnRef):
        choices = arguments[1]
        assert isinstance(choices, Constant)
        if not pa.types.is_integer(choices.value.type):
            return whole, False
        listed = choices.value.drop_null().to_numpy(zero_copy_only=False)
        return DimSelection.of_indices(size, listed[(listed >= 0) & (listed < size)]), True
    if len(arguments) == 2:
        return _compared(operation, *arguments, size)
    return whole, False


def _compared(operation: str, left: Expression, right: Expression, size: int) -> _Found:
    if isinstance(right, ColumnRef):
        operation, left, right = _MIRRORED.get(operation, operation), right, left
    value = _integer(right) if isinstance(left, ColumnRef) else None
    if operation not in ("eq", "null_safe_eq", *_MIRRORED) or value is None:
        return DimSelection.whole(size), False
    if not value.is_valid:
        return DimSelection.empty(size), True
    # Within the dimension, so that the next position is a number, too.
    number = max(-1, min(value.as_py(), size))
    spans = {
        "lt": (0, number),
        "le": (0, number + 1),
        "gt": (number + 1, size),
        "ge": (number, size),
    }
    return DimSelection.span(size, *spans.get(operation, (number, number + 1))), True


def _integer(expression: Expression) -> pa.Scalar | None:
    """Return the value of an expression without columns, if it is an integer or NULL."""
    if columns_of(expression):
        return None
    try:
        value = evaluate(expression, {})
    except (EvaluationError, pa.ArrowException):
        return None
    is_integer = isinstance(value, pa.Scalar) and pa.types.is_integer(value.type)
    return value if is_integer else None


def _both(one: _Found, two: _Found) -> _Found:
    return one[0].intersect(two[0]), one[1] and two[1]


def _either(one: _Found, two: _Found) -> _Found:
    first, second = one[0], two[0]
    is_exact = one[1] and two[1]
    size = first.size
    if not first.count or not second.count:
        return (first if first.count else second), is_exact
    if first.count + second.count <= _MOST_LISTED:
        listed = np.concatenate([first.positions(), second.positions()])
        return DimSelection.of_indices(size, listed), is_exact
    span = DimSelection.span(size, min(first.start, second.start), max(first.stop, second.stop))
    touches = first.start <= second.stop and second.start <= first.stop
    has_no_gap = touches and first.indices is None and second.indices is None
    return span, is_exact and has_no_gap
