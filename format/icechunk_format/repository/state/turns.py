"""Lets writers on one machine attempt their commits one after another, in the order of arrival.

Of attempts that overlap, one succeeds, and the others have only taken the processors from it. This
does not hold for writers on different machines, so the turns are those of one user on one machine:
locks of files in the folder for temporary files.

A turn saves work; commits are atomic without it. If a writer keeps its turn for longer than
``PATIENCE_S``, those that wait form another queue beside it, and do not wait for that turn again:
a writer that is stuck stops no other, and many that are slow do not all start at once. After the
last queue a writer goes on without a turn.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Final

if sys.platform != "win32":
    import fcntl

# Repositories share this many files, which stay in the folder of temporary files.
_FILES: Final = 256
_QUEUES: Final = 4
PATIENCE_S: Final = 2.0

# The time at which the turn began that this process gave up, by file.
_given_up: dict[str, int] = {}
_held = threading.local()


@contextlib.contextmanager
def turn(scope: str) -> Iterator[None]:
    """Hold the turn of a repository or a branch, or go on without it; see above."""
    path, held = _path(scope), _paths_of_thread()
    if path is None or path in held:
        yield
        return
    with contextlib.ExitStack() as leaving:
        for queue in range(_QUEUES):
            try:
                waiter = _Waiter(f"{path}-{queue}")
            except OSError:
                break
            leaving.callback(waiter.leave)
            if waiter.wait():
                held.add(path)
                leaving.callback(held.discard, path)
                break
            leaving.pop_all().close()
        yield


class _Waiter:
    """Waits for the lock of an open file; the system grants it in the order of arrival."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor, self._path = os.open(path, flags, 0o600), path
        self._granted = threading.Event()
        self._has_left = False
        self._is_waited_for = False
        self._changing = threading.Lock()

    def wait(self) -> bool:
        """Return True if the lock is held, False if another writer keeps it too long."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            began = self._began()
            if _given_up.get(self._path) == began:
                return False
            if not self._start():
                return False
            while not self._granted.wait(PATIENCE_S):
                before, began = began, self._began()
                if began == before:
                    _given_up[self._path] = began
                    return False
        except OSError:  # a file system without locks
            return False
        # The others see by it that the turns go on.
        os.utime(self._descriptor)
        return True

    def leave(self) -> None:
        """Release the lock, or do so when it is granted."""
        with self._changing:
            self._has_left = True
            if self._is_waited_for and not self._granted.is_set():
                return
        self._release()

    def _began(self) -> int:
        return os.fstat(self._descriptor).st_mtime_ns

    def _start(self) -> bool:
        # A lock of the system has no time limit, so that a thread waits for it.
        thread = threading.Thread(target=self._acquire, name="icechunk-turn", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            return False
        self._is_waited_for = True
        return True

    def _acquire(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._changing:
            self._granted.set()
            has_left = self._has_left
        if has_left:
            self._release()

    def _release(self) -> None:
        # Closing is not enough: a process that was forked meanwhile has the file open as well.
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def _paths_of_thread() -> set[str]:
    if not hasattr(_held, "paths"):
        _held.paths = set()
    paths: set[str] = _held.paths
    return paths


def _path(scope: str) -> str | None:
    folder = None if sys.platform == "win32" else _folder(tempfile.gettempdir())
    if folder is None:
        return None
    number = int.from_bytes(hashlib.blake2b(scope.encode(errors="replace")).digest()[:2], "big")
    return os.path.join(folder, f"turn-{number % _FILES}")


@functools.cache
def _folder(temporary: str) -> str | None:
    """Return this user's folder of turns, made if it does not exist; None if there can be none."""
    folder = os.path.join(temporary, f"icechunk-spark-{os.geteuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return folder if is_own and not found.st_mode & 0o022 else None
