"""Commands on cells and files: ``head``, ``explain``, ``delete`` and ``virtualize``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from icechunk_format.command_line.arguments import DryRunOption, SnapshotChoice, YesOption
from icechunk_format.command_line.call import Call
from icechunk_format.command_line.views.documents import result_keys
from icechunk_format.display.plain_text import aligned, counted, safe, size
from icechunk_format.names import choose

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from icechunk_format.workflows.deleting import DeleteResult
    from icechunk_format.workflows.estimate import Estimate


def head(
    call: Call,
    at: SnapshotChoice,
    count: Annotated[
        int, typer.Option("--rows", "-n", min=1, max=10_000, help="Number of rows.")
    ] = 10,
) -> None:
    """Show the first rows of a group as a table."""
    from icechunk_format.options.parse import parse_read_options
    from icechunk_format.tables import dataset_at, planning, requested_table, selecting
    from icechunk_format.tables.reading import run_scan

    chosen = at.resolve(call.repository)
    # Small tasks, since only the first rows are shown.
    read = parse_read_options(call.given(rowsPerPartition=str(4 * count)), "read")
    dataset = dataset_at(read, call.repository, chosen)
    table = requested_table(read, dataset)
    plan = dataset.plan(table, **selecting(read, None), **planning(read))
    columns = [column.name for column in table.columns]
    found = (
        row
        for task in plan.tasks
        for batch in run_scan(plan.context, task)
        for row in batch.slice(0, count).to_pylist()
    )
    rows = list(islice(found, count))
    strings = [["NULL" if row[n] is None else str(row[n]) for n in columns] for row in rows]
    call.document(
        snapshot_id=str(chosen),
        columns=columns,
        rows=[dict(zip(columns, row, strict=True)) for row in strings],
    )
    shown = [list(map(safe, row)) for row in (columns, *strings)]
    for line in aligned(shown, to_right=True):
        call.screen.line(line)


def explain(
    call: Call,
    at: SnapshotChoice,
    exact: Annotated[
        bool, typer.Option("--exact/--no-exact", help="Read manifests, which record stored bytes.")
    ] = True,
) -> None:
    """Show the chunks, bytes and requests of a read.

    --option takes all options of reading, named as in Spark: --option rowsPerPartition=1000000.
    """
    from icechunk_format.options.parse import parse_read_options
    from icechunk_format.workflows.estimate import estimate_read

    snapshot = str(at.resolve(call.repository)) if at.is_given else None
    options = parse_read_options(call.given(snapshot=snapshot), "read")
    with call.screen.working("Reading manifests"):
        found = estimate_read(options, exact=exact)
    call.document(**asdict(found))
    for line in _estimate_lines(found):
        call.screen.line(line)


def _estimate_lines(found: Estimate) -> list[str]:
    partitions = f"in {counted(found.partitions, 'partition')}"
    if not found.cells and not found.chunks:  # references or a metadata table
        opened = f"{counted(found.requests, 'manifest')} to open, {size(found.stored_bytes or 0)}"
        return [f"{counted(found.rows, 'row')} {partitions}", *([opened] * bool(found.requests))]
    about = "" if found.is_exact else "about "
    stored = "" if found.stored_bytes is None else f", {size(found.stored_bytes)} stored"
    return [
        f"{counted(found.rows, 'row')} of {counted(found.cells, 'cell')} {partitions}",
        f"{about}{counted(found.chunks, 'chunk')}{stored}, {size(found.decoded_bytes)} decoded",
        f"{about}{counted(found.requests, 'request')} for chunks",
    ]


def delete(call: Call, yes: YesOption = False, dry_run: DryRunOption = False) -> None:
    """Delete labels or cells in a new snapshot."""
    from icechunk_format.options.write_request import parse_change
    from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
    from icechunk_format.workflows.running import in_process

    read, commit = parse_change(call.given(), "delete")
    request = DeleteRequest(read=read, options=commit)
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
    return {"dry_run": result.commit is None, "dimension": result.dim, **result_keys(result)}


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
        typer.Option(metavar="NAMES", help="Dimensions to concatenate along."),
    ] = None,
    parser: Annotated[
        str | None, typer.Option(metavar="NAME", help="hdf, netcdf3, zarr, grib, ...")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Of file names: {time:%Y%m%d}.nc."),
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip-mismatches", help="Leave out files that do not fit.")
    ] = False,
    copy: Annotated[
        str | None,
        typer.Option(
            metavar="FILES",
            help="Copy instead of referencing: all files, or only mismatching ones.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Refer to files as one dataset, in one process."""
    from icechunk_format.options.location import access_of, location_of
    from icechunk_format.options.values import parse_names
    from icechunk_format.options.write_request import parse_write_options
    from icechunk_format.workflows.running import in_process
    from icechunk_format.workflows.virtualizing import Archive, virtualize_files
    from icechunk_format.workflows.virtualizing.planning.copies import Copying
    from icechunk_format.workflows.virtualizing.planning.template import parse_template

    options = replace(parse_write_options(call.given(), "virtualize"), layout="refs")
    archive = Archive(
        location=location_of(options),
        names=files,
        options=options,
        dims=() if concat_dim is None else parse_names("--concat-dim", concat_dim),
        template=None if template is None else parse_template(template),
        loadable=None,
        parser=parser,
        on_mismatch="skip" if skip else "fail",
        containers=True,
        access=access_of(options),
        copying=None
        if copy is None
        else Copying(which=choose("--copy", copy, ("all", "mismatching"))),
        dry_run=dry_run,
    )
    with call.screen.working("Reading headers") as progress:
        done = virtualize_files(archive, in_process, cores=1, progress=progress)
    statuses = Counter(done.report["status"].to_pylist())
    call.document(files=statuses, **result_keys(done))
    for status, count in statuses.items():
        call.screen.line(f"{counted(count, 'file')} {safe(status)}")
    if dry_run:
        call.screen.line(f"would commit {counted(done.references, 'reference')}")
        return
    call.screen.line(f"branch {safe(options.branch)} is now at {done.snapshot_id}")
