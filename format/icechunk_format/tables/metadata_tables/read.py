"""Plans reads of the metadata tables on the driver, and runs their tasks on executors.

===============================  =========================  =====================================
table                            tasks                      a task reads
===============================  =========================  =====================================
snapshots refs operations        one                        the repository's own lists
history changes freshness        one                        the same; transaction logs
groups manifests                 one                        the snapshot
variables                        arrays, by references      the snapshot and their manifests
chunks                           manifests, by references   the snapshot and those manifests
===============================  =========================  =====================================

Rules of this file
------------------
1. The context and the tasks hold only names and numbers, no list of the repository: Spark sends a
   copy of the context with every task.
2. Snapshots are resolved when the read is planned. Tables about the whole repository show its state
   when the task runs.
3. Only the requested columns are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.node_path import NodePath, is_below
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.groups import Variable
from icechunk_format.groups.dimension_sets import find_group
from icechunk_format.groups.opened import pinned_snapshot
from icechunk_format.names import by_likeness
from icechunk_format.options.location import location_of
from icechunk_format.options.metadata_tables import (
    METADATA_TABLES,
    STORED_COLUMNS,
    MetadataTable,
)
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import RepositoryReader
from icechunk_format.repository.history.resolve import DEFAULT_BRANCH
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage
from icechunk_format.tables.metadata_tables.conditions import InspectionConditions
from icechunk_format.tables.metadata_tables.history import (
    Row,
    change_rows,
    freshness_rows,
    history_rows,
    operation_rows,
    ref_rows,
    snapshot_rows,
)
from icechunk_format.tables.metadata_tables.manifests import (
    Part,
    Task,
    chunk_batches,
    cut_manifests,
    manifest_batches,
    manifest_costs,
)
from icechunk_format.tables.metadata_tables.nodes import group_rows, variable_rows
from icechunk_format.tables.reading.layouts.batches import join_thin
from icechunk_format.tables.requested import requested_snapshot

DEFAULT_REFS_PER_TASK: Final = 1_000_000
_ROWS_AT_ONCE: Final = 8_192
# Cost of describing an array, as a number of references counted in the same time.
_ARRAY_COST: Final = 2_000
_MOST_TASKS: Final = 100_000
# Separates the two snapshots to which `changes` is pinned; no id contains it.
_TO: Final = ".."


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionContext:
    """Values that all tasks of one read share; small and picklable."""

    location: Location
    table: str
    columns: tuple[str, ...]
    snapshot_id: SnapshotId | None = None
    """The snapshot; the newer one of ``changes``. None for a table about the repository."""
    older_id: SnapshotId | None = None
    """The older snapshot of ``changes``."""
    group: str | None = None
    """Limits the table to nodes at or below this path; None is all nodes."""
    limit: int | None = None
    """The number of rows of a task that suffice, or None."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every batch."""
        whole = METADATA_TABLES[self.table].arrow_schema
        return pa.schema([whole.field(name) for name in self.columns])

    @property
    def snapshot(self) -> SnapshotId:
        """The snapshot that the table describes."""
        assert self.snapshot_id is not None, "plan_inspection requires the snapshot"
        return self.snapshot_id

    @property
    def opens_manifests(self) -> bool:
        """True if tasks open manifests."""
        counts = self.table == "variables" and not STORED_COLUMNS.isdisjoint(self.columns)
        return self.table == "chunks" or counts

    def repository(self) -> RepositoryReader:
        """Return the repository, opened in this process."""
        return RepositoryReader.open(self.location)

    def opened(self) -> tuple[Storage, Snapshot]:
        """Return the repository's storage, and the loaded snapshot."""
        storage = open_storage(self.location)
        return storage, pinned_snapshot(storage, self.snapshot)

    def nodes(self, snapshot: Snapshot) -> list[int]:
        """Return the node numbers at or below the group."""
        if self.group is None:
            return list(range(len(snapshot.nodes)))
        group = NodePath(self.group)
        return [
            number
            for number, node in enumerate(snapshot.nodes)
            if node.path == group or is_below(node.path, group)
        ]

    def arrays(self, snapshot: Snapshot) -> list[int]:
        """Return the node numbers of arrays at or below the group."""
        return [n for n in self.nodes(snapshot) if snapshot.nodes[n].array is not None]


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionPlan:
    """The tasks of a read, and the context that they share."""

    context: InspectionContext
    tasks: list[Task]


def resolve_snapshots(options: ReadRequest) -> str:
    """Resolve the snapshot, or the two of ``changes``, that a metadata table describes.

    Returns ids as a string; empty for tables about the whole repository.
    """
    repository = RepositoryReader.open(location_of(options))
    scope = METADATA_TABLES[str(options.table)].scope
    if scope == "repository":
        return ""
    if scope == "changes":
        older, newer = resolve_change(
            repository, older=options.from_version, newer=options.to_version
        )
        return f"{older}{_TO}{newer}"
    return str(requested_snapshot(options, repository))


def requested_inspection(
    options: ReadRequest,
    snapshots: str,
    columns: Sequence[str] | None = None,
    conditions: InspectionConditions | None = None,
    limit: int | None = None,
) -> InspectionPlan:
    """Plan the read of the metadata table that the options specify.

    Parameters
    ----------
    snapshots
        The result of `resolve_snapshots`.
    columns
        Some columns of the table; all by default.
    conditions, limit
        As for ``plan_inspection``.
    """
    repository = RepositoryReader.open(location_of(options))
    older, _, newer = snapshots.rpartition(_TO)
    return plan_inspection(
        repository,
        METADATA_TABLES[str(options.table)],
        columns=columns,
        snapshot_id=repository.resolve(snapshot=newer) if newer else None,
        older_id=repository.resolve(snapshot=older) if older else None,
        group=options.group,
        refs_per_task=options.rows_per_partition,
        conditions=conditions,
        limit=limit,
    )


def resolve_change(
    repository: RepositoryReader, *, older: str | None = None, newer: str | None = None
) -> tuple[SnapshotId, SnapshotId]:
    """Return the older and the newer snapshot of ``changes``, each a branch, tag or snapshot id.

    ``older`` is the parent of ``newer`` by default, ``newer`` the branch ``main``.
    """
    last = named_snapshot(repository, DEFAULT_BRANCH if newer is None else newer)
    if older is not None:
        return named_snapshot(repository, older), last
    parent = repository.snapshot_info(last).parent_id
    if parent is None:
        raise InvalidInputError(
            f"snapshot {last} of {repository.location} is the first of its history, so nothing"
            " changed before it; choose a later snapshot with the option 'to'",
            snapshot=str(last),
        )
    return parent, last


def named_snapshot(repository: RepositoryReader, name: str) -> SnapshotId:
    """Return the snapshot of a branch, a tag or a snapshot id.

    Raises InvalidInputError if a branch and a tag of this name point to different snapshots.
    """
    branches, tags = repository.branches(), repository.tags()
    branch, tag = branches.get(name), tags.get(name)
    if branch is not None and tag is not None and branch != tag:
        raise InvalidInputError(
            f"{name!r} is a branch and a tag of {repository.location}: branch {branch}, tag"
            f" {tag}; give the snapshot id of the one that you mean",
            name=name,
        )
    found = branch or tag
    if found is not None:
        return found
    try:
        snapshot_id = SnapshotId.parse(name)
    except InvalidInputError:
        names = by_likeness(name, [*branches, *tags], 10)
        raise NotFoundError(
            f"there is no branch or tag {name!r} in {repository.location}, and it is not a snapshot"
            f" id; there are {', '.join(names)}",
            kind="version",
            name=name,
            existing=tuple(names),
        ) from None
    return repository.resolve(snapshot=snapshot_id)


def plan_inspection(
    repository: RepositoryReader,
    table: MetadataTable,
    *,
    columns: Sequence[str] | None = None,
    snapshot_id: SnapshotId | None = None,
    older_id: SnapshotId | None = None,
    group: str | None = None,
    refs_per_task: int | None = None,
    conditions: InspectionConditions | None = None,
    limit: int | None = None,
) -> InspectionPlan:
    """Plan the read of a metadata table without opening a manifest.

    Parameters
    ----------
    columns
        Columns to produce, in order. None is all.
    snapshot_id
        The snapshot; None for tables about the repository.
    older_id
        The older snapshot, for ``changes``.
    group
        Limits tables about nodes to those at or below this group.
    refs_per_task
        Approximate chunk references of a task. None is 1,000,000.
    conditions
        Conditions that choose arrays and manifests; the rows of the others may be left out.
    limit
        The number of rows that suffice, or None.
    """
    if group is not None and table.scope != "group":
        raise InvalidInputError(
            f"the metadata table {table.name!r} takes no group", table=table.name
        )
    context = InspectionContext(
        location=repository.location,
        table=table.name,
        columns=tuple(table.names if columns is None else columns),
        snapshot_id=snapshot_id,
        older_id=older_id,
        group=group,
        limit=limit,
    )
    if table.scope != "group" or snapshot_id is None:
        return InspectionPlan(context=context, tasks=[()])
    snapshot = repository.snapshot(snapshot_id)
    if group is not None:
        # Raises on the driver if the group does not exist.
        path = find_group(snapshot, group, label=str(repository.location))
        context = replace(context, group=str(path))
    if table.cut == "nowhere":
        return InspectionPlan(context=context, tasks=[()])
    arrays = context.arrays(snapshot)
    if conditions is not None:
        arrays = conditions.arrays(snapshot, arrays)
    target = DEFAULT_REFS_PER_TASK if refs_per_task is None else refs_per_task
    costs = manifest_costs(snapshot, arrays)
    if table.cut == "between arrays":
        costs = costs if context.opens_manifests else []
        tasks = _whole_arrays(snapshot, arrays, costs, target)
    else:
        target = max(target, int(sum(float(c.sum()) for c in costs) // _MOST_TASKS))
        tasks = cut_manifests(arrays, costs, target)
        if conditions is not None:
            tasks = conditions.parts(snapshot, tasks)
    return InspectionPlan(context=context, tasks=tasks)


def _whole_arrays(
    snapshot: Snapshot,
    arrays: Sequence[int],
    costs: Sequence[NDArray[np.float64]],
    target: int,
) -> list[Task]:
    """Group arrays into tasks; the row of an array is made by one task."""
    each = np.full(len(arrays), float(_ARRAY_COST))
    if costs:
        each += [float(c.sum()) for c in costs]
    tasks: dict[int, list[Part]] = {}
    for array, task in zip(arrays, ((np.cumsum(each) - each) // target).tolist(), strict=True):
        count = len(Variable(snapshot.nodes[array]).array.manifests)
        tasks.setdefault(int(task), []).append((array, 0, count))
    return [tuple(parts) for parts in tasks.values()]


def run_inspection(context: InspectionContext, task: Task | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task. None yields nothing: Spark runs it if a plan has no tasks."""
    if task is None:
        return
    if context.table == "manifests":
        _, snapshot = context.opened()
        arrays = context.arrays(snapshot)
        for batch in manifest_batches(snapshot, arrays, unused=context.group is None):
            yield batch.select(list(context.columns))
    elif context.table == "chunks":
        storage, snapshot = context.opened()
        batches = chunk_batches(storage, snapshot, task, context.columns)
        yield from join_thin(batches, context.arrow_schema)
    else:
        rows = _rows(context, task)
        if context.limit is not None:
            rows = islice(rows, context.limit)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            yield pa.RecordBatch.from_pylist(some, schema=context.arrow_schema)


def _rows(context: InspectionContext, task: Task) -> Iterator[Row]:
    """Yield the rows of a table that are made one by one."""
    match context.table:
        case "snapshots":
            return snapshot_rows(context.repository())
        case "history":
            return history_rows(context.repository(), context.snapshot)
        case "refs":
            return ref_rows(context.repository(), context.columns)
        case "freshness":
            return freshness_rows(context.repository())
        case "operations":
            return operation_rows(context.repository().operations())
        case "changes":
            assert context.older_id is not None, "plan_inspection requires the older snapshot"
            return change_rows(context.repository(), context.older_id, context.snapshot)
    storage, snapshot = context.opened()
    if context.table == "groups":
        return group_rows(snapshot, context.nodes(snapshot))
    return variable_rows(storage, snapshot, task, frozenset(context.columns))
