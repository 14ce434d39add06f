"""Describes the columns of the result for datasets: roles, attributes and the order of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from icechunk_format.tables import Table
    from icechunk_format.workflows.zonal.plan import ZonalContext

# Counts have no unit, and sums another one if cells are weighted.
_WITHOUT_UNIT = ("count", "sum")


def described_fields(
    context: ZonalContext, table: Table
) -> list[tuple[pa.Field, Literal["dimension", "value"], dict[str, Any]]]:
    """Return each field after the keys, its role, and what describes its values or labels.

    `table` is that of the context with the metadata of its columns, which tasks do not need.
    """
    described = {
        column.source: {
            key: column.metadata[key]
            for key in ("attributes", "encoding", "order")
            if key in column.metadata
        }
        for column in table.columns
    }
    others = [context.scan.table.dims[dim] for dim in context.others]
    statistics = context.request.statistics
    values = [
        {} if statistic in _WITHOUT_UNIT else described.get(column.source, {})
        for column in context.variables
        for statistic in statistics
    ]
    fields = context.result_fields()
    roles: list[Literal["dimension", "value"]] = ["dimension"] * len(others)
    roles += ["value"] * len(values)
    metadata = [*(described.get(name, {}) for name in others), *values]
    return list(zip(fields, roles, metadata, strict=True))
