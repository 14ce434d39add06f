"""Read-only commands: ``log``, ``show``, ``tree``, ``diff``, ``operations``, ``applications``."""

from __future__ import annotations

from typing import Annotated

import typer

from icechunk_format.command_line.arguments import GroupOption, SnapshotChoice, resolve_name
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import counted, safe
from icechunk_format.errors import InvalidInputError

_NumberOption = Annotated[
    int,
    typer.Option("--number", "-n", min=0, max=2**31, metavar="N", help="Maximum number; 0 is all."),
]
_SizesOption = Annotated[
    bool, typer.Option("--sizes/--no-sizes", help="Count chunks and bytes, which reads manifests.")
]


def log(
    call: Call,
    branch: Annotated[
        list[str] | None,
        typer.Option(
            "--branch", "-b", metavar="NAME", help="Only the history of this branch; repeatable."
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", "-t", metavar="NAME", help="Only the history of this tag; repeatable."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also snapshots that no branch or tag reaches.")
    ] = False,
    number: _NumberOption = 20,
    changes: Annotated[
        bool, typer.Option("--changes/--no-changes", help="Count the changes of each snapshot.")
    ] = True,
) -> None:
    """Show the history of branches and tags as a graph."""
    from icechunk_format.command_line.views import history, reading
    from icechunk_format.command_line.views.screen import styled

    if everything and (branch or tag):
        raise InvalidInputError("--all shows every snapshot; omit --branch and --tag")
    screen, opened = call.screen, call.repository
    tips = None
    if branch or tag:
        chosen = [opened.resolve(branch=name) for name in branch or ()]
        chosen += [opened.resolve(tag=name) for name in tag or ()]
        tips = list(dict.fromkeys(chosen))
    elif not everything:
        tips = list(dict.fromkeys([*opened.branches().values(), *opened.tags().values()]))
    limit = number or None
    with screen.working("Reading history"):
        infos, cut = reading.find_history(opened, tips, limit=limit)
    counts: list[dict[str, int] | None] = [None] * len(infos)
    if changes:
        with screen.working("Reading changes") as progress:
            counts = reading.count_changes(opened, infos, progress)
    entries = reading.describe_snapshots(opened, infos, counts)
    call.document(snapshots=entries, truncated=cut)
    history.show_log(screen, entries, with_changes=changes)
    if cut:
        string = screen.drawn("… older snapshots are not shown; -n 0 shows all")
        screen.line(styled((string, "dim")))


def show(
    call: Call,
    at: SnapshotChoice,
    ref: Annotated[
        str | None, typer.Argument(metavar="[REF]", help="Branch, tag or snapshot id.")
    ] = None,
    sizes: _SizesOption = True,
) -> None:
    """Show one snapshot: its metadata, contents and changes."""
    from icechunk_format.command_line.views import history, reading

    if ref is not None and at.is_given:
        raise InvalidInputError(
            "give REF, or --branch, --tag, --snapshot and --as-of, but not both"
        )
    screen, opened = call.screen, call.repository
    chosen = at.resolve(opened) if ref is None else resolve_name(opened, ref)
    with screen.working("Reading changes"):
        found = reading.read_snapshot(opened, chosen)
    if sizes:
        nodes = reading.read_nodes(screen, opened, chosen, group=None, with_sizes=True)
        found.update(reading.add_up(nodes))
    call.document(**found)
    history.show_snapshot(screen, found)


def tree(
    call: Call,
    at: SnapshotChoice,
    group: GroupOption = None,
    sizes: _SizesOption = True,
    attributes: Annotated[bool, typer.Option("--attributes", help="Show user attributes.")] = False,
) -> None:
    """Show groups and arrays with chunks, codecs and sizes."""
    from icechunk_format.command_line.views import reading
    from icechunk_format.command_line.views.tree import show_tree

    screen, opened = call.screen, call.repository
    chosen = at.resolve(opened)
    nodes = reading.read_nodes(screen, opened, chosen, group=group, with_sizes=sizes)
    top = nodes[0]["path"] if group is not None and nodes else "/"
    call.document(snapshot_id=str(chosen), group=top, nodes=nodes)
    show_tree(screen, nodes, top=top, with_attributes=attributes)


def diff(
    call: Call,
    older: Annotated[str, typer.Argument(metavar="OLDER", help="Branch, tag or snapshot id.")],
    newer: Annotated[
        str, typer.Argument(metavar="[NEWER]", help="Branch, tag or snapshot id.")
    ] = "main",
) -> None:
    """Show the changes from one snapshot to a later one."""
    from icechunk_format.command_line.views import history, reading
    from icechunk_format.command_line.views.screen import styled

    screen, opened = call.screen, call.repository
    first, last = resolve_name(opened, older), resolve_name(opened, newer)
    with screen.working("Reading changes"):
        changes = reading.read_changes(opened, first, last)
    call.document(from_snapshot_id=str(first), to_snapshot_id=str(last), changes=changes)
    screen.line(
        styled(
            (_label(older, str(first)), "yellow"),
            screen.drawn(" → "),
            (_label(newer, str(last)), "yellow"),
        )
    )
    history.show_changes(screen, changes)
    if changes:
        nodes = len({change["path"] for change in changes if change["path"] is not None})
        chunks = sum(change["chunk_count"] or 0 for change in changes)
        string = f"{counted(nodes, 'node')} changed, {counted(chunks, 'chunk')} written or deleted"
        screen.line(styled((string, "bold")))


def _label(name: str, snapshot_id: str) -> str:
    return snapshot_id if name == snapshot_id else f"{safe(name)} ({snapshot_id})"


def operations(call: Call, number: _NumberOption = 50) -> None:
    """Show the operations on the repository, newest first."""
    from icechunk_format.command_line.views import history, reading
    from icechunk_format.command_line.views.screen import styled

    screen, opened = call.screen, call.repository
    with screen.working("Reading the operations log"):
        found, cut = reading.read_operations(opened, number or None)
    call.document(operations=found, truncated=cut)
    if not screen.as_json and opened.spec_version == 1:
        screen.aside("repositories of spec version 1 have no log of operations")
    history.show_operations(screen, found)
    if cut:
        string = screen.drawn("… older ones are not shown; -n 0 shows all")
        screen.line(styled((string, "dim")))


def applications(
    call: Call,
    branch: Annotated[
        str, typer.Option("--branch", "-b", metavar="NAME", help="The branch with the commits.")
    ] = "main",
    app_id: Annotated[str | None, typer.Option(metavar="ID", help="Only this application.")] = None,
) -> None:
    """Show the versions that applications committed."""
    from icechunk_format.command_line.views import history, reading

    screen, opened = call.screen, call.repository
    with screen.working("Reading history"):
        found, expired = reading.read_applications(opened, branch, app_id)
    call.document(branch=branch, has_expired_snapshots=expired, applications=found)
    history.show_applications(screen, found)
    if not found:
        what = "an application" if app_id is None else f"the application {safe(app_id[:200])}"
        screen.aside(f"no commit on branch {safe(branch)} has a version of {what}")
    if expired:
        screen.aside("snapshots have expired: versions that only they record are not listed")
