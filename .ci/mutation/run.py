"""Try whether the tests of a room notice small mistakes: mutants of its modules, one at a time.

``run.py NAMES`` takes names of rooms below (all without), or a part of the path of a module. Each
mutant is a fork of a process that has collected the tests: its functions get the changed code, and
the tests that execute the changed line run, quickest first, until one fails. A mutant that changes
what runs when its module is imported starts from a process without the package.

Mutants that survive are printed; those that ``accepted.toml`` lists with a reason do not count.
Fails if fewer than ``LEAST`` percent of the others die.
"""

from __future__ import annotations

import argparse
import gc
import importlib._bootstrap_external as loading
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
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORMAT = ROOT / "format" / "icechunk_format"
LEAST = 95.0

# The modules of each room, and the tests that are to notice their mistakes.
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "changing": (["groups/changing"], ["groups/changing", "tables/writing"]),
    "changes": (["repository/changes"], ["repository/changes", "repository/commit", "repository/session"]),
    "commit": (["repository/commit"], ["repository/commit", "repository/session"]),
    "session": (["repository/session"], ["repository/commit", "repository/session"]),
    "selection": (["tables/selection"], ["tables/selection"]),
    "manifest": (["encoding/manifest"], ["encoding/manifest"]),
    "repo_info": (["encoding/repo_info"], ["encoding/repo_info"]),
    "snapshot": (["encoding/snapshot"], ["encoding/snapshot"]),
    "documents": (["encoding/*.py", "encoding/config", "encoding/values"], ["encoding"]),
    "flatbuffers": (["encoding/tables"], ["encoding/tables", "encoding/manifest"]),
}

KILLED, SURVIVED, NOT_RUN = "killed", "survived", "not run"


class Trial:
    """Forks of this process, of which two run at a time, each with limits and a folder."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._running: dict[int, tuple[Callable[[str], None], float, Path]] = {}

    def fork(self, act: Callable[[Path], bool], seconds: float, done: Callable[[str], None]) -> None:
        """Start a fork that returns True if a test failed; wait for a place first."""
        while len(self._running) >= self.processes:
            self._reap()
        folder = Path(tempfile.mkdtemp(prefix="mutant-", dir=SCRATCH))
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            if "MUTATION_DEBUG" not in os.environ:
                out = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(out, stream)
            code = 1
            try:
                code = 1 if act(folder) else 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        self._running[pid] = done, time.monotonic() + 20 + 10 * seconds, folder

    def finish(self) -> None:
        """Wait for all forks."""
        while self._running:
            self._reap()

    def _reap(self) -> None:
        for pid, (done, until, folder) in list(self._running.items()):
            late = time.monotonic() > until
            if late:
                os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                del self._running[pid]
                try:
                    os.killpg(pid, signal.SIGKILL)  # processes that its tests started
                except ProcessLookupError:
                    pass
                shutil.rmtree(folder, ignore_errors=True)
                done("survived" if status == 0 else "killed" if os.WIFEXITED(status) else "timeout")
                return
        time.sleep(0.005)


class Session:
    """A session of pytest that has collected the tests, as a plugin."""

    def __init__(self, modules: list, trial: Trial, report: Callable) -> None:
        self.seconds = trial.seconds
        self.modules, self.trial, self.report = modules, trial, report
        self.failed = False
        self.at_import: list = []
        # Test files with the reference library, whose threads do not survive a fork.
        self.reference: list[str] = []
        self.files_of: dict[str, set[str]] = defaultdict(set)

    def pytest_configure(self, config: pytest.Config) -> None:
        import hypothesis

        hypothesis.settings.register_profile(
            "mutants",
            hypothesis.settings.get_profile("any-machine"),
            database=None,
            derandomize=True,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("mutants")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid.endswith(".py"):
            self.reference.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        paths = {str(module.path) for module, _ in self.modules}
        seen = self._coverage(session, paths)
        live: dict[tuple, list[types.FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__code__.co_filename in paths:
                live[_key(found.__code__)].append(found)
        gc.collect()
        gc.freeze()
        for module, mutants in self.modules:
            is_tried = False
            for mutant in mutants:
                pairs = changed_functions(module.code, mutant.code)
                by_line = seen[str(module.path)]
                if pairs is None:
                    every = set().union(*by_line.values()) if by_line else set()
                    files = {session.items[n].path for n in every}
                    self.at_import.append((module, mutant, sorted(files)))
                    continue
                tests = set().union(*(by_line.get(line, set()) for line in mutant.lines))
                if not tests:
                    self.report(mutant, NOT_RUN)
                    continue
                chosen = sorted(tests, key=lambda n: (self.took[n], n))
                enough = accumulate(self.took[n] for n in chosen)
                chosen = [n for n, sum_ in zip(chosen, enough, strict=True) if sum_ < self.seconds]
                if not is_tried:  # tests that fail in a fork anyhow would say that all die
                    is_tried = True
                    self.trial.fork(
                        lambda folder, c=chosen: self._try(session, folder, live, [], c),
                        600,
                        lambda status, c=chosen: status == "survived" or print("control", status, c),
                    )
                self.trial.fork(
                    lambda folder, p=pairs, c=chosen: self._try(session, folder, live, p, c),
                    5 + 5 * sum(self.took[n] for n in chosen),
                    lambda status, m=mutant: self.report(m, status),
                )
        self.trial.finish()
        return True

    def _try(self, session, folder: Path, live: dict, pairs: list, chosen: list[int]) -> bool:
        for old, new in pairs:
            for function in live.get(_key(old), ()):
                function.__code__ = new
        return self._run(session, folder, chosen)

    def _run(self, session, folder: Path, chosen: list[int], after=None) -> bool:
        session.config._tmp_path_factory._basetemp = folder
        items = [session.items[n] for n in chosen]
        for n, item, following in zip(chosen, items, [*items[1:], None], strict=True):
            began = time.process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if after:
                after(n, time.process_time() - began, self.failed)
                self.failed = False
            elif self.failed:
                return True
        return False

    def _coverage(self, session, paths: set[str]) -> dict[str, dict[int, set[int]]]:
        """Return the tests that execute each line of each module; keep the seconds of each."""
        kept = SCRATCH / "coverage.json"
        if os.environ.get("H6COV"):
            kept = Path(os.environ["H6COV"]) / (str(abs(hash(tuple(i.nodeid for i in session.items) + tuple(sorted(paths))))) + ".json")

        def measure(folder: Path) -> bool:
            monitoring, tool = sys.monitoring, sys.monitoring.COVERAGE_ID
            lines: list[tuple[str, int]] = []

            def ran(code: types.CodeType, line: int) -> object:
                if code.co_filename in paths:
                    lines.append((code.co_filename, line))
                return monitoring.DISABLE

            monitoring.use_tool_id(tool, "mutation")
            monitoring.register_callback(tool, monitoring.events.LINE, ran)
            monitoring.set_events(tool, monitoring.events.LINE)
            tests = []

            def after(n: int, seconds: float, failed: bool) -> None:
                tests.append((n, seconds, failed, sorted(set(lines))))
                lines.clear()
                monitoring.restart_events()

            self._run(session, folder, list(range(len(session.items))), after)
            kept.write_text(json.dumps(tests))
            return False

        if not kept.exists():
            self.trial.fork(measure, 3000, lambda status: None)
            self.trial.finish()
        seen: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.took = {}
        for n, seconds, failed, lines in json.loads(kept.read_text()):
            self.took[n] = seconds
            if failed:
                print("fails without a mutant, left out:", session.items[n].nodeid)
                continue
            for path, line in lines:
                seen[path][line].add(n)
        return seen


def _key(code: types.CodeType) -> tuple:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def pytest_of(tests: list, plugin: object) -> int:
    """Run pytest in this process on tests, without what writes beside them."""
    arguments = ["-n", "0", "-q", "-s", "-p", "no:cacheprovider", "-m", "not nightly", "--timeout=0"]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return pytest.main([*arguments, *map(str, tests)], plugins=[plugin])


class Stop:
    """Ends at the first failure, with the settings of the others."""

    pytest_configure = Session.pytest_configure


def try_at_import(trial: Trial, mutant, tests: list, report: Callable) -> None:
    """Try a mutant that changes what is executed when a module is imported."""

    def act(folder: Path) -> bool:
        get_code = loading.SourceLoader.get_code

        def changed(self, name: str) -> types.CodeType:
            path = self.get_filename(name)
            return mutant.code if path == str(mutant.path) else get_code(self, name)

        loading.SourceLoader.get_code = changed
        return pytest_of(["-x", f"--basetemp={folder / 'tmp'}", *tests], Stop()) != 0

    trial.fork(act, 120, lambda status: report(mutant, status))


def modules_of(name: str) -> Iterator[tuple[str, list[Path]]]:
    """Yield the rooms that a name names, with the modules."""
    for room, (folders, _) in ROOMS.items():
        paths = []
        for folder in folders:
            found = FORMAT.glob(folder) if "*" in folder else (FORMAT / folder).rglob("*.py")
            paths += [path for path in sorted(found) if path.name != "__init__.py"]
        if name in ROOMS:
            paths = paths if name == room else []
        else:
            paths = [path for path in paths if name in path.as_posix()]
        if paths:
            yield room, paths


def main() -> int:
    """Try the mutants; print those that survive, and the share of each module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(ROOMS))
    parser.add_argument("--most", type=int, default=60, help="mutants of a module; 0 for all")
    parser.add_argument("--seed", default="1", help="seed of the samples")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tests", nargs="*", help="tests instead of those of the room")
    parser.add_argument("--reference", action="store_true", help="also tests with the reference")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for a mutant, at most")
    parser.add_argument("--again", type=Path, help="only mutants that survive in this log")
    parser.add_argument("--log", type=Path, help="file that gets a line of JSON for each mutant")
    chosen = parser.parse_args()
    accepted = {
        (one["module"], one["before"], one["after"]): one["reason"]
        for one in tomllib.loads((Path(__file__).parent / "accepted.toml").read_text()).get("mutant", [])
    }
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    lines = chosen.again.read_text().splitlines() if chosen.again else ()
    left = {tuple(one[1:]) for one in map(json.loads, lines) if one[0] in (SURVIVED, NOT_RUN)}

    def key(mutant) -> tuple:
        module = mutant.path.relative_to(FORMAT).as_posix()
        return module, mutant.lines.start, mutant.before, mutant.after

    def report(mutant, status: str) -> None:
        module = mutant.path.relative_to(FORMAT).as_posix()
        if status in (SURVIVED, NOT_RUN) and (module, mutant.before, mutant.after) in accepted:
            status = "accepted"
        counts[module][status] += 1
        if chosen.log:
            with chosen.log.open("a") as log:
                log.write(json.dumps([status, *key(mutant)]) + "\n")
        if status in (SURVIVED, NOT_RUN):
            print(f"{status}: {module}:{mutant.lines.start}: {mutant.before}  ->  {mutant.after}")

    trial = Trial(chosen.processes)
    trial.seconds = chosen.seconds
    trial.with_reference = chosen.reference
    for name in chosen.names:
        for room, paths in modules_of(name):
            modules = []
            for path in paths:
                module = Module(path)
                mutants = module.mutants(chosen.most, f"{chosen.seed} {path.stem}")
                if chosen.again:
                    mutants = [mutant for mutant in mutants if key(mutant) in left]
                modules.append((module, mutants))
                total = max(1, module.count)
                made = len(modules[-1][1])
                counts[path.relative_to(FORMAT).as_posix()]["places"] = total
                print(f"{path.relative_to(FORMAT)}: {made} mutants of {module.count}")
            tests = chosen.tests or [ROOT / "tests" / one for one in ROOMS[room][1]]
            run_room(trial, modules, tests, report)
    return summary(counts)


def run_room(trial: Trial, modules: list, tests: list, report: Callable) -> None:
    """Try the mutants of a room: in a fork those of functions, then those of imports."""
    results = SCRATCH / "results.json"
    found: list = []

    def act() -> None:
        mine = [(m, mutants) for m, mutants in modules]
        numbers = {id(mutant): n for n, mutant in enumerate(m for _, ms in modules for m in ms)}

        def report(mutant, status: str) -> None:
            found.append((numbers[id(mutant)], status))
            print(status, mutant, flush=True)

        inner = Trial(trial.processes)
        inner.seconds = trial.seconds
        session = Session(mine, inner, report)
        sys.modules["icechunk"] = None
        pytest_of(["--continue-on-collection-errors", "--no-summary", *tests], session)
        late = [(numbers[id(m)], [str(f) for f in files]) for _, m, files in session.at_import]
        results.write_text(json.dumps([found, late, session.reference]))

    results.unlink(missing_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            act()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(pid, 0)
    print()
    mutants = [m for _, ms in modules for m in ms]
    now, late, reference = json.loads(results.read_text())
    for n, status in now:
        if reference and trial.with_reference and status in (SURVIVED, NOT_RUN):
            late.append((n, reference))
        else:
            report(mutants[n], status)
    for n, files in late:
        if files:
            try_at_import(trial, mutants[n], files, report)
        else:
            report(mutants[n], NOT_RUN)
    trial.finish()


def summary(counts: dict[str, Counter[str]]) -> int:
    """Print a line for each module and return 1 if too many survive."""
    total: Counter[str] = Counter()
    print(f"{'module':45} places made killed timeout accepted survived share")
    for module, count in [*sorted(counts.items()), ("all", total)]:
        total += count if count is not total else Counter()
        dead, left = count["killed"] + count["timeout"], count[SURVIVED] + count[NOT_RUN]
        made = dead + left + count["accepted"]
        share = 100 * dead / max(1, dead + left)
        print(
            f"{module:45} {count['places']:6} {made:4} {count['killed']:6} {count['timeout']:7} "
            f"{count['accepted']:8} {left:8} {share:5.1f}"
        )
    dead = total["killed"] + total["timeout"]
    return int(100 * dead < LEAST * (dead + total[SURVIVED] + total[NOT_RUN]))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from mutants import Module, changed_functions

    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # no threads before forks
    # What the package imports from others, so that forks start with it.
    import google_crc32c, msgpack, numcodecs, numpy, obstore, pyarrow.compute, yaml, zstandard  # noqa

    SCRATCH = Path(tempfile.mkdtemp(prefix="mutation-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    os.chdir(ROOT)
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
