"""Plans a read with the option ``changesSince``, on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import NotFoundError
from icechunk_format.options.location import location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables import Table, named_snapshot
from icechunk_format.tables.reading import Column, Residual
from icechunk_format.workflows.changes.plan import ChangePlan, ChangePlanner
from icechunk_format.workflows.changes.steps import steps_to


def resolve_since(options: ReadRequest) -> str:
    """Return the id of the snapshot of ``changesSince``.

    Return an empty string, which means all rows, if the snapshot does not exist and
    ``onHistoryChange=restart``.
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
            f"{error.message}; option changesSince must name a tag, branch or existing snapshot"
            " (with onHistoryChange=restart, all rows are read if the snapshot has expired)",
            **error.facts,
        ) from error


def plan_changes_since(
    options: ReadRequest,
    newer: str,
    table: Table,
    names: Sequence[str],
    since: str,
    time_zone: str | None,
    conditions: Sequence[Residual] = (),
) -> ChangePlan:
    """Plan the changes of the columns `names` of `table` up to the snapshot `newer`.

    `since` is the id of the older snapshot; if it is empty, all rows are changes. Changes may be
    left out that do not meet all `conditions` on `CHANGE_COLUMNS`.
    """
    repository = RepositoryReader.open(location_of(options)).as_read()
    steps = steps_to(
        repository,
        repository.snapshot_info(newer),
        SnapshotId.parse(since) if since else None,
        by_snapshot=options.changes_by == "snapshot",
        any_history=options.on_history_change == "restart",
    )
    read = replace(options, group=_group_of(table, options), coords=())
    if options.layout == "cells":
        variables, coords = (_sources(table.columns, role) for role in ("variable", "coordinate"))
        read = replace(read, variables=variables, coords=coords)
    return ChangePlanner(
        repository=repository,
        read=read,
        columns=table.select(names).columns,
        time_zone=time_zone,
        conditions=tuple(conditions),
    ).plan(steps)


def _sources(columns: Sequence[Column], role: str) -> tuple[str, ...]:
    return tuple(column.source for column in columns if column.role == role)


def _group_of(table: Table, options: ReadRequest) -> str:
    """Return the group in the options, or else the group of the table's arrays."""
    if options.group is not None or not table.arrays:
        return options.group or "/"
    return table.arrays[0].rpartition("/")[0] or "/"
