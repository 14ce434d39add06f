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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import ROOT
from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.groups.changing import ArrayTarget, TaskReceipt, WriteResult
from icechunk_format.groups.changing.commit import (
    committed,
    create_array,
    find_destination,
    made_destination,
    make_groups,
    manifests_of,
    update_array,
    with_containers,
)
from icechunk_format.groups.changing.result import find_committed, txn_metadata
from icechunk_format.names import shortened
from icechunk_format.repository import Repository
from icechunk_format.repository.changes.conflicts import TheirCommit
from icechunk_format.repository.files.manifest_files import ManifestReceipt
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.session import WriteSession
from icechunk_format.repository.state.races import RaceLost, until_won
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


def finish_write(
    plan: WritePlan,
    receipts: Iterable[TaskReceipt],
    cleared: Mapping[str, NDArray[np.uint32]] | None = None,
) -> WriteResult:
    """Commit the chunks of a plan's tasks, given the receipt of each task.

    ``cleared`` are chunks to delete, ``uint32 (n, ndim)`` by path of the array.

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
    NotFoundError, ReadOnlyError, StorageError, FormatError
        The repository cannot be written; nothing was committed.
    """
    options, destination = plan.options, plan.destination
    receipts = list(receipts)
    repository, done = find_destination(destination, options)
    if done is not None:
        return done
    rows, manifests = _collected(plan, receipts)
    repository, base = made_destination(repository, destination, options)
    seen = with_containers(repository, destination, receipts)
    session = seen.writable_session(options.branch, base=base)
    # Not read through ``repository``, which does not list a base that expired during the write.
    first = load_snapshot(repository.storage, base)
    deleted = dict(cleared or {})
    planned = PlannedCommit(plan=plan, base=first, manifests=manifests, deleted=deleted)
    return _committed(session, repository, planned, rows, receipts)


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


def _committed(
    session: WriteSession,
    repository: Repository,
    first: PlannedCommit,
    rows: int,
    receipts: Sequence[TaskReceipt],
) -> WriteResult:
    """Commit; if other writers commit first, rebase or plan again."""
    plan = first.plan
    planned = insert_labels(first) if plan.disordered else first
    options = plan.options
    theirs: list[TheirCommit] = []

    def attempt(times_again: int) -> WriteResult | RaceLost:
        nonlocal planned, session
        apply_planned(session, planned)
        if not session.has_changes:
            return WriteResult.skipped(options, planned.base.id, _NO_ROWS)
        session.check_lengths()
        try:
            message = options.message or _message(plan, rows)
            commit = session.commit(
                message,
                metadata=txn_metadata(options),
                on_conflict=options.on_conflict,
                when_moved=Watch(repository=repository, planned=planned, session=session),
            )
        except PlanIsOld as found:
            done = find_committed(repository, options)
            if done is not None:
                return done
            theirs.extend(found.theirs)
            rivals = Rivals(base=first.base, tip=found.tip, commits=tuple(theirs))
            again = plan_again(first, rivals)
            if isinstance(again, WriteResult):
                return again
            planned = insert_labels(again) if again.plan.disordered else again
            session = repository.writable_session(options.branch, base=planned.base.id)
            return RaceLost(rests=False)
        except ConflictError as error:
            raise of_session(plan, error) from error
        else:
            commit = replace(commit, rebased=commit.rebased + times_again)
            done = committed(commit, message, planned.manifests, receipts)
            return replace(done, rows=rows)

    return until_won(attempt, repository.location, branch=options.branch)


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


def _collected(
    plan: WritePlan, receipts: Sequence[TaskReceipt]
) -> tuple[int, dict[str, list[ManifestReceipt]]]:
    """Return the number of rows, and the manifests by the path of their array."""
    manifests = manifests_of(receipts, plan.arrays.values())
    rows_of_part: Counter[int] = Counter()
    for receipt in receipts:
        rows_of_part[receipt.part] += receipt.rows
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
    return rows_of_part[0], manifests


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
    text = ", ".join(parts)
    return f" ({text})" if text else ""
