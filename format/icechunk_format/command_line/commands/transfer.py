"""Commands that fill a repository from another one: ``copy``, ``import-draft``.

Neither deletes anything, so neither asks.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from icechunk_format.command_line.arguments import DryRunOption, TagOption, location_at
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import counted, safe, size

CopiedArgument = Annotated[str, typer.Argument(metavar="SOURCE", help="Repository to copy from.")]
DraftArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Repository of a format before 1.0.")
]
_TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="Path or URL to write to, in another store or not.")
]
_TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Option of the store of TARGET, like --option for the other one; none of those are"
        " used for it.",
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
            help="Branch to create or to move forward there; default: that of --branch, or main.",
        ),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Copy all versions, or only the newest.")
    ] = True,
    target_option: _TargetOption = None,
) -> None:
    """Copy a branch or a tag into another repository.

    Run it again after an interruption: what is there already is not copied twice.
    """
    from icechunk_format import maintenance

    screen, goal = call.screen, location_at(target, target_option)
    with screen.working("Copying") as progress:
        result = maintenance.copy(
            call.location,
            goal,
            branch=branch,
            tag=tag,
            target_branch=target_branch,
            history=history,
            progress=progress,
        )
    document = {**asdict(result), "snapshot_id": str(result.snapshot_id)}
    call.document(target=str(goal), **document)
    nouns = ("snapshot", "manifest", "chunk")
    words = ", ".join(counted(document[f"{noun}s"], noun) for noun in nouns)
    screen.line(f"copied {words}, {size(result.bytes)}")
    if result.skipped_chunks:
        screen.line(f"{counted(result.skipped_chunks, 'chunk')} were there already")
    screen.line(f"branch {safe(result.branch)} of {safe(goal)} is now at {result.snapshot_id}")


def import_draft(
    call: Call,
    target: _TargetArgument,
    dry_run: DryRunOption = False,
    target_option: _TargetOption = None,
) -> None:
    """Import a repository of a draft of the format.

    The drafts are those from before Icechunk 1.0. TARGET becomes a new repository with the history
    of all branches and tags; SOURCE is only read.
    """
    from icechunk_format import drafts

    screen, goal = call.screen, location_at(target, target_option)
    with screen.working("Reading the draft" if dry_run else "Importing") as progress:
        report = drafts.import_draft(call.location, goal, dry_run=dry_run, progress=progress)
    call.document(target=str(goal), **asdict(report))
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
        screen.line(f"the draft has no branch main; main is at its version {report.chosen_main}")
    if report.virtual_prefixes:
        prefixes = ", ".join(safe(prefix) for prefix in report.virtual_prefixes)
        screen.line(f"virtual chunks, which readers have to authorise, lie at {prefixes}")
