"""Commands on catalogs: ``catalog check`` and ``catalog list``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icechunk_format.command_line.call import Call
from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.display.plain_text import age, aligned, counted, iso_time, safe

if TYPE_CHECKING:
    from icechunk_format.tables import TableFacts

CatalogArgument = Annotated[
    str,
    typer.Argument(
        metavar="CATALOG", help="File (.yaml, .yml, .json), or a folder of repositories."
    ),
]


def check(call: Call) -> None:
    """Check that every table of a catalog can be read.

    Checks keys, credentials, repository, branch or tag, variables and selection. --option and
    --credentials are for the storage of the catalog, and for tables with a path relative to it.
    Names of credentials are looked up in the environment. The exit code is 3 if a table cannot be
    used.
    """
    found = _tables(call)
    problems = [facts for facts in found if facts.problem]
    _document(call, found, problems=len(problems))
    for facts in problems:
        call.screen.line(f"{safe(facts.name)}: {safe(facts.problem or '')}")
    right = len(found) - len(problems)
    call.screen.line(f"{counted(right, 'table')} can be used, {len(problems)} cannot")
    if problems:
        raise typer.Exit(ExitCode.FINDINGS)


def list_tables(call: Call) -> None:
    """List the tables of a catalog with their rows, snapshot and age."""
    found = _tables(call)
    _document(call, found)
    now = datetime.now(UTC)
    lines = [
        [
            safe(facts.name),
            "" if facts.rows is None else f"{facts.rows:,}",
            safe(facts.tag or facts.branch or ""),
            facts.snapshot_id or "cannot be used",
            "" if facts.committed_at is None else age(facts.committed_at, now),
            safe(facts.comment or ""),
        ]
        for facts in found
    ]
    for line in aligned([["name", "rows", "version", "snapshot", "age", "comment"], *lines]):
        call.screen.line(line)


def _tables(call: Call) -> list[TableFacts]:
    from icechunk_format.tables import checked_entries, read_catalog

    given = call.given()
    entries = read_catalog(given.pop("path"), given)
    with call.screen.working("Opening tables"):
        return [facts for _, facts in checked_entries(entries)]


def _document(call: Call, found: list[TableFacts], **more: Any) -> None:
    tables = [{**asdict(facts), "committed_at": iso_time(facts.committed_at)} for facts in found]
    call.screen.document({"catalog": str(call.location), **more, "tables": tables})
