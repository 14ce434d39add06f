"""Runs requests in threads, and makes clients and thread pools once per process.

Clients and thread pools of a parent process hang or fail after a fork. The child does not close
them, since closing could hang as well. A process does not wait for its requests when it exits.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
A = TypeVar("A")

# CPU time of one request. More requests in flight than the latency divided by this time only wait
# for one another.
_SECONDS_PER_REQUEST: Final = 0.0004
_SECONDS_OF_A_WAIT: Final = 0.5
# Limit on the bytes of responses in flight, if more than the fewest requests are in flight.
_MOST_BYTES: Final = 16 * 2**20


class PerProcess(Generic[T]):
    """A value that each process makes separately on first access.

    Two threads may call ``make`` concurrently; one of their values is kept.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """Return this process's value."""
        pid = os.getpid()
        value = self._values.get(pid)
        if value is None:
            value = self._values.setdefault(pid, self._make())
        return value


def wait_for(future: Future[Any]) -> None:
    """Wait until a future is done, in steps, so that Ctrl-C takes effect within half a second.

    Python looks for signals before and after it blocks. One in between, or one that the system
    gives to another thread, would be seen at the end of a wait without steps.
    """
    while not future.done():
        wait([future], _SECONDS_OF_A_WAIT)


class DaemonThreads:
    """Runs calls in threads that do not delay the end of the process.

    `concurrent.futures` waits for its threads when Python exits, also for a request to a server
    that does not respond, and it refuses calls of functions that run at the exit. Here, the threads
    end after `close`, or when the object is deleted.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most, self._name = most, name
        self._calls: _Calls = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started = 0
        self.close = weakref.finalize(self, self._calls.put, None)
        self.close.atexit = False

    def submit(self, call: Callable[[], object]) -> bool:
        """Return True if one of the threads calls a function, which must not raise.

        False if there is no thread, and the system allows none.
        """
        self._calls.put(call)
        if self._idle.acquire(blocking=False):
            return True
        with self._lock:
            if self._started == self._most:
                return True
            thread = threading.Thread(
                target=_serve,
                args=(self._calls, self._idle),
                name=f"{self._name}_{self._started}",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:
                if self._started:
                    return True  # the other threads do the work
                self._calls.get()
                return False
            self._started += 1
            return True

    def future(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function in one of the threads; return its result as a future."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*arguments)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        if not self.submit(call):
            call()
        return future


_Calls: TypeAlias = "queue.SimpleQueue[Callable[[], object] | None]"


def _serve(calls: _Calls, idle: threading.Semaphore) -> None:
    while True:
        try:
            call = calls.get_nowait()
        except queue.Empty:
            idle.release()
            call = calls.get()
        if call is None:
            calls.put(None)  # for the next thread
            return
        call()
        del call  # which may hold the storage, and so these threads


class PacedThreads:
    """Sends requests in threads, more of them if latency is high and responses are small.

    Parameters
    ----------
    fewest
        Minimum number of requests in flight, for any latency and size.
    most
        Maximum number of requests in flight; None for a fixed number, ``fewest``.
    """

    def __init__(self, fewest: int, most: int | None = None) -> None:
        self._fewest, self._most = fewest, most or fewest
        self._pool = PerProcess(lambda: DaemonThreads(self._most, name="icechunk-request"))
        self._latency = 0.0

    def map(
        self, function: Callable[[A], T], arguments: Iterable[A], *, mean_bytes: float = math.inf
    ) -> list[T]:
        """Return the results in order; the first error cancels requests that have not begun.

        Parameters
        ----------
        function
            Sends one request; called from several threads.
        mean_bytes
            Mean size of a response in bytes; infinity if unknown.
        """
        items = list(arguments)
        batch = _Batch(function, items, pace=lambda seconds: self._wanted(seconds, mean_bytes))
        if len(items) == 1:
            batch.work()
        elif items:
            batch.run(self._pool.get(), self._latency)
        if batch.error is not None:
            raise batch.error
        if items:
            # Slower responses also waited for one another, so the quickest one gives the latency.
            self._latency = batch.quickest
        return batch.results

    def _wanted(self, latency: float, mean_bytes: float) -> int:
        wanted = min(latency / _SECONDS_PER_REQUEST, _MOST_BYTES / max(1.0, mean_bytes))
        return max(self._fewest, min(int(wanted), self._most))


class _Batch(Generic[A, T]):
    """A queue of requests that threads send, and their results."""

    def __init__(
        self, function: Callable[[A], T], items: list[A], *, pace: Callable[[float], int]
    ) -> None:
        self._function, self._items, self._pace = function, items, pace
        self._lock, self._finished = threading.Lock(), threading.Event()
        self._pool: DaemonThreads | None = None
        self._next = self._answered = self._threads = 0
        self.results: list[Any] = [None] * len(items)
        self.quickest = self._known = math.inf
        self.error: BaseException | None = None

    def run(self, pool: DaemonThreads, latency: float) -> None:
        """Send requests in threads of a pool until all are done or one fails."""
        # The first responses include the time to connect, so the latency of earlier batches is
        # used.
        self._pool, self._known = pool, latency or math.inf
        try:
            with self._lock:
                self._start(self._pace(latency))
            if not self._threads:
                self.work()
            while not self._finished.wait(_SECONDS_OF_A_WAIT):
                pass  # as in `wait_for`
        finally:
            with self._lock:
                # After an interrupt, no thread takes another request.
                self._next = len(self._items)

    def _start(self, wanted: int) -> None:
        while self._pool is not None and self._threads < min(
            wanted, self._threads + len(self._items) - self._next
        ):
            if not self._pool.submit(self.work):
                return
            self._threads += 1

    def work(self) -> None:
        """Send requests one by one until the queue is empty."""
        while True:
            with self._lock:
                at = self._next
                if at >= len(self._items):
                    return
                self._next += 1
            begun = time.monotonic()
            try:
                result = self._function(self._items[at])
            except BaseException as error:
                with self._lock:
                    self.error = self.error or error
                    self._next = len(self._items)
                self._finished.set()
                return
            with self._lock:
                self.results[at] = result
                self.quickest = min(self.quickest, time.monotonic() - begun)
                self._answered += 1
                if self._answered == len(self._items):
                    self._finished.set()
                self._start(self._pace(min(self.quickest, self._known)))
