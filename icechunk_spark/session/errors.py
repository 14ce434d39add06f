"""Our errors, back from Spark's: what a task raised, as the caller of a write expects it.

Spark reports a failed task as its own exception whose text holds the Python traceback. A write
that we drive ourselves can do better: the caller gets the error that the task raised, with Spark's
behind it for those who want the traceback.

A worker or an executor that died is another matter: nobody raised anything, and classic sessions
report it as a bare error of the JVM gateway, with pages of stack. What died becomes one line, with
what it means for the repository and what to do.

Rules of this file
------------------
1. Only an error that is certainly ours is taken out, and only a death that Spark reports in its own
   words is put into ours; what a user's function raised passes through unchanged.
2. Facts do not survive the way through Spark's text, so the error carries the text alone.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
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


# What Spark says where something died, and what that was; the first that is found counts.
_DEATHS: Final = (
    (re.compile(r"No space left on device"), "a disk of the cluster is full ({0})"),
    (
        re.compile(r"ExecutorLostFailure \(([^)]*)\)(?: Reason: ([^\n]*))?|Lost executor[^\n]*"),
        "an executor died ({0})",
    ),
    (
        re.compile(r"(?:java\.lang\.)?OutOfMemoryError[^\n]*"),
        "an executor had no memory left ({0})",
    ),
    (
        re.compile(
            r"Python worker exited unexpectedly[^\n]*|Python worker failed to connect[^\n]*"
        ),
        "the Python process of a task died ({0})",
    ),
)
_MOST_SHOWN: Final = 300


@contextlib.contextmanager
def raised_in_tasks(target: str) -> Iterator[None]:
    """Turn Spark's report of a failed task into the error that the task raised.

    Parameters
    ----------
    target
        The branch and the repository that are written, for messages.

    Raises
    ------
    IcechunkError
        A task raised it.
    StorageError
        An executor or a Python process died as often as Spark was willing to repeat its work.
    """
    try:
        yield
    except (PySparkException, Py4JError) as failure:
        text = str(failure)
        error = error_in(text) or _death_in(text, target)
        if error is None and isinstance(failure, Py4JError):
            error = _aborted(text, target)
        if error is None:
            raise
        raise error from failure


def _death_in(text: str, target: str) -> errors.StorageError | None:
    """Return what died, as Spark reports it, or None where a function merely raised."""
    for pattern, what in _DEATHS:
        found = pattern.search(text)
        if found is not None:
            return _unfinished(what.format(_shortened(found[0])), target)
    return None


def _aborted(text: str, target: str) -> errors.StorageError:
    """Return an error for a report of the JVM that has no class of its own in PySpark."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in lines if ": " in line and not line.startswith("at ")), text)
    return _unfinished(f"Spark gave the job up ({_shortened(reason)})", target)


def _unfinished(what: str, target: str) -> errors.StorageError:
    return errors.StorageError(
        f"{what} while {target} was written: nothing was committed, and the branch is as it was."
        " The executors' logs say more; where memory was short, raise"
        " spark.executor.memoryOverhead or choose smaller chunks. The same write can be run again",
        target=target,
    )


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 3] + "..."


def error_in(text: str) -> errors.IcechunkError | None:
    """Return the error of ours that a report of Spark's holds, or None."""
    found = _RAISED.findall(text)
    if not found:
        return None
    name, message = found[-1]
    cls = _BY_NAME.get(name)
    return None if cls is None else cls(message.strip())
