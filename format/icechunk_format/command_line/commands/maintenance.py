"""Commands ``expire``, ``gc``, ``rewrite-manifests`` and ``upgrade``.

Commands that delete files or rewrite history show the plan and ask for confirmation; ``--yes``
skips both.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icechunk_format.command_line.arguments import (
    DryRunOption,
    MessageOption,
    OlderThanOption,
    YesOption,
    node_path,
    parse_past,
)
from icechunk_format.command_line.call import Call
from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.command_line.views.documents import result_keys
from icechunk_format.display.plain_text import counted, safe, size
from icechunk_format.errors import InvalidInputError
from icechunk_format.names import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icechunk_format.encoding.repo_info.file import SnapshotInfo
    from icechunk_format.maintenance import CollectResult, ExpireResult, RewriteResult
    from icechunk_format.repository import Repository, UpgradeReport

_COLLECTED: Final = {
    "snapshots_deleted": ("snapshot", "snapshots"),
    "transaction_logs_deleted": ("transaction log", "transaction logs"),
    "manifests_deleted": ("manifest", "manifests"),
    "chunks_deleted": ("chunk", "chunks"),
    "overwritten_deleted": ("old copy of 'repo'", "old copies of 'repo'"),
    "staged_deleted": ("unfinished file of a killed writer", "unfinished files of killed writers"),
}


def expire(
    call: Call,
    older_than: OlderThanOption,
    delete_expired_branches: Annotated[
        bool,
        typer.Option(
            "--delete-expired-branches", help="Also delete branches whose newest snapshot is older."
        ),
    ] = False,
    delete_expired_tags: Annotated[
        bool, typer.Option("--delete-expired-tags", help="Also delete tags of older snapshots.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Remove old snapshots from history; gc deletes them."""
    from icechunk_format.command_line.views.history import shown_snapshots

    timestamp = parse_past(older_than, argument="--older-than")

    def run(dry: bool) -> ExpireResult:
        with call.screen.working("Looking for expired snapshots" if dry else "Expiring"):
            result = call.repository.expire_snapshots(
                timestamp,
                delete_expired_branches=delete_expired_branches,
                delete_expired_tags=delete_expired_tags,
                dry_run=dry,
            )
            return _without_tips(call.repository, result)

    def show(line: Callable[[Any], None], result: ExpireResult) -> None:
        infos: list[SnapshotInfo] = []
        if result.dry_run:
            released = set(result.released_snapshots)
            infos = [info for info in call.repository.snapshots() if str(info.id) in released]
        newest_first = sorted(infos, key=lambda info: -info.flushed_at)
        _show_expired(line, result, shown_snapshots(call.screen, newest_first))

    call.carry_out(
        run,
        show,
        "Remove them from history?",
        yes=yes,
        dry_run=dry_run,
        is_needed=lambda plan: bool(
            plan.released_snapshots or plan.deleted_branches or plan.deleted_tags
        ),
    )


def _without_tips(opened: Repository, result: ExpireResult) -> ExpireResult:
    """Remove snapshots to which a branch or tag still points from a result.

    In spec version 1, the result also lists expired tips that are kept, as in other libraries.
    """
    branches, tags = opened.branches().items(), opened.tags().items()
    kept = {str(tip) for name, tip in branches if name not in result.deleted_branches}
    kept |= {str(tip) for name, tip in tags if name not in result.deleted_tags}
    left = tuple(name for name in result.released_snapshots if name not in kept)
    return replace(result, released_snapshots=left)


def _show_expired(
    show: Callable[[Any], None], result: ExpireResult, snapshots: Sequence[Any]
) -> None:
    verb = "would leave" if result.dry_run else "left"
    count = counted(len(result.released_snapshots), "snapshot")
    show(f"{count} {verb} history{':' if snapshots else ''}")
    for line in snapshots:
        show(line)
    verb = "would be deleted" if result.dry_run else "deleted"
    for noun, plural, names in (
        ("branch", "branches", result.deleted_branches),
        ("tag", "tags", result.deleted_tags),
    ):
        if names:
            show(f"{counted(len(names), noun, plural)} {verb}: {shortened(list(map(safe, names)))}")
    if result.released_snapshots and not result.dry_run:
        show("their files remain until garbage collection: icechunk-spark gc")


def gc(
    call: Call,
    older_than: OlderThanOption,
    trim_overwritten: Annotated[
        str | None,
        typer.Option(
            "--trim-overwritten-older-than",
            metavar="AGE",
            help="Also delete old copies of 'repo' that the operations log does not reach.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Delete files that no branch, tag or new snapshot uses.

    Only --older-than protects writers at work: choose more than the duration of the longest write,
    such as 1d, or 7d to be safe.
    """
    from icechunk_format.maintenance import collect_garbage

    timestamp = parse_past(older_than, argument="--older-than")
    trim = None
    if trim_overwritten is not None:
        trim = parse_past(trim_overwritten, argument="--trim-overwritten-older-than")

    def run(dry: bool) -> CollectResult:
        with call.screen.working("Looking for garbage" if dry else "Deleting garbage") as progress:
            return collect_garbage(
                call.location,
                timestamp,
                dry_run=dry,
                trim_overwritten_older_than=trim,
                progress=progress,
            )

    done = call.carry_out(
        run,
        _show_collected,
        "Delete them permanently?",
        yes=yes,
        dry_run=dry_run,
        is_needed=lambda plan: any(getattr(plan, name) for name in _COLLECTED),
    )
    if done.objects_failed_to_delete:
        raise typer.Exit(ExitCode.ERROR)


def _show_collected(show: Callable[[Any], None], result: CollectResult) -> None:
    from icechunk_format.command_line.views.screen import styled

    counts = [(getattr(result, name), nouns) for name, nouns in _COLLECTED.items()]
    verb = "would be deleted" if result.dry_run else "deleted"
    total = sum(count for count, _ in counts)
    if total == 0:
        show("no garbage of that age")
    else:
        show(f"{counted(total, 'file')} {verb}, {size(result.bytes_deleted)}:")
        for count, (noun, plural) in counts:
            if count:
                show(f"{count:>12,}  {noun if count == 1 else plural}")
    if result.objects_failed_to_delete:
        failed = counted(result.objects_failed_to_delete, "file")
        show(styled((f"{failed} could not be deleted; run gc again later", "red")))
        for string in result.delete_errors:
            show(f"    {safe(string)}")
    if result.skipped_phases:
        show(f"skipped for that reason: {', '.join(result.skipped_phases)}")


def rewrite_manifests(
    call: Call,
    branch: Annotated[
        str, typer.Option("--branch", "-b", metavar="NAME", help="Branch to rewrite.")
    ] = "main",
    path: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Only this array, or the arrays of this group; repeatable."
        ),
    ] = None,
    splitting: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Splitting rules as in the configuration, which is the default."
        ),
    ] = None,
    message: MessageOption = None,
    amend: Annotated[
        bool, typer.Option("--amend", help="Replace the newest snapshot instead of adding one.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Merge small manifests, in a new snapshot.

    No chunk is read. The history does not change, except with --amend, which asks for confirmation.
    """
    from icechunk_format import maintenance

    rules = _parsed_json(splitting)

    def run(dry: bool) -> RewriteResult:
        with call.screen.working("Comparing manifests" if dry else "Rewriting manifests") as shown:
            return maintenance.rewrite_manifests(
                call.location,
                branch=branch,
                splitting=rules,
                paths=None if path is None else [node_path(one) for one in path],
                message=message,
                amend=amend,
                dry_run=dry,
                progress=shown,
            )

    def document(result: RewriteResult) -> dict[str, Any]:
        return {"branch": branch, **result_keys(result)}

    call.carry_out(
        run,
        lambda show, result: _show_rewritten(call.screen.drawn("→"), show, result),
        f"Replace the newest snapshot of {safe(branch)}?",
        yes=yes or not amend,
        dry_run=dry_run,
        document=document,
    )


def _show_rewritten(arrow: str, show: Callable[[Any], None], result: RewriteResult) -> None:
    if result.commit is None and not (result.dry_run and result.references):
        show("every manifest already follows the rules; nothing was changed")
        return
    about = "about " if result.dry_run else ""
    show(
        f"{counted(result.references, 'reference')} in {result.manifests_before:,} {arrow}"
        f" {about}{counted(result.manifests_after, 'manifest')},"
        f" {size(result.bytes_before)}"
        + ("" if result.bytes_after is None else f" {arrow} {size(result.bytes_after)}")
    )
    if result.commit is not None:
        show(f"committed {result.commit.snapshot_id}")
    if result.left_out:
        arrays = shortened(list(map(safe, result.left_out)))
        show(f"other writers changed {arrays} meanwhile; rewrite these again")


def _parsed_json(string: str | None) -> Any:
    if string is None:
        return None
    try:
        return json.loads(string)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"--splitting is not JSON: {error}") from None


def upgrade(call: Call, dry_run: DryRunOption = False, yes: YesOption = False) -> None:
    """Upgrade from spec version 1 to 2, permanently.

    History, branches, tags and ids stay. No writer may run meanwhile; libraries that support only
    version 1 cannot open the repository afterwards. Run again after an interruption.
    """

    def run(dry: bool) -> UpgradeReport:
        with call.screen.working("Reading history" if dry else "Upgrading") as progress:
            return call.repository.upgrade(dry_run=dry, progress=progress)

    # Version 2 needs no confirmation, unless an upgrade was interrupted.
    call.carry_out(
        run,
        _show_upgrade,
        "Upgrade to spec version 2? This cannot be undone.",
        yes=yes,
        dry_run=dry_run,
        needs_terminal=call.repository.spec_version == 1,
        is_needed=lambda plan: plan.was_needed,
    )


def _show_upgrade(show: Callable[[Any], None], report: UpgradeReport) -> None:
    if not report.was_needed:
        show("the repository already has spec version 2")
        return
    if report.was_half_done:
        show("an earlier upgrade was interrupted; this one finishes it")
    branches = counted(report.branches, "branch", "branches")
    words = f"{counted(report.snapshots, 'snapshot')}, {branches}, {counted(report.tags, 'tag')}"
    verb = "would be" if report.dry_run else "are now"
    show(f"{words} {verb} in one file of spec version 2")
    files = counted(len(report.files_deleted), "file")
    show(f"{files} of version 1 {'would be deleted' if report.dry_run else 'deleted'}")
