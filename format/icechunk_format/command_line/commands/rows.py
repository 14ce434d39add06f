"""Commands on cells and files: ``head``, ``delete`` and ``virtualize``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from icechunk_format.command_line.arguments import (
    AsOfOption,
    BranchOption,
    DryRunOption,
    MessageOption,
    SnapshotOption,
    TagOption,
    YesOption,
    resolve_snapshot,
)
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import counted, safe
from icechunk_format.names import choose

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from icechunk_format.workflows.deleting import DeleteResult

_Group = Annotated[str | None, typer.Option("--group", metavar="PATH", help="Group of the arrays.")]
_Variables = Annotated[
    str | None, typer.Option("--variables", metavar="NAMES", help="Variables: t2m,precip.")
]
_Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="A condition: \"time >= '2024-07-01'\"."),
]
_Sel = Annotated[
    str | None, typer.Option("--sel", metavar="LABELS", help="Labels: time=2024-07-01:2024-07-07.")
]
_Isel = Annotated[
    str | None, typer.Option("--isel", metavar="POSITIONS", help="Positions: time=0:24.")
]


def head(
    call: Call,
    count: Annotated[
        int, typer.Option("--rows", "-n", min=1, max=10_000, help="Number of rows.")
    ] = 10,
    where: _Where = None,
    sel: _Sel = None,
    isel: _Isel = None,
    group: _Group = None,
    variables: _Variables = None,
    branch: BranchOption = None,
    tag: TagOption = None,
    snapshot: SnapshotOption = None,
    as_of: AsOfOption = None,
) -> None:
    """Show the first rows of a group as a table."""
    from icechunk_format.dataset import open_dataset
    from icechunk_format.dataset.reading.run import run_scan
    from icechunk_format.options.location import access_of

    chosen = resolve_snapshot(
        call.repository, branch=branch, tag=tag, snapshot=snapshot, as_of=as_of
    )
    dataset = open_dataset(call.repository, chosen, group, access_of(call.options))
    table = dataset.table("cells", variables=_names(variables))
    # Small tasks, since only the first rows are shown.
    plan = dataset.plan(table, rows_per_partition=4 * count, where=where, sel=sel, isel=isel)
    columns = [column.name for column in table.columns]
    rows: list[dict[str, Any]] = []
    for task in plan.tasks:
        for batch in run_scan(plan.context, task):
            rows += batch.slice(0, count - len(rows)).to_pylist()
            if len(rows) >= count:
                break
        if len(rows) >= count:
            break
    texts = [["NULL" if row[n] is None else str(row[n]) for n in columns] for row in rows]
    call.document(
        snapshot_id=str(chosen),
        columns=columns,
        rows=[dict(zip(columns, text, strict=True)) for text in texts],
    )
    for line in _aligned([columns, *texts]):
        call.screen.line(line)


def delete(
    call: Call,
    where: _Where = None,
    sel: _Sel = None,
    isel: _Isel = None,
    group: _Group = None,
    variables: _Variables = None,
    branch: BranchOption = None,
    message: MessageOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete labels or cells in a new snapshot."""
    from dataclasses import replace

    from icechunk_format.options.write import WriteOptions
    from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
    from icechunk_format.workflows.running import in_process

    request = DeleteRequest(
        read=replace(
            call.options, group=group, variables=_names(variables), where=where, sel=sel, isel=isel
        ),
        options=WriteOptions(mode="append", branch=branch or "main", group=group, message=message),
    )
    call.carry_out(
        lambda only_plan: delete_selected(replace(request, dry_run=only_plan), in_process),
        _show_deleted,
        "Delete these?",
        yes=yes,
        dry_run=dry_run,
        is_needed=lambda planned: bool(planned.labels or any(planned.cells.values())),
        document=_deleted,
    )


def _deleted(result: DeleteResult) -> dict[str, Any]:
    commit = result.commit
    is_skipped = commit is None or commit.is_skipped
    return {
        "dry_run": commit is None,
        "snapshot_id": None if commit is None or is_skipped else str(commit.snapshot_id),
        "arrays": list(result.arrays),
        "dimension": result.dim,
        "labels": result.labels,
        "cells": dict(result.cells),
    }


def _show_deleted(line: Callable[[Any], None], result: DeleteResult) -> None:
    if result.dim is not None:
        arrays = ", ".join(map(safe, result.arrays)) or "no array"
        line(f"{counted(result.labels, 'label')} of {safe(result.dim)}, from {arrays}")
    for path, count in result.cells.items():
        line(f"{counted(count, 'cell')} of {safe(path)}")
    if not result.labels and not any(result.cells.values()):
        line("the selection is empty")
    if result.commit is not None and not result.commit.is_skipped:
        line(f"committed as {result.commit.snapshot_id}")


def virtualize(
    call: Call,
    files: Annotated[
        list[str], typer.Argument(metavar="FILES...", help="Files, folders or patterns.")
    ],
    concat_dim: Annotated[
        str | None,
        typer.Option("--concat-dim", metavar="NAMES", help="Dimensions to concatenate along."),
    ] = None,
    parser: Annotated[
        str | None, typer.Option("--parser", metavar="NAME", help="hdf, netcdf3, zarr, grib, ...")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option("--template", metavar="TEXT", help="Of file names: {time:%Y%m%d}.nc."),
    ] = None,
    group: _Group = None,
    branch: BranchOption = None,
    message: MessageOption = None,
    skip: Annotated[
        bool, typer.Option("--skip-mismatches", help="Leave out files that do not fit.")
    ] = False,
    copy: Annotated[
        str | None,
        typer.Option(
            "--copy",
            metavar="FILES",
            help="Copy instead of referencing: all files, or only mismatching ones.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Refer to files as one dataset, in one process."""
    from icechunk_format.options.location import access_of
    from icechunk_format.options.write import WriteOptions
    from icechunk_format.workflows.running import in_process
    from icechunk_format.workflows.virtualizing import Archive, virtualize_files
    from icechunk_format.workflows.virtualizing.planning.copies import Copying
    from icechunk_format.workflows.virtualizing.planning.template import parse_template

    archive = Archive(
        location=call.location,
        names=files,
        options=WriteOptions(
            mode="append", layout="refs", branch=branch or "main", group=group, message=message
        ),
        dims=_names(concat_dim) or (),
        template=None if template is None else parse_template(template),
        loadable=None,
        parser=parser,
        on_mismatch="skip" if skip else "fail",
        containers=True,
        access=access_of(call.options),
        copying=None
        if copy is None
        else Copying(which=choose("--copy", copy, ("all", "mismatching"))),
        dry_run=dry_run,
    )
    with call.screen.working("Reading headers") as progress:
        done = virtualize_files(archive, in_process, cores=1, progress=progress)
    statuses: dict[str, int] = {}
    for row in done.report.to_pylist():
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
    snapshot = None if done.snapshot_id is None else str(done.snapshot_id)
    call.document(
        dry_run=dry_run, snapshot_id=snapshot, files=statuses, files_copied=done.files_copied
    )
    for status, count in statuses.items():
        call.screen.line(f"{counted(count, 'file')} {safe(status)}")
    if dry_run:
        call.screen.line(f"would commit {counted(done.references, 'reference')}")
        return
    call.screen.line(f"branch {safe(branch or 'main')} is now at {snapshot}")


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def _aligned(rows: list[list[str]]) -> list[str]:
    """Format rows as lines with aligned columns."""
    shown = [[safe(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
