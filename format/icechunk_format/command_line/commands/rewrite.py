"""Runs ``rewrite-manifests``, and prints what it did."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icechunk_format.command_line.arguments import DryRunOption, MessageOption, YesOption
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import counted, safe, shortened, size
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_format.maintenance import RewriteResult


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
    """Turn many small manifests into few, in a new snapshot.

    No chunk is read and no history is lost; only --amend, which replaces a snapshot, asks.
    """
    from icechunk_format import maintenance

    rules = _parsed_json(splitting)

    def run(dry: bool) -> RewriteResult:
        with call.screen.working("Comparing manifests" if dry else "Rewriting manifests") as shown:
            return maintenance.rewrite_manifests(
                call.location,
                branch=branch,
                splitting=rules,
                paths=path,
                message=message,
                amend=amend,
                dry_run=dry,
                progress=shown,
            )

    def document(result: RewriteResult) -> dict[str, Any]:
        keys = {one.name: getattr(result, one.name) for one in fields(result)}
        commit = keys.pop("commit")
        return {"branch": branch, "snapshot_id": commit and str(commit.snapshot_id), **keys}

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
        show("every manifest fits the rules already; nothing was changed")
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
        show(f"others changed {shortened(result.left_out)} meanwhile; rewrite again for these")


def _parsed_json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"--splitting is no JSON: {error}") from None
