"""Plans and commits versions of a copy in a Delta table.

1. The newest record of the table holds the copied snapshot.
2. Transaction logs show the cells that changed since then. Files with such cells are removed; their
   cells, and new cells of grown arrays, are written.
3. ``Run`` runs the tasks, in this process or on executors.
4. One transaction removes and adds the files, and records the new snapshot.

Long because a plan, its tasks and its transaction are one protocol, which retries as a whole.

Rules of this file
------------------
1. Readers see the older snapshot until the transaction, and the newer one after it.
2. If another run commits a version first, the table is read and the run is planned again. If the
   other run copied the same snapshot, nothing is left to do.
3. A snapshot that cannot be copied is refused before the first file is written.
"""

from __future__ import annotations

import itertools
import secrets
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError, UnsupportedError
from icechunk_format.grid.cover import Boxes
from icechunk_format.groups import Variable, cut_axes, leading_variable
from icechunk_format.options.location import location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.progress import ProgressOption, counted
from icechunk_format.repository import RepositoryReader
from icechunk_format.repository.history import snapshots_after
from icechunk_format.repository.state import RaceLost, until_won
from icechunk_format.storage.location import Location
from icechunk_format.storage.measures import Measures
from icechunk_format.tables import Selection as Selected
from icechunk_format.tables import Table, dataset_at, requested_scan, requested_table
from icechunk_format.tables.reading import ScanPlan
from icechunk_format.workflows.changes.cells import SnapshotTable, cell_changes
from icechunk_format.workflows.changes.steps import logs_of
from icechunk_format.workflows.mirroring.boxes import (
    FileGroups,
    boxes_in_names,
    chunks_per_file,
    groups_of_files,
    touched,
    value_bytes,
)
from icechunk_format.workflows.mirroring.delta_table import DeltaTarget, TableState, read_state
from icechunk_format.workflows.mirroring.parquet import (
    FileContext,
    FileReceipt,
    FileTask,
    write_file,
)
from icechunk_format.workflows.mirroring.record import MirrorRecord, Selection
from icechunk_format.workflows.mirroring.transaction import (
    MirrorPlan,
    commit,
    delta_schema,
    discard,
)
from icechunk_format.workflows.running import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRequest:
    """The group of a branch to copy, and the table to copy it to."""

    read: ReadRequest
    """The repository and the options of the read."""
    target: DeltaTarget
    selection: Selection
    """The options that select cells."""
    branch: str = "main"
    every_snapshot: bool = False
    """Write one table version for each snapshot since the last run."""
    full: bool = False
    """Copy all cells again, regardless of the table's state."""
    dry_run: bool = False
    """Plan the next version of the table, but write nothing."""

    @property
    def location(self) -> Location:
        """The location of the repository."""
        return location_of(self.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(SnapshotTable):
    """The table of a snapshot, and the scan that copies it."""

    plan: ScanPlan

    def arrays(self) -> tuple[Variable, ...]:
        """Return the arrays of the table."""
        by_path = self.variables()
        return tuple(by_path[path] for path in self.table.arrays)


class _Reused(NamedTuple):
    """Files of an earlier version that the next one keeps, and how all others are cut."""

    lead: Variable
    groups: FileGroups
    kept: Boxes
    removed: list[tuple[str, int]]
    """Names and sizes of the files that are not kept."""


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorResult:
    """The result of a run of ``mirror``.

    Attributes
    ----------
    version
        The version of the Delta table with the newest snapshot.
    snapshot_id
        The newest snapshot in the table.
    files_added
        Number of files that this run added to the table.
    files_removed
        Number of files that this run removed from the table.
    rows
        Number of rows that this run wrote; of a dry run, before a condition on values.
    bytes
        Bytes of the written files; of a dry run, an estimate: the rows at the mean size of a row in
        the table's files, or of uncompressed values without a table.
    bytes_removed
        Bytes of the files that this run removed from the table.
    full_copy
        The reason why all cells were written; None if only changed cells, or nothing, were written.
    dry_run
        True if the run was only planned; the other values are then those of the next table version.
    totals
        Requests, bytes, chunks and codec times of Spark's tasks; None for a call in this process.
    """

    version: int
    snapshot_id: str
    files_added: int = 0
    files_removed: int = 0
    rows: int = 0
    bytes: int = 0
    bytes_removed: int = 0
    full_copy: str | None = None
    dry_run: bool = False
    totals: Measures | None = field(default=None, compare=False)


def bring_up_to_date(
    request: MirrorRequest, run: Run, progress: ProgressOption = None
) -> MirrorResult:
    """Update a copy to the tip of its branch; each version of the table is a phase of `progress`.

    Raises
    ------
    InvalidInputError
        The table is a copy of another group or is inside the repository, or an option is invalid.
    AlreadyExistsError
        The target is not empty and not a copy.
    ConflictError
        The branch was reset to before the copied snapshot, another program changed the table, or
        other runs committed first in every attempt.
    UnsupportedError
        A column cannot be in a Delta table, or ``deltalake`` is not installed.
    """
    target = request.target
    if f"{target.url}/".startswith(f"{request.location.url}/"):
        raise InvalidInputError(
            f"target {target} is inside the repository {request.location}, whose folder must hold"
            " nothing else: choose a folder outside of it",
            target=str(target),
        )
    total: MirrorResult | None = None

    def attempt(_: int) -> MirrorResult | RaceLost:
        nonlocal total
        while True:
            # The table is read before the branch: in the other order, a concurrent run could make
            # the branch look older than the table.
            state = read_state(target)
            repository = RepositoryReader.open(request.location).as_read()
            tip = repository.resolve(branch=request.branch)
            snapshots: list[SnapshotInfo] = []
            full_copy: str | None = None
            selection = request.selection
            if state is None:
                full_copy = "there was no copy yet"
            # Only the first version of a run is a full copy.
            elif request.full and total is None:
                full_copy = "full=True was given"
            else:
                snapshots, full_copy = _since(request, repository, state, tip)
                selection = Selection.of(state.newest.record.options)
                if not snapshots and full_copy is None:
                    return total or MirrorResult(
                        version=state.newest.version, snapshot_id=str(tip), dry_run=request.dry_run
                    )
            snapshots, new = _next(request, repository, selection, snapshots, tip)
            plan = plan_mirror(request, repository, state, selection, snapshots, full_copy, new)
            if request.dry_run:
                version = 0 if state is None else state.table.version() + 1
                return replace(_result(plan, version, plan.tasks), dry_run=True)
            receipts = run(partial(write_file, plan.context), plan.tasks)
            result = finish_mirror(
                plan, counted(receipts, progress, "Writing files", len(plan.tasks))
            )
            if result is None:
                return RaceLost(why="another run wrote to the table first")
            total = result if total is None else _sum(total, result)
            if not request.every_snapshot:
                return total

    outcome = "nothing was changed; mirror again later"
    return until_won(attempt, target, "the Delta table", outcome=outcome)


def _since(
    request: MirrorRequest, repository: RepositoryReader, state: TableState, tip: SnapshotId
) -> tuple[list[SnapshotInfo], str | None]:
    """Return the snapshots since the last run, oldest first, and the reason if they are unknown."""
    record, target = state.newest.record, request.target
    for what, was, now in (
        ("repository", record.repository, str(request.location)),
        ("branch", record.branch, request.branch),
    ):
        if was != now:
            raise InvalidInputError(
                f"{target} is a copy of {what} {was}, not of {now}: choose another target, or copy"
                " all cells again with full=True",
                target=str(target),
                remembered=was,
                given=now,
            )
    Selection.of(record.options).check_later(request.selection, target=str(target))
    if state.changed_by is not None:
        raise ConflictError(
            f"another program changed {target} ({state.changed_by}) after version"
            f" {state.newest.version}, which holds snapshot {record.snapshot_id}: restore that"
            " version with deltalake, or copy all cells again with full=True",
            target=str(target),
            operation=state.changed_by,
        )
    older = SnapshotId.parse(record.snapshot_id)
    snapshots = snapshots_after(older, repository.ancestry(snapshot=tip))
    try:
        repository.snapshot_info(older)
    except NotFoundError:
        return [], f"snapshot {older}, which the copy holds, expired"
    if snapshots is None:
        raise ConflictError(
            f"{target} holds snapshot {older}, which is not in the history of branch"
            f" {request.branch} any more: the branch was reset to {tip}. Copy all cells again"
            " with full=True, or choose another target",
            target=str(target),
            mirrored=str(older),
            tip=str(tip),
        )
    return snapshots[::-1], None


def _next(
    request: MirrorRequest,
    repository: RepositoryReader,
    selection: Selection,
    snapshots: list[SnapshotInfo],
    tip: SnapshotId,
) -> tuple[list[SnapshotInfo], Source]:
    """Return the snapshots of the next version, and the table of the last of them.

    With ``every_snapshot``, these end at the first snapshot that can be copied.
    """
    for number, info in enumerate(snapshots[:-1] if request.every_snapshot else (), start=1):
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
            return snapshots[:number], new
    last = snapshots[-1].id if snapshots else tip
    return snapshots, _open(request, repository, last, selection)


def plan_mirror(
    request: MirrorRequest,
    repository: RepositoryReader,
    state: TableState | None,
    selection: Selection,
    snapshots: Sequence[SnapshotInfo],
    full_copy: str | None,
    new: Source,
) -> MirrorPlan:
    """Plan the version for `snapshots`, the last of which has the table `new`."""
    snapshot_id = new.dataset.snapshot.id
    table, variables = new.table, new.arrays()
    known = None if state is None else state.newest.record
    schema = delta_schema(new.plan.arrow_schema)
    boxes = None if state is None else boxes_in_names(tuple(state.files), len(table.dims))
    reused: _Reused | str = full_copy or ""
    if state is not None and full_copy is None:
        reused = _reused(request, repository, state, boxes, selection, snapshots, new)
    removed: list[tuple[str, int]] | None = None
    if isinstance(reused, str):
        lead = leading_variable(variables, new.dataset.snapshot.manifest_files)
        axes = tuple(cut_axes(table.sizes_by_dim, variables, lead))
        row_bytes = sum(value_bytes(column.arrow_type) for column in table.columns)
        steps = chunks_per_file(axes, row_bytes, selection.rows_per_file)
        groups = FileGroups(axes=axes, steps=steps, selections=tuple(new.selections()))
        kept = np.empty((0, len(axes), 2), dtype=np.int64)
    else:
        lead, groups, kept, removed = reused
    found = groups.missing(kept)
    if new.plan.context.skip_missing:
        stored = [np.array(part[1:], np.int64) for task in new.plan.tasks for part in task.parts]
        parts = np.array(stored, dtype=np.int64).reshape(len(stored), len(table.dims), 2)
        found = found[touched(found, parts)]
    return MirrorPlan(
        context=FileContext(
            scan=new.plan.context,
            target=request.target,
            schema=schema,
            has_nan=selection.given.get("decodeCf") is False,
        ),
        tasks=[
            FileTask(box=tuple(box.reshape(-1).tolist()), rows=int(count))
            for box, count in zip(found, groups.rows(found), strict=True)
        ],
        state=state,
        record=MirrorRecord(
            repository=str(request.location),
            branch=request.branch,
            snapshot_id=str(snapshot_id),
            committed_at=repository.snapshot_info(snapshot_id).flushed_at,
            run=secrets.token_hex(8),
            number=1 if known is None else known.number + 1,
            options=dict(selection.given),
            dims=table.dims,
            lead=None if lead is None else lead.path,
            steps=groups.steps,
            columns={column.name: dict(column.metadata) for column in table.columns},
        ),
        removed=removed,
        full_copy=reused if isinstance(reused, str) else None,
        row_bytes=_row_bytes(state, boxes, groups, table),
    )


def _row_bytes(
    state: TableState | None, boxes: Boxes | None, groups: FileGroups, table: Table
) -> float:
    """Return the mean size of a row in the files of a table, or of uncompressed values."""
    rows = 0 if boxes is None else int(groups.rows(boxes).sum())
    if state is not None and rows > 0:
        return sum(state.files.values()) / rows
    return sum(value_bytes(column.arrow_type) for column in table.columns)


def _reused(
    request: MirrorRequest,
    repository: RepositoryReader,
    state: TableState,
    boxes: Boxes | None,
    selection: Selection,
    snapshots: Sequence[SnapshotInfo],
    new: Source,
) -> _Reused | str:
    """Return the files of a copy without changed cells, or a reason why all are written again."""
    known = state.newest.record
    try:
        old = _open(request, repository, SnapshotId.parse(known.snapshot_id), selection)
    except NotFoundError as error:
        return f"the older snapshot is incomplete: {error.message}"
    skips = new.plan.context.skip_missing
    changed = cell_changes(repository, logs_of(snapshots), old, new, only_stored=skips)
    if isinstance(changed, str):
        return changed
    lead = next((variable for variable in new.arrays() if variable.path == known.lead), None)
    if boxes is None or lead is None:
        return "the table has files that no run wrote"
    former_lead = old.variables().get(lead.path)
    former = cut_axes(old.table.sizes_by_dim, old.arrays(), former_lead)
    axes = tuple(cut_axes(new.table.sizes_by_dim, new.arrays(), lead))
    steps = groups_of_files(former, axes, known.steps)
    if steps is None:
        return "other chunks do not fit the files of the copy"
    groups = FileGroups(axes=axes, steps=steps, selections=tuple(new.selections()))
    stays = groups.fit(boxes) & ~touched(boxes, changed)
    removed = list(itertools.compress(state.files.items(), ~stays))
    return _Reused(lead, groups, boxes[stays], removed)


def _result(
    plan: MirrorPlan, version: int, files: Sequence[FileTask | FileReceipt]
) -> MirrorResult:
    """Return the result of writing these files as a version of the table."""
    removed = plan.removed
    if removed is None:
        state = plan.state
        removed = [] if state is None else list(state.files.items())
    rows = sum(file.rows for file in files)
    return MirrorResult(
        version=version,
        snapshot_id=plan.record.snapshot_id,
        files_added=len(files),
        files_removed=len(removed),
        rows=rows,
        bytes=round(rows * plan.row_bytes),
        bytes_removed=sum(size for _, size in removed),
        full_copy=plan.full_copy,
    )


def finish_mirror(plan: MirrorPlan, receipts: Iterable[FileReceipt]) -> MirrorResult | None:
    """Commit the files of a plan; return None if another run committed first."""
    added, target = list(receipts), plan.context.target
    version = commit(plan, added)
    if version is None:
        found = read_state(target)
        if found is None or found.newest.record.run != plan.record.run:
            discard(target, [receipt.path for receipt in added])
            return None
        version = found.newest.version
    return replace(_result(plan, version, added), bytes=sum(receipt.size for receipt in added))


def _open(
    request: MirrorRequest,
    repository: RepositoryReader,
    snapshot_id: SnapshotId,
    selection: Selection,
) -> Source:
    read = selection.of_read(request.read)
    dataset = dataset_at(read, repository, snapshot_id)
    table = requested_table(read, dataset)
    plan = requested_scan(read, dataset, table)
    chosen = Selected(dims=dict(plan.context.selections), residual=plan.context.residual)
    return Source(dataset=dataset, table=table, chosen=chosen, plan=plan)


def _sum(one: MirrorResult, other: MirrorResult) -> MirrorResult:
    return replace(
        other,
        files_added=one.files_added + other.files_added,
        files_removed=one.files_removed + other.files_removed,
        rows=one.rows + other.rows,
        bytes=one.bytes + other.bytes,
        bytes_removed=one.bytes_removed + other.bytes_removed,
        full_copy=one.full_copy or other.full_copy,
    )
