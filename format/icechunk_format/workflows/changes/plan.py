"""Plans the change feed of a table: the rows that were written or deleted.

The contract: to get the table of the newer snapshot, take the table of the older one, delete the
deleted rows of the feed, and upsert its written rows by these keys:

===========  ===================================  ==============================================
layout       key                                  columns of a deleted row
===========  ===================================  ==============================================
``cells``    the dimension columns                the dimension columns; NULL in all others
``chunks``   ``array``, ``chunk``                 these two; NULL in all others
``refs``     ``array``, ``chunk``                 these two; NULL in all others
===========  ===================================  ==============================================

Rules of this file
------------------
1. Written rows are read from the newer snapshot and deleted rows from the older one, by ordinary
   scans that are limited to boxes. The driver opens no manifest of a data variable.
2. A written row may be equal to the old row, since whole chunks are read, not single cells.
3. Cells of a deleted chunk become written rows with the fill value. With ``missingChunks=skip``,
   and in the layouts of stored chunks, they become deleted rows; executors then also read the newer
   snapshot.
4. The columns of the feed are fixed. A variable that is new in a snapshot yields all its rows as
   written; a variable that the newer snapshot lacks, or has with another type, is an error.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import (
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.cover import Boxes
from icechunk_format.groups import Variable, chunk_axes, chunk_selections
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables import (
    Selection,
    Table,
    check_names,
    condition_on_values,
    dataset_at,
    planning,
    requested_table,
    selecting,
)
from icechunk_format.tables.reading import Column, Residual
from icechunk_format.workflows.changes.axis_changes import (
    by_position,
    selection_of,
    slabs,
    whole_box,
)
from icechunk_format.workflows.changes.cells import (
    SnapshotTable,
    axis_changes,
    changed_cells,
    same_values,
)
from icechunk_format.workflows.changes.changed_boxes import changed_boxes, clipped_chunks, in_chunks
from icechunk_format.workflows.changes.run import Change, ChangeScan, ChangeTask
from icechunk_format.workflows.changes.steps import Step, TouchedNodes, touched_nodes

#: Columns that describe the change of a row.
CHANGE_COLUMNS: Final = tuple(
    Column(name=name, arrow_type=kind, role="layout", source=name)
    for name, kind in (
        ("_change", pa.string()),
        ("_snapshot_id", pa.string()),
        ("_committed_at", pa.timestamp("us", tz="UTC")),
    )
)
CHANGE_NAMES: Final = frozenset(column.source for column in CHANGE_COLUMNS)
_KEYS_OF_CHUNKS: Final = ("array", "chunk")


def change_conditions(conjuncts: Sequence[str], time_zone: str) -> list[tuple[str, Residual]]:
    """Return those of some conditions in SQL that are on `CHANGE_COLUMNS` alone, with the SQL."""
    types = {column.name: column.arrow_type for column in CHANGE_COLUMNS}
    found = []
    for sql in conjuncts:
        with suppress(IcechunkError):
            condition = condition_on_values(sql, types, time_zone)
            if condition is not None and condition.columns:
                found.append((sql, condition))
    return found


def with_change_columns(table: Table) -> Table:
    """Append `CHANGE_COLUMNS` to a table."""
    columns = (*table.columns, *CHANGE_COLUMNS)
    check_names(columns)
    return replace(table, columns=columns)


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """The tasks of a feed in the order of history, for each step deletions before writes."""

    tasks: list[ChangeTask]
    context: None = None

    @property
    def rows(self) -> int:
        """An upper bound of the number of rows."""
        return sum(task.task.rows for task in self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlanner:
    """Plans the rows of a table that the steps of a history changed."""

    repository: RepositoryReader
    read: ReadRequest
    """The options, with the group and the variables of the table."""
    columns: tuple[Column, ...]
    """The columns of the feed, in order, from the table and ``CHANGE_COLUMNS``."""
    time_zone: str | None = None
    """Zone of times in the option ``where``; None is UTC."""
    conditions: tuple[Residual, ...] = ()
    """Conditions on ``CHANGE_COLUMNS``; changes that do not meet all of them are left out."""

    def plan(self, steps: Sequence[Step]) -> ChangePlan:
        """Plan the steps of a history, oldest first."""
        return ChangePlan(tasks=[task for step in steps for task in self._of(step)])

    @property
    def _own(self) -> list[Column]:
        return [column for column in self.columns if column.source not in CHANGE_NAMES]

    @property
    def _only_stored(self) -> bool:
        """True if the table has no rows for missing chunks."""
        read = self.read
        return read.layout == "refs" or read.missing_chunks == "skip" or not read.decoded

    def _wants(self, change: Change, step: Step) -> bool:
        """Return True if rows of a change in a step may meet all conditions."""
        values = (change, str(step.newer.id), step.newer.flushed_at)
        row = {
            column.name: pa.scalar(value, column.arrow_type)
            for column, value in zip(CHANGE_COLUMNS, values, strict=True)
        }
        return all(one.evaluate(row, 1)[0].as_py() for one in self.conditions)

    def _of(self, step: Step) -> Iterator[ChangeTask]:
        if not (self._wants("written", step) or self._wants("deleted", step)):
            return
        newer = self._open(step.newer.id, newest=True)
        assert newer is not None
        older = None if step.older is None else self._open(step.older, newest=False)
        self._check(step, older, newer)
        if older is None:
            yield from self._tasks(step, "written", newer, newer.chosen, None)
            return
        if self.read.layout == "cells":
            yield from self._of_cells(step, older, newer)
        else:
            yield from self._of_chunks(step, older, newer)

    def _open(self, snapshot_id: SnapshotId, *, newest: bool) -> SnapshotTable | None:
        """Open the table of a snapshot; None if an older snapshot does not have it."""
        read = self.read
        try:
            dataset = dataset_at(read, self.repository, snapshot_id)
        except NotFoundError as error:
            if newest or error.facts.get("kind") not in ("group", "node"):
                raise
            return None
        names, coords = read.variables, read.coords
        if not newest:
            exists = dataset.variables.__contains__
            coords = tuple(filter(exists, coords))
            names = None if names is None else tuple(filter(exists, names))
            if names == () or not dataset.variables:
                return None
        table = requested_table(replace(read, variables=names, coords=coords), dataset)
        chosen = dataset.choose(table, **selecting(read, self.time_zone))
        if chosen.residual is not None and chosen.residual.needs_zone:
            raise InvalidInputError(
                f"the condition {chosen.residual.sql} depends on the session's time zone, which "
                "streams cannot read: write times with their zone, as in '2024-07-01 00:00:00Z'",
                where=chosen.residual.sql,
            )
        if chosen.residual is not None:
            raise InvalidInputError(
                f"the condition {chosen.residual.sql} is on values, and rows that no longer "
                "satisfy it would be missing from the changes: filter the DataFrame instead, and "
                "keep conditions on dimensions in where",
                where=chosen.residual.sql,
            )
        return SnapshotTable(dataset=dataset, table=table, chosen=chosen)

    def _check(self, step: Step, older: SnapshotTable | None, newer: SnapshotTable) -> None:
        """Raise InvalidInputError if a snapshot does not have the columns of the feed."""
        columns = {column.source: column for column in newer.table.columns}
        for column in self._own:
            found = columns.get(column.source)
            if found is None or found.arrow_type != column.arrow_type:
                now = "does not exist" if found is None else f"is {found.arrow_type} now"
                raise InvalidInputError(
                    f"column {column.name!r} was {column.arrow_type} when the read began, and "
                    f"{now} in snapshot {step.newer.id}: start a new read from that snapshot, or "
                    "name the columns that exist there with the option variables",
                    column=column.name,
                    snapshot_id=str(step.newer.id),
                )
        if older is None or self.read.layout != "cells":
            return
        if older.table.dims != newer.table.dims:
            raise InvalidInputError(
                f"the table had the dimensions ({', '.join(older.table.dims)}) in snapshot "
                f"{step.older}, and has ({', '.join(newer.table.dims)}) in {step.newer.id}, so "
                "their rows cannot be compared: start from the newer one, or name variables whose "
                "dimensions stayed",
                snapshot_id=str(step.newer.id),
            )

    # -- cells ------------------------------------------------------------------------------

    def _of_cells(
        self, step: Step, older: SnapshotTable, newer: SnapshotTable
    ) -> Iterator[ChangeTask]:
        touched = self._touched(step, (older, newer))
        axes = axis_changes(older, newer, touched)
        same: Collection[str] = ()
        if not self._only_stored:
            same = same_values(self.repository, step.logs, older, newer)
        gone = []
        for dim, axis in zip(newer.table.dims, axes, strict=True):
            if axis.gone is None:
                raise UnsupportedError(
                    f"dimension {dim!r} has the same label twice, so rows cannot be identified by"
                    " their labels: read the changes with layout=chunks",
                    dim=dim,
                )
            gone.append(axis.gone)
        if self.read.change_columns:
            skips = self._only_stored
            runs = [axis.moved for axis in axes] if skips else gone
            boxes = slabs(runs, older.table.sizes)
            yield from self._tasks(step, "deleted", older, older.chosen, {"": boxes})
            if skips:
                kept = {
                    dim: selection_of(axis.kept, size)
                    for dim, axis, size in zip(
                        newer.table.dims, axes, older.table.sizes, strict=True
                    )
                }
                shared = {"": changed_cells(older, newer, touched)}
                chosen = Selection(dims=kept)
                yield from self._tasks(step, "deleted", older, chosen, shared, check=newer)
        fresh = slabs([axis.fresh for axis in axes], newer.table.sizes)
        written = np.concatenate([fresh, changed_cells(newer, older, touched, same)])
        yield from self._tasks(step, "written", newer, newer.chosen, {"": written})

    # -- chunks and references --------------------------------------------------------------

    def _of_chunks(
        self, step: Step, older: SnapshotTable, newer: SnapshotTable
    ) -> Iterator[ChangeTask]:
        touched = self._touched(step, (older, newer))
        were, are = older.variables(), newer.variables()
        shared = _nowhere(older)
        gone = {path: _all_chunks(self._axes(were[path])) for path in older.table.arrays}
        written: dict[str, Boxes] = {}
        for path in newer.table.arrays:
            now, before = are[path], were.get(path)
            axes = self._axes(now)
            counts = [axis.count for axis in axes]
            if before is not None and path in gone and before.dims == now.dims:
                old_axes = self._axes(before)
                was = chunk_selections(before, older.chosen.dims, old_axes)
                selected = chunk_selections(now, newer.chosen.dims, axes)
                changes = list(map(by_position, was, selected))
                gone[path] = slabs([c.moved for c in changes], [a.count for a in old_axes])
                shared[path] = in_chunks(changed_boxes(before, now, touched), old_axes)
                found = [in_chunks(changed_boxes(now, before, touched), axes)]
                found += [slabs([c.fresh for c in changes], counts), clipped_chunks(axes, old_axes)]
                written[path] = np.concatenate(found)
            else:
                written[path] = _all_chunks(axes)
        if self.read.change_columns:
            yield from self._tasks(step, "deleted", older, older.chosen, gone)
            if self._only_stored:
                yield from self._tasks(step, "deleted", older, older.chosen, shared, check=newer)
        yield from self._tasks(step, "written", newer, newer.chosen, written)

    def _axes(self, variable: Variable) -> Sequence[ChunkAxis]:
        is_refs = self.read.layout == "refs"
        return variable.metadata.grid.axes if is_refs else chunk_axes(variable)

    # -- tasks ------------------------------------------------------------------------------

    def _touched(self, step: Step, sides: Sequence[SnapshotTable]) -> TouchedNodes:
        nodes = {v.node.id for side in sides for v in side.variables().values()}
        return touched_nodes(self.repository, step.logs, nodes)

    def _tasks(
        self,
        step: Step,
        change: Change,
        side: SnapshotTable,
        chosen: Selection,
        only: Mapping[str, Boxes] | None,
        *,
        check: SnapshotTable | None = None,
    ) -> Iterator[ChangeTask]:
        """Plan the scan of one snapshot; ``check`` drops the rows that this snapshot stores."""
        if not self._wants(change, step):
            return
        table = side.table
        keys: tuple[Column, ...] = ()
        names = [column.name for column in self._own]
        if change == "deleted" and table.layout != "cells":
            names = list(_KEYS_OF_CHUNKS)
        elif change == "deleted":
            dims = tuple(column for column in table.columns if column.role == "dimension")
            names = [column.name for column in dims]
            if check is not None:
                keys = dims
                positions = (
                    replace(column, arrow_type=pa.int64(), path=None, decoder=None)
                    for column in dims
                )
                table = replace(table, columns=tuple(positions))
        names = names or [table.columns[0].name]
        options = planning(self.read)
        plan = side.dataset.plan(table, chosen, columns=names, only=only, **options)
        if not plan.tasks:
            return
        against = None
        if check is not None:
            against = check.dataset.plan(
                check.table, Selection(dims={}), only=_nowhere(check), **options
            ).context
        scan = ChangeScan(
            context=plan.context,
            columns=tuple((c.name, c.source, c.arrow_type) for c in self.columns),
            change=change,
            snapshot_id=str(step.newer.id),
            committed_at=step.newer.flushed_at,
            keys=tuple(replace(column, metadata={}) for column in keys),
            check=against,
        )
        serialized = zlib.compress(pickle.dumps(scan))
        for task in plan.tasks:
            yield ChangeTask(scan=serialized, task=task)


def _nowhere(side: SnapshotTable) -> dict[str, Boxes]:
    if side.table.layout == "cells":
        return {"": slabs([], side.table.sizes)}
    variables = side.variables()
    return {path: slabs([], variables[path].shape) for path in side.table.arrays}


def _all_chunks(axes: Sequence[ChunkAxis]) -> Boxes:
    return whole_box([axis.count for axis in axes])
