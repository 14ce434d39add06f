"""Runs a command: returns its exit code, and prints errors as one line on stderr.

Imports only the standard library at the top, so that an error can name a missing package.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.command_line.exit_codes import ExitCode, exit_code_of
from icechunk_format.display.plain_text import one_line, safe
from icechunk_format.errors import FormatError, IcechunkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROGRAM: Final = "icechunk-spark"
_TRACEBACK: Final = "--traceback"
_PACKAGES: Final = ("typer", "rich")
# Names of the parser's error classes, whose modules differ between versions of typer.
_NO_ARGUMENTS: Final = "NoArgsIsHelpError"
_ABORT: Final = "Abort"
_UNKNOWN_COMMAND: Final = re.compile(r"No such command '([\w-]+)'")
# Commands of Delta, Git and shells, by the corresponding commands here.
_THEIR_WORDS: Final = {
    "log": "history snapshots status blame",
    "operations": "reflog audit",
    "tree": "ls list info stat stats schema",
    "show": "describe checkout",
    "head": "cat select",
    "merge": "rebase pull",
    "branch list": "branches switch refs",
    "tag list": "tags",
    "branch fast-forward": "fast-forward ff",
    "restore": "revert rollback undo",
    "rename": "mv move",
    "drop": "rm remove",
    "copy": "clone cp push",
    "gc": "vacuum prune",
    "verify": "fsck check",
    "rewrite-manifests": "optimize compact",
    "virtualize": "ingest",
}
_HOW_TO_INSTALL: Final = 'pip install "icechunk-spark[cli]"'


def main() -> None:
    """Run the command in ``sys.argv`` and exit."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are escaped.
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _closed_pipe()
    sys.exit(int(code))


def run(arguments: Sequence[str]) -> ExitCode | int:
    """Run a command; return its exit code. Prints to stdout and stderr.

    ``arguments`` does not include the name of the program. ``--traceback`` may be at any position.
    """
    wants_traceback = _TRACEBACK in arguments
    given = [argument for argument in arguments if argument != _TRACEBACK]
    try:
        for package in _PACKAGES:
            importlib.import_module(package)
    except ModuleNotFoundError as error:
        print(
            f"error: {PROGRAM} needs the package {error.name!r}, which is not installed; install"
            f" it with: {_HOW_TO_INSTALL}",
            file=sys.stderr,
        )
        return ExitCode.NOT_INSTALLED
    from icechunk_format.command_line.arguments import secrets_in

    try:
        result = _parser()(given, prog_name=PROGRAM, standalone_mode=False)
    except BrokenPipeError:
        return _closed_pipe()
    except KeyboardInterrupt as interrupt:
        print(f"\n{str(interrupt) or 'interrupted'}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception as error:
        # Every error is printed as one line, and returned as an exit code.
        hidden = secrets_in(given)
        if wants_traceback:
            for line in traceback.format_exc().splitlines():
                print(safe(_without(hidden, line)), file=sys.stderr)
        if type(error).__name__ == _NO_ARGUMENTS:
            # A command without arguments prints its help.
            print(_parser_message(error), file=sys.stderr)
            return ExitCode.USAGE
        message, code = _line_and_code(error)
        print(f"error: {_without(hidden, message)}", file=sys.stderr)
        return code
    return result if isinstance(result, int) else ExitCode.OK


@cache
def _parser() -> Callable[..., Any]:
    """Return the parser; cached, since scripts may call ``run`` often."""
    from typer.main import get_command

    from icechunk_format.command_line.app import app

    return get_command(app)


def _without(hidden: Sequence[str], text: str) -> str:
    for secret in hidden:
        text = text.replace(secret, "***")
    return text


def _line_and_code(error: Exception) -> tuple[str, ExitCode]:
    """Return the message of an error as one line, and its exit code."""
    if isinstance(error, IcechunkError):
        message = one_line(error.message)
        if isinstance(error, FormatError):
            message += f" ({PROGRAM} verify lists all that is damaged)"
        return message, exit_code_of(error)
    problem = _parser_message(error)
    if problem is not None:
        problem = _with_our_word(problem)
        return f"{one_line(problem)} (see {_help_of(error)})", ExitCode.USAGE
    if type(error).__name__ == _ABORT:
        return "not confirmed; nothing was changed", ExitCode.NOT_CONFIRMED
    text = one_line(str(error))
    name = type(error).__name__
    return (
        f"{name}{': ' if text else ''}{text} (unexpected; {_TRACEBACK} shows where)",
        ExitCode.ERROR,
    )


def _parser_message(error: Exception) -> str | None:
    """Return the message of a parser error; None for other errors."""
    format_message = getattr(error, "format_message", None)
    return None if format_message is None else str(format_message())


def _with_our_word(problem: str) -> str:
    """Suggest the command that other tools call by the unknown word."""
    found = _UNKNOWN_COMMAND.match(problem)
    word = "" if found is None else found[1]
    for ours, theirs in _THEIR_WORDS.items():
        if word.lower() in theirs.split():
            return f"No such command {word!r}; did you mean {ours!r}?"
    return problem


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{getattr(context, 'command_path', PROGRAM)} --help"


def _closed_pipe() -> ExitCode:
    """Replace a closed stdout, which Python would flush on exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    return ExitCode.PIPE_CLOSED
