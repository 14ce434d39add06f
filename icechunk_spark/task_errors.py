"""Our errors, back from Spark's: what a task raised, as the caller of a write expects it.

Spark reports a failed task as its own exception whose text holds the Python traceback. A write
that we drive ourselves can do better: the caller gets the error that the task raised, with Spark's
behind it for those who want the traceback.

Rules of this file
------------------
1. Only an error that is certainly ours is taken out; anything else passes through unchanged.
2. Facts do not survive the way through Spark's text, so the error carries the text alone.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from icechunk_format import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

# The last line of a Python traceback, and what follows it up to an empty line or the JVM's stack.
_RAISED = re.compile(
    r"^icechunk_format\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\Z)",
    re.MULTILINE | re.DOTALL,
)

# Those that are made of their text alone.
_BY_NAME: Final[dict[str, type[errors.IcechunkError]]] = {
    cls.__name__: cls
    for cls in (
        errors.NotFoundError,
        errors.AlreadyExistsError,
        errors.InvalidInputError,
        errors.UnsupportedError,
        errors.ConflictError,
        errors.ReadOnlyError,
        errors.StorageError,
        errors.UnauthorizedVirtualChunkError,
        errors.ChunkModifiedError,
    )
}


@contextlib.contextmanager
def raised_in_tasks() -> Iterator[None]:
    """Turn Spark's report of a task that raised one of our errors into that error.

    Raises
    ------
    IcechunkError
        A task raised it.
    """
    try:
        yield
    except PySparkException as failure:
        error = error_in(str(failure))
        if error is None:
            raise
        raise error from failure


def error_in(text: str) -> errors.IcechunkError | None:
    """Return the error of ours that a report of Spark's holds, or None."""
    found = _RAISED.findall(text)
    if not found:
        return None
    name, message = found[-1]
    cls = _BY_NAME.get(name)
    return None if cls is None else cls(message.strip())
