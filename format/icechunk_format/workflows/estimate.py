"""Estimates the cost of a read before it runs, from manifests or from recorded counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from icechunk_format.display import shown_by
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import (
    Variable,
    chunk_axes,
    chunk_cells,
    chunk_selections,
    cut_axes,
    leading_variable,
)
from icechunk_format.options.read import ReadRequest
from icechunk_format.tables import (
    Dataset,
    Table,
    chunk_extents,
    requested_dataset,
    requested_scan,
    requested_table,
)
from icechunk_format.tables.reading import ReadCost, ScanPlan, summed, task_cost
from icechunk_format.workflows.running import Run, in_process


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The cost of a read.

    Snapshots, manifests and labels of dimensions are not counted: each Spark process reads them
    once and caches them.

    Attributes
    ----------
    partitions
        Number of Spark tasks.
    chunks
        Number of chunks to fetch and decode; for sharded arrays, inner chunks. A chunk shared by
        two tasks counts twice.
    stored_bytes
        Bytes to fetch: stored chunks, shards or parts of shards, and shard indexes; for metadata
        tables, manifests. None for chunks if the estimate is not exact, because only manifests
        record lengths.
    decoded_bytes
        Bytes of decoded chunks.
    requests
        Number of storage requests for chunks; for metadata tables, for manifests. Adjacent ranges
        of one object are one request, a large range is several requests, and inline chunks need no
        request.
    cells
        Number of selected cells of the table; for ``layout=chunks``, elements of the chunks.
    rows
        Number of rows, before a condition on values.
    is_exact
        True if manifests were read.
    """

    partitions: int
    chunks: int
    stored_bytes: int | None
    decoded_bytes: int
    requests: int
    cells: int
    rows: int
    is_exact: bool


def estimate_read(
    options: ReadRequest,
    *,
    run: Run = in_process,
    exact: bool = True,
    time_zone: str | None = None,
) -> Estimate:
    """Return the estimated cost of a read with these options.

    Parameters
    ----------
    run
        Runs the tasks that read manifests.
    exact
        If False, chunks are estimated from the snapshot, without opening manifests of variables.
    time_zone
        The zone of times in ``where``; UTC by default.

    Raises
    ------
    InvalidInputError
        An option is invalid, or ``changesSince`` is combined with ``exact=False``.
    UnauthorizedVirtualChunkError
        A virtual chunk is outside of every authorized prefix.
    NotFoundError
        The repository, the snapshot, the group or a variable does not exist.
    """
    if options.table is not None:
        return _of_metadata(options, run, exact)
    dataset = requested_dataset(options)
    table = requested_table(options, dataset)
    if options.changes_since is not None:
        return _of_changes(options, dataset, table, run, exact, time_zone)
    plan = requested_scan(options, dataset, table, time_zone=time_zone)
    if exact:
        cost = summed(run(partial(task_cost, plan.context), plan.tasks))
    else:
        cost = _counted_from_snapshot(dataset, plan)
    return _estimate(len(plan.tasks), cost, exact)


def _estimate(partitions: int, cost: ReadCost, exact: bool) -> Estimate:
    return Estimate(
        partitions=partitions,
        chunks=cost.chunks,
        stored_bytes=cost.stored_bytes if exact else None,
        decoded_bytes=cost.decoded_bytes,
        requests=cost.requests,
        cells=cost.cells,
        rows=cost.rows,
        is_exact=exact,
    )


def _of_metadata(options: ReadRequest, run: Run, exact: bool) -> Estimate:
    from icechunk_format.tables import (
        cost_of_snapshot,
        inspection_cost,
        requested_inspection,
        resolve_snapshots,
    )

    plan = requested_inspection(options, resolve_snapshots(options))
    if not exact and plan.context.table == "chunks":
        cost = cost_of_snapshot(plan)
    else:
        cost = summed(run(partial(inspection_cost, plan.context), plan.tasks))
    return replace(_estimate(len(plan.tasks), cost, exact), stored_bytes=cost.stored_bytes)


def _of_changes(
    options: ReadRequest,
    dataset: Dataset,
    table: Table,
    run: Run,
    exact: bool,
    time_zone: str | None,
) -> Estimate:
    from icechunk_format.workflows.changes import change_cost, plan_changes_since, resolve_since

    if not exact:
        raise InvalidInputError(
            f"an estimate with changesSince={options.changes_since} needs manifests, which alone"
            " record which of the changed chunks exist: leave out exact=False (--no-exact)",
            option="exact",
        )
    plan = plan_changes_since(
        options,
        str(dataset.snapshot_id),
        table,
        [column.name for column in table.columns],
        resolve_since(options),
        time_zone,
    )
    return _estimate(len(plan.tasks), summed(run(partial(change_cost, None), plan.tasks)), True)


def _counted_from_snapshot(dataset: Dataset, plan: ScanPlan) -> ReadCost:
    """Estimate the cost, assuming that a manifest's chunks are spread evenly over its extents."""
    table, cost = plan.context.table, ReadCost()
    by_path = {variable.path: variable for variable in dataset.variables.values()}
    arrays = [by_path[path] for path in table.arrays]
    if table.layout == "chunks":
        read = arrays if any(c.source == "data" for c in table.columns) else []
    elif table.layout == "refs":
        read = []
    else:
        columns = table.needed(plan.context.residual)
        read = [by_path[c.path] for c in columns if c.path and c.role != "dimension"]
    for variable in read:
        chunks = _expected_chunks(dataset, plan, variable)
        item_bytes = variable.metadata.data_type.item_bytes
        cost.chunks += chunks
        cost.decoded_bytes += chunks * chunk_cells(chunk_axes(variable)) * item_bytes
    cost.requests = cost.chunks
    cost.cells = cost.rows = plan.rows
    if table.layout == "summary":
        selections = table.selections(plan.context.selections)
        axes = cut_axes(
            table.sizes_by_dim,
            arrays,
            leading_variable(arrays, dataset.snapshot.manifest_files),
            table.block,
        )
        cost.rows = math.prod(
            one.count_chunks(axis) for axis, one in zip(axes, selections, strict=True)
        )
    elif table.layout == "refs":
        cost.cells, cost.rows = 0, sum(_expected_chunks(dataset, plan, one) for one in arrays)
    elif table.layout == "chunks":
        cost.cells = sum(
            math.prod(_covered(one, plan)) * chunk_cells(chunk_axes(one)) for one in arrays
        )
    return cost


def _covered(variable: Variable, plan: ScanPlan) -> list[int]:
    chosen = chunk_selections(variable, plan.context.selections, chunk_axes(variable))
    return [selection.count for selection in chosen]


def _expected_chunks(dataset: Dataset, plan: ScanPlan, variable: Variable) -> int:
    """Return the approximate number of existing (inner) chunks in the selection."""
    is_refs = plan.context.table.layout == "refs"
    axes = variable.metadata.grid.axes if is_refs else chunk_axes(variable)
    manifests = variable.array.manifests
    stored = manifests.extents.astype(np.int64)
    volumes = np.prod(stored[:, :, 1] - stored[:, :, 0], axis=1, dtype=np.float64)
    counts = dataset.snapshot.manifest_files.counts_of(manifests.ids).astype(np.float64)
    # A manifest shared by several arrays has more references than the extents of one.
    filled = np.minimum(1.0, counts / np.maximum(volumes, 1.0))
    extents = stored if is_refs else chunk_extents(variable, axes)
    selected = np.ones(len(stored), dtype=np.float64)
    chosen = chunk_selections(variable, plan.context.selections, axes)
    for number, selection in enumerate(chosen):
        ends = selection.rank(extents[:, number])
        selected *= ends[:, 1] - ends[:, 0]
    return round(float((selected * filled).sum()))
