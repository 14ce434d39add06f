"""The command ``explain``: estimates the cost of a read."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from icechunk_format.command_line.arguments import (
    AsOfOption,
    BranchOption,
    SnapshotOption,
    TagOption,
)
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import counted, size

if TYPE_CHECKING:
    from icechunk_format.workflows.estimate import Estimate


def explain(
    call: Call,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="PATH", help="Group to read.")
    ] = None,
    branch: BranchOption = None,
    tag: TagOption = None,
    snapshot: SnapshotOption = None,
    as_of: AsOfOption = None,
    layout: Annotated[
        str | None, typer.Option(metavar="LAYOUT", help="cells, chunks, refs or summary.")
    ] = None,
    variables: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Variables to read: t2m,wind.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Rows to read, as in SQL.")
    ] = None,
    sel: Annotated[
        str | None,
        typer.Option(metavar="LABELS", help="Labels to read: 'latitude=35:45; level=500'."),
    ] = None,
    isel: Annotated[
        str | None, typer.Option(metavar="POSITIONS", help="Positions to read: 'time=0:24'.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact/--no-exact", help="Read manifests, which record stored bytes.")
    ] = True,
) -> None:
    """Show the chunks, bytes and requests of a read.

    --option takes all options of reading, named as in Spark: --option rowsPerPartition=1000000.
    """
    from icechunk_format.workflows.estimate import estimate_read

    given = {
        "group": group,
        "branch": branch,
        "tag": tag,
        "snapshot": snapshot,
        "asOf": as_of,
        "layout": layout,
        "variables": variables,
        "where": where,
        "sel": sel,
        "isel": isel,
    }
    options = call.reading({name: text for name, text in given.items() if text is not None})
    with call.screen.working("Reading manifests"):
        found = estimate_read(options, exact=exact)
    call.document(**asdict(found))
    for line in _lines(found):
        call.screen.line(line)


def _lines(found: Estimate) -> list[str]:
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
