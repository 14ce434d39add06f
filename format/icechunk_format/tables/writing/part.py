"""Defines ``WritePart``, the context of the tasks of a write of rows.

It is pickled, so it holds no connection, and its size does not grow with the number of chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icechunk_format.groups import DimSelection
from icechunk_format.groups.changing import ArrayTarget, Destination

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_format.tables.cf.encode import VariableEncoder
    from icechunk_format.tables.writing.cell_numbers import CellNumbers

UNIT = "_unit"
BLOCK = "_block"
"""Columns with the unit number and the block number of a row, in the layouts of chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget(ArrayTarget):
    """An array that rows are written to."""

    encoder: VariableEncoder | None = None
    """Encodes the column; None in the layouts of chunks."""
    region: tuple[DimSelection, ...] | None = None
    """Old positions along each axis that ``replaceWhere`` selects; cells without a row become
    missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePart:
    """The context of the tasks of arrays that are written together."""

    destination: Destination
    number: int
    dims: tuple[str, ...]
    arrays: tuple[WriteTarget, ...]
    units: int
    """Number of units; one task writes all rows of a unit."""
    input_schema: pa.Schema
    """The schema of the batches that tasks take."""
    numbers: CellNumbers | None = None
    """None in the layouts of chunks."""
    table_dims: tuple[str, ...] = ()
    """All dimensions of the write."""
    labels: Mapping[str, pa.Array] = field(default_factory=dict)
    """Labels by dimension for messages, without very long dimensions."""
    decoded: bool = True
    """In the layout ``chunks``: True if data are values."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(array.name for array in self.arrays)

    @property
    def is_distinct(self) -> bool:
        """True if rows repeat along other dimensions of the table, and must be made distinct."""
        return len(self.dims) < len(self.table_dims)

    def cell(self, indices: Mapping[str, int]) -> str:
        """Return the labels of a cell, such as ``time=2024-01-01, x[7]``, for messages."""
        parts = []
        for dim, index in indices.items():
            labels = self.labels.get(dim)
            if labels is None or index >= len(labels):
                parts.append(f"{dim}[{index}]")
            else:
                parts.append(f"{dim}={labels[index].as_py()}")
        return ", ".join(parts)
