"""Prints output to stdout; progress, confirmations and errors to stderr.

Rules of this file
------------------
1. Text is ``rich.text.Text`` or plain. Markup, emoji codes and highlighting are off, so ``[red]``
   in a message is printed unchanged.
2. Lines are never wrapped or cut, so that a pipe gets complete ids.
3. Colour and progress are printed on terminals only; rich respects ``NO_COLOR``.
"""

from __future__ import annotations

import json
import sys
import textwrap
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.display.plain_text import safe
from icechunk_format.zarr.fill_values import json_safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icechunk_format.progress import ProgressOption


# For terminals without Unicode; each lane of a graph is still two characters wide.
IN_ASCII: Final = str.maketrans(
    {**dict(zip("●│├└─┼┘┴×·", "*||`-+''x-", strict=True)), "→": "->", "…": "..."}
)
"""Characters of graphs, trees and messages as ASCII."""


class Screen:
    """The output of one command; with ``as_json``, stdout is one JSON document."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
        self._is_ascii = not encoding.startswith(("utf", "cp65001"))

    def drawn(self, text: str) -> str:
        """Replace drawing characters by ASCII if the terminal does not support them."""
        return text.translate(IN_ASCII) if self._is_ascii else text

    @property
    def width(self) -> int | None:
        """Width of the terminal in characters; None if the output is not a terminal."""
        return self._out.width if self._out.is_terminal else None

    def fits(self, lines: Iterable[Text]) -> bool:
        """Return True if lines are not wrapped by the terminal."""
        width = self.width
        return width is None or all(line.cell_len <= width for line in lines)

    def line(self, text: Text | str = "") -> None:
        """Print a line of escaped text, unless the output is JSON."""
        if not self.as_json:
            self._out.print(text, soft_wrap=True)

    def wrapped(self, text: str, *, indent: str, style: str = "") -> None:
        """Print escaped text, wrapped to the width of a terminal."""
        limit = None if self.width is None else max(20, self.width)
        lines = [indent + text]
        if limit is not None and len(lines[0]) > limit:
            lines = textwrap.wrap(text, limit, initial_indent=indent, subsequent_indent=indent)
        for line in lines:
            self.line(Text(line, style=style))

    def table(self, rows: list[list[Text]]) -> None:
        """Print rows as lines with aligned columns."""
        for line in columns_of(rows):
            self.line(line)

    def aside(self, text: Text | str = "") -> None:
        """Print a line of escaped text on stderr."""
        self._err.print(text, soft_wrap=True)

    def document(self, document: Mapping[str, Any]) -> None:
        """Print the JSON document, if the output is JSON.

        Only ASCII is printed, so that strings of a repository cannot control a terminal.
        """
        if self.as_json:
            text = json.dumps(json_safe(document), indent=2, ensure_ascii=True, allow_nan=False)
            sys.stdout.write(text + "\n")

    @contextmanager
    def working(self, doing: str) -> Iterator[ProgressOption]:
        """Print progress on stderr while the block runs, on terminals only.

        Yields a function for the argument ``progress`` of library functions.
        """
        if not self._err.is_terminal:
            yield None
            return
        columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()]
        columns += [TextColumn("{task.fields[count]}", markup=False), TimeElapsedColumn()]
        with Progress(*columns, console=self._err, transient=True) as bars:
            task = bars.add_task(safe(doing), total=None, count="")

            def report(done: int, total: int | None, what: str, /) -> None:
                count = f"{done:,}" if total is None else f"{done:,}/{total:,}"
                # `update` does not accept None as a new total.
                bars.tasks[0].total = total
                bars.update(task, completed=done, description=safe(what), count=count)

            yield report

    def require_confirmation(self, yes: bool) -> None:
        """End the command if it needs confirmation and stdin is not a terminal."""
        if yes or (sys.stdin.isatty() and sys.stderr.isatty()):
            return
        self.aside(
            "error: this needs a confirmation, but there is no terminal; nothing was changed. Give"
            " --yes to proceed, or --dry-run, if available, to see the plan"
        )
        raise typer.Exit(ExitCode.NOT_CONFIRMED)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask for confirmation on stderr; end the command unless the answer is yes."""
        self.require_confirmation(yes)
        if yes:
            return
        if not typer.confirm(question, default=False, err=True):
            self.aside("not confirmed; nothing was changed")
            raise typer.Exit(ExitCode.NOT_CONFIRMED)


class _Console(Console):
    """A console on which a closed pipe ends the command with its own exit code."""

    def on_broken_pipe(self) -> None:
        """Let BrokenPipeError propagate; rich would exit instead."""
        raise BrokenPipeError


def _console(stream: Any) -> Console:
    return _Console(
        file=stream,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
        legacy_windows=False,
    )


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a text from parts, each plain or with a style."""
    return Text.assemble(*parts)


def columns_of(rows: list[list[Text]]) -> list[Text]:
    """Format rows as lines with aligned columns; rows may have fewer cells."""
    # The last cell of a row is not padded.
    columns = zip_longest(*([cell.cell_len for cell in row[:-1]] for row in rows), fillvalue=0)
    widths = [max(lengths) for lengths in columns]
    lines = []
    for row in rows:
        line = Text()
        for cell, width in zip(row[:-1], widths, strict=False):
            line.append_text(cell).append(" " * (width - cell.cell_len + 2))
        line.append_text(row[-1])
        line.rstrip()
        lines.append(line)
    return lines
