"""The command ``verify``: prints findings, most severe first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icechunk_format.command_line.arguments import SnapshotChoice
from icechunk_format.command_line.call import Call
from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.display.plain_text import counted, safe

if TYPE_CHECKING:
    from icechunk_format.command_line.views.screen import Screen

_INDENT: Final = " " * 8
_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "dim"}


def verify(
    call: Call,
    at: SnapshotChoice,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also fetch and decode every chunk.")
    ] = False,
    max_findings: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of findings.")
    ] = 10_000,
) -> None:
    """Check every file, reference and chunk object.

    Checks all snapshots of the repository, or only the selected one. Files of virtual chunks are
    checked below the prefixes of --option virtual.authorize=URL. The exit code is 3 if a finding
    is an error.
    """
    from icechunk_format import maintenance
    from icechunk_format.options.location import access_of

    if at.as_of is not None:
        at = SnapshotChoice(snapshot=str(at.resolve(call.repository)))
    with call.screen.working("Verifying, with every chunk" if deep else "Verifying") as progress:
        table = maintenance.verify(
            call.location,
            branch=at.branch,
            tag=at.tag,
            snapshot=at.snapshot,
            deep=deep,
            max_findings=max_findings,
            authorized=call.options.virtual_authorize,
            virtual_options=access_of(call.options).options,
            progress=progress,
        )
    findings: list[dict[str, Any]] = table.to_pylist()
    counts = {name: sum(row["severity"] == name for row in findings) for name in _STYLES}
    totals = {f"{severity}s": count for severity, count in counts.items()}
    call.document(**totals, findings=findings)
    _show(call.screen, findings, counts)
    if counts["error"]:
        raise typer.Exit(ExitCode.FINDINGS)


def _show(screen: Screen, findings: list[dict[str, Any]], counts: dict[str, int]) -> None:
    from icechunk_format.command_line.views.screen import styled

    dot = screen.drawn(" · ")
    for row in findings:
        parts = [row["node_path"]] if row["node_path"] else []
        if row["chunk"] is not None:
            parts.append(f"chunk {tuple(row['chunk'])}" if row["chunk"] else "chunk ()")
        if row["object_key"]:
            parts.append(row["object_key"])
        if row["snapshot_id"]:
            parts.append(f"snapshot {row['snapshot_id']}")
        severity = row["severity"]
        head = styled((f"{severity:<8}", _STYLES[severity]), (row["kind"], "bold"))
        where = dot.join(safe(part) for part in parts)
        fits = screen.width is None or head.cell_len + 2 + len(where) <= screen.width
        if parts and fits:
            head.append(f"  {where}")
        screen.line(head)
        if parts and not fits:
            screen.wrapped(where, indent=_INDENT)
        screen.wrapped(safe(row["problem"]), indent=_INDENT)
        if row["advice"] and row["advice"] != "nothing":
            arrow = screen.drawn("→ ")
            screen.wrapped(arrow + safe(row["advice"]), indent=_INDENT, style="dim")
    if findings:
        screen.line()
    words = [counted(counts[name], name) for name in ("error", "warning")]
    screen.line(styled((", ".join(words), "bold red" if counts["error"] else "bold")))
