"""Commands of copies as Delta tables: ``mirror``, ``freshness``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from icechunk_format.command_line.arguments import (
    JsonOption,
    OptionOption,
    parse_options,
    parse_table_options,
)
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import counted, iso_time, safe, size

_TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="Path or URL of the Delta table.")
]
_TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Option of the store of TARGET, in the words of deltalake: AWS_REGION=us-west-2, ..."
        " Can be repeated. Credentials are better left to the environment.",
    ),
]
_Names = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Variables to copy, separated by commas.")
]


def mirror(
    call: Call,
    target: _TargetArgument,
    branch: Annotated[
        str, typer.Option("--branch", "-b", metavar="NAME", help="Branch to follow.")
    ] = "main",
    group: Annotated[str | None, typer.Option(metavar="PATH", help="Group to copy.")] = None,
    variables: _Names = None,
    sel: Annotated[
        str | None,
        typer.Option(metavar="LABELS", help="Labels to copy: 'latitude=35:45; level=500'."),
    ] = None,
    isel: Annotated[
        str | None, typer.Option(metavar="POSITIONS", help="Positions to copy: 'time=0:24'.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Rows to copy, as in SQL.")
    ] = None,
    every_snapshot: Annotated[
        bool,
        typer.Option("--every-snapshot", help="Give each snapshot since then its own version."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Write all cells anew.")] = False,
    target_option: _TargetOption = None,
) -> None:
    """Copy what changed on a branch into a Delta table.

    The first run copies a group, later ones write what changed since. This process writes all
    files; with Spark, icechunk_spark.mirror spreads them over a cluster.
    """
    from icechunk_format.workflows.mirroring.mirror import MirrorRequest, run_here
    from icechunk_format.workflows.mirroring.mirror import mirror as bring_up_to_date
    from icechunk_format.workflows.mirroring.selection import Selection
    from icechunk_format.workflows.mirroring.target import DeltaTarget

    screen = call.screen
    given: dict[str, Any] = {"group": group, "sel": sel, "isel": isel, "where": where}
    if variables is not None:
        given["variables"] = [name.strip() for name in variables.split(",") if name.strip()]
    request = MirrorRequest(
        location=call.location,
        target=DeltaTarget.of(target, parse_table_options(target_option)),
        selection=Selection.of(given),
        branch=branch,
        every_snapshot=every_snapshot,
        full=full,
        authorize=call.options.authorize,
        virtual_options=call.options.virtual or None,
    )
    with screen.working("Copying") as progress:
        result = bring_up_to_date(request, partial(run_here, progress=progress))
    call.document(target=str(request.target), branch=branch, **asdict(result))
    if result.full_copy is not None:
        screen.line(f"wrote all cells: {safe(result.full_copy)}")
    screen.line(
        f"wrote {counted(result.rows, 'row')} in {counted(result.files_added, 'file')},"
        f" {size(result.bytes)}; took {counted(result.files_removed, 'file')} out"
    )
    screen.line(
        f"version {result.version} of {safe(request.target)} is snapshot {result.snapshot_id}"
    )


def freshness(
    target: _TargetArgument,
    option: OptionOption = None,
    target_option: _TargetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell how far a copy is behind the branch that it follows.

    --option is for the store of the repository, which the table names.
    """
    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.workflows.mirroring.target import DeltaTarget
    from icechunk_format.workflows.mirroring.versions import freshness as of_copy

    screen = Screen(as_json=as_json)
    options = parse_options(option)
    place = DeltaTarget.of(target, parse_table_options(target_option))
    found = of_copy(place, storage={"client": options.client, "options": options.storage})
    times = {
        "committed_at": iso_time(found.committed_at),
        "branch_committed_at": iso_time(found.branch_committed_at),
    }
    screen.document({"target": str(place), **asdict(found), **times})
    screen.line(f"version {found.version} of {safe(place)} is snapshot {found.snapshot_id}")
    branch = f"branch {safe(found.branch)} is at {found.branch_snapshot_id}"
    if found.snapshots_behind is None:
        screen.line(f"{branch}, whose history does not have that snapshot")
    else:
        screen.line(f"{branch}, {counted(found.snapshots_behind, 'snapshot')} later")
