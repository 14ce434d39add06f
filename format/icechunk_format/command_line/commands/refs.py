"""Commands for branches and tags: ``branch``, ``tag``, ``reset``, ``restore``."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icechunk_format.command_line.arguments import (
    DryRunOption,
    MessageOption,
    YesOption,
    resolve_name,
)
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import (
    counted,
    first_line,
    iso_time,
    safe,
    shown_time,
    to_timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.encoding.ids import SnapshotId
    from icechunk_format.encoding.repo_info.file import SnapshotInfo
    from icechunk_format.repository import Repository
    from icechunk_format.workflows.merging.merge import MergeResult

_NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the branch or tag.")]
_AtOption = Annotated[
    str, typer.Option("--at", metavar="REF", help="Branch, tag or snapshot id to start at.")
]
_BranchArgument = Annotated[str, typer.Argument(metavar="BRANCH", help="The branch to move.")]
_ToArgument = Annotated[str, typer.Argument(metavar="TO", help="Branch, tag or snapshot id.")]


def list_branches(call: Call) -> None:
    """List branches with their newest snapshots."""
    branches = _described(call.repository, call.repository.branches())
    call.document(branches=branches)
    _show_refs(call.screen, branches)


def create_branch(call: Call, name: _NameArgument, at: _AtOption = "main") -> None:
    """Create a branch at a snapshot."""
    _create(call, "branch", name, at, call.repository.create_branch)


def delete_branch(call: Call, name: _NameArgument, yes: YesOption = False) -> None:
    """Delete a branch."""
    call.screen.require_confirmation(yes)
    opened = call.repository
    tip = opened.resolve(branch=name)
    if not yes:
        others = {n: i for n, i in opened.branches().items() if n != name}
        lost = _only_in_history_of(opened, tip, [*others.values(), *opened.tags().values()])
        _show_leaving(call.screen, lost, "would be in no branch or tag")
    call.screen.confirm(f"Delete branch {safe(name)}, which is at {tip}?", yes)
    opened.delete_branch(name)
    _report(call, "branch", name, tip, f"deleted branch {safe(name)}, which was at {tip}")


def fast_forward(
    call: Call,
    branch: _BranchArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="A branch that contains its history.")],
) -> None:
    """Move a branch forward to another branch."""
    before = call.repository.resolve(branch=branch)
    after = call.repository.fast_forward(branch, to)
    _moved(call, branch, before, after)


_ResolveOption = Annotated[
    Any,  # checked by the merge
    typer.Option(
        metavar="ours|theirs",
        help="Chunks that both sides changed: ours is the source, theirs the target.",
    ),
]


def merge(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The branch with the changes.")],
    into: Annotated[
        str, typer.Option(metavar="BRANCH", help="The branch to commit them to.")
    ] = "main",
    resolve: _ResolveOption = None,
    message: MessageOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Commit the changes of a branch on top of another branch."""
    run = partial(call.repository.merge, source, into, resolve=resolve, message=message)
    _show_merge(call, run, f"branch {safe(source)}", dry_run)


def cherry_pick(
    call: Call,
    snapshot: Annotated[str, typer.Argument(metavar="REF", help="Branch, tag or snapshot id.")],
    onto: Annotated[
        str, typer.Option(metavar="BRANCH", help="The branch to commit them to.")
    ] = "main",
    resolve: _ResolveOption = None,
    message: MessageOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Commit the changes of one snapshot on top of a branch."""
    picked = resolve_name(call.repository, snapshot)
    run = partial(call.repository.cherry_pick, picked, onto, resolve=resolve, message=message)
    _show_merge(call, run, f"snapshot {picked}", dry_run)


def list_tags(call: Call) -> None:
    """List tags, and the names of deleted ones."""
    opened = call.repository
    tags, deleted = _described(opened, opened.tags()), list(opened.deleted_tags())
    call.document(tags=tags, deleted_tags=deleted)
    _show_refs(call.screen, tags)
    if deleted:
        names = ", ".join(safe(name) for name in deleted)
        call.screen.line(f"deleted, not reusable: {names}")


def create_tag(call: Call, name: _NameArgument, at: _AtOption = "main") -> None:
    """Create a permanent tag at a snapshot."""
    _create(call, "tag", name, at, call.repository.create_tag)


def delete_tag(call: Call, name: _NameArgument, yes: YesOption = False) -> None:
    """Delete a tag; its name cannot be reused."""
    call.screen.require_confirmation(yes)
    snapshot_id = call.repository.resolve(tag=name)
    question = f"Delete tag {safe(name)} ({snapshot_id})? Its name cannot be reused."
    call.screen.confirm(question, yes)
    call.repository.delete_tag(name)
    _report(call, "tag", name, snapshot_id, f"deleted tag {safe(name)}, which was at {snapshot_id}")


def reset(
    call: Call,
    branch: _BranchArgument,
    to: _ToArgument,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Expected snapshot of the branch; another one is a conflict."
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Move a branch to any snapshot."""
    call.screen.require_confirmation(yes)
    opened = call.repository
    before, after = opened.resolve(branch=branch), resolve_name(opened, to)
    # A branch that moves after the confirmation is a conflict.
    expected: SnapshotId | str | None = before if expect is None and not yes else expect
    if not yes:
        lost = _only_in_history_of(opened, before, [after])
        _show_leaving(call.screen, lost, f"would leave the history of {safe(branch)}")
    call.screen.confirm(f"Move branch {safe(branch)} from {before} to {after}?", yes)
    opened.reset_branch(branch, after, expected)
    _moved(call, branch, before, after)


def restore(
    call: Call, branch: _BranchArgument, to: _ToArgument, message: MessageOption = None
) -> None:
    """Commit the contents of an earlier snapshot again."""
    chosen = resolve_name(call.repository, to)
    with call.screen.working("Restoring"):
        result = call.repository.restore(branch, chosen, message=message)
    now = result.snapshot_id
    call.document(
        branch=branch,
        restored_snapshot_id=str(chosen),
        previous_snapshot_id=str(result.parent_id),
        snapshot_id=str(now),
    )
    call.screen.line(f"branch {safe(branch)} is now at {now}, with the contents of {chosen}")


def _described(opened: Repository, refs: Mapping[str, SnapshotId]) -> list[dict[str, Any]]:
    infos = {snapshot_id: opened.snapshot_info(snapshot_id) for snapshot_id in set(refs.values())}
    return [
        {
            "name": name,
            "snapshot_id": str(snapshot_id),
            "committed_at": iso_time(to_timestamp(infos[snapshot_id].flushed_at)),
            "message": infos[snapshot_id].message,
        }
        for name, snapshot_id in refs.items()
    ]


def _show_refs(screen: Screen, refs: list[dict[str, Any]]) -> None:
    from icechunk_format.command_line.views.screen import styled

    rows = [
        [
            styled((safe(ref["name"]), "bold green")),
            styled((ref["snapshot_id"], "yellow")),
            styled((shown_time(datetime.fromisoformat(ref["committed_at"])), "dim")),
            styled(first_line(ref["message"])),
        ]
        for ref in refs
    ]
    screen.table(rows)


def _only_in_history_of(
    opened: Repository, tip: SnapshotId, kept: Iterable[SnapshotId]
) -> list[SnapshotInfo]:
    """Return the snapshots in this history only, newest first."""
    others: set[SnapshotId] = set()
    for other in kept:
        for info in opened.ancestry(snapshot=other):
            if info.id in others:
                break
            others.add(info.id)
    return list(takewhile(lambda info: info.id not in others, opened.ancestry(snapshot=tip)))


def _show_leaving(screen: Screen, lost: list[SnapshotInfo], what: str) -> None:
    from icechunk_format.command_line.views.history import shown_snapshots

    if not lost:
        screen.aside("No snapshot leaves history.")
        return
    screen.aside(f"{counted(len(lost), 'snapshot')} {what}:")
    for line in shown_snapshots(screen, lost):
        screen.aside(line)


def _create(
    call: Call, kind: str, name: str, at: str, create: Callable[[str, SnapshotId], object]
) -> None:
    snapshot_id = resolve_name(call.repository, at)
    create(name, snapshot_id)
    _report(call, kind, name, snapshot_id, f"created {kind} {safe(name)} at {snapshot_id}")


def _report(call: Call, kind: str, name: str, at: SnapshotId, line: str) -> None:
    call.document(**{kind: name}, snapshot_id=str(at))
    call.screen.line(line)


def _show_merge(call: Call, run: Callable[..., MergeResult], source: str, dry_run: bool) -> None:
    from icechunk_format.command_line.views.reading import counts_of
    from icechunk_format.options.location import access_of

    options, screen = call.options, call.screen
    with screen.working("Merging"):
        result = run(
            dry_run=dry_run,
            virtual_authorize=options.virtual_authorize,
            virtual_options=access_of(options).options,
        )
    counts = counts_of(result.changes)
    del counts["arrays_with_chunks"]
    commit = None if result.commit is None else str(result.commit.snapshot_id)
    call.document(
        dry_run=dry_run,
        branch=result.branch,
        source_snapshot_id=str(result.source),
        base_snapshot_id=str(result.base),
        snapshot_id=commit,
        conflicts=[str(conflict) for conflict in result.conflicts],
        **counts,
    )
    named = [f"{name.replace('_', ' ')}: {count}" for name, count in counts.items() if count]
    screen.line(f"{source} changed since {result.base}: {', '.join(named) or 'nothing'}")
    for conflict in result.conflicts:
        screen.line(f"conflict: {safe(str(conflict))}")
    branch = safe(result.branch)
    if commit is not None:
        screen.line(f"branch {branch} is now at {commit}")
    elif not dry_run:
        screen.line(f"branch {branch} has these changes already")


def _moved(call: Call, branch: str, before: SnapshotId, after: SnapshotId) -> None:
    call.document(branch=branch, previous_snapshot_id=str(before), snapshot_id=str(after))
    call.screen.line(f"branch {safe(branch)} is now at {after} (was {before})")
