"""Commands of upkeep: ``expire``, ``gc``, ``upgrade``.

Each shows what it would do, and asks before doing it; ``--yes`` skips both.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icechunk_format.command_line.arguments import (
    DryRunOption,
    JsonOption,
    OlderThanOption,
    OptionOption,
    RepositoryArgument,
    YesOption,
    location_at,
    open_repository,
    parse_past,
)
from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.command_line.views.plain_text import counted, safe, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.maintenance import CollectResult, ExpireResult
    from icechunk_format.repository.lifecycle.upgrade import UpgradeReport
    from icechunk_format.repository.repository import Repository
    from icechunk_format.spec.repo_info.file import SnapshotInfo

_MOST_NAMES: Final = 20
_COLLECTED: Final = {
    "snapshots_deleted": ("snapshot", "snapshots"),
    "transaction_logs_deleted": ("transaction log", "transaction logs"),
    "manifests_deleted": ("manifest", "manifests"),
    "chunks_deleted": ("chunk", "chunks"),
    "overwritten_deleted": ("old copy of 'repo'", "old copies of 'repo'"),
    "staged_deleted": ("unfinished file of a killed writer", "unfinished files of killed writers"),
}


def expire(
    repository: RepositoryArgument,
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
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take old snapshots out of history; gc then frees them."""
    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.maintenance import expire_snapshots

    instant = parse_past(older_than, argument="--older-than")
    screen = Screen(as_json=as_json)
    screen.require_confirmation(yes or dry_run)
    location = location_at(repository, option)

    def run(dry: bool) -> ExpireResult:
        with screen.working("Looking for expired snapshots" if dry else "Expiring"):
            result = expire_snapshots(
                location,
                instant,
                delete_expired_branches=delete_expired_branches,
                delete_expired_tags=delete_expired_tags,
                dry_run=dry,
            )
            return _without_tips(opened, result)

    opened = open_repository(repository, option)
    if dry_run or not yes:
        infos = {str(info.id): info for info in opened.snapshots()}
        planned = run(True)
        something = bool(planned.released_snapshots or planned.deleted_branches)
        something = something or bool(planned.deleted_tags)
        if dry_run or not something:
            screen.document({"repository": str(location), **asdict(planned)})
            _show_expired(screen, screen.line, planned, infos)
            return
        _show_expired(screen, screen.aside, planned, infos)
        screen.confirm("Take them out of history?", yes)
    done = run(False)
    screen.document({"repository": str(location), **asdict(done)})
    _show_expired(screen, screen.line, done, {})


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
    screen: Screen,
    show: Callable[[Any], None],
    result: ExpireResult,
    infos: dict[str, SnapshotInfo],
) -> None:
    from icechunk_format.command_line.views.history.view import shown_snapshots

    verb = "would leave" if result.dry_run else "left"
    count = counted(len(result.released_snapshots), "snapshot")
    show(f"{count} {verb} history" + (":" if infos and result.released_snapshots else ""))
    if infos:
        released = [infos[name] for name in result.released_snapshots if name in infos]
        for line in shown_snapshots(screen, sorted(released, key=lambda i: -i.flushed_at)):
            show(line)
    verb = "would be deleted" if result.dry_run else "deleted"
    for noun, names in (("branch", result.deleted_branches), ("tag", result.deleted_tags)):
        if names:
            plural = "branches" if noun == "branch" else "tags"
            shown = ", ".join(safe(name) for name in names[:_MOST_NAMES])
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            show(f"{counted(len(names), noun, plural)} {verb}: {shown}{more}")
    if result.released_snapshots and not result.dry_run:
        show("their files stay until garbage is collected: icechunk-spark gc")


def gc(
    repository: RepositoryArgument,
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
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete files that no branch, tag or new snapshot uses.

    --older-than is all that protects writers at work: choose more than the longest write takes,
    such as 1d, or 7d to be safe.
    """
    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.maintenance import collect_garbage

    instant = parse_past(older_than, argument="--older-than")
    trim = None
    if trim_overwritten is not None:
        trim = parse_past(trim_overwritten, argument="--trim-overwritten-older-than")
    screen = Screen(as_json=as_json)
    screen.require_confirmation(yes or dry_run)
    location = location_at(repository, option)

    def run(dry: bool) -> CollectResult:
        with screen.working("Looking for garbage" if dry else "Deleting garbage"):
            return collect_garbage(location, instant, dry_run=dry, trim_overwritten_older_than=trim)

    if dry_run or not yes:
        planned = run(True)
        if dry_run or not any(getattr(planned, name) for name in _COLLECTED):
            screen.document({"repository": str(location), **asdict(planned)})
            _show_collected(screen.line, planned)
            return
        _show_collected(screen.aside, planned)
        screen.confirm("Delete them for good?", yes)
    done = run(False)
    screen.document({"repository": str(location), **asdict(done)})
    _show_collected(screen.line, done)
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
    repository: RepositoryArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upgrade from spec version 1 to 2, for good.

    History, branches, tags and ids stay. Let no writer run meanwhile; libraries that know only
    version 1 cannot open the repository afterwards. Run again after an interruption.
    """
    from icechunk_format.command_line.views.screen import Screen

    screen = Screen(as_json=as_json)
    opened = open_repository(repository, option)
    # Version 2 needs no question, unless the plan says that an upgrade was interrupted.
    screen.require_confirmation(yes or dry_run or opened.spec_version != 1)

    def run(dry: bool) -> UpgradeReport:
        with screen.working("Reading history" if dry else "Upgrading"):
            return opened.upgrade(dry_run=dry)

    if dry_run or not yes:
        planned = run(True)
        if dry_run or not planned.was_needed:
            _report_upgrade(screen, str(opened.location), planned)
            return
        _show_upgrade(screen.aside, planned)
        screen.confirm("Upgrade to spec version 2, from which there is no way back?", yes)
    _report_upgrade(screen, str(opened.location), run(False))


def _report_upgrade(screen: Screen, location: str, report: UpgradeReport) -> None:
    screen.document({"repository": location, **asdict(report)})
    _show_upgrade(screen.line, report)


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
