"""Commands that copy arrays: ``copy``, ``import-draft``, ``mirror``, ``freshness``, ``rechunk``.

They delete nothing, so they do not ask for confirmation.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

import typer

from icechunk_format.command_line.arguments import (
    DryRunOption,
    MemoryOption,
    TagOption,
    location_at,
    parse_table_options,
)
from icechunk_format.command_line.call import Call
from icechunk_format.command_line.views.documents import result_keys
from icechunk_format.display.plain_text import counted, iso_time, safe, size
from icechunk_format.errors import InvalidInputError

CopiedArgument = Annotated[str, typer.Argument(metavar="SOURCE", help="Repository to copy from.")]
DraftArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Repository of a format before 1.0.")
]
_TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="Path or URL to write to.")]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Option of the storage of TARGET; --option is only for the other repository.",
    ),
]
TableArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="Path or URL of the Delta table.")
]
_TableOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Option of the storage of TARGET, named as in deltalake: AWS_REGION=us-west-2, ..."
        " Repeatable. Prefer the environment for credentials.",
    ),
]


def copy(
    call: Call,
    target: _TargetArgument,
    branch: Annotated[
        str | None,
        typer.Option("--branch", "-b", metavar="NAME", help="Branch to copy; main is the default."),
    ] = None,
    tag: TagOption = None,
    target_branch: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Branch of TARGET to create or move forward; default: --branch, or main.",
        ),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Copy all snapshots, or only the newest.")
    ] = True,
    dry_run: DryRunOption = False,
    target_option: TargetOption = None,
) -> None:
    """Copy a branch or a tag into another repository.

    Run it again after an interruption: existing objects are not copied twice.
    """
    from icechunk_format import maintenance

    screen, destination = call.screen, location_at(target, target_option)
    with screen.working("Copying") as progress:
        result = maintenance.copy(
            call.location,
            destination,
            branch=branch,
            tag=tag,
            target_branch=target_branch,
            history=history,
            dry_run=dry_run,
            progress=progress,
        )
    document = result_keys(result)
    call.document(target=str(destination), **document)
    nouns = ("snapshot", "manifest", "chunk")
    words = ", ".join(counted(document[f"{noun}s"], noun) for noun in nouns)
    if dry_run:
        screen.line(f"would copy at most {words}")
        return
    screen.line(f"copied {words}, {size(result.bytes)}")
    if result.skipped_chunks:
        screen.line(f"{counted(result.skipped_chunks, 'chunk')} existed already")
    screen.line(
        f"branch {safe(result.branch)} of {safe(destination)} is now at {result.snapshot_id}"
    )


def import_draft(
    call: Call,
    target: _TargetArgument,
    dry_run: DryRunOption = False,
    target_option: TargetOption = None,
) -> None:
    """Import a repository of a draft of the format.

    The drafts precede Icechunk 1.0. TARGET becomes a new repository with the history of all
    branches and tags; SOURCE is only read.
    """
    from icechunk_format import drafts

    screen, destination = call.screen, location_at(target, target_option)
    with screen.working("Reading the draft" if dry_run else "Importing") as progress:
        report = drafts.import_draft(call.location, destination, dry_run=dry_run, progress=progress)
    call.document(target=str(destination), **asdict(report))
    verb = "would import" if report.dry_run else "imported"
    screen.line(
        f"{verb} {counted(report.snapshots, 'snapshot')},"
        f" {counted(len(report.branches), 'branch', 'branches')},"
        f" {counted(len(report.tags), 'tag')} of a draft of the kind '{safe(report.kind)}'"
    )
    screen.line(
        f"{counted(report.native_chunks, 'chunk')} of {size(report.bytes_copied)},"
        f" {report.inline_chunks:,} inline and {report.virtual_chunks:,} virtual ones"
    )
    if report.chosen_main is not None:
        screen.line(f"the draft has no branch main; main is at its snapshot {report.chosen_main}")
    if report.virtual_prefixes:
        prefixes = ", ".join(safe(prefix) for prefix in report.virtual_prefixes)
        screen.line(f"virtual chunks, which readers must authorize, are at {prefixes}")


def mirror(
    call: Call,
    target: TableArgument,
    branch: Annotated[
        str, typer.Option("--branch", "-b", metavar="NAME", help="Branch to follow.")
    ] = "main",
    every_snapshot: Annotated[
        bool,
        typer.Option("--every-snapshot", help="Write a version of the table for each snapshot."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Copy all cells again.")] = False,
    dry_run: DryRunOption = False,
    target_option: _TableOption = None,
) -> None:
    """Copy the changes of a branch into a Delta table.

    The first run copies a group, later runs write the changes since. This process writes all
    files; icechunk_spark.mirror distributes them over a cluster.
    """
    from icechunk_format.options.parse import collect_options
    from icechunk_format.workflows.mirroring import (
        DeltaTarget,
        MirrorRequest,
        Selection,
        bring_up_to_date,
    )
    from icechunk_format.workflows.mirroring.record import REMEMBERED
    from icechunk_format.workflows.running import in_process

    screen = call.screen
    chosen = collect_options(call.given(), "mirror")
    request = MirrorRequest(
        read=call.options,
        target=DeltaTarget.of(target, parse_table_options(target_option)),
        selection=Selection.of({name: chosen[name] for name in REMEMBERED if name in chosen}),
        branch=branch,
        every_snapshot=every_snapshot and not dry_run,
        full=full,
        dry_run=dry_run,
    )
    with screen.working("Copying") as progress:
        result = bring_up_to_date(request, in_process, progress)
    call.document(target=str(request.target), branch=branch, **asdict(result))
    would = "would have " if dry_run else ""
    if result.full_copy is not None:
        screen.line(f"{would or 'wrote '}all cells: {safe(result.full_copy)}")
    written = f"{'about ' if dry_run else ''}{size(result.bytes)}"
    screen.line(
        f"{'would write' if dry_run else 'wrote'} {counted(result.rows, 'row')} in"
        f" {counted(result.files_added, 'file')}, {written};"
        f" {'remove' if dry_run else 'removed'} {counted(result.files_removed, 'file')},"
        f" {size(result.bytes_removed)}"
    )
    be = "would be" if dry_run else "is"
    screen.line(
        f"version {result.version} of {safe(request.target)} {be} snapshot {result.snapshot_id}"
    )


def freshness(call: Call, target_option: _TableOption = None) -> None:
    """Show how far a copy is behind the branch that it follows.

    --option is for the storage of the repository, which the table records.
    """
    from icechunk_format.options.location import location_of
    from icechunk_format.workflows.mirroring import DeltaTarget
    from icechunk_format.workflows.mirroring import freshness as of_copy

    screen, options = call.screen, call.options
    table = DeltaTarget.of(options.path, parse_table_options(target_option))
    found = of_copy(table, locate=lambda url: location_of(replace(options, path=url)))
    times = {
        "committed_at": iso_time(found.committed_at),
        "branch_committed_at": iso_time(found.branch_committed_at),
    }
    screen.document({"target": str(table), **asdict(found), **times})
    screen.line(f"version {found.version} of {safe(table)} is snapshot {found.snapshot_id}")
    branch = f"branch {safe(found.branch)} is at {found.branch_snapshot_id}"
    if found.snapshots_behind is None:
        screen.line(f"{branch}, whose history does not contain that snapshot")
    else:
        screen.line(f"{branch}, {counted(found.snapshots_behind, 'snapshot')} later")


def rechunk(
    call: Call,
    chunks: Annotated[
        str,
        typer.Option(
            metavar="SIZES",
            help="Elements of a chunk: time=-1,latitude=20; -1 is all. Or auto.",
        ),
    ],
    shards: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Elements of a shard.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="Repository to write to; default: in place."),
    ] = None,
    to_group: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Group to write to; default: --group."),
    ] = None,
    target_option: TargetOption = None,
    memory: MemoryOption = "512m",
    dry_run: DryRunOption = False,
) -> None:
    """Store arrays in other chunks, in one process."""
    from icechunk_format.options.values import parse_byte_size
    from icechunk_format.options.write_request import parse_change
    from icechunk_format.workflows.rechunking import RechunkRequest, one_process, rechunk_arrays

    read, commit = parse_change(call.given(), "rechunk")
    request = RechunkRequest(
        read=read,
        target=call.location if to is None else location_at(to, target_option),
        options=replace(
            commit,
            branch=(read.branch if to is None else None) or "main",
            group=read.group if to_group is None else to_group,
        ),
        chunks="auto" if chunks == "auto" else _sizes(chunks, "--chunks"),
        shards=None if shards is None else _sizes(shards, "--shards"),
        encoding={},
        memory=parse_byte_size("--memory", memory),
    )
    with call.screen.working("Rechunking") as progress:
        run = partial(one_process, progress=progress)
        result = rechunk_arrays(request, run, cores=None, dry_run=dry_run)
    call.document(dry_run=dry_run, **result_keys(result))
    for path in result.arrays:
        call.screen.line(safe(path))
    call.screen.line(
        f"{counted(len(result.arrays), 'array')}, {size(result.decoded_bytes)} decoded, in"
        f" {counted(result.tasks, 'step')} of at most {size(result.buffer_bytes)},"
        f" {counted(result.requests, 'chunk')} to read and write at most"
    )
    if result.commit is not None:
        call.screen.line(f"committed as {result.commit.snapshot_id}")


def _sizes(string: str, option: str) -> dict[str, int]:
    found = {}
    for part in string.split(","):
        dim, _, number = part.partition("=")
        if not number.strip().removeprefix("-").isdecimal():
            raise InvalidInputError(
                f"{option} is {string!r}; write it as time=24,latitude=180, with -1 for all",
                argument=option,
            )
        found[dim.strip()] = int(number)
    return found
