"""Opens the group, the table and the scan that read options specify, on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.options.location import access_of, location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables.dataset import Dataset, MissingChunks, open_dataset
from icechunk_format.tables.reading.scan import ScanPlan
from icechunk_format.tables.reading.task_cutting import DEFAULT_ROWS_PER_PARTITION
from icechunk_format.tables.selection.select import Selecting, Selection
from icechunk_format.tables.table.table import Table


class Planning(TypedDict):
    """Keywords of ``Dataset.plan`` for task size, missing chunks and read-ahead."""

    rows_per_partition: int | None
    missing_chunks: MissingChunks
    read_ahead_bytes: int


def requested_snapshot(options: ReadRequest, repository: RepositoryReader) -> SnapshotId:
    """Resolve the branch, tag, snapshot or time in the options to a snapshot."""
    return repository.resolve(
        branch=options.branch,
        tag=options.tag,
        snapshot=options.snapshot,
        as_of=options.as_of,
    )


def open_snapshot(
    options: ReadRequest, pinned: str | None = None
) -> tuple[RepositoryReader, SnapshotId]:
    """Open the repository; return it with the pinned snapshot, or the one in the options."""
    repository = RepositoryReader.open(location_of(options)).as_read()
    if pinned is not None:
        return repository, repository.resolve(snapshot=pinned)
    return repository, requested_snapshot(options, repository)


def requested_dataset(options: ReadRequest, pinned: str | None = None) -> Dataset:
    """Open the group that the options specify."""
    return open_requested(options, pinned)[1]


def open_requested(
    options: ReadRequest, pinned: str | None = None
) -> tuple[RepositoryReader, Dataset]:
    """Open the repository, and the group in it that the options specify."""
    repository, snapshot_id = open_snapshot(options, pinned)
    return repository, dataset_at(options, repository, snapshot_id)


def dataset_at(
    options: ReadRequest, repository: RepositoryReader, snapshot_id: SnapshotId
) -> Dataset:
    """Open the group that the options specify, in a given snapshot."""
    return open_dataset(repository, snapshot_id, options.group, access_of(options))


def requested_table(options: ReadRequest, dataset: Dataset) -> Table:
    """Return the table of a group that the options specify."""
    return dataset.table(
        options.layout,
        variables=options.variables,
        coords=options.coords,
        decode_cf=options.decode_cf,
        timestamp_type=options.timestamp_type,
        block=options.block,
        decoded=options.decoded,
    )


def selecting(options: ReadRequest, time_zone: str | None) -> Selecting:
    """Return the keywords of ``Dataset.choose`` from the options."""
    return Selecting(
        where=options.where,
        sel=options.sel,
        isel=options.isel,
        sel_method=options.sel_method,
        time_zone=time_zone,
    )


def planning(options: ReadRequest) -> Planning:
    """Return the keywords of ``Dataset.plan`` from the options."""
    return Planning(
        rows_per_partition=options.rows_per_partition,
        missing_chunks=options.missing_chunks,
        read_ahead_bytes=options.read_ahead_bytes,
    )


def requested_scan(
    options: ReadRequest,
    dataset: Dataset,
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    time_zone: str | None = None,
    selection: Selection | None = None,
    usual_rows: int = DEFAULT_ROWS_PER_PARTITION,
) -> ScanPlan:
    """Plan the scan of a table, or of some of its columns.

    `selection` replaces the one that the options specify. ``usual_rows`` is that of
    ``Dataset.plan``.

    Raises
    ------
    UnauthorizedVirtualChunkError
        A virtual chunk of the first tasks is outside of every authorized prefix. Their manifests
        are read only if the repository has an unauthorized container.
    """
    plan = dataset.plan(
        table,
        selection,
        columns=columns,
        usual_rows=usual_rows,
        **(selecting(options, time_zone) if selection is None else {}),
        **planning(options),
    )
    if plan.context.source.chunk_source.has_unauthorized_containers:
        from icechunk_format.tables.reading.costs import check_access

        check_access(plan.context, plan.tasks)
    return plan
