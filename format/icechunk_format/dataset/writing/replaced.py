"""Finds the region that the option ``replaceWhere`` selects.

Rules of this file
------------------
1. The condition consists of conditions on single dimensions, joined by AND, so it selects positions
   along each.
2. Every label of the rows must satisfy the condition; otherwise nothing is written.
3. Tasks replace the region in chunks with rows; ``regions`` makes its other cells missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.selection.where.condition import Residual
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.prepare import ExistingArray, PreparedWrite
from icechunk_format.display.plain_text import counted
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_format.dataset.writing.dimensions import DimensionIndices


def replaced_region(
    prepared: PreparedWrite, dimensions: DimensionIndices, time_zone: str
) -> dict[str, DimSelection] | None:
    """Return the old positions that the write replaces, by restricted dimension.

    Returns None without the option ``replaceWhere``.

    Raises
    ------
    InvalidInputError
        The condition is not on dimensions only, or a row does not satisfy it.
    """
    where = prepared.options.replace_where
    if where is None:
        return None
    region: dict[str, DimSelection] = {}
    kinds = {dim: dimensions.values[dim].type for dim in prepared.dims}
    stored = {dim: _old_labels(prepared, dimensions, dim) for dim in prepared.dims}
    for dim, condition in _conditions(where, kinds, prepared, time_zone).items():
        values = dimensions.values[dim]
        inside = condition.evaluate({dim: values}, len(values)).to_numpy(zero_copy_only=False)
        if not inside.all():
            first = values[int(np.argmin(inside))].as_py()
            raise InvalidInputError(
                f"replaceWhere={where!r} leaves out {counted(int((~inside).sum()), 'label')} of"
                f" {dim!r} with rows, such as {dim}={first}; filter the rows with df.where, or"
                " widen the condition",
                option="replaceWhere",
                dim=dim,
                label=str(first),
            )
    kinds = {dim: labels.type for dim, labels in stored.items()}
    for dim, condition in _conditions(where, kinds, prepared, time_zone).items():
        labels = stored[dim]
        kept = condition.evaluate({dim: labels}, len(labels))
        region[dim] = DimSelection.of_mask(kept.to_numpy(zero_copy_only=False))
    return region


def _conditions(
    where: str, kinds: Mapping[str, pa.DataType], prepared: PreparedWrite, time_zone: str
) -> dict[str, Residual]:
    # Imported here since sqlglot is slow to import and most writes have no condition.
    from icechunk_format.dataset.selection.where.split import plan_where

    columns = {name: column.arrow_type for name, column in prepared.columns.items()}
    planned = plan_where(where, {**columns, **kinds}, kinds.keys(), time_zone)
    if planned.residual is not None or planned.never or not planned.dimension_conditions:
        raise InvalidInputError(
            f"replaceWhere={where!r} does not select positions along dimensions; write conditions"
            f" on {', '.join(kinds)}, each on one of them, joined by AND",
            option="replaceWhere",
            where=where,
        )
    return planned.dimension_conditions


def _old_labels(prepared: PreparedWrite, dimensions: DimensionIndices, dim: str) -> pa.Array:
    target = prepared.targets.get(dim)
    if target is None:
        return pa.array(np.arange(dimensions.indexed[dim].old_size))
    decoder = target.encoder.decoder
    if isinstance(target, ExistingArray):
        return decoder.decode(dimensions.old_labels[dim])
    return pa.array([], decoder.arrow_type)


def region_of_array(
    variable: Variable, region: Mapping[str, DimSelection]
) -> tuple[DimSelection, ...] | None:
    """Return the positions along each axis; None if the array lacks a restricted dimension."""
    if not set(region) <= set(variable.dims):
        return None
    sizes = zip(variable.dims, variable.shape, strict=True)
    return tuple(region.get(dim, DimSelection.whole(size)) for dim, size in sizes)
