"""Sessions of pytest that try mutants: one that has collected the tests, or one for each mutant."""

from __future__ import annotations

import gc
import hashlib
import importlib._bootstrap_external as loading
import json
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from forks import KILLED, NOT_RUN, SURVIVED, BrokenRun, Forks
from mutants import FORMAT, Module, Mutant, changed_functions


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
    """A session of pytest that has collected the tests of a room, and tries mutants with them.

    ``kept`` is a file that keeps which lines each test executes, for the next run.
    """

    def __init__(
        self,
        modules: list[tuple[Module, list[Mutant]]],
        forks: Forks,
        seconds: float,
        kept: Path,
        report: Callable[[Mutant, str], object],
    ) -> None:
        self._modules, self._forks, self._seconds, self._report = modules, forks, seconds, report
        self._kept = kept
        self._paths = {str(module.path) for module, _ in modules}
        self._failed = False
        self._took: dict[int, float] = {}
        self._kills: Counter[int] = Counter()
        self.at_import: list[tuple[Mutant, list[str]]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a failure."""
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants instead of running the tests."""
        # A module that only a function imports may not be in memory: forks would import it again.
        for module, _ in self._modules:
            __import__(module.name)
        live: dict[types.CodeType, list[types.FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__code__.co_filename in self._paths:
                live[found.__code__].append(found)
        seen = self._coverage(session, {one.__code__ for every in live.values() for one in every})
        gc.collect()
        gc.freeze()
        for module, mutants in self._modules:
            by_line, is_first = seen[str(module.path)], True
            for mutant in mutants:
                pairs = changed_functions(module.code, mutant.code)
                lines = by_line if pairs is None else mutant.lines
                tests = set().union(*(by_line.get(line, ()) for line in lines))
                if not tests and pairs is not None:
                    # Python reports no line for a jump, such as `continue`.
                    tests = by_line.get(mutant.lines.start - 1, set())
                # A function may run at import alone, where it makes what the tests use.
                is_unseen = not tests
                tests = tests or set().union(*by_line.values())
                if not tests:
                    self._report(mutant, NOT_RUN)
                    continue
                chosen = self._best(tests)
                if is_unseen or pairs is None or not _is_replaceable(module.code, pairs, live):
                    names = [session.items[n].nodeid for n in chosen]
                    self.at_import.append((mutant, names))
                    continue
                if is_first:
                    # Tests that fail in any fork would say that all mutants die; a change that is
                    # not in effect, that all survive.
                    everywhere = self._best(set().union(*by_line.values()))
                    self._try(session, lambda: None, chosen, partial(expect, SURVIVED, module.name))
                    broken = partial(_break_all, module.path, live)
                    self._try(session, broken, everywhere, partial(expect, KILLED, module.name))
                    self._forks.finish()
                is_first = False

                def replace(pairs: Any = pairs) -> None:
                    for old, new in pairs:
                        for function in live.get(old, ()):
                            function.__code__ = new

                self._try(session, replace, chosen, partial(self._note, mutant))
        self._forks.finish()
        return True

    def _note(self, mutant: Mutant, status: str, killer: str) -> None:
        if killer:
            self._kills[int(killer)] += 1
        self._report(mutant, status)

    def _best(self, tests: Iterable[int]) -> list[int]:
        """Return tests for the seconds of a mutant: quick ones, and those that killed others."""
        order = sorted(tests, key=lambda n: (self._took[n] / (self._kills[n] + 0.2), n))
        sums = accumulate(self._took[n] for n in order)
        return [n for n, so_far in zip(order, sums, strict=True) if so_far < self._seconds]

    def _try(
        self,
        session: pytest.Session,
        change: Callable[[], object],
        chosen: list[int],
        done: Callable[[str, str], object],
    ) -> None:
        def act(folder: Path) -> bool:
            try:
                change()
            except Exception as error:
                raise BrokenRun("the change does not take effect") from error
            for n, failed in zip(chosen, self._run(session, folder, chosen), strict=True):
                if failed:
                    (folder / "killer").write_text(str(n))
                    return True
            return False

        self._forks.start(act, 5 + 5 * sum(self._took[n] for n in chosen), done)

    def _run(self, session: pytest.Session, folder: Path, chosen: list[int]) -> Iterator[bool]:
        """Run tests; yield True for each that fails."""
        session.config._tmp_path_factory._basetemp = folder
        items = [session.items[n] for n in chosen]
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._failed = False
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            yield self._failed

    def _coverage(
        self, session: pytest.Session, codes: set[types.CodeType]
    ) -> dict[str, dict[int, set[int]]]:
        """Return the tests that execute each line of each module; keep the seconds of each."""
        known = json.loads(self._kept.read_text()) if self._kept.exists() else {}
        package = _digest(*sorted(self._paths), *sorted(FORMAT.rglob("*.py")))
        keys = [f"{_digest(item.path, package)} {item.nodeid}" for item in session.items]
        todo = [n for n, key in enumerate(keys) if key not in known]
        measured = self._forks.scratch / "measured.json"

        def measure(folder: Path) -> bool:
            monitoring, tool = sys.monitoring, sys.monitoring.COVERAGE_ID
            lines: set[tuple[str, int]] = set()

            def ran(code: types.CodeType, line: int) -> object:
                lines.add((code.co_filename, line))
                return monitoring.DISABLE

            monitoring.use_tool_id(tool, "mutation")
            monitoring.register_callback(tool, monitoring.events.LINE, ran)
            for code in _with_inner(codes):
                monitoring.set_local_events(tool, code, monitoring.events.LINE)
            tests, began = {}, time.process_time()
            for n, failed in zip(todo, self._run(session, folder, todo), strict=True):
                tests[keys[n]] = (time.process_time() - began, failed, sorted(lines))
                lines.clear()
                monitoring.restart_events()
                began = time.process_time()
            measured.write_text(json.dumps(tests))
            return False

        if todo:
            self._forks.start(measure, 3000, partial(expect, SURVIVED, "all modules"))
            self._forks.finish()
            new = json.loads(measured.read_text())
            known = {key: found for key, found in known.items() if key in keys} | new
            self._kept.parent.mkdir(exist_ok=True)
            self._kept.write_text(json.dumps(known))
        seen: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for n, key in enumerate(keys):
            self._took[n], failed, lines = known[key]
            if failed:
                print("fails without a mutant, left out:", session.items[n].nodeid)
                continue
            for path, line in lines:
                seen[path][line].add(n)
        return seen


def _with_inner(codes: Iterable[types.CodeType]) -> Iterator[types.CodeType]:
    for code in codes:
        yield code
        yield from _with_inner(c for c in code.co_consts if isinstance(c, types.CodeType))


@cache
def _digest(*paths: Path | str) -> str:
    """Return a digest of names and of the bytes of those that are files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(str(path).encode())
        if Path(path).is_file():
            found.update(Path(path).read_bytes())
    return found.hexdigest()[:16]


def _is_replaceable(
    module: types.CodeType,
    pairs: Iterable[tuple[types.CodeType, types.CodeType]],
    live: dict[types.CodeType, list[types.FunctionType]],
) -> bool:
    """Return True if functions can get the changed code, and one of the module's own is there.

    Functions within functions are made by these, with the code that they have then.
    """
    pairs = list(pairs)
    if any(len(old.co_freevars) != len(new.co_freevars) for old, new in pairs if old in live):
        return False
    within = {id(inner) for old, _ in pairs for inner in old.co_consts}
    return all(old in live for old, _ in pairs if id(old) not in within)


def _break_all(path: Path, live: dict[types.CodeType, list[types.FunctionType]]) -> None:
    """Let all functions of a module raise, but those within others that use their variables."""

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("this mutant must die")

    for code, functions in live.items():
        if code.co_filename == str(path) and not code.co_freevars:
            for function in functions:
                function.__code__ = fail.__code__


def expect(wanted: str, module: str, status: str, _: str) -> None:
    """End the run if a fork ended in another way than it must, since then no result counts."""
    problems = {
        SURVIVED: "tests fail in a fork without a mutant",
        KILLED: "no test fails though each function, or the import, raises",
    }
    if status != wanted:
        sys.exit(f"{module}: {problems[wanted]}; MUTATION_DEBUG=1 shows the output")


def pytest_of(tests: Iterable[object], plugin: Settings) -> int:
    """Run pytest in this process on tests, without what writes beside them."""
    arguments = ["-n", "0", "-q", "-s", "-p", "no:cacheprovider", "--no-summary"]
    # Threads of other libraries may not survive a fork: a test that waits for one is left out.
    arguments += ["--timeout=120", "--timeout-method=signal"]
    arguments += ["-m", "not nightly", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return pytest.main([*arguments, *map(str, tests)], plugins=[plugin])


class Chosen(Settings):
    """A session that runs tests in an order that is given, and no others."""

    def __init__(self, names: list[str]) -> None:
        self._rank = {name: rank for rank, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out and order tests."""
        found = [item for item in items if item.nodeid in self._rank]
        items[:] = sorted(found, key=lambda item: self._rank[item.nodeid])


def try_at_import(
    forks: Forks,
    path: Path,
    code: types.CodeType,
    names: list[str],
    done: Callable[[str, str], object],
) -> None:
    """Try a mutant that changes what is executed when a module is imported."""

    def act(folder: Path) -> bool:
        get_code = loading.SourceLoader.get_code

        def changed(self: Any, name: str) -> types.CodeType:
            return code if self.get_filename(name) == str(path) else get_code(self, name)

        loading.SourceLoader.get_code = changed
        files = sorted({name.partition("::")[0] for name in names})
        ended = pytest_of(["-x", f"--basetemp={folder / 'tmp'}", *files], Chosen(names))
        if ended == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise BrokenRun(f"none of {names} was collected")
        return ended != pytest.ExitCode.OK

    forks.start(act, 120, done)
