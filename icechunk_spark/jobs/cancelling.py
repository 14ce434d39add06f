"""Runs actions of Spark: shows their progress, and cancels their jobs on an interrupt.

Python raises KeyboardInterrupt (Ctrl-C, or a notebook's interrupt) in its main thread. If that
thread waits inside of py4j, the connection to the JVM breaks and the job goes on. So an action of
the main thread runs in a thread of its own, with a tag of its own, while the main thread waits. An
interrupt cancels the jobs with this tag only.

Rules of this file
------------------
1. Every action of this package (`collect`, `count`, ...) is run by `cancellable`.
2. The thread gets the caller's properties: description, group, pool and tags. Nothing is set in the
   caller's thread.
3. A job may start after the first attempt to cancel it, so attempts are repeated until the action
   ends. Its tasks end later: Spark kills the Python process of a task after about four seconds.
4. A second interrupt ends the wait.
5. PySpark's own handler of interrupts cancels the jobs of all threads. It is replaced while a call
   runs; a handler of the user is kept.
6. Other threads receive no interrupts, so their actions run directly: Spark cancels the jobs of a
   stream's batch when the query stops.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import logging
import secrets
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from icechunk_format.progress import bar
from icechunk_format.storage.concurrency import wait_for
from icechunk_spark.jobs.session import doing, is_connect, session_key

T = TypeVar("T")

_log = logging.getLogger("icechunk_spark.jobs")
_COUNTS: Final = ("num_completed_tasks", "num_tasks")
_PYSPARK_HANDLER: Final = "pyspark.core.context"
_SECONDS_BETWEEN: Final = 0.2
_SECONDS_BETWEEN_REPORTS: Final = 0.5
# Time after which a task that does not end is reported, and no longer waited for.
_MOST_SECONDS: Final = 60.0
# Sessions whose jobs show bars.
_with_bars: Final[set[str]] = set()


def set_progress(spark: SparkSession, shown: bool) -> None:
    """Make the jobs of a session show bars, or not."""
    (_with_bars.add if shown else _with_bars.discard)(session_key(spark))


def _shows_progress(spark: Any) -> bool:
    return bool(_with_bars) and session_key(spark) in _with_bars


@contextlib.contextmanager
def only_own_jobs() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C within the block, without cancelling other threads' jobs.

    Only PySpark's handler is replaced, and only in the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if is_main else None
    if getattr(before, "__module__", None) != _PYSPARK_HANDLER:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def cancellable(source: DataFrame | SparkSession, action: Callable[[], T]) -> T:
    """Run an action of a DataFrame or session; an interrupt cancels its jobs, and then is raised.

    Parameters
    ----------
    source
        The DataFrame, or its session.
    action
        A function without arguments that runs jobs, such as ``frame.collect``.
    """
    if threading.current_thread() is not threading.main_thread():
        return action()
    spark = source.sparkSession if isinstance(source, DataFrame) else source
    tagged = _ConnectJobs(spark) if is_connect(spark) else _ClassicJobs(spark)
    ended: Future[T] = Future()
    with only_own_jobs():
        try:
            if not _shows_progress(spark):
                tagged.start(action, ended)
                wait_for(ended)
                return ended.result()
            with bar(doing()) as report:
                tagged.start(action, ended)
                while not wait([ended], _SECONDS_BETWEEN_REPORTS).done:
                    report(*tagged.tasks(), "")
                result = ended.result()
                total = tagged.tasks()[1]
                report(total, total, "")
            return result
        except KeyboardInterrupt:
            _cancel(tagged, ended)
            raise


def _cancel(tagged: _TaggedJobs, ended: Future[Any]) -> None:
    _log.info("interrupted: cancelling %s", tagged.tag)
    deadline = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < deadline:
        tagged.cancel()
        if wait([ended], _SECONDS_BETWEEN).done and not tagged.running_tasks():
            return
        time.sleep(_SECONDS_BETWEEN if ended.done() else 0)
    _log.warning("tasks of an interrupted call still run; they change nothing")


class _TaggedJobs(ABC):
    """The jobs of one action, in a thread of their own."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        self.tag = f"icechunk-{secrets.token_hex(8)}"

    def start(self, action: Callable[[], T], ended: Future[T]) -> None:
        """Start the action in a thread; its result or error ends the future."""
        properties, context = self._properties(), contextvars.copy_context()

        def run() -> None:
            try:
                with self._entered(properties):
                    result = context.run(action)
                ended.set_result(result)
            except BaseException as error:
                ended.set_exception(error)

        threading.Thread(target=run, name=self.tag, daemon=True).start()

    @abstractmethod
    def _properties(self) -> Any:
        """Return the properties of the caller's thread."""

    @abstractmethod
    def _entered(self, properties: Any) -> AbstractContextManager[None]:
        """Set the properties and the tag in the new thread."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the jobs that run."""

    @abstractmethod
    def tasks(self) -> tuple[int, int]:
        """Return the numbers of finished and of all tasks of the stages so far."""

    @abstractmethod
    def running_tasks(self) -> int:
        """Return the number of tasks that have not ended, or 0 if the session cannot know it."""


class _ClassicJobs(_TaggedJobs):
    """Jobs with a tag of the SparkContext."""

    def _properties(self) -> Any:
        # Tags of the session are not among the properties.
        return self._context.getLocalProperties().clone(), self._spark.getTags()

    @contextlib.contextmanager
    def _entered(self, properties: Any) -> Iterator[None]:
        own, tags = properties
        self._context.setLocalProperties(own)
        for tag in tags:
            self._spark.addTag(tag)
        self._spark.sparkContext.addJobTag(self.tag)
        yield

    def cancel(self) -> None:
        self._spark.sparkContext.cancelJobsWithTag(self.tag)

    def tasks(self) -> tuple[int, int]:
        stages = self._stages()
        return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)

    def running_tasks(self) -> int:
        return sum(stage.numActiveTasks for stage in self._stages())

    def _stages(self) -> list[Any]:
        tracker = self._spark.sparkContext.statusTracker()
        jobs = map(tracker.getJobInfo, self._context.statusTracker().getJobIdsForTag(self.tag))
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        found = map(tracker.getStageInfo, stages)
        return [stage for stage in found if stage is not None]

    @property
    def _context(self) -> Any:
        return self._spark._jsc.sc()


class _ConnectJobs(_TaggedJobs):
    """Operations with a tag of the client; the server reports no tasks to it."""

    _tasks = (0, 0)

    def _properties(self) -> Any:
        return copy.deepcopy(vars(self._spark.client.thread_local))

    @contextlib.contextmanager
    def _entered(self, properties: Any) -> Iterator[None]:
        vars(self._spark.client.thread_local).update(properties)
        self._spark.addTag(self.tag)
        note = self._note
        self._spark.registerProgressHandler(note)
        try:
            yield
        finally:
            self._spark.removeProgressHandler(note)

    def _note(self, stages: Any, **_: Any) -> None:
        # The client calls all handlers, each in the thread of the operation.
        if stages and threading.current_thread().name == self.tag:
            done, total = (sum(getattr(stage, n) for stage in stages) for n in _COUNTS)
            self._tasks = done, total

    def tasks(self) -> tuple[int, int]:
        return self._tasks

    def cancel(self) -> None:
        self._spark.interruptTag(self.tag)

    def running_tasks(self) -> int:
        return 0
