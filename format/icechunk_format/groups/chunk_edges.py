"""Chooses the edges at which tasks and blocks are cut, and splits selections at chunk edges.

The driver cuts tasks, and executors cut blocks. Both get the same edges, which depend only on the
snapshot and the table.

A block of cells is the product of one pick for each axis, and its chunks are the product of their
chunks. A pick lists only chunks that hold a picked element, so no other chunk is fetched.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.snapshot.file import ManifestFiles
from icechunk_format.grid.axes import ChunkAxis, RegularAxis
from icechunk_format.groups.positions import DimSelection
from icechunk_format.groups.variable import Variable


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


def cut_axes(
    sizes: Mapping[str, int],
    variables: Sequence[Variable],
    lead: Variable | None,
    steps: Sequence[int | None] = (),
) -> list[ChunkAxis]:
    """Return the edges at which boxes may be cut, along each dimension of ``sizes``.

    These are the chunk edges of the leading variable. A dimension that it lacks has the edges of
    the first variable with this dimension, or may be cut anywhere. ``steps`` are lengths of blocks
    that replace them, by dimension; None keeps the edges of chunks.
    """
    found: dict[str, ChunkAxis] = {}
    for variable in ([lead] if lead is not None else []) + list(variables):
        if any(dim not in found for dim in variable.dims):
            for dim, axis in zip(variable.dims, chunk_axes(variable), strict=True):
                found.setdefault(dim, axis)
    axes = [found.get(dim) or RegularAxis(size, 1) for dim, size in sizes.items()]
    for number, step in enumerate(steps):
        if step is not None:
            axes[number] = RegularAxis(axes[number].size, step)
    return axes


def chunk_selections(
    variable: Variable,
    selections: Mapping[str, DimSelection],
    axes: Sequence[ChunkAxis],
    chunks: Mapping[str, tuple[DimSelection, ...]] | None = None,
) -> list[DimSelection]:
    """Return the chunks of an array that hold a selected element, along each axis.

    ``chunks`` restricts them further, as in ``Selection``; the array must be in it.
    """
    chosen = []
    for dim, axis in zip(variable.dims, axes, strict=True):
        selection = selections.get(dim) or DimSelection.whole(axis.size)
        if selection.indices is None:
            first, last = axis.chunk_range(selection.start, selection.stop)
            chosen.append(DimSelection.span(axis.count, first, last))
        else:
            chunk_numbers = axis.chunk_of(selection.indices)
            chosen.append(DimSelection.of_indices(axis.count, chunk_numbers))
    if chunks is not None:
        limits = chunks[variable.path]
        chosen = [one.intersect(limit) for one, limit in zip(chosen, limits, strict=True)]
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AxisPick:
    """Picked elements of one axis.

    Parameters
    ----------
    length
        Number of picked elements.
    chunks
        ``int64 (k,)``: the chunks that hold them, ascending.
    sources
        For each chunk, the offsets of the picked elements in the chunk.
    targets
        For each chunk, the positions of its elements among the picked ones.
    partial
        ``bool (k,)``: True if some elements of the chunk are not picked.
    """

    length: int
    chunks: NDArray[np.int64]
    sources: list[slice | NDArray[np.int64]]
    targets: list[slice]
    partial: NDArray[np.bool_]

    def spread(self) -> NDArray[np.int64]:
        """Return, for each picked element, the index of its chunk in ``chunks``."""
        lengths = [target.stop - target.start for target in self.targets]
        return np.repeat(np.arange(len(lengths)), lengths)


def pick(axis: ChunkAxis, selection: DimSelection) -> AxisPick:
    """Split a selection at the chunk edges of its axis."""
    if selection.count == 0:
        none = np.empty(0, dtype=np.int64)
        return AxisPick(length=0, chunks=none, sources=[], targets=[], partial=none.astype(bool))
    if selection.indices is None:
        first, last = axis.chunk_range(selection.start, selection.stop)
        edges = axis.start_of(np.arange(first, last + 1, dtype=np.int64))
        chunks = np.arange(first, last, dtype=np.int64)
        clipped = np.clip(edges, selection.start, selection.stop)
        ends = (clipped - selection.start).tolist()
        sources: list[slice | NDArray[np.int64]] = [
            slice(low, high)
            for low, high in zip(
                (clipped[:-1] - edges[:-1]).tolist(),
                (clipped[1:] - edges[:-1]).tolist(),
                strict=True,
            )
        ]
        partial = np.diff(clipped) < np.diff(edges)
    else:
        of = axis.chunk_of(selection.indices)
        chunks, firsts = np.unique(of, return_index=True)
        starts = axis.start_of(chunks)
        ends = [*firsts.tolist(), selection.count]
        sources = [
            selection.indices[low:high] - start
            for low, high, start in zip(ends[:-1], ends[1:], starts.tolist(), strict=True)
        ]
        partial = np.diff(ends) < axis.start_of(chunks + 1) - starts
    targets = [slice(low, high) for low, high in itertools.pairwise(ends)]
    return AxisPick(
        length=selection.count,
        chunks=chunks,
        sources=sources,
        targets=targets,
        partial=partial,
    )


def product_coords(picks: Sequence[AxisPick]) -> NDArray[np.int64]:
    """Return the coordinates of all chunks of a block in C order, ``int64 (m, ndim)``."""
    counts = [len(p.chunks) for p in picks]
    if not counts:
        # A scalar is one chunk without coordinates.
        return np.empty((1, 0), dtype=np.int64)
    index = np.indices(counts).reshape(len(counts), -1)
    coords = np.empty((index.shape[1], len(counts)), dtype=np.int64)
    for axis, p in enumerate(picks):
        coords[:, axis] = p.chunks[index[axis]]
    return coords


def any_partial(picks: Sequence[AxisPick]) -> NDArray[np.bool_]:
    """Return a mask of the chunks of a block, in C order, of which some cells are not picked."""
    partial = np.zeros((), dtype=bool)
    for p in picks:
        partial = partial[..., None] | p.partial
    return np.asarray(partial).reshape(-1)
