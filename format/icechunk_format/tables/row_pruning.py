"""Selects rows of the layouts ``chunks``, ``refs`` and ``summary`` by conditions on their columns.

===========  ==========================================  =======================================
layout       conditions that select                      what they select
===========  ==========================================  =======================================
``chunks``   ``array``, ``dtype``, elements of           arrays, and chunks along each axis
             ``chunk``, ``start``, ``shape``
``refs``     ``array``, elements of ``chunk``            the same
``summary``  ``<d>_first``, ``<d>_last``                 blocks along the dimension
===========  ==========================================  =======================================

Rules of this file
------------------
1. As in ``selection.pruning``, an engine evaluates the conditions again.
2. Other conditions become a condition on rows (``Pruned.rows``), which drops rows before they leave
   a task, but fetches the same chunks.
3. A condition on an element that an array's lists do not have selects nothing of this array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import IcechunkError
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.groups import (
    DimSelection,
    Variable,
    chunk_axes,
    chunk_selections,
    cut_axes,
    leading_variable,
)
from icechunk_format.tables.dataset import Dataset
from icechunk_format.tables.reading.scan import ScanTask, box_of_part
from icechunk_format.tables.selection.elements import element_of, length_of
from icechunk_format.tables.selection.pruning import Pruned, condition_on_rows, held, plan_conjunct
from icechunk_format.tables.selection.select import Selection
from icechunk_format.tables.selection.where.condition import Residual
from icechunk_format.tables.table.table import LAYOUTS, Layout, Table, data_type_name

_LISTS: Final[Mapping[Layout, tuple[str, ...]]] = {
    "chunks": ("chunk", "start", "shape"),
    "refs": ("chunk",),
}
# Chunks along an axis, and selected positions, for which conditions are evaluated.
_MOST_POSITIONS: Final = 10_000_000


def prune_rows(
    conjuncts: Sequence[str], base: Selection, dataset: Dataset, table: Table, time_zone: str
) -> Pruned:
    """Restrict a selection by conditions in SQL on the columns of a layout without cells."""
    lists = _LISTS.get(table.layout, ())
    types = {column.name: column.arrow_type for column in table.columns}
    if lists:
        positional = {"array", "dtype", *map(length_of, lists)} & {*types, *map(length_of, lists)}
    else:
        positional = {c.name for c in table.columns if c.statistic in ("first", "last")}
    chosen: dict[str, list[Residual]] = {}
    used: list[str] = []
    rest: list[str] = []
    for sql in conjuncts:
        try:
            planned = plan_conjunct(sql, types, positional, time_zone, lists)
        except IcechunkError:
            rest.append(sql)
            continue
        if planned.never:
            nothing = {name: DimSelection.empty(size) for name, size in table.sizes_by_dim.items()}
            chunks: dict[str, tuple[DimSelection, ...]] | None = {} if lists else None
            return Pruned(selection=replace(base, dims=nothing, chunks=chunks), used=(sql,))
        if planned.dimension_conditions:
            used.append(sql)
        if planned.residual is not None:
            rest.append(sql)
        for name, condition in planned.dimension_conditions.items():
            chosen.setdefault(name, []).append(condition)
    of_rows = condition_on_rows(rest, types, time_zone)
    selection, is_exact = (_chunks if lists else _blocks)(base, dataset, table, chosen)
    return Pruned(
        selection=selection,
        used=tuple(sql for sql in conjuncts if sql in used or sql in of_rows.used),
        left=tuple((sql, reason) for sql, reason in of_rows.left if sql not in used),
        is_exact=is_exact and not rest,
        is_total=is_exact and of_rows.is_total,
        rows=of_rows.rows,
    )


def rows_of_selection(
    dataset: Dataset, table: Table, selection: Selection, *, skip_missing: bool
) -> int | None:
    """Return the number of rows of a selection, if it follows from the metadata."""
    if skip_missing or selection.residual is not None:
        return None
    if table.layout == "cells":
        return math.prod(one.count for one in table.selections(selection.dims))
    if table.layout == "summary":
        chosen = zip(_block_axes(dataset, table), table.selections(selection.dims), strict=True)
        return math.prod(_count_of_blocks(axis, one) for axis, one in chosen)
    if table.layout == "refs" or not table.decoded:
        return None
    rows = 0
    for variable in _variables(dataset, table):
        if selection.chunks is None or variable.path in selection.chunks:
            axes = chunk_axes(variable)
            along = chunk_selections(variable, selection.dims, axes, selection.chunks)
            rows += math.prod(one.count for one in along)
    return rows


def blocks_of_tasks(
    dataset: Dataset, table: Table, selection: Selection, tasks: Iterable[ScanTask]
) -> Iterator[int]:
    """Yield the number of blocks of each task of a summary whose cells all count."""
    axes, chosen = _block_axes(dataset, table), table.selections(selection.dims)
    for task in tasks:
        boxes = (box_of_part(part, chosen) for part in task.parts)
        yield sum(math.prod(map(_count_of_blocks, axes, box)) for box in boxes)


def _variables(dataset: Dataset, table: Table) -> list[Variable]:
    by_path = {variable.path: variable for variable in dataset.variables.values()}
    return [by_path[path] for path in table.arrays]


# -- chunks and references ------------------------------------------------------------------


def _chunks(
    base: Selection, dataset: Dataset, table: Table, chosen: Mapping[str, Sequence[Residual]]
) -> tuple[Selection, bool]:
    """Return the selection with arrays and chunks along their axes, and whether it is exact."""
    if not chosen:
        return base, True
    variables = _variables(dataset, table)
    lists = _LISTS[table.layout]
    facts: dict[str, Callable[[], pa.Array]] = {
        "array": lambda: pa.array([v.path for v in variables], pa.string()),
        "dtype": lambda: pa.array([data_type_name(v.metadata.data_type) for v in variables]),
    }
    for name in lists:
        facts[length_of(name)] = lambda: pa.array([len(v.dims) for v in variables], pa.int64())
    kept = np.ones(len(variables), dtype=bool)
    is_exact = True
    for name in facts.keys() & chosen.keys():
        mask, is_sure = held(chosen[name], name, facts[name]())
        kept &= mask
        is_exact = is_exact and is_sure
    found = {}
    for number in np.flatnonzero(kept).tolist():
        variable = variables[number]
        grid = variable.metadata.grid.axes
        axes = grid if table.layout == "refs" else chunk_axes(variable)
        along = [DimSelection.whole(axis.count) for axis in axes]
        known = {element_of(name, i): (name, i) for i in range(len(axes)) for name in lists}
        for name in chosen.keys() - facts.keys():
            list_name, i = known.get(name, ("", -1))
            if i < 0 or axes[i].count > _MOST_POSITIONS:
                is_exact = False
                continue
            values = pa.array(_element(list_name, axes[i]))
            mask, is_sure = held(chosen[name], name, values)
            along[i] = along[i].intersect(DimSelection.of_mask(mask))
            is_exact = is_exact and is_sure
        if all(one.count for one in along):
            found[variable.path] = tuple(along)
    return replace(base, chunks=found), is_exact


def _element(name: str, axis: ChunkAxis) -> NDArray[np.int64]:
    """Return an element of a list column for each chunk along an axis."""
    chunks = np.arange(axis.count + 1, dtype=np.int64)
    if name == "chunk":
        return chunks[:-1]
    starts = axis.start_of(chunks)
    return starts[:-1] if name == "start" else np.diff(starts)


# -- blocks ---------------------------------------------------------------------------------


def _blocks(
    base: Selection, dataset: Dataset, table: Table, chosen: Mapping[str, Sequence[Residual]]
) -> tuple[Selection, bool]:
    """Return the selection with some blocks along dimensions, and whether it is exact."""
    if not chosen:
        return base, True
    labels = cache(lambda dim: dataset.labels(table, dim))
    axes = dict(zip(table.dims, _block_axes(dataset, table), strict=True))
    before = dict(zip(table.dims, table.selections(base.dims), strict=True))
    dims, is_exact = dict(base.dims), True
    for name, conditions in chosen.items():
        column = table.column(name)
        dim, selection = column.source, before[column.source]
        if selection.count > _MOST_POSITIONS:
            is_exact = False
            continue
        starts, positions = _blocks_along(axes[dim], selection)
        ends = np.append(starts[1:], len(positions))
        at = positions[starts] if column.statistic == "first" else positions[ends - 1]
        values = labels(dim).take(pa.array(at))
        mask, is_sure = held(conditions, name, values)
        kept = positions[np.repeat(mask, ends - starts)]
        found = DimSelection.of_indices(selection.size, kept)
        dims[dim] = found.intersect(dims.get(dim, selection))
        is_exact = is_exact and is_sure
    return replace(base, dims=dims), is_exact


def _block_axes(dataset: Dataset, table: Table) -> list[ChunkAxis]:
    assert not LAYOUTS[table.layout].fields
    variables = _variables(dataset, table)
    lead = leading_variable(variables, dataset.snapshot.manifest_files)
    return cut_axes(table.sizes_by_dim, variables, lead, table.block)


def _count_of_blocks(axis: ChunkAxis, selection: DimSelection) -> int:
    if selection.indices is None:
        # A dimension may be too long for a list of positions.
        first, last = axis.chunk_range(selection.start, selection.stop)
        return last - first
    return len(_blocks_along(axis, selection)[0])


def _blocks_along(
    axis: ChunkAxis, selection: DimSelection
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where blocks start among the selected positions, and these positions."""
    positions = selection.positions()
    numbers = axis.chunk_of(positions)
    is_first = np.ones(len(numbers), dtype=bool)
    is_first[1:] = numbers[1:] != numbers[:-1]
    return np.flatnonzero(is_first), positions
