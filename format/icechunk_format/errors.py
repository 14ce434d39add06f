"""Errors of the project.

Rules of this file
------------------
1. Handlers choose by class; facts are for programs (``error.facts``), the message is for people.
   The message states the object, the value found, the allowed values and the remedy. Its *last line
   is understandable alone*, since Spark prints it under a long traceback.
2. Every error can be pickled, because errors are sent from executors to the driver.
3. Messages and facts contain no credentials: callers pass names of options, never secret values.
4. Messages quote untrusted names from repositories. Characters that control a terminal or the
   writing direction, and all others that do not print, are shown as escapes.
"""

from __future__ import annotations

import re
from typing import Any, Final, Self


def escaped(text: str) -> str:
    """Return one line of printable characters: others become escapes, as in Python."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


# A value in quotes, and a word that no name or path is as long as.
_QUOTED: Final = re.compile(
    r"""(?<!\w)(?P<sign>['"])(?P<value>(?:\\.|(?!(?P=sign))[^\\])*)(?P=sign)(?!\w)""", re.DOTALL
)
_LONG_WORD: Final = re.compile(r"\S{1000,}")
_MOST_OF_A_VALUE: Final = 200


def _shortened(message: str) -> str:
    """Return the message with at most 200 characters of each value."""
    if len(message) <= _MOST_OF_A_VALUE:
        return message
    message = _QUOTED.sub(_quoted, message)
    return _LONG_WORD.sub(lambda word: f"{word[0][:_MOST_OF_A_VALUE]}…", message)


def _quoted(found: re.Match[str]) -> str:
    sign, value = found["sign"], found["value"]
    is_long = len(value) > _MOST_OF_A_VALUE
    return f"{sign}{value[:_MOST_OF_A_VALUE]}…{sign}" if is_long else found[0]


class IcechunkError(Exception):
    """Base of all errors that the project raises on purpose.

    Parameters
    ----------
    message
        Text for people; its last line is understandable alone.
    **facts
        The facts of the error, for programs. Values can be pickled.

    Examples
    --------
    >>> NotFoundError("branch 'x' does not exist", kind="branch", name="x").facts
    {'kind': 'branch', 'name': 'x'}
    """

    def __init__(self, message: str, **facts: Any) -> None:
        message = _shortened("\n".join(map(escaped, message.split("\n"))))
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Any] = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_parts, (self.message, self.facts))

    @classmethod
    def from_parts(cls, message: str, facts: dict[str, Any]) -> Self:
        """Return an error with this message and facts, without the class's own constructor."""
        error = cls.__new__(cls)
        IcechunkError.__init__(error, message, **facts)
        return error


class FormatError(IcechunkError):
    """Stored bytes violate the format: they are damaged or do not match their key.

    Parameters
    ----------
    problem
        The value found, and the allowed values.
    object_key
        Key of the object below the repository root; ``"<bytes>"`` if the bytes are not an object's.
    file_type
        The expected type of the object: ``"snapshot"``, ``"manifest"``, ``"chunk"``, ...
    field
        The field of the format with the problem.
    **facts
        Other facts, such as ``found`` and ``allowed``.
    """

    def __init__(
        self,
        problem: str,
        *,
        object_key: str = "<bytes>",
        file_type: str = "object",
        field: str | None = None,
        **facts: Any,
    ) -> None:
        where = f", field {field}" if field else ""
        super().__init__(
            f"bad {file_type} {object_key!r}{where}: {problem}",
            object_key=object_key,
            file_type=file_type,
            field=field,
            problem=problem,
            **facts,
        )


class NotFoundError(IcechunkError):
    """A repository, branch, tag, snapshot, node, variable or object does not exist."""


class AlreadyExistsError(IcechunkError):
    """The repository, branch, tag, node or object to create already exists."""


class InvalidInputError(IcechunkError, ValueError):
    """An option, a schema, an expression or rows of the caller are invalid."""


class UnsupportedError(IcechunkError):
    """The input is valid, but uses a feature that this version does not read or write."""


class ConflictError(IcechunkError):
    """Another writer made conflicting changes; nothing was committed."""


class CommitOutcomeUnknownError(IcechunkError):
    """The outcome of a commit is unknown: delete nothing, and check before repeating it."""


class ReadOnlyError(IcechunkError):
    """The target of a change is read-only: a tag, a snapshot, a storage."""


class StorageError(IcechunkError):
    """The object storage failed, also after retries of transient failures.

    ``outcome_unknown`` is True for a write without a response: it may have succeeded.
    """

    def __init__(self, message: str, *, outcome_unknown: bool = False, **facts: Any) -> None:
        super().__init__(message, outcome_unknown=outcome_unknown, **facts)

    @property
    def outcome_unknown(self) -> bool:
        """True if a write may have succeeded although it was reported as failed."""
        return bool(self.facts["outcome_unknown"])


class UnauthorizedVirtualChunkError(IcechunkError):
    """A virtual chunk is at a location that the user did not authorize; it was not fetched."""


class ChunkModifiedError(IcechunkError):
    """The object of a virtual chunk changed after the reference was made."""
