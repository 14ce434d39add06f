"""Defines the exit codes of commands, with their texts for ``--help`` and the manual."""

from __future__ import annotations

from enum import IntEnum

from icechunk_format.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidInputError,
    StorageError,
)


class ExitCode(IntEnum):
    """The exit code of a command, with its meaning."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Create a member with its meaning."""
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code

    OK = 0, "done"
    ERROR = 1, "failed: something does not exist, is damaged, or the storage does not respond"
    USAGE = 2, "the arguments are invalid"
    FINDINGS = (
        3,
        "verify found errors in the repository, or catalog check in the catalog",
    )
    NOT_CONFIRMED = 4, "not confirmed: nothing was changed (scripts give --yes)"
    CONFLICT = 5, "another writer changed the same objects: nothing was changed"
    OUTCOME_UNKNOWN = 6, "it is unknown whether the change was committed: check before repeating it"
    NOT_INSTALLED = 7, "packages of the command line are not installed"
    INTERRUPTED = 130, "interrupted by Ctrl-C"
    PIPE_CLOSED = 141, "the reader of the output closed the pipe"


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of an error."""
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
    """Return the list of exit codes for ``--help``."""
    return "\n".join(f"  {code.value:<5}{code.meaning}" for code in ExitCode)
