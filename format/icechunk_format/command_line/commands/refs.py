"""Commands about branches and tags: ``branch``, ``tag``, ``reset``, ``restore``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icechunk_format.command_line.arguments import (
    JsonOption,
    MessageOption,
    OptionOption,
    RepositoryArgument,
    YesOption,
    open_repository,
    resolve_name,
)
from icechunk_format.command_line.views.plain_text import counted, safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.repository.repository import Repository
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.spec.repo_info.file import SnapshotInfo

_NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the branch or tag.", show_default=False)
]
_AtOption = Annotated[
    str, typer.Option("--at", metavar="VERSION", help="Branch, tag or snapshot id to begin at.")
]
_BranchArgument = Annotated[
    str, typer.Argument(metavar="BRANCH", help="The branch to move.", show_default=False)
]
_ToArgument = Annotated[
    str, typer.Argument(metavar="TO", help="Branch, tag or snapshot id.", show_default=False)
]


def list_branches(
    repository: RepositoryArgument, option: OptionOption = None, as_json: JsonOption = False
) -> None:
    """List branches with their newest snapshots."""
    opened, screen = _opened(repository, option, as_json)
    branches = _described(opened, opened.branches())
    screen.document({"repository": str(opened.location), "branches": branches})
    _show_refs(screen, branches)


def create_branch(
    repository: RepositoryArgument,
    name: _NameArgument,
    at: _AtOption = "main",
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a branch at a version."""
    opened, screen = _opened(repository, option, as_json)
    snapshot_id = resolve_name(opened, at)
    opened.create_branch(name, snapshot_id)
    line = f"created branch {safe(name)} at {snapshot_id}"
    _report(screen, opened, "branch", name, snapshot_id, line)


def delete_branch(
    repository: RepositoryArgument,
    name: _NameArgument,
    yes: YesOption = False,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a branch."""
    opened, screen = _opened(repository, option, as_json)
    screen.require_confirmation(yes)
    tip = opened.resolve(branch=name)
    if not yes:
        others = {n: i for n, i in opened.branches().items() if n != name}
        lost = _only_below(opened, tip, [*others.values(), *opened.tags().values()])
        _show_lost(screen, lost, "would be on no branch or tag")
    screen.confirm(f"Delete branch {safe(name)}, which is at {tip}?", yes)
    opened.delete_branch(name)
    line = f"deleted branch {safe(name)}, which was at {tip}"
    _report(screen, opened, "branch", name, tip, line)


def fast_forward(
    repository: RepositoryArgument,
    branch: _BranchArgument,
    to: Annotated[
        str,
        typer.Argument(metavar="TO", help="The branch that stands on it.", show_default=False),
    ],
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a branch to one that stands on it."""
    opened, screen = _opened(repository, option, as_json)
    before = opened.resolve(branch=branch)
    after = opened.fast_forward(branch, to)
    _moved(screen, opened, branch, before, after)


def list_tags(
    repository: RepositoryArgument, option: OptionOption = None, as_json: JsonOption = False
) -> None:
    """List tags, and the names of deleted ones."""
    opened, screen = _opened(repository, option, as_json)
    tags, deleted = _described(opened, opened.tags()), list(opened.deleted_tags())
    screen.document({"repository": str(opened.location), "tags": tags, "deleted_tags": deleted})
    _show_refs(screen, tags)
    if deleted:
        screen.line("deleted, never to be used again: " + ", ".join(safe(n) for n in deleted))


def create_tag(
    repository: RepositoryArgument,
    name: _NameArgument,
    at: _AtOption = "main",
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a tag at a version, for good."""
    opened, screen = _opened(repository, option, as_json)
    snapshot_id = resolve_name(opened, at)
    opened.create_tag(name, snapshot_id)
    line = f"created tag {safe(name)} at {snapshot_id}"
    _report(screen, opened, "tag", name, snapshot_id, line)


def delete_tag(
    repository: RepositoryArgument,
    name: _NameArgument,
    yes: YesOption = False,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a tag, whose name stays taken."""
    opened, screen = _opened(repository, option, as_json)
    screen.require_confirmation(yes)
    target = opened.resolve(tag=name)
    screen.confirm(f"Delete tag {safe(name)} ({target}), whose name is then taken for ever?", yes)
    opened.delete_tag(name)
    line = f"deleted tag {safe(name)}, which was at {target}"
    _report(screen, opened, "tag", name, target, line)


def reset(
    repository: RepositoryArgument,
    branch: _BranchArgument,
    to: _ToArgument,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect",
            metavar="ID",
            help="Snapshot at which the branch has to be; anywhere else is a conflict.",
        ),
    ] = None,
    yes: YesOption = False,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a branch to any version."""
    opened, screen = _opened(repository, option, as_json)
    screen.require_confirmation(yes)
    before, after = opened.resolve(branch=branch), resolve_name(opened, to)
    # A branch that moves after the question was asked is a conflict.
    expected: SnapshotId | str | None = before if expect is None and not yes else expect
    if not yes:
        _show_lost(
            screen,
            _only_below(opened, before, [after]),
            f"would leave the history of {safe(branch)}",
        )
    screen.confirm(f"Move branch {safe(branch)} from {before} to {after}?", yes)
    opened.reset_branch(branch, after, expected)
    _moved(screen, opened, branch, before, after)


def restore(
    repository: RepositoryArgument,
    branch: _BranchArgument,
    to: _ToArgument,
    message: MessageOption = None,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit an earlier version anew; history stays."""
    opened, screen = _opened(repository, option, as_json)
    chosen = resolve_name(opened, to)
    with screen.working("Restoring"):
        result = opened.restore(branch, chosen, message=message)
    screen.document(
        {
            "repository": str(opened.location),
            "branch": branch,
            "restored_snapshot_id": str(chosen),
            "previous_snapshot_id": str(result.parent_id),
            "snapshot_id": str(result.snapshot_id),
        }
    )
    screen.line(f"branch {safe(branch)} is now at {result.snapshot_id}, which restates {chosen}")


def _opened(repository: str, option: list[str] | None, as_json: bool) -> tuple[Repository, Screen]:
    from icechunk_format.command_line.views.screen import Screen

    return open_repository(repository, option), Screen(as_json=as_json)


def _described(opened: Repository, refs: Mapping[str, SnapshotId]) -> list[dict[str, Any]]:
    from icechunk_format.command_line.views.plain_text import iso_time, to_instant

    infos = {snapshot_id: opened.snapshot_info(snapshot_id) for snapshot_id in set(refs.values())}
    return [
        {
            "name": name,
            "snapshot_id": str(snapshot_id),
            "committed_at": iso_time(to_instant(infos[snapshot_id].flushed_at)),
            "message": infos[snapshot_id].message,
        }
        for name, snapshot_id in refs.items()
    ]


def _show_refs(screen: Screen, refs: list[dict[str, Any]]) -> None:
    from datetime import datetime

    from icechunk_format.command_line.views.history.view import first_line
    from icechunk_format.command_line.views.plain_text import shown_time
    from icechunk_format.command_line.views.screen import columns_of, styled

    rows = [
        [
            styled((safe(ref["name"]), "bold green")),
            styled((ref["snapshot_id"], "yellow")),
            styled((shown_time(datetime.fromisoformat(ref["committed_at"])), "dim")),
            styled(first_line(ref["message"])),
        ]
        for ref in refs
    ]
    for line in columns_of(rows):
        screen.line(line)


def _only_below(
    opened: Repository, tip: SnapshotId, kept: Iterable[SnapshotId]
) -> list[SnapshotInfo]:
    """Return the snapshots of a history that no other history holds, newest first."""
    others: set[SnapshotId] = set()
    for other in kept:
        for info in opened.ancestry(snapshot=other):
            if info.id in others:
                break
            others.add(info.id)
    lost = []
    for info in opened.ancestry(snapshot=tip):
        if info.id in others:
            break
        lost.append(info)
    return lost


def _show_lost(screen: Screen, lost: list[SnapshotInfo], what: str) -> None:
    from icechunk_format.command_line.views.history.view import shown_snapshots

    if not lost:
        screen.aside("No snapshot is lost from history.")
        return
    screen.aside(f"{counted(len(lost), 'snapshot')} {what}:")
    for line in shown_snapshots(screen, lost):
        screen.aside(line)


def _report(
    screen: Screen, opened: Repository, kind: str, name: str, at: SnapshotId, line: str
) -> None:
    screen.document({"repository": str(opened.location), kind: name, "snapshot_id": str(at)})
    screen.line(line)


def _moved(
    screen: Screen, opened: Repository, branch: str, before: SnapshotId, after: SnapshotId
) -> None:
    screen.document(
        {
            "repository": str(opened.location),
            "branch": branch,
            "previous_snapshot_id": str(before),
            "snapshot_id": str(after),
        }
    )
    screen.line(f"branch {safe(branch)} is now at {after} (was {before})")
