"""Every error of the project, on one screen.

Rules of this file
------------------
1. A class says what a handler would do about it; facts are attributes (``error.facts``), and the
   text is for people. The text names the thing, what was found, what is allowed and what to do
   next, and its *last line stands alone*: Spark prints it under a long traceback.
2. Every error survives pickling, because errors cross from executors to the driver.
3. No credential ever enters a message or a fact. Callers pass names of options, never values of
   secret ones.
4. Messages quote names from repositories, which strangers write. Characters that would act on a
   terminal or turn the order of words around are shown as escapes.
"""

from __future__ import annotations

from typing import Any, Final, Self

# Control characters but the end of a line, marks of writing direction, and halves of characters.
_ESCAPED: Final = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for codes in (
        range(10),
        range(11, 32),
        range(127, 160),
        range(0x202A, 0x202F),
        range(0x2066, 0x206A),
        range(0xD800, 0xE000),
    )
    for code in codes
}


class IcechunkError(Exception):
    """Base of all errors that the project raises on purpose.

    Parameters
    ----------
    message
        Text for people; the last line must be understandable alone.
    **facts
        The facts behind the text, for programs. Values must be picklable.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        message = message.translate(_ESCAPED)
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Any] = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_parts, (self.message, self.facts))

    @classmethod
    def from_parts(cls, message: str, facts: dict[str, Any]) -> Self:
        """Return an error with this text, which its constructor would have made."""
        error = cls.__new__(cls)
        IcechunkError.__init__(error, message, **facts)
        return error


class FormatError(IcechunkError):
    """Stored bytes break the format: they were damaged, or are not what their key says.

    Parameters
    ----------
    problem
        What is wrong, and what would have been right.
    object_key
        Key of the object below the repository root, or ``"<bytes>"`` where there is none.
    file_type
        What the object should be: ``"snapshot"``, ``"manifest"``, ``"chunk"``, ...
    field
        The field of the format in which the problem was found.
    """

    def __init__(
        self,
        problem: str,
        *,
        object_key: str = "<bytes>",
        file_type: str = "object",
        field: str | None = None,
    ) -> None:
        where = f", field {field}" if field else ""
        super().__init__(
            f"bad {file_type} {object_key!r}{where}: {problem}",
            object_key=object_key,
            file_type=file_type,
            field=field,
            problem=problem,
        )


class NotFoundError(IcechunkError):
    """A repository, branch, tag, snapshot, node, variable or object does not exist."""


class AlreadyExistsError(IcechunkError):
    """Something that had to be new is already there."""


class InvalidInputError(IcechunkError, ValueError):
    """An option, a schema, an expression or rows that the caller gave cannot be used."""


class UnsupportedError(IcechunkError):
    """The input is legal, but uses something that this version does not read or write."""


class ConflictError(IcechunkError):
    """Another commit changed what this one changes; nothing was committed."""


class CommitOutcomeUnknownError(IcechunkError):
    """The store did not say whether a commit landed; delete nothing, and look before repeating."""


class ReadOnlyError(IcechunkError):
    """A change was asked of something that cannot change: a tag, a snapshot, a read-only store."""


class StorageError(IcechunkError):
    """The object store failed, after retries where they could help.

    ``outcome_unknown`` is true for a write whose answer was lost: it may have landed.
    """

    def __init__(self, message: str, *, outcome_unknown: bool = False, **facts: Any) -> None:
        super().__init__(message, outcome_unknown=outcome_unknown, **facts)

    @property
    def outcome_unknown(self) -> bool:
        """Whether a write may have landed although it was reported as failed."""
        return bool(self.facts["outcome_unknown"])


class UnauthorizedVirtualChunkError(IcechunkError):
    """A virtual chunk lies at a place that the user did not authorise; it was not fetched."""


class ChunkModifiedError(IcechunkError):
    """The object behind a virtual chunk is no longer the one that the reference was made for."""
