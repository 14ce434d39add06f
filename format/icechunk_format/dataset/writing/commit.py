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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.arrays.new_nodes import build_group_metadata
from icechunk_format.arrays.zarr_json import parse_group_metadata
from icechunk_format.dataset.writing.chunks.containers import add_containers
from icechunk_format.dataset.writing.part import ArrayTarget, Destination, TaskReceipt
from icechunk_format.dataset.writing.plan import WritePlan
from icechunk_format.dataset.writing.prepare import branch_missing
from icechunk_format.dataset.writing.replanning.adopt import PlannedCommit
from icechunk_format.dataset.writing.replanning.conflicts import of_session, refused
from icechunk_format.dataset.writing.replanning.plan import (
    PlanIsOld,
    Watch,
    insert_labels,
    plan_again,
)
from icechunk_format.dataset.writing.result import WriteResult, find_committed, txn_metadata
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from icechunk_format.names import shortened
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.changes.conflicts import TheirCommit
from icechunk_format.repository.commit.commit import CommitResult, Written
from icechunk_format.repository.files.manifest_files import ManifestReceipt
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.session import WriteSession
from icechunk_format.repository.session.committing import DEFAULT_REBASE_TRIES
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.node_path import ROOT
from icechunk_format.storage.location import Location

_MOST_NAMES: Final = 4
_NO_ROWS: Final = "there are no rows to write"
_UNITS: Final = {"cells": "row", "chunks": "chunk", "refs": "chunk reference"}


def finish_write(
    plan: WritePlan,
    receipts: Iterable[TaskReceipt],
    cleared: Mapping[str, NDArray[np.int64]] | None = None,
) -> WriteResult:
    """Commit the chunks of a plan's tasks, given the receipt of each task.

    ``cleared`` are chunks to delete, ``int64 (n, ndim)`` by path of the array.

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
        The commit may or may not have landed.
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
    deleted = {path: coords.astype(np.uint32) for path, coords in (cleared or {}).items()}
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


def find_destination(
    destination: Destination, options: WriteOptions
) -> tuple[Repository | None, WriteResult | None]:
    """Return the repository, or None, and the result if the write is already committed."""
    search = Repository.find if destination.base is None else Repository.open
    repository = search(destination.location)
    done = None if repository is None else find_committed(repository.as_read(), options)
    return repository, done


def made_destination(
    repository: Repository | None, destination: Destination, options: WriteOptions
) -> tuple[Repository, SnapshotId]:
    """Create the repository and the branch if they do not exist; return repository and base."""
    if repository is None or destination.base is None:
        repository = _new_repository(destination.location, options)
    base = destination.base or _first_snapshot(repository)
    if branch_missing(repository.as_read(), options):
        _create_branch(repository, options.branch, base)
        repository = Repository.open(destination.location)
    return repository, base


def with_containers(
    repository: Repository, destination: Destination, receipts: Iterable[TaskReceipt]
) -> Repository:
    """Add the containers that receipts need; return the repository for the session."""
    prefixes = {prefix for receipt in receipts for prefix in receipt.prefixes}
    if not prefixes:
        return repository.as_read()
    access = destination.chunk_source.access
    add_containers(
        repository, prefixes, authorized=access.authorized, virtual_options=access.options
    )
    return repository


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
    for times_again in range(DEFAULT_REBASE_TRIES):
        apply_planned(session, planned)
        if not session.has_changes:
            return WriteResult.skipped(options, planned.base.id, _NO_ROWS)
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
            theirs += found.theirs
            again = plan_again(first, PlanIsOld(found.tip, theirs))
            if isinstance(again, WriteResult):
                return again
            planned = insert_labels(again) if again.plan.disordered else again
            session = repository.writable_session(options.branch, base=planned.base.id)
        except ConflictError as error:
            raise of_session(plan, error) from error
        else:
            commit = replace(commit, rebased=commit.rebased + times_again)
            return _result(planned, rows, commit, receipts, message)
    raise refused(plan, f"other writers committed first {DEFAULT_REBASE_TRIES} times")


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


def _result(
    planned: PlannedCommit,
    rows: int,
    commit: CommitResult,
    receipts: Sequence[TaskReceipt],
    message: str,
) -> WriteResult:
    found = planned.manifests.values()
    return WriteResult(
        branch=commit.branch,
        snapshot_id=commit.snapshot_id,
        message=message,
        rows=rows,
        chunks=sum(r.num_chunk_refs for manifests in found for r in manifests),
        manifests=sum(len(manifests) for manifests in found),
        commit=with_tasks(commit, receipts),
    )


def _collected(
    plan: WritePlan, receipts: Iterable[TaskReceipt]
) -> tuple[int, dict[str, list[ManifestReceipt]]]:
    """Return the number of rows, and the manifests by the path of their array."""
    rows_of_part = dict.fromkeys((part.number for part in plan.parts), 0)
    manifests: dict[str, list[ManifestReceipt]] = {}
    paths = {array.path for array in plan.arrays.values()}
    for receipt in receipts:
        if receipt.part not in rows_of_part or not paths.issuperset(receipt.manifests):
            raise InvalidInputError(
                f"a receipt of part {receipt.part} with the arrays {', '.join(receipt.manifests)} "
                "does not belong to this write; pass the receipts of its own plan"
            )
        rows_of_part[receipt.part] += receipt.rows
        for path, stored in receipt.manifests.items():
            manifests.setdefault(path, []).extend(stored)
    # The session checks this again, but only after a new repository is created.
    for found in manifests.values():
        ChunkChanges(len(found[0].extents)).add_receipts(found)
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
    return rows_of_part.get(0, 0), manifests


def _new_repository(location: Location, options: WriteOptions) -> Repository:
    """Create the repository, or open it if another writer has created it meanwhile."""
    wanted = options.spec_version
    try:
        return Repository.create(location, spec_version=wanted, check_clean_root=False)
    except AlreadyExistsError as error:
        repository = Repository.open(location)
        if repository.spec_version == wanted:
            return repository
        raise AlreadyExistsError(
            f"another writer created a repository of spec version {repository.spec_version} at "
            f"{location} during this write with specVersion={wanted}; nothing was committed, and "
            "the same write can be run again",
            **error.facts,
        ) from None


def with_tasks(commit: CommitResult, receipts: Iterable[TaskReceipt]) -> CommitResult:
    """Add the files of tasks to the counts of a commit."""
    written = Written(dict(commit.files_written), dict(commit.bytes_written))
    for receipt in receipts:
        written.add("chunks", receipt.files, receipt.nbytes)
        for found in receipt.manifests.values():
            written.add("manifests", len(found), sum(one.size_bytes for one in found))
    return replace(commit, files_written=written.files, bytes_written=written.bytes)


def _first_snapshot(repository: Repository) -> SnapshotId:
    """Return the oldest snapshot of ``main``, which has no arrays."""
    *_, oldest = repository.ancestry(branch="main")
    return oldest.id


def _create_branch(repository: Repository, name: str, base: SnapshotId) -> None:
    # Another writer may create it first; the commit is rebased on its commits.
    with suppress(AlreadyExistsError):
        try:
            repository.create_branch(name, base)
        except NotFoundError:
            # The base has expired: the write is planned again on the tip of ``main``.
            repository.create_branch(name, repository.resolve(branch="main"))


def _change_nodes(session: WriteSession, plan: WritePlan) -> None:
    for path in plan.missing_groups:
        attributes = plan.group_attributes if path == plan.group else None
        group = build_group_metadata(attributes=attributes, node_path=path)
        session.create_group(path, group.to_bytes())
    if plan.group not in plan.missing_groups and not plan.kept:
        _describe_group(session, plan)
    for variable in plan.replaced.values():
        session.delete(variable.path)
    for array in plan.created:
        session.create_array(
            array.path,
            array.metadata.to_bytes(),
            shape=array.metadata.shape,
            num_chunks=array.metadata.grid.num_chunks,
            dimension_names=array.metadata.dimension_names,
            node_id=array.node_id,
        )
    for path, metadata in plan.resized:
        session.update_metadata(
            path,
            metadata.to_bytes(),
            shape=metadata.shape,
            num_chunks=metadata.grid.num_chunks,
        )


def _describe_group(session: WriteSession, plan: WritePlan) -> None:
    """Copy the group attributes of the rows to a group that has no arrays and no attributes."""
    path, attributes = plan.group, plan.group_attributes
    node = session.node(path)
    if node is None or not attributes:
        return
    group = parse_group_metadata(node.user_data, node_path=path)
    if not group.attributes:
        session.update_metadata(path, group.with_attributes(attributes).to_bytes())


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
