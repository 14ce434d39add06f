"""Commits a write: turns the receipts of all tasks into one commit.

Rules of this file
------------------
1. One session makes one commit, so no reader sees half a write.
2. The driver uses manifests of tasks unchanged; its work grows with the number of manifests, not
   with that of chunks.
3. Nothing is deleted here. After a failed commit, objects of tasks are garbage; after a commit with
   unknown outcome, they may be data.
4. A new repository is created directly before the commit, after the receipts have been checked.
5. If other writers committed first, the commit is rebased on top of their commits. If they changed
   arrays of this write, it is planned again (``replanning``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from icechunk_format.encoding.node_path import ROOT
from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.groups.changing import ArrayTarget, TaskReceipt, WriteResult
from icechunk_format.groups.changing.commit import (
    OpenedChange,
    create_array,
    make_groups,
    open_change,
    update_array,
)
from icechunk_format.groups.changing.result import find_committed
from icechunk_format.groups.changing.targets import cleared_by
from icechunk_format.names import shortened
from icechunk_format.repository.changes import TheirCommit
from icechunk_format.repository.files import load_snapshot
from icechunk_format.repository.session import WriteSession
from icechunk_format.repository.state import RaceLost, until_won
from icechunk_format.tables.writing.plan import WritePlan
from icechunk_format.tables.writing.replanning.adopt import PlannedCommit
from icechunk_format.tables.writing.replanning.conflicts import of_session
from icechunk_format.tables.writing.replanning.plan import (
    PlanIsOld,
    Watch,
    insert_labels,
    plan_again,
)
from icechunk_format.tables.writing.replanning.rivals import Rivals
from icechunk_format.zarr.zarr_json import parse_group_metadata

_MOST_NAMES: Final = 4
_NO_ROWS: Final = "there are no rows to write"
_UNITS: Final = {"cells": "row", "chunks": "chunk", "refs": "chunk reference"}


def finish_write(plan: WritePlan, receipts: Iterable[TaskReceipt]) -> WriteResult:
    """Commit the chunks of a plan's tasks, given the receipt of each task.

    Raises
    ------
    InvalidInputError
        Two tasks wrote one chunk, or the number of rows changed after planning.
    AlreadyExistsError
        Another writer has created the repository or the arrays that this write creates.
    ConflictError
        Other writers changed the arrays, or wrote the same cells and ``resolve`` is not set;
        nothing was committed.
    CommitOutcomeUnknownError
        The commit may or may not have succeeded.
    """
    receipts = list(receipts)
    rows: Counter[int] = Counter()
    for receipt in receipts:
        rows[receipt.part] += receipt.rows
    paths = [array.path for array in plan.arrays.values()]
    check = partial(_check_rows, plan, rows)
    opened = open_change(plan.destination, plan.options, paths, receipts, check=check)
    if isinstance(opened, WriteResult):
        return opened
    # Not read through the repository, which does not list a base that expired during the write.
    first = PlannedCommit(
        plan=plan,
        base=load_snapshot(opened.repository.storage, opened.base),
        manifests=opened.manifests,
        deleted=cleared_by(receipts),
    )
    return _committed(opened, first, rows[0])


def planned_result(plan: WritePlan, rows: int) -> WriteResult:
    """Return the planned result of a write, before its tasks run; nothing is stored."""
    options = plan.options
    base = plan.destination.base
    if not rows:
        return replace(WriteResult.skipped(options, base, _NO_ROWS), dry_run=True)
    chunks = rows
    if options.layout == "cells":
        chunks = sum(_selected_chunks(plan, array) for array in plan.arrays.values())
    return WriteResult(
        branch=options.branch,
        snapshot_id=base,
        message=options.message or _message(plan, rows),
        dry_run=True,
        rows=rows,
        chunks=chunks,
    )


def _selected_chunks(plan: WritePlan, array: ArrayTarget) -> int:
    """Return the number of chunks of an array that the labels of the rows select."""
    return math.prod(
        len(np.unique(axis.chunk_of(plan.indices(dim))))
        for dim, axis in zip(array.dims, array.metadata.grid.axes, strict=True)
    )


def _committed(opened: OpenedChange, first: PlannedCommit, rows: int) -> WriteResult:
    """Commit; if other writers commit first, rebase or plan again."""
    plan, repository = first.plan, opened.repository
    planned = insert_labels(first) if plan.disordered else first
    theirs: list[TheirCommit] = []
    message = plan.options.message or _message(plan, rows)

    def attempt(times_again: int) -> WriteResult | RaceLost:
        nonlocal planned, opened
        session = opened.session
        apply_planned(session, planned)
        watch = Watch(repository=repository, planned=planned, session=session)
        try:
            done = opened.commit(message, when_moved=watch, unchanged=_NO_ROWS)
        except PlanIsOld as found:
            earlier = find_committed(repository, plan.options)
            if earlier is not None:
                return earlier
            theirs.extend(found.theirs)
            rivals = Rivals(base=first.base, tip=found.tip, commits=tuple(theirs))
            again = plan_again(first, rivals)
            if isinstance(again, WriteResult):
                return again
            planned = insert_labels(again) if again.plan.disordered else again
            base = planned.base.id
            session = repository.writable_session(plan.options.branch, base=base)
            opened = opened._replace(base=base, session=session, manifests=planned.manifests)
            return RaceLost(rests=False)
        except ConflictError as error:
            raise of_session(plan, error) from error
        if done.commit is None:
            return done
        commit = replace(done.commit, rebased=done.commit.rebased + times_again)
        return replace(done, commit=commit, rows=rows)

    return until_won(attempt, repository.location, branch=plan.options.branch)


def apply_planned(session: WriteSession, planned: PlannedCommit) -> None:
    """Apply the planned changes to a session."""
    _change_nodes(session, planned.plan)
    for labels in planned.plan.labels:
        labels.store(session)
    for path, coords in planned.deleted.items():
        session.delete_chunks(path, coords)
    for path, found in planned.manifests.items():
        session.add_manifests(path, found)
    session.count_files(planned.written)


def _check_rows(plan: WritePlan, rows_of_part: Mapping[int, int]) -> None:
    """Raise if the number of rows has changed since planning."""
    for part in plan.parts:
        count = rows_of_part[part.number]
        # In parts with distinct rows, their number is unknown before the tasks run.
        if plan.row_count is not None and not part.is_distinct and count != plan.row_count:
            raise InvalidInputError(
                f"the DataFrame had {plan.row_count:,} rows when its coordinates were read, and "
                f"{count:,} when they were written, since its source changed or is not "
                "deterministic; nothing was committed. Write again after cache() or checkpoint()",
                expected=plan.row_count,
                found=count,
            )


def _change_nodes(session: WriteSession, plan: WritePlan) -> None:
    attributes, node = plan.group_attributes, session.node(plan.group)
    if attributes and node is not None:
        # A group that has arrays or attributes keeps its attributes.
        group = parse_group_metadata(node.user_data, node_path=plan.group)
        attributes = {} if plan.kept or group.attributes else attributes
    if attributes or plan.missing_groups:
        make_groups(session, {plan.group: attributes or None})
    for variable in plan.replaced.values():
        session.delete(variable.path)
    for array in plan.created:
        create_array(session, array.path, array.metadata, array.node_id)
    for path, metadata in plan.resized:
        update_array(session, path, metadata)


def _message(plan: WritePlan, rows: int) -> str:
    """Return the default message: ``Create t2m (time=48): 48 rows``, ``Append 96 rows to t2m``."""
    names = shortened(list(plan.arrays), _MOST_NAMES)
    if plan.group != ROOT:
        names += f" in {plan.group}"
    unit = _UNITS[plan.options.layout]
    count = f"{rows:,} {unit}{'' if rows == 1 else 's'}"
    sizes: dict[str, int] = {}
    before: dict[str, int] = {}
    for array in plan.arrays.values():
        sizes |= zip(array.dims, array.metadata.shape, strict=True)
        before |= zip(array.dims, array.old_shape or (), strict=False)
    if plan.replaced or not before:
        verb = "Overwrite" if plan.replaced else "Create"
        return f"{verb} {names}{_bracketed(f'{dim}={n}' for dim, n in sizes.items())}: {count}"
    grown = [f"{dim} {before[dim]} to {n}" for dim, n in sizes.items() if before.get(dim, n) != n]
    if not grown:
        return f"Write {count} to {names}"
    return f"Append {count} to {names}{_bracketed(grown)}"


def _bracketed(parts: Iterable[str]) -> str:
    string = ", ".join(parts)
    return f" ({string})" if string else ""
