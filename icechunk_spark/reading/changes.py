"""Plans reads of the changes between two snapshots, on the driver."""

from __future__ import annotations

from collections.abc import Sequence

from icechunk_format import SnapshotId
from icechunk_format.dataset.metadata_tables.read import named_snapshot
from icechunk_format.dataset.table.table import Column, Table
from icechunk_format.errors import NotFoundError
from icechunk_format.options.location import location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository.reader import RepositoryReader
from icechunk_format.workflows.changes.plan import ChangePlan, plan_changes
from icechunk_format.workflows.changes.request import ChangeRequest
from icechunk_format.workflows.changes.steps import steps_to


def resolve_since(options: ReadRequest) -> str:
    """Return the id of the snapshot of ``changesSince``.

    It is empty if the snapshot does not exist and ``onHistoryChange=restart`` reads all rows then.
    """
    assert options.changes_since is not None
    try:
        return str(
            named_snapshot(RepositoryReader.open(location_of(options)), options.changes_since)
        )
    except NotFoundError as error:
        if options.on_history_change == "restart" and error.facts.get("kind") == "snapshot":
            return ""
        raise NotFoundError(
            f"{error.message}; option changesSince must name a tag, branch or snapshot that exists"
            " (with onHistoryChange=restart, a snapshot that has expired means all rows)",
            **error.facts,
        ) from error


def plan_changes_since(
    options: ReadRequest,
    newer: str,
    table: Table,
    names: Sequence[str],
    since: str,
    time_zone: str | None,
) -> ChangePlan:
    """Plan the changes of some columns up to the snapshot ``newer``, whose table is given.

    ``since`` is the id of the older snapshot; empty for a table without rows.
    """
    repository = RepositoryReader.open(location_of(options)).as_read()
    steps = steps_to(
        repository,
        repository.snapshot_info(newer),
        SnapshotId.parse(since) if since else None,
        by_snapshot=options.changes_by == "snapshot",
        any_history=options.on_history_change == "restart",
    )
    columns = table.select(names).columns
    return plan_changes(change_request(options, repository, table, time_zone), steps, columns)


def change_request(
    options: ReadRequest, repository: RepositoryReader, table: Table, time_zone: str | None
) -> ChangeRequest:
    """Return the request of a feed; ``table`` fixes its group and variables."""
    of_cells = options.layout == "cells"
    assert options.layout != "summary"
    cf = {"decode_cf": options.decode_cf, "timestamp_type": options.timestamp_type}
    return ChangeRequest(
        repository=repository,
        group=_group_of(table, options),
        layout=options.layout,
        variables=_sources(table.columns, "variable") if of_cells else options.variables,
        coords=_sources(table.columns, "coordinate") if of_cells else (),
        table_options={**cf, "decoded": options.decoded},
        selection={
            "where": options.where,
            "sel": options.sel,
            "isel": options.isel,
            "sel_method": options.sel_method,
            "time_zone": time_zone,
        },
        plan_options={
            "rows_per_partition": options.rows_per_partition,
            "missing_chunks": options.missing_chunks,
            "read_ahead_bytes": options.read_ahead_bytes,
        },
        authorize=options.virtual_authorize,
        virtual_options=options.virtual_storage_options,
        deletions=options.change_columns,
    )


def _sources(columns: Sequence[Column], role: str) -> tuple[str, ...]:
    return tuple(column.source for column in columns if column.role == role)


def _group_of(table: Table, options: ReadRequest) -> str:
    """Return the group of a table, which may be the only one that had arrays."""
    if options.group is not None or not table.arrays:
        return options.group or "/"
    return table.arrays[0].rpartition("/")[0] or "/"
