"""Plans a scan: decides which task reads which boxes of which arrays.

Rules of this file
------------------
1. The driver opens no manifest of a data variable: the snapshot records the extents of each
   manifest and its number of references.
2. The variable with the most references leads. Tasks follow its manifests and are cut at its
   (inner) chunks; the other variables of the table are read in the same boxes.
3. Every selected cell, chunk or reference is in exactly one task.
4. ``summary`` widens extents to whole blocks, so that the cells of a block are in one task.
   ``chunks`` and ``refs`` are planned array by array, and small arrays share tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from icechunk_format.encoding.snapshot.file import ManifestFiles
from icechunk_format.grid.axes import ChunkAxis, RegularAxis, chunk_ranges
from icechunk_format.grid.cover import Boxes
from icechunk_format.groups import (
    DimSelection,
    Variable,
    chunk_axes,
    chunk_cells,
    chunk_selections,
    cut_axes,
    leading_variable,
)
from icechunk_format.tables.reading.scan import ScanTask
from icechunk_format.tables.reading.task_cutting import (
    CHUNK_COST_IN_ROWS,
    DEFAULT_ROWS_PER_PARTITION,
    MAX_DEFAULT_TASKS,
    Cuts,
    cut,
    group,
    rows_of_task,
    selected_rows,
)
from icechunk_format.tables.table.table import Layout, Table

# Decoded bytes that one task of the layout ``chunks`` reads.
CHUNKS_TASK_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Arguments of ``plan_scan``."""

    table: Table
    variables: tuple[Variable, ...]
    """In the order of ``table.arrays``."""
    selections: Mapping[str, DimSelection]
    """Selected positions by dimension; an absent dimension is selected whole."""
    manifest_files: ManifestFiles
    rows_per_partition: int | None = None
    skip_missing: bool = False
    """Leave out cells whose chunks are all missing."""
    only: Mapping[str, Boxes] | None = None
    """Boxes to which the scan is limited, or None: see ``Dataset.plan``."""
    usual_rows: int = DEFAULT_ROWS_PER_PARTITION
    """Target number of rows of a task if ``rows_per_partition`` is None."""
    chunks: Mapping[str, tuple[DimSelection, ...]] | None = None
    """Selected chunks by the path of an array, as in ``Selection``."""

    def leaves_out(self, variable: Variable) -> bool:
        """Return True if no chunk of an array is selected."""
        return self.chunks is not None and variable.path not in self.chunks


def plan_scan(request: PlanRequest) -> list[ScanTask]:
    """Return the tasks of a scan; an empty list if nothing is selected."""
    return PLAN_BY_LAYOUT[request.table.layout](request)


def _plan_cells(request: PlanRequest) -> list[ScanTask]:
    """Cut the selected cells of the table along chunks, or along the blocks of a summary."""
    table, variables = request.table, request.variables
    lead = leading_variable(variables, request.manifest_files)
    axes = cut_axes(table.sizes_by_dim, variables, lead, table.block)

    def extents_of(variable: Variable | None) -> Boxes:
        extents = _element_extents(variable, table)
        return _widened(extents, axes) if table.layout == "summary" else extents

    selections = table.selections(request.selections)
    task_rows = rows_of_task(
        selected_rows(selections),
        request.rows_per_partition,
        chunk_rows=CHUNK_COST_IN_ROWS if lead is None else chunk_cells(chunk_axes(lead)),
        usual_rows=request.usual_rows,
    )
    is_limited = request.only is not None
    skips = request.skip_missing and not is_limited
    others = [v for v in variables if v is not lead] if skips else []
    cuts = cut(
        selections=selections,
        extents=extents_of(lead) if request.only is None else request.only[""],
        axes=axes,
        task_rows=task_rows,
        skip_uncovered=request.skip_missing or is_limited,
        also_stored=[extents_of(variable) for variable in others],
    )
    return group(cuts, task_rows)


def _plan_chunks(request: PlanRequest) -> list[ScanTask]:
    # Sharded arrays are cut between inner chunks.
    parts: list[tuple[Cuts, int]] = []
    only_stored = request.skip_missing or not request.table.decoded or request.only is not None
    for variable in request.variables:
        if request.leaves_out(variable):
            parts.append((_no_cuts(variable), 1))
            continue
        axes = chunk_axes(variable)
        selections = chunk_selections(variable, request.selections, axes, request.chunks)
        item = max(1, variable.metadata.data_type.numpy.itemsize)
        task_rows = max(1, CHUNKS_TASK_BYTES // (item * chunk_cells(axes)))
        # The smallest target for which a plan stays below the default limit of tasks.
        least = -(-selected_rows(selections) * 4 // MAX_DEFAULT_TASKS)
        if request.rows_per_partition is not None:
            task_rows = least = request.rows_per_partition
        cuts = cut(
            selections=selections,
            extents=chunk_extents(variable, axes)
            if request.only is None
            else request.only[variable.path],
            axes=[RegularAxis(s.size, 1) for s in selections],
            task_rows=max(task_rows, least),
            skip_uncovered=only_stored,
        )
        parts.append((cuts, task_rows))
    return _joined_tasks(parts)


def _plan_refs(request: PlanRequest) -> list[ScanTask]:
    parts: list[tuple[Cuts, int]] = []
    for variable in request.variables:
        if request.leaves_out(variable):
            parts.append((_no_cuts(variable), 1))
            continue
        axes = variable.metadata.grid.axes
        selections = chunk_selections(variable, request.selections, axes, request.chunks)
        task_rows = rows_of_task(selected_rows(selections), request.rows_per_partition)
        extents = variable.array.manifests.extents.astype(np.int64)
        if request.only is not None:
            extents = request.only[variable.path]
        # Extents of sparse arrays cover far more chunks than exist, so count references.
        covered = float(np.prod(extents[:, :, 1] - extents[:, :, 0], axis=1).sum())
        counts = request.manifest_files.counts_of(variable.array.manifests.ids)
        references = float(counts.sum())
        if references > 0:
            task_rows = int(task_rows * max(1.0, covered / references))
        cuts = cut(
            selections=selections,
            extents=extents,
            axes=[RegularAxis(s.size, 1) for s in selections],
            task_rows=task_rows,
            skip_uncovered=True,
        )
        parts.append((cuts, task_rows))
    return _joined_tasks(parts)


PLAN_BY_LAYOUT: Final[Mapping[Layout, Callable[[PlanRequest], list[ScanTask]]]] = {
    "cells": _plan_cells,
    "chunks": _plan_chunks,
    "refs": _plan_refs,
    "summary": _plan_cells,
}


def _element_extents(variable: Variable | None, table: Table) -> Boxes:
    """Return the extents of an array's manifests in elements of the table's dimensions."""
    if variable is None:
        return np.empty((0, len(table.dims), 2), dtype=np.int64)
    stored = variable.array.manifests.extents.astype(np.int64)
    extents = np.empty((len(stored), len(table.dims), 2), dtype=np.int64)
    extents[:, :, 0], extents[:, :, 1] = 0, np.array(table.sizes, dtype=np.int64)
    for number, axis in enumerate(variable.metadata.grid.axes):
        dim = table.dims.index(variable.dims[number])
        extents[:, dim] = axis.start_of(np.minimum(stored[:, number], axis.count))
    return extents


def chunk_extents(variable: Variable, axes: Sequence[ChunkAxis]) -> Boxes:
    """Return the extents of an array's manifests in (inner) chunks."""
    stored = variable.array.manifests.extents.astype(np.int64)
    extents = np.empty_like(stored)
    for number, (outer, axis) in enumerate(zip(variable.metadata.grid.axes, axes, strict=True)):
        elements = outer.start_of(np.minimum(stored[:, number], outer.count))
        extents[:, number] = chunk_ranges(axis, elements)
    return extents


def _widened(extents: Boxes, axes: Sequence[ChunkAxis]) -> Boxes:
    """Widen extents to whole blocks."""
    widened = np.empty_like(extents)
    for number, axis in enumerate(axes):
        widened[:, number] = axis.start_of(chunk_ranges(axis, extents[:, number]))
    return widened


def _no_cuts(variable: Variable) -> Cuts:
    ndim = len(variable.dims)
    return Cuts(boxes=np.empty((0, ndim, 2), dtype=np.int64), rows=np.empty(0, dtype=np.int64))


def _joined_tasks(parts: Sequence[tuple[Cuts, int]]) -> list[ScanTask]:
    """Make tasks from the boxes of several arrays; small arrays of one rank share tasks."""
    tasks: list[ScanTask] = []
    ranks = sorted({cuts.boxes.shape[1] for cuts, _ in parts})
    for rank in ranks:
        chosen = [
            (number, cuts, task_rows)
            for number, (cuts, task_rows) in enumerate(parts)
            if cuts.boxes.shape[1] == rank and len(cuts.rows)
        ]
        if not chosen:
            continue
        # Rows of all arrays are scaled to one target, at which a task is full.
        common = max(task_rows for _, _, task_rows in chosen)
        scaled = [np.maximum(1, cuts.rows * (common / task_rows)) for _, cuts, task_rows in chosen]
        rows = np.concatenate([cuts.rows for _, cuts, _ in chosen])
        together = Cuts(
            boxes=np.concatenate([cuts.boxes for _, cuts, _ in chosen]),
            rows=np.concatenate(scaled).astype(np.int64),
        )
        owner = np.concatenate(
            [np.full(len(cuts.rows), number, dtype=np.int64) for number, cuts, _ in chosen]
        )
        tasks += group(together, common, owner, counted=rows)
    return tasks
