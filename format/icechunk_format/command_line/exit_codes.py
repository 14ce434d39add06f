"""Declares the exit codes, for commands, ``--help`` and the manual."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from icechunk_format.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidInputError,
    StorageError,
)


class ExitCode(IntEnum):
    """Exit code of a command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    FINDINGS = 3
    NOT_CONFIRMED = 4
    CONFLICT = 5
    OUTCOME_UNKNOWN = 6
    NOT_INSTALLED = 7
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "done",
    ExitCode.ERROR: "failed: something is not there, is damaged, or the store does not answer",
    ExitCode.USAGE: "the arguments cannot be used",
    ExitCode.FINDINGS: "verify found errors in the repository",
    ExitCode.NOT_CONFIRMED: "not confirmed: nothing was changed (scripts give --yes)",
    ExitCode.CONFLICT: "somebody else changed the same thing: nothing was changed",
    ExitCode.OUTCOME_UNKNOWN: "the store did not say whether the change landed: look before"
    " repeating it",
    ExitCode.NOT_INSTALLED: "packages of the command line are not installed",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.PIPE_CLOSED: "whoever read the output stopped reading",
}


def of_error(error: BaseException) -> ExitCode:
    """Return the exit code for an error of the library, or for any other."""
    if isinstance(error, CommitOutcomeUnknownError):
        return ExitCode.OUTCOME_UNKNOWN
    if isinstance(error, StorageError) and error.outcome_unknown:
        return ExitCode.OUTCOME_UNKNOWN
    if isinstance(error, ConflictError):
        return ExitCode.CONFLICT
    if isinstance(error, InvalidInputError):
        return ExitCode.USAGE
    return ExitCode.ERROR


def exit_codes_text() -> str:
    """Return the list for ``--help``, one code a line."""
    return "\n".join(f"  {code.value:<5}{MEANINGS[code]}" for code in ExitCode)
