"""Forks of a process, a few at a time, each with limits and a folder of its own."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

KILLED, TIMEOUT, SURVIVED, NOT_RUN, ACCEPTED = (
    "killed",
    "timeout",
    "survived",
    "not run",
    "accepted",
)
_BROKEN = 3


class BrokenRun(Exception):
    """A failure of this tool, which says nothing of the mutant."""


class Forks:
    """Starts forks and reports how each ended, and the test that killed the mutant, if known."""

    def __init__(self, processes: int, scratch: Path) -> None:
        self.processes, self.scratch = processes, scratch
        self._running: dict[int, tuple[Callable[[str, str], object], float, Path]] = {}

    def start(
        self, act: Callable[[Path], bool], seconds: float, done: Callable[[str, str], object]
    ) -> None:
        """Start a fork that returns True if a test failed, once there is a place for it."""
        while len(self._running) >= self.processes:
            self._reap()
        folder = Path(tempfile.mkdtemp(prefix="mutant-", dir=self.scratch))
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
                resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
                if "MUTATION_DEBUG" not in os.environ:
                    for stream in (0, 1, 2):
                        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
                code = int(act(folder))
            except BrokenRun:
                (folder / "broken").write_text(traceback.format_exc())
                code = _BROKEN
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        # The time of the clock counts only if the fork waits: the machine may be busy.
        self._running[pid] = done, time.monotonic() + 60 + 30 * seconds, folder

    def finish(self) -> None:
        """Wait for all forks."""
        while self._running:
            self._reap()

    def _reap(self) -> None:
        for pid, (done, until, folder) in list(self._running.items()):
            is_late = time.monotonic() > until
            if is_late:
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if is_late else os.WNOHANG)
            if ended:
                del self._running[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # processes that its tests started
                killer, broken = (_text(folder / name) for name in ("killer", "broken"))
                shutil.rmtree(folder, ignore_errors=True)
                if broken:
                    sys.exit(broken)
                outcome = KILLED if os.WIFEXITED(status) else TIMEOUT
                done(outcome if status else SURVIVED, killer)
                return
        time.sleep(0.002)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
