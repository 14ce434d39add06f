"""Plans and commits a run: which files to write, and the version of the table that has them.

How a run goes
--------------
1. The newest record of the table says which snapshot it holds.
2. Transaction logs say which cells changed since then. Files that have one of them go; what they
   held, and what the arrays have grown by, is written anew.
3. Whoever calls runs the tasks, in this process or on executors.
4. One transaction removes and adds the files, and records the new snapshot.

Rules of this file
------------------
1. Until the transaction, the table stands at the older snapshot; after it, at the newer one.
2. Whoever loses the race for a version reads the table again and plans anew. If the winner copied
   the same snapshot, nothing is left to do.
3. What cannot be copied is refused before the first file is written.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from icechunk_format.dataset.dataset import open_dataset
from icechunk_format.dataset.reading.chunk_edges import cut_axes, leading_variable
from icechunk_format.dataset.reading.scan import DEFAULT_READ_AHEAD_BYTES
from icechunk_format.dataset.selection.where.condition import Selection as Selected
from icechunk_format.display.lazily import shown_by
from icechunk_format.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from icechunk_format.progress import ProgressOption, counted
from icechunk_format.repository.history.history import versions_after
from icechunk_format.repository.reader import RepositoryReader
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.file import SnapshotInfo
from icechunk_format.storage.location import Location
from icechunk_format.workflows.changes.steps import logs_of
from icechunk_format.workflows.mirroring.boxes import (
    Groups,
    boxes_in_names,
    chunks_per_file,
    touched,
)
from icechunk_format.workflows.mirroring.changes import (
    CellChanges,
    Source,
    cell_changes,
)
from icechunk_format.workflows.mirroring.parquet import ADDED, FileContext, FileTask, write_file
from icechunk_format.workflows.mirroring.record import MirrorRecord
from icechunk_format.workflows.mirroring.selection import Selection
from icechunk_format.workflows.mirroring.target import DeltaTarget, TargetState, read_state
from icechunk_format.workflows.mirroring.transaction import (
    Transaction,
    commit,
    delta_schema,
    discard,
)

_MOST_ATTEMPTS: Final = 10


class Runner(Protocol):
    """Writes the files of a run, somewhere."""

    def __call__(self, context: FileContext, pieces: Sequence[FileTask], /) -> pa.Table:
        """Write all files; return their rows of the schema ``ADDED``, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRequest:
    """What to copy, and where to.

    Attributes
    ----------
    every_snapshot
        Give each snapshot since the last run a version of its own.
    full
        Copy all cells anew, whatever the table holds.
    """

    location: Location
    target: DeltaTarget
    selection: Selection
    branch: str = "main"
    every_snapshot: bool = False
    full: bool = False
    authorize: tuple[str, ...] = ()
    virtual_options: Mapping[str, str] | None = None
    read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorResult:
    """What a run did.

    Attributes
    ----------
    version
        The version of the Delta table that holds the snapshot.
    snapshot_id
        The snapshot that the table holds now.
    files_added, files_removed
        Files that this run wrote, and that it took out of the table.
    rows
        Rows that this run wrote.
    bytes
        Bytes of the files that it wrote.
    full_copy
        Why all cells were written; None where only changes were, or nothing.
    """

    version: int
    snapshot_id: str
    files_added: int = 0
    files_removed: int = 0
    rows: int = 0
    bytes: int = 0
    full_copy: str | None = None


def mirror(request: MirrorRequest, run: Runner) -> MirrorResult:
    """Bring a copy to the tip of its branch.

    Raises
    ------
    InvalidInputError
        The copy was made of something else, the target lies in the repository, or an option cannot
        be used.
    AlreadyExistsError
        The target holds something that is no copy.
    ConflictError
        The branch was reset behind the copy, another program changed the table, or other runs
        were faster every time.
    UnsupportedError
        A column cannot be in a Delta table, or ``deltalake`` is not installed.
    StorageError
        A store failed.
    """
    if f"{request.target.url}/".startswith(f"{request.location.url}/"):
        raise InvalidInputError(
            f"target {request.target} lies in the repository {request.location}, whose folder holds"
            " nothing else: choose a folder beside it",
            target=str(request.target),
        )
    total: MirrorResult | None = None
    lost = 0
    while True:
        # The table is read before the branch, so that the branch is never older by accident.
        state = read_state(request.target)
        repository = RepositoryReader.open(request.location).as_read()
        tip = repository.resolve(branch=request.branch)
        versions: list[SnapshotInfo] = []
        everywhere: str | None = None
        selection = request.selection
        if state is None:
            everywhere = "there was no copy yet"
        # Only the first version of a run is a full one.
        elif request.full and total is None:
            everywhere = "full=True was given"
        else:
            versions, everywhere = _since(request, repository, state, tip)
            selection = Selection.of(state.newest.record.options)
            if not versions and everywhere is None:
                return total or MirrorResult(version=state.newest.version, snapshot_id=str(tip))
        versions, new = _next(request, repository, selection, versions, tip)
        result = _copy(request, repository, state, selection, versions, everywhere, new, run)
        if result is None:
            lost += 1
            if lost == _MOST_ATTEMPTS:
                raise ConflictError(
                    f"other runs wrote to {request.target} on each of {lost} tries; this one"
                    " changed nothing, mirror again later",
                    target=str(request.target),
                )
            continue
        total = result if total is None else _sum(total, result)
        if not request.every_snapshot:
            return total


def _since(
    request: MirrorRequest, repository: RepositoryReader, state: TargetState, tip: SnapshotId
) -> tuple[list[SnapshotInfo], str | None]:
    """Return what was committed since the last run, oldest first; or why nobody knows.

    Raises
    ------
    InvalidInputError
        The table is a copy of something else.
    ConflictError
        Another program changed the table, or the branch was reset behind it.
    """
    record, target = state.newest.record, request.target
    for what, was, now in (
        ("repository", record.repository, str(request.location)),
        ("branch", record.branch, request.branch),
    ):
        if was != now:
            raise InvalidInputError(
                f"{target} is a copy of {what} {was}, not of {now}: choose another target, or copy"
                " all anew with full=True",
                target=str(target),
                remembered=was,
                given=now,
            )
    Selection.of(record.options).check_later(request.selection, target=str(target))
    if state.changed_by is not None:
        raise ConflictError(
            f"another program changed {target} ({state.changed_by}) after version"
            f" {state.newest.version}, which holds snapshot {record.snapshot_id}: restore that"
            " version with deltalake, or copy all anew with full=True",
            target=str(target),
            operation=state.changed_by,
        )
    older = SnapshotId.parse(record.snapshot_id)
    versions = versions_after(older, repository.ancestry(snapshot=tip))
    try:
        repository.snapshot_info(older)
    except NotFoundError:
        return [], f"snapshot {older}, which the copy holds, expired"
    if versions is None:
        raise ConflictError(
            f"{target} holds snapshot {older}, which is not in the history of branch"
            f" {request.branch} any more: the branch was reset to {tip}. Copy all anew with"
            " full=True, or choose another target",
            target=str(target),
            mirrored=str(older),
            tip=str(tip),
        )
    return versions[::-1], None


def _next(
    request: MirrorRequest,
    repository: RepositoryReader,
    selection: Selection,
    versions: list[SnapshotInfo],
    tip: SnapshotId,
) -> tuple[list[SnapshotInfo], Source]:
    """Return the snapshots that the next version of the copy takes in, and the last one's table.

    With ``every_snapshot`` it takes one, after those that do not have such a table.
    """
    for number, info in enumerate(versions[:-1] if request.every_snapshot else (), start=1):
        try:
            new = _open(request, repository, info.id, selection)
            delta_schema(new.plan.arrow_schema)
        except (NotFoundError, InvalidInputError, UnsupportedError) as error:
            kind = error.facts.get("kind")
            if isinstance(error, NotFoundError) and kind not in ("group", "node", "variable"):
                raise
            warnings.warn(
                f"snapshot {info.id} has no version in {request.target}, since its table cannot be"
                f" copied: {error.message}",
                UserWarning,
                stacklevel=2,
            )
        else:
            return versions[:number], new
    last = versions[-1].id if versions else tip
    return versions, _open(request, repository, last, selection)


def _copy(
    request: MirrorRequest,
    repository: RepositoryReader,
    state: TargetState | None,
    selection: Selection,
    versions: Sequence[SnapshotInfo],
    everywhere: str | None,
    new: Source,
    run: Runner,
) -> MirrorResult | None:
    """Write one version; return None where another run was faster."""
    snapshot_id = new.dataset.snapshot.id
    known = None if state is None else state.newest.record
    schema = delta_schema(new.plan.arrow_schema)
    changes = CellChanges(everywhere=everywhere)
    if known is not None and everywhere is None:
        try:
            old = _open(request, repository, SnapshotId.parse(known.snapshot_id), selection)
        except NotFoundError as error:
            changes = CellChanges(everywhere=f"the older version is incomplete: {error.message}")
        else:
            changes = cell_changes(repository, logs_of(versions), old, new)
    planned = _planned(selection, state, changes, new)
    record = MirrorRecord(
        repository=str(request.location),
        branch=request.branch,
        snapshot_id=str(snapshot_id),
        committed_at=repository.snapshot_info(snapshot_id).flushed_at,
        run=secrets.token_hex(8),
        number=1 if known is None else known.number + 1,
        options=dict(selection.given),
        dims=new.table.dims,
        lead=planned.lead,
        steps=planned.groups.steps,
        columns={column.name: dict(column.metadata) for column in new.table.columns},
    )
    context = FileContext(
        scan=new.plan.context,
        target=request.target,
        schema=schema,
        has_nan=selection.given.get("decodeCf") is False,
    )
    added = run(context, planned.pieces) if planned.pieces else ADDED.empty_table()
    change = Transaction(schema=schema, record=record, added=added, removed=planned.removed)
    version = commit(request.target, state, change)
    if version is None:
        found = read_state(request.target)
        if found is None or found.newest.record.run != record.run:
            discard(request.target, added.column("path").to_pylist())
            return None
        version = found.newest.version
    removed = planned.removed
    gone = (0 if state is None else len(state.names)) if removed is None else len(removed)
    return MirrorResult(
        version=version,
        snapshot_id=str(snapshot_id),
        files_added=added.num_rows,
        files_removed=gone,
        rows=sum(added.column("rows").to_pylist()),
        bytes=sum(added.column("size").to_pylist()),
        full_copy=planned.everywhere,
    )


def _open(
    request: MirrorRequest,
    repository: RepositoryReader,
    snapshot_id: SnapshotId,
    selection: Selection,
) -> Source:
    dataset = open_dataset(
        repository,
        snapshot_id,
        selection.group,
        authorize=request.authorize,
        virtual_options=request.virtual_options,
    )
    table = selection.table(dataset)
    plan = selection.plan(dataset, table, request.read_ahead_bytes)
    chosen = Selected(dims=dict(plan.context.selections), residual=plan.context.residual)
    return Source(dataset=dataset, table=table, chosen=chosen, plan=plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """What a version takes: files to write, and files to remove (None for all)."""

    groups: Groups
    lead: str | None
    pieces: list[FileTask]
    removed: list[tuple[str, int]] | None
    everywhere: str | None


def _planned(
    selection: Selection, state: TargetState | None, changes: CellChanges, new: Source
) -> _Planned:
    table, everywhere = new.table, changes.everywhere
    by_path = new.variables()
    variables = tuple(by_path[path] for path in table.arrays)
    record = None if state is None else state.newest.record
    lead = next((v for v in variables if record is not None and v.path == record.lead), None)
    boxes = None if state is None else boxes_in_names(state.names, len(table.dims))
    if everywhere is None and (record is None or boxes is None or lead is None):
        everywhere = "the table has files that no run wrote"
    if everywhere is not None:
        lead = leading_variable(variables, new.dataset.snapshot.manifest_files)
    axes = tuple(cut_axes(table, variables, lead))
    if everywhere is None and record is not None:
        steps = record.steps
    else:
        row_bytes = sum(_value_bytes(column.arrow_type) for column in table.columns)
        steps = chunks_per_file(axes, row_bytes, selection.rows_per_file)
    groups = Groups(axes=axes, steps=steps, selections=tuple(new.selections()))
    removed: list[tuple[str, int]] | None = None
    kept = np.empty((0, len(axes), 2), dtype=np.int64)
    if everywhere is None and boxes is not None and state is not None:
        assert changes.boxes is not None
        stays = groups.fit(boxes) & ~touched(boxes, changes.boxes)
        kept = boxes[stays]
        removed = [
            (name, size)
            for name, size, stay in zip(state.names, state.sizes, stays.tolist(), strict=True)
            if not stay
        ]
    found = groups.missing(kept)
    if new.plan.context.skip_missing:
        stored = [np.array(part[1:], np.int64) for task in new.plan.tasks for part in task.parts]
        parts = np.array(stored, dtype=np.int64).reshape(len(stored), len(axes), 2)
        found = found[touched(found, parts)]
    rows = groups.rows(found)
    pieces = [
        FileTask(box=tuple(box.reshape(-1).tolist()), rows=int(count))
        for box, count in zip(found, rows, strict=True)
    ]
    return _Planned(
        groups=groups,
        lead=None if lead is None else lead.path,
        pieces=pieces,
        removed=removed,
        everywhere=everywhere,
    )


def _value_bytes(arrow_type: pa.DataType) -> int:
    try:
        return -(-int(arrow_type.bit_width) // 8)
    except ValueError:  # texts and lists have no width
        return 20


def _sum(one: MirrorResult, other: MirrorResult) -> MirrorResult:
    return replace(
        other,
        files_added=one.files_added + other.files_added,
        files_removed=one.files_removed + other.files_removed,
        rows=one.rows + other.rows,
        bytes=one.bytes + other.bytes,
        full_copy=one.full_copy or other.full_copy,
    )


def run_here(
    context: FileContext, pieces: Sequence[FileTask], progress: ProgressOption = None
) -> pa.Table:
    """Write all files in this process, one after another; report each version as a phase."""
    work = counted(pieces, progress, "Writing files", len(pieces))
    return pa.Table.from_pylist([write_file(context, piece) for piece in work], schema=ADDED)
