"""Threads and clients that belong to one process and are made anew after a fork.

obstore and s3fs clients made before a fork hang or refuse to work after it, and so does a thread
pool. What belongs to the parent is kept, not closed: closing it in the child could hang as well.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")
A = TypeVar("A")


class PerProcess(Generic[T]):
    """A value that each process makes for itself when it first needs it.

    Parameters
    ----------
    make
        Makes the value. Two threads that come first at once may both call it; one value stays.
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


class WorkerThreads:
    """Run one function over many arguments in a bounded number of threads of this process.

    Parameters
    ----------
    count
        Number of threads; they start when needed.
    """

    def __init__(self, count: int) -> None:
        self._pool = PerProcess(
            lambda: ThreadPoolExecutor(count, thread_name_prefix="icechunk-storage")
        )

    def map(self, function: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
        """Return the results in order; the first error stops what has not begun yet."""
        items = list(arguments)
        if len(items) <= 1:
            return [function(item) for item in items]
        futures = [self._pool.get().submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
