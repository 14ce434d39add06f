"""Commands of upkeep: ``expire``, ``gc``, ``upgrade``.

Each shows what it would do, and asks before doing it; ``--yes`` skips both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icechunk_format.command_line.arguments import (
    DryRunOption,
    OlderThanOption,
    YesOption,
    parse_past,
)
from icechunk_format.command_line.call import Call
from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.display.plain_text import counted, safe, shortened, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icechunk_format.maintenance import CollectResult, ExpireResult
    from icechunk_format.repository.lifecycle.upgrade import UpgradeReport
    from icechunk_format.repository.repository import Repository
    from icechunk_format.spec.repo_info.file import SnapshotInfo

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
    """Take old snapshots out of history; gc then frees them."""
    from icechunk_format.command_line.views.history.view import shown_snapshots

    instant = parse_past(older_than, argument="--older-than")

    def run(dry: bool) -> ExpireResult:
        with call.screen.working("Looking for expired snapshots" if dry else "Expiring"):
            result = call.repository.expire_snapshots(
                instant,
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
        "Take them out of history?",
        yes=yes,
        dry_run=dry_run,
        is_needed=lambda plan: bool(
            plan.released_snapshots or plan.deleted_branches or plan.deleted_tags
        ),
    )


def _without_tips(opened: Repository, result: ExpireResult) -> ExpireResult:
    """Leave out snapshots to which a branch or tag still points.

    In spec version 1 an expiration also names the expired tips that stay, as existing libraries do;
    people would take them for lost.
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
            show(f"{counted(len(names), noun, plural)} {verb}: {shortened(names)}")
    if result.released_snapshots and not result.dry_run:
        show("their files stay until garbage is collected: icechunk-spark gc")


def gc(
    call: Call,
    older_than: OlderThanOption,
    trim_overwritten: Annotated[
        str | None,
        typer.Option(
            "--trim-overwritten-older-than",
            metavar="AGE",
            help="Also delete old copies of the repository file that the operations log does not"
            " reach.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Delete files that no branch, tag or new snapshot uses.

    --older-than is all that protects writers at work: choose more than the longest write takes,
    such as 1d, or 7d to be safe.
    """
    from icechunk_format.maintenance import collect_garbage

    instant = parse_past(older_than, argument="--older-than")
    trim = None
    if trim_overwritten is not None:
        trim = parse_past(trim_overwritten, argument="--trim-overwritten-older-than")

    def run(dry: bool) -> CollectResult:
        with call.screen.working("Looking for garbage" if dry else "Deleting garbage") as progress:
            return collect_garbage(
                call.location,
                instant,
                dry_run=dry,
                trim_overwritten_older_than=trim,
                progress=progress,
            )

    done = call.carry_out(
        run,
        _show_collected,
        "Delete them for good?",
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
        show(styled((f"{failed} could not be deleted; collect again later", "red")))
        for text in result.delete_errors:
            show(f"    {safe(text)}")
    if result.skipped_phases:
        show(f"not looked at because of that: {', '.join(result.skipped_phases)}")


def upgrade(
    call: Call,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Upgrade from spec version 1 to 2, for good.

    History, branches, tags and ids stay. Let no writer run meanwhile; libraries that know only
    version 1 cannot open the repository afterwards. Run again after an interruption.
    """

    def run(dry: bool) -> UpgradeReport:
        with call.screen.working("Reading history" if dry else "Upgrading") as progress:
            return call.repository.upgrade(dry_run=dry, progress=progress)

    # Version 2 needs no question, unless the plan says that an upgrade was interrupted.
    call.carry_out(
        run,
        _show_upgrade,
        "Upgrade to spec version 2, from which there is no way back?",
        yes=yes,
        dry_run=dry_run,
        asks=call.repository.spec_version == 1,
        is_needed=lambda plan: plan.was_needed,
    )


def _show_upgrade(show: Callable[[Any], None], report: UpgradeReport) -> None:
    if not report.was_needed:
        show("the repository has spec version 2 already")
        return
    if report.was_half_done:
        show("an earlier upgrade was interrupted; this one finishes it")
    branches = counted(report.branches, "branch", "branches")
    words = f"{counted(report.snapshots, 'snapshot')}, {branches}, {counted(report.tags, 'tag')}"
    verb = "would be" if report.dry_run else "are now"
    show(f"{words} {verb} in one file of spec version 2")
    files = counted(len(report.files_deleted), "file")
    show(f"{files} of version 1 {'would be deleted' if report.dry_run else 'deleted'}")
