"""Selects along a dimension without labels, whose positions may be too many to list.

Comparisons of the position with constants give spans and lists of positions, and so do their
conjunctions and disjunctions. Any other condition is evaluated on the positions that these leave.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DimSelection
from icechunk_format.groups.positions import MOST_COMPARED
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

# Positions that are made at once.
_PIECE: Final = 1 << 18
# Positions of a disjunction that are listed; beyond, they are restricted to a span.
_MOST_LISTED: Final = 1 << 20
_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NEGATED: Final = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}

_Found = tuple[DimSelection, bool]
"""Positions at which a condition may be TRUE, and whether it is TRUE at all of them."""


def selected(condition: Residual, dim: str, labels: pa.Array | range) -> DimSelection:
    """Return the positions of a dimension at which a condition on it alone is TRUE.

    A range stands for the positions of a dimension without labels.

    Raises
    ------
    InvalidInputError
        The condition cannot be computed for some position, or for so many.
    """
    if not isinstance(labels, range):
        return condition.positions(dim, labels)
    found, is_exact = _found(condition.expression, len(labels))
    if is_exact:
        return found
    if found.count > MOST_COMPARED:
        raise InvalidInputError(
            f"dimension {dim!r} has {len(labels):,} elements and no labels, too many to compare"
            f" with a condition; select with isel={dim}=<positions>",
            dim=dim,
            found=len(labels),
            allowed=MOST_COMPARED,
        )
    if found.indices is not None:
        return DimSelection.of_indices(len(labels), _kept(condition, dim, found.indices))
    before = DimSelection.empty(found.start)
    after = DimSelection.empty(len(labels) - found.stop)
    pieces = []
    for first in range(found.start, found.stop, _PIECE):
        piece = np.arange(first, min(first + _PIECE, found.stop), dtype=np.int64)
        kept = _kept(condition, dim, piece)
        pieces.append(DimSelection.of_indices(len(piece), kept - first))
    return DimSelection.of_pieces([before, *pieces, after])


def _kept(condition: Residual, dim: str, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    kept = condition.evaluate({dim: pa.array(positions)}, len(positions))
    mask: NDArray[np.bool_] = kept.to_numpy(zero_copy_only=False)
    return positions[mask]


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
    """Return the value of an expression without columns.

    It has the type of the positions that it is compared with.
    """
    if columns_of(expression):
        return None
    try:
        return evaluate(expression, {})
    except (EvaluationError, pa.ArrowException):
        return None


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
