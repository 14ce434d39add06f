"""Chooses the variable at whose chunk edges tasks and blocks are cut.

The driver cuts tasks, and executors cut blocks. Both get the same edges, which depend only on the
snapshot and the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.table.table import Table
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.grid.axes import ChunkAxis, RegularAxis
from icechunk_format.spec.snapshot.file import ManifestFiles


def leading_variable(
    variables: Sequence[Variable], manifest_files: ManifestFiles
) -> Variable | None:
    """Return the variable with the most chunk references; among equals, the most dimensions.

    References of a manifest shared by several arrays count for each of them.
    """
    if not variables:
        return None
    counts = [int(manifest_files.counts_of(v.array.manifests.ids).sum()) for v in variables]
    ranks = [(count, len(v.dims)) for count, v in zip(counts, variables, strict=True)]
    return variables[ranks.index(max(ranks))]


def chunk_axes(variable: Variable) -> tuple[ChunkAxis, ...]:
    """Return the chunk axes of an array; of a sharded one, those of its inner chunks."""
    return variable.codecs.chunk_axes(variable.metadata.grid)


def chunk_cells(axes: Sequence[ChunkAxis]) -> int:
    """Return the number of cells of a chunk; for a rectilinear grid, of an average chunk."""
    cells = 1
    for axis in axes:
        cells *= axis.step if axis.edges is None else max(1, axis.size // max(1, axis.count))
    return cells


def cut_axes(table: Table, variables: Sequence[Variable], lead: Variable | None) -> list[ChunkAxis]:
    """Return the edges at which boxes of a table may be cut, along each of its dimensions.

    These are the chunk edges of the leading variable. A dimension that it lacks has the edges of
    the first variable with this dimension, or may be cut anywhere.
    """
    found: dict[str, ChunkAxis] = {}
    for variable in ([lead] if lead is not None else []) + list(variables):
        if any(dim not in found for dim in variable.dims):
            for dim, axis in zip(variable.dims, chunk_axes(variable), strict=True):
                found.setdefault(dim, axis)
    return [
        found.get(dim) or RegularAxis(size, 1)
        for dim, size in zip(table.dims, table.sizes, strict=True)
    ]


def block_axes(
    table: Table, variables: Sequence[Variable], lead: Variable | None
) -> list[ChunkAxis]:
    """Return the block edges of the layout ``summary``: the option ``block``, or chunk edges."""
    axes = cut_axes(table, variables, lead)
    if not table.block:
        return axes
    return [
        axis if step is None else RegularAxis(axis.size, step)
        for axis, step in zip(axes, table.block, strict=True)
    ]


def chunk_selections(
    variable: Variable, selections: Mapping[str, DimSelection], axes: Sequence[ChunkAxis]
) -> list[DimSelection]:
    """Return the chunks of an array that hold a selected element, along each axis."""
    chosen = []
    for dim, axis in zip(variable.dims, axes, strict=True):
        selection = selections.get(dim) or DimSelection.whole(axis.size)
        if selection.indices is None:
            first, last = axis.chunk_range(selection.start, selection.stop)
            chosen.append(DimSelection.span(axis.count, first, last))
        else:
            chunks = axis.chunk_of(selection.indices)
            chosen.append(DimSelection.of_indices(axis.count, chunks))
    return chosen
