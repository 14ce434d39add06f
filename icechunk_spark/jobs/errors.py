"""Turns Spark's report of a failed job into the error that a task raised, on one line.

Spark reports a failed task as its own exception, whose text contains the Python traceback. The
caller of a write or of maintenance receives the error that the task raised instead. Spark's report
is logged at DEBUG. If an executor or a worker died, no task raised an error; the caller then
receives an error that names the dead process, the state of the repository, and the remedy.

Rules of this file
------------------
1. Only errors of `icechunk_format.errors` are extracted from Spark's text. The death of a process
   becomes such an error only if Spark reports it. Errors of a user's function pass through
   unchanged.
2. Spark's text does not contain the facts of an error, so an extracted error has only its message.
3. Spark prints the traceback of a worker under that of the JVM, and users read the last line; so
   the message of an error has one line when it leaves a worker. Spark also prints each frame of the
   traceback, so this package's errors leave a task or a planner process without it: their message
   is sufficient.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from pyspark import TaskContext
from pyspark.errors import PySparkException

from icechunk_format import errors
from icechunk_format.display.plain_text import one_line
from icechunk_spark.compatibility import PAGE
from icechunk_spark.jobs.cancelling import only_own_jobs
from icechunk_spark.jobs.session import described

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:  # a pure Connect client has no gateway to a JVM
    _REPORTS: tuple[type[Exception], ...] = (PySparkException,)
else:
    _REPORTS = (PySparkException, Py4JError)

_T = TypeVar("_T")
_log = logging.getLogger("icechunk_spark.jobs")
_NOTHING_COMMITTED: Final = "Nothing was committed; the same call can be repeated"

# The last line of a Python traceback, and what follows it up to an empty line or the JVM's stack.
_RAISED = re.compile(
    r"^icechunk_format\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\s*SQLSTATE|\Z)",
    re.MULTILINE | re.DOTALL,
)

# A package that tasks need and that the Python of an executor lacks.
_MISSING: Final = re.compile(
    r"ModuleNotFoundError: No module named '((?:icechunk_spark|icechunk_format|pyarrow|numpy"
    r"|obstore|fsspec|s3fs|zstandard|msgpack|yaml|numcodecs|google_crc32c|sqlglot)\b[\w.]*)'"
)

_BY_NAME: Final = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, errors.IcechunkError)
}


# Spark's messages for a dead process, and messages for users; the first matching pattern applies.
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
_Failure = TypeVar("_Failure", bound=Exception)


@contextlib.contextmanager
def errors_on_one_line(*, is_planner: bool = False) -> Iterator[None]:
    """Put the message of an error on one line, keeping its class and facts.

    In a task, and in Spark's planner process, the error is raised without its traceback, which is
    logged at DEBUG.
    """
    try:
        yield
    except errors.IcechunkError as error:
        is_bare = is_planner or TaskContext.get() is not None
        if len(_lines(error.message)) < 2 and not is_bare:
            raise
        joined = copy.copy(error)
        joined.message = one_line(error.message)
        joined.args = (joined.message,)
        if is_bare:
            _log.debug("a task or its planning failed", exc_info=error)
        raise joined.with_traceback(None if is_bare else error.__traceback__) from None


@contextlib.contextmanager
def raised_in_tasks(target: str) -> Iterator[None]:
    """Turn Spark's report of a failed write to ``target`` into the error that a task raised.

    If an executor or a Python process died at every attempt of Spark, raise StorageError.
    """
    try:
        with only_own_jobs():
            yield
    except _REPORTS as failure:
        raise_error_of_task(failure)
        reason = _reason(failure)
        if reason is None:
            raise
        raise errors.StorageError(
            f"{reason} while {target} was written: nothing was committed, and the branch did not"
            " change. See the executors' logs; if memory was short, raise"
            " spark.executor.memoryOverhead or choose smaller chunks. The same write can be run"
            " again",
            target=target,
        ) from failure


@contextlib.contextmanager
def raised_in_jobs(what: str, outcome: str = _NOTHING_COMMITTED) -> Iterator[None]:
    """Turn Spark's report of a failed job into the error that a task raised, or a StorageError.

    ``what`` is a phrase such as "collecting garbage of s3://bucket/weather"; ``outcome`` is a
    sentence that describes the state after a failure and the remedy.
    """
    try:
        with described(what), only_own_jobs():
            yield
    except _REPORTS as failure:
        raise_error_of_task(failure)
        if "Traceback (most recent call last)" in str(failure):
            raise  # an error of another library, with its traceback
        lines = _lines(str(failure))
        reason = next((line for line in lines if "Exception: " in line), lines[0])
        is_cancelled = "cancel" in reason.lower()
        logs = "" if is_cancelled else "; see the logs of the executors"
        raise errors.StorageError(
            f"Spark gave up {what} ({_shortened(reason)}). {outcome}{logs}",
            what=what,
        ) from failure


def rows_of_iterator(rows: Iterator[_T]) -> Iterator[_T]:
    """Yield rows of ``toLocalIterator``; raise an error of a task as ``collect`` does.

    Spark raises it with the stack of the JVM below it, since the error is the cause of another one.
    """
    try:
        yield from rows
    except _REPORTS as failure:
        raised = _converted(getattr(failure, "java_exception", None))
        raise (failure if raised is None else raised) from None


def _converted(reported: Any) -> Exception | None:
    """Return the first cause of an exception of the JVM for which PySpark has a class."""
    from pyspark.errors.exceptions.captured import UnknownException, convert_exception

    while reported is not None:
        found: Exception = convert_exception(reported)
        if not isinstance(found, UnknownException):
            return found
        reported = reported.getCause()
    return None


@contextlib.contextmanager
def noted_errors() -> Iterator[None]:
    """Add the error of this package to Spark's exceptions, as `noted_error` does."""
    try:
        yield
    except PySparkException as failure:
        noted_error(failure)
        raise


def noted_error(failure: _Failure) -> _Failure:
    """Add the error of this package in Spark's report as a note, which Python prints last."""
    found = _RAISED.findall(str(failure))
    if found:
        name, message = found[-1]
        note = f"icechunk_format.errors.{name}: {' '.join(message.split())}"
        if note not in getattr(failure, "__notes__", ()):
            failure.add_note(note)
    return failure


def raise_error_of_task(failure: Exception) -> None:
    """Raise the error of `icechunk_format.errors` in Spark's report, if it contains one.

    Also raise UnsupportedError if a task failed because its machine lacks a package.
    """
    found = _RAISED.findall(str(failure))
    if found and found[-1][0] in _BY_NAME:
        name, message = found[-1]
        _log.debug("a job failed", exc_info=failure)
        raise _BY_NAME[name].from_parts(message.strip(), {}) from None
    missing = _MISSING.search(str(failure))
    if missing is not None:
        raise errors.UnsupportedError(
            f"the Python of an executor lacks the package '{missing[1]}', which the driver has:"
            f" install icechunk-spark for this Python on every machine, see {PAGE}",
            package=missing[1],
        ) from failure


def _reason(failure: Exception) -> str | None:
    """Return which process died, or why the JVM aborted a job; None for other reports."""
    message = str(failure)
    for pattern, what in _DEATHS:
        found = pattern.search(message)
        if found is not None:
            return what.format(_shortened(found[0]))
    if isinstance(failure, PySparkException):
        return None
    lines = (line for line in _lines(message) if ": " in line and not line.startswith("at "))
    # A Py4J report without a message begins with a colon.
    return f"Spark aborted the job ({_shortened(next(lines, message).lstrip(': '))})"


def _lines(message: str) -> list[str]:
    return [line.strip() for line in message.splitlines() if line.strip()]


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 3] + "..."
