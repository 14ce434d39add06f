"""The command ``rewrite-manifests``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icechunk_format.command_line.arguments import (
    DryRunOption,
    JsonOption,
    MessageOption,
    OptionOption,
    RepositoryArgument,
    YesOption,
    location_at,
)
from icechunk_format.command_line.views.plain_text import counted, safe, size
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.maintenance import RewriteResult

_MOST_NAMES: Final = 20


def rewrite_manifests(
    repository: RepositoryArgument,
    branch: Annotated[
        str, typer.Option("--branch", "-b", metavar="NAME", help="Branch to rewrite.")
    ] = "main",
    path: Annotated[
        list[str] | None,
        typer.Option(
            "--path",
            metavar="PATH",
            help="Only this array, or the arrays of this group; repeatable.",
        ),
    ] = None,
    splitting: Annotated[
        str | None,
        typer.Option(
            "--splitting",
            metavar="JSON",
            help="Splitting rules as in the configuration, which is the default.",
        ),
    ] = None,
    message: MessageOption = None,
    amend: Annotated[
        bool, typer.Option("--amend", help="Replace the newest snapshot instead of adding one.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn many small manifests into few, in a new snapshot.

    No chunk is read and no history is lost; only --amend, which replaces a snapshot, asks.
    """
    from icechunk_format import maintenance
    from icechunk_format.command_line.views.screen import Screen

    rules = _parsed_json(splitting)
    screen = Screen(as_json=as_json)
    asks = amend and not dry_run
    screen.require_confirmation(yes or not asks)
    location = location_at(repository, option)

    def run(dry: bool) -> RewriteResult:
        with screen.working("Comparing manifests" if dry else "Rewriting manifests"):
            return maintenance.rewrite_manifests(
                location,
                branch=branch,
                splitting=rules,
                paths=path,
                message=message,
                amend=amend,
                dry_run=dry,
            )

    if asks and not yes:
        _show_rewritten(screen, screen.aside, run(True))
        screen.confirm(f"Replace the newest snapshot of {safe(branch)}?", yes)
    result = run(dry_run)
    commit = result.commit
    screen.document(
        {
            "repository": str(location),
            "branch": branch,
            "snapshot_id": None if commit is None else str(commit.snapshot_id),
            "manifests_before": result.manifests_before,
            "manifests_after": result.manifests_after,
            "references": result.references,
            "bytes_before": result.bytes_before,
            "bytes_after": result.bytes_after,
            "left_out": list(result.left_out),
            "dry_run": result.dry_run,
        }
    )
    _show_rewritten(screen, screen.line, result)


def _show_rewritten(screen: Screen, show: Callable[[Any], None], result: RewriteResult) -> None:
    if result.commit is None and not (result.dry_run and result.references):
        show("every manifest fits the rules already; nothing was changed")
        return
    arrow = screen.glyphs.arrow
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
        shown = ", ".join(safe(path) for path in result.left_out[:_MOST_NAMES])
        more = f" and {len(result.left_out) - _MOST_NAMES} more"
        show(
            f"others changed {shown}{more if len(result.left_out) > _MOST_NAMES else ''} meanwhile;"
            " rewrite again for these"
        )


def _parsed_json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"--splitting is no JSON: {error}") from None
