"""Resolves the options ``where``, ``sel`` and ``isel`` into one selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DimSelection

if TYPE_CHECKING:
    from icechunk_format.tables.selection.where.condition import Residual


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selected positions of dimensions, and the condition that executors evaluate on rows.

    A dimension that is absent from ``dims`` is selected whole. In the layouts ``chunks`` and
    ``refs``, ``chunks`` restricts the arrays to those with a path in it, and each to some (inner)
    chunks along its axes; None does not.
    """

    dims: dict[str, DimSelection]
    residual: Residual | None = None
    chunks: Mapping[str, tuple[DimSelection, ...]] | None = None


class Selecting(TypedDict, total=False):
    """The keywords of ``select`` that select by labels, positions and conditions."""

    where: str | None
    sel: str | Mapping[str, Any] | None
    isel: str | Mapping[str, Any] | None
    sel_method: str | None
    time_zone: str | None
    exactly: bool


def select(
    *,
    dims: Mapping[str, int],
    columns: Mapping[str, pa.DataType],
    coordinate: Callable[[str], pa.Array | range],
    where: str | None = None,
    sel: str | Mapping[str, Any] | None = None,
    isel: str | Mapping[str, Any] | None = None,
    sel_method: str | None = None,
    time_zone: str | None = "UTC",
    exactly: bool = False,
) -> Selection:
    """Resolve ``where``, ``sel`` and ``isel`` into one selection.

    Parameters
    ----------
    dims
        Length of each dimension of the table.
    columns
        Types of all columns that ``where`` may name, dimensions included.
    coordinate
        Returns the decoded values of a dimension, or the range of its positions if it has no
        labels. Called once for each dimension that a condition names.
    time_zone
        The zone of timestamps without a time zone, as for ``plan_where``.
    exactly
        True if numbers in ``sel`` are not rounded to a ``float32`` that is another number.
    """
    if sel is None and sel_method not in (None, "exact"):
        raise InvalidInputError(
            "sel.method is given without sel; leave it out, or give sel", option="sel.method"
        )
    values = cache(coordinate)
    found: list[tuple[str, DimSelection]] = []
    residual = None
    # Imported here because most reads select nothing.
    if sel is not None or isel is not None:
        from icechunk_format.tables.selection.sel_isel import combined_selection

        given = {"sel": sel, "isel": isel}
        both = combined_selection(dims, values, method=sel_method, exactly=exactly, **given)
        found += both.items()
    if where is not None:
        from icechunk_format.tables.selection.where.split import plan_where
        from icechunk_format.tables.selection.where.unlabelled import selected as selected_by

        planned = plan_where(where, columns, dims.keys(), time_zone)
        residual = planned.residual
        if planned.never:
            found += ((name, DimSelection.empty(size)) for name, size in dims.items())
        else:
            found += (
                (name, selected_by(condition, name, values(name)))
                for name, condition in planned.dimension_conditions.items()
            )
    selected: dict[str, DimSelection] = {}
    for name, selection in found:
        selected[name] = selection.intersect(selected.get(name, DimSelection.whole(dims[name])))
    return Selection(dims=selected, residual=residual)
