"""Try whether the tests of a room notice small mistakes: mutants of its modules, one at a time.

``run.py NAMES`` takes names of rooms below (all without), or a part of the path of a module. Each
mutant is a fork of a process that has collected the tests: its functions get the changed code, and
the tests that execute the changed lines run, quickest first, until one fails. A mutant that changes
what is executed when its module is imported starts from a process without the package.

Mutants that survive are printed; those that ``accepted.toml`` lists with a reason do not count.
Fails if fewer than ``LEAST`` percent of the others die.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib._bootstrap_external as loading
import importlib.util
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from mutants import Module, Mutant, changed_functions

ROOT = Path(__file__).resolve().parents[2]
FORMAT = ROOT / "format" / "icechunk_format"
LEAST = 95.0
KILLED, TIMEOUT, SURVIVED, NOT_RUN, ACCEPTED = (
    "killed",
    "timeout",
    "survived",
    "not run",
    "accepted",
)

# The modules of each room, and the tests that are to notice their mistakes.
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "changing": (["groups/changing"], ["groups/changing", "tables/writing"]),
    "changes": (
        ["repository/changes"],
        ["repository/changes", "repository/commit", "repository/session"],
    ),
    "commit": (["repository/commit"], ["repository/commit", "repository/session"]),
    "session": (["repository/session"], ["repository/commit", "repository/session"]),
    "selection": (["tables/selection"], ["tables/selection"]),
    "manifest": (["encoding/manifest"], ["encoding/manifest"]),
    "repo_info": (["encoding/repo_info"], ["encoding/repo_info"]),
    "snapshot": (["encoding/snapshot"], ["encoding/snapshot"]),
    "documents": (["encoding/*.py", "encoding/config", "encoding/values"], ["encoding"]),
    "flatbuffers": (["encoding/tables"], ["encoding/tables", "encoding/manifest"]),
}


class Forks:
    """Forks of this process, a few at a time, each with limits and a folder of its own."""

    def __init__(self, processes: int, scratch: Path) -> None:
        self.processes, self.scratch = processes, scratch
        self._running: dict[int, tuple[Callable[[str], object], float, Path]] = {}

    def start(
        self, act: Callable[[Path], bool], seconds: float, done: Callable[[str], object]
    ) -> None:
        """Start a fork that returns True if a test failed, once there is a place for it."""
        while len(self._running) >= self.processes:
            self._reap()
        folder = Path(tempfile.mkdtemp(prefix="mutant-", dir=self.scratch))
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
                shutil.rmtree(folder, ignore_errors=True)
                done(SURVIVED if not status else KILLED if os.WIFEXITED(status) else TIMEOUT)
                return
        time.sleep(0.005)


class Settings:
    """Settings of all sessions: property tests do not shrink what fails, nor remember it."""

    def pytest_configure(self) -> None:
        """Replace the profile of ``conftest.py``."""
        import hypothesis

        hypothesis.settings.register_profile(
            "mutants",
            hypothesis.settings.get_profile("any-machine"),
            database=None,
            derandomize=True,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("mutants")


class Session(Settings):
    """A session of pytest that has collected the tests of a room, and tries mutants with them."""

    def __init__(
        self,
        modules: list[tuple[Module, list[Mutant]]],
        forks: Forks,
        seconds: float,
        report: Callable[[Mutant, str], object],
    ) -> None:
        self._modules, self._forks, self._seconds, self._report = modules, forks, seconds, report
        self._paths = {str(module.path) for module, _ in modules}
        self._failed = False
        self._took: dict[int, float] = {}
        self.at_import: list[tuple[Mutant, list[str]]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a failure."""
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants instead of running the tests."""
        seen = self._coverage(session)
        live = defaultdict(list)
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__code__.co_filename in self._paths:
                live[_key(found.__code__)].append(found)
        gc.collect()
        gc.freeze()
        for module, mutants in self._modules:
            by_line, is_first = seen[str(module.path)], True
            for mutant in mutants:
                pairs = changed_functions(module.code, mutant.code)
                lines = by_line if pairs is None else mutant.lines
                tests = set().union(*(by_line.get(line, ()) for line in lines))
                if pairs is None:
                    files = sorted({str(session.items[n].path) for n in tests})
                    self.at_import.append((mutant, files))
                elif not tests:
                    self._report(mutant, NOT_RUN)
                else:
                    chosen = self._quickest(tests)
                    if is_first:  # tests that fail in any fork would say that all mutants die
                        self._try(session, live, [], chosen, _expect_success)
                    is_first = False
                    self._try(session, live, pairs, chosen, partial(self._report, mutant))
        self._forks.finish()
        return True

    def _quickest(self, tests: Iterable[int]) -> list[int]:
        order = sorted(tests, key=lambda n: (self._took[n], n))
        sums = accumulate(self._took[n] for n in order)
        return [n for n, so_far in zip(order, sums, strict=True) if so_far < self._seconds]

    def _try(
        self,
        session: pytest.Session,
        live: dict[tuple[str, str, int], list[types.FunctionType]],
        pairs: Iterable[tuple[types.CodeType, types.CodeType]],
        chosen: list[int],
        done: Callable[[str], object],
    ) -> None:
        def act(folder: Path) -> bool:
            for old, new in pairs:
                for function in live.get(_key(old), ()):
                    function.__code__ = new
            return any(self._run(session, folder, chosen))

        self._forks.start(act, 5 + 5 * sum(self._took[n] for n in chosen), done)

    def _run(self, session: pytest.Session, folder: Path, chosen: list[int]) -> Iterator[bool]:
        """Run tests; yield True for each that fails."""
        session.config._tmp_path_factory._basetemp = folder
        items = [session.items[n] for n in chosen]
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._failed = False
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            yield self._failed

    def _coverage(self, session: pytest.Session) -> dict[str, dict[int, set[int]]]:
        """Return the tests that execute each line of each module; keep the seconds of each."""
        kept = self._forks.scratch / "coverage.json"

        def measure(folder: Path) -> bool:
            monitoring, tool = sys.monitoring, sys.monitoring.COVERAGE_ID
            lines: set[tuple[str, int]] = set()

            def ran(code: types.CodeType, line: int) -> object:
                if code.co_filename in self._paths:
                    lines.add((code.co_filename, line))
                return monitoring.DISABLE

            monitoring.use_tool_id(tool, "mutation")
            monitoring.register_callback(tool, monitoring.events.LINE, ran)
            monitoring.set_events(tool, monitoring.events.LINE)
            tests, began = [], time.process_time()
            for failed in self._run(session, folder, list(range(len(session.items)))):
                tests.append((time.process_time() - began, failed, sorted(lines)))
                lines.clear()
                monitoring.restart_events()
                began = time.process_time()
            kept.write_text(json.dumps(tests))
            return False

        self._forks.start(measure, 3000, _expect_success)
        self._forks.finish()
        seen: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for n, (seconds, failed, lines) in enumerate(json.loads(kept.read_text())):
            self._took[n] = seconds
            if failed:
                print("fails without a mutant, left out:", session.items[n].nodeid)
                continue
            for path, line in lines:
                seen[path][line].add(n)
        return seen


def _key(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _expect_success(status: str) -> None:
    if status != SURVIVED:
        sys.exit("tests fail in a fork without a mutant; MUTATION_DEBUG=1 shows their output")


def pytest_of(tests: Iterable[object], plugin: Settings) -> int:
    """Run pytest in this process on tests, without what writes beside them."""
    arguments = ["-n", "0", "-q", "-s", "-p", "no:cacheprovider", "--timeout=0", "--no-summary"]
    arguments += ["-m", "not nightly", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return pytest.main([*arguments, *map(str, tests)], plugins=[plugin])


def try_at_import(
    forks: Forks, mutant: Mutant, tests: list[str], done: Callable[[str], object]
) -> None:
    """Try a mutant that changes what is executed when a module is imported."""

    def act(folder: Path) -> bool:
        get_code = loading.SourceLoader.get_code

        def changed(self: Any, name: str) -> types.CodeType:
            is_it = self.get_filename(name) == str(mutant.path)
            return mutant.code if is_it else get_code(self, name)

        loading.SourceLoader.get_code = changed
        return pytest_of(["-x", f"--basetemp={folder / 'tmp'}", *tests], Settings()) != 0

    forks.start(act, 120, done)


def import_when_used(name: str) -> None:
    """Import a package at its first use, in a fork, if its threads do not survive a fork."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.loader is not None:
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def try_room(
    forks: Forks,
    modules: list[tuple[Module, list[Mutant]]],
    tests: list[Any],
    seconds: float,
    report: Callable[[Mutant, str], object],
) -> None:
    """Try the mutants of a room: those of functions first, in a process with the tests."""
    mutants = [mutant for _, made in modules for mutant in made]
    number = {id(mutant): n for n, mutant in enumerate(mutants)}
    kept = forks.scratch / "results.json"
    kept.unlink(missing_ok=True)
    found: list[tuple[int, str]] = []

    def note(mutant: Mutant, status: str) -> None:
        found.append((number[id(mutant)], status))
        print(status, mutant, flush=True)

    def act(folder: Path) -> bool:
        import_when_used("icechunk")
        inner = Forks(forks.processes, forks.scratch)
        session = Session(modules, inner, seconds, note)
        pytest_of(["--continue-on-collection-errors", *tests], session)
        late = [(number[id(mutant)], files) for mutant, files in session.at_import]
        kept.write_text(json.dumps([found, late]))
        return False

    pid = os.fork()
    if not pid:
        try:
            act(forks.scratch)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(pid, 0)
    if not kept.exists():
        sys.exit("the session of pytest failed")
    now, late = json.loads(kept.read_text())
    for n, status in now:
        report(mutants[n], status)
    for n, files in late:
        if files:
            try_at_import(forks, mutants[n], files, partial(report, mutants[n]))
        else:
            report(mutants[n], NOT_RUN)
    forks.finish()


def modules_of(name: str) -> Iterator[tuple[str, list[Path]]]:
    """Yield the rooms that a name names, with the modules."""
    for room, (folders, _) in ROOMS.items():
        paths = []
        for folder in folders:
            found = FORMAT.glob(folder) if "*" in folder else (FORMAT / folder).rglob("*.py")
            paths += [path for path in sorted(found) if path.name != "__init__.py"]
        if name != room:
            paths = [] if name in ROOMS else [path for path in paths if name in path.as_posix()]
        if paths:
            yield room, paths


def main(scratch: Path) -> int:
    """Try the mutants; print those that survive, and the share of each module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(ROOMS), help="rooms, or parts of paths")
    parser.add_argument("--most", type=int, default=60, help="mutants of a module; 0 for all")
    parser.add_argument("--seed", default="1", help="seed of the samples")
    parser.add_argument("--processes", type=int, default=2, help="that run at a time")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for a mutant, at most")
    parser.add_argument("--tests", nargs="*", help="files or folders instead of those of the room")
    parser.add_argument("--log", type=Path, help="file that gets a line of JSON for each mutant")
    parser.add_argument("--again", type=Path, help="a log, whose survivors alone are tried")
    chosen = parser.parse_args()
    listed = tomllib.loads((Path(__file__).parent / "accepted.toml").read_text())
    accepted = {(one["module"], one["before"], one["after"]) for one in listed.get("mutant", ())}
    assert all(one["reason"] for one in listed.get("mutant", ()))
    lines = map(json.loads, chosen.again.read_text().splitlines()) if chosen.again else ()
    left = {tuple(rest) for status, *rest in lines if status in (SURVIVED, NOT_RUN)}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    forks = Forks(chosen.processes, scratch)

    def named(mutant: Mutant) -> tuple[str, str, str]:
        return mutant.path.relative_to(FORMAT).as_posix(), mutant.before, mutant.after

    def report(mutant: Mutant, status: str) -> None:
        if status in (SURVIVED, NOT_RUN) and named(mutant) in accepted:
            status = ACCEPTED
        counts[named(mutant)[0]][status] += 1
        if chosen.log:
            with chosen.log.open("a") as log:
                log.write(json.dumps([status, *named(mutant)]) + "\n")
        if status in (SURVIVED, NOT_RUN):
            print(f"--> {status}: {mutant}", flush=True)

    for name in chosen.names:
        for room, paths in modules_of(name):
            modules = []
            for path in paths:
                module = Module(path)
                mutants = module.mutants(chosen.most, f"{chosen.seed} {path.stem}")
                mutants = [one for one in mutants if not chosen.again or named(one) in left]
                modules.append((module, mutants))
                counts[path.relative_to(FORMAT).as_posix()]["possible"] = module.count
            tests = chosen.tests or [ROOT / "tests" / one for one in ROOMS[room][1]]
            try_room(forks, modules, tests, chosen.seconds, report)
    return summary(counts)


def summary(counts: dict[str, Counter[str]]) -> int:
    """Print a line for each module; return 1 if too many mutants survive."""
    kinds = (KILLED, TIMEOUT, SURVIVED, NOT_RUN, ACCEPTED)
    total: Counter[str] = Counter()
    for count in counts.values():
        total += count
    print(f"{'module':40} possible tried", *kinds, "share")
    share = 100.0
    for module, count in [*sorted(counts.items()), ("all", total)]:
        dead, alive = count[KILLED] + count[TIMEOUT], count[SURVIVED] + count[NOT_RUN]
        share = 100 * dead / max(1, dead + alive)
        cells = [f"{count[kind]:{len(kind)}}" for kind in kinds]
        tried = dead + alive + count[ACCEPTED]
        print(f"{module:40} {count['possible']:8} {tried:5}", *cells, f"{share:5.1f}")
    return int(share < LEAST and total[SURVIVED] + total[NOT_RUN] > 0)


if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # no threads before forks
    os.chdir(ROOT)
    # The packages that the format imports, so that each fork begins with them.
    for name in ("msgpack", "numcodecs", "obstore", "pyarrow.compute", "yaml", "zstandard"):
        __import__(name)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mutation-", dir=memory) as folder:
        sys.exit(main(Path(folder)))
