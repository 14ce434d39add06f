"""Try whether the tests of a room notice small mistakes: mutants of its modules, one at a time.

``run.py NAMES`` takes names of rooms below (all without), or a part of the path of a module. Each
mutant is a fork of a process that has collected the tests: its functions get the changed code, and
the tests that execute the changed lines run until one fails, first those that are quick or killed
others. A mutant that changes what is executed when its module is imported starts from a process
without the package. In each run, a fork of each module that is not changed must pass its tests, and
one whose functions all raise must not: a run whose changes do not take effect ends with an error.

Mutants that survive are printed; those that ``accepted.toml`` lists with a reason do not count.
Fails if fewer than ``--least`` percent of the others die.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import sys
import tempfile
import tomllib
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from forks import ACCEPTED, KILLED, NOT_RUN, SURVIVED, TIMEOUT, Forks
from mutants import FORMAT, ROOT, Module, Mutant
from session import Session, expect, pytest_of, try_at_import

LEAST = 95.0

# The modules of each room, and the tests that are to notice their mistakes.
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "changing": (
        ["groups/changing"],
        ["groups/changing", "tables/writing/c*", "tables/writing/*.py", "workflows/rechunking"],
    ),
    "changes": (
        ["repository/changes"],
        ["repository/changes", "repository/commit", "repository/session"],
    ),
    "commit": (["repository/commit"], ["repository/commit", "repository/session"]),
    "session": (
        ["repository/session"],
        ["repository/changes/test_conf*", "repository/commit", "repository/session"],
    ),
    "selection": (
        ["tables/selection"],
        ["tables/selection", "tables/test_row_pruning.py", "tables/metadata_tables"],
    ),
    "manifest": (["encoding/manifest"], ["encoding/manifest"]),
    "repo_info": (["encoding/repo_info"], ["encoding/repo_info"]),
    "snapshot": (["encoding/snapshot"], ["encoding/snapshot"]),
    "documents": (
        ["encoding/*.py", "encoding/config", "encoding/values"],
        ["encoding", "repository/state/test_config.py"],
    ),
    "flatbuffers": (["encoding/tables"], ["encoding/tables", "encoding/manifest"]),
}


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
    kept: Path,
    report: Callable[[Mutant, str], object],
) -> Iterator[tuple[Mutant, str]]:
    """Try the mutants of a room, and yield how each ended, which is reported at once.

    Those of functions come first, in a process with the tests.
    """
    mutants = [mutant for _, made in modules for mutant in made]
    number = {id(mutant): n for n, mutant in enumerate(mutants)}
    results = forks.scratch / "results.json"
    results.unlink(missing_ok=True)
    found: list[tuple[int, str]] = []

    def note(mutant: Mutant, status: str, _: str = "") -> None:
        found.append((number[id(mutant)], status))
        report(mutant, status)

    pid = os.fork()
    if not pid:
        try:
            import_when_used("icechunk")
            inner = Forks(forks.processes, forks.scratch)
            session = Session(modules, inner, seconds, kept, note)
            pytest_of(["--continue-on-collection-errors", *tests], session)
            late = [(number[id(mutant)], names) for mutant, names in session.at_import]
            results.write_text(json.dumps([found, late]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(pid, 0)
    if not results.exists():
        sys.exit("the session of pytest failed")
    found, late = json.loads(results.read_text())
    if late:
        # One import that changes nothing, and one that fails.
        (n, names), path = late[0], mutants[late[0][0]].path
        for text, wanted in (path.read_text(), SURVIVED), ("assert False", KILLED):
            code = compile(text, str(path), "exec")
            try_at_import(forks, path, code, names, partial(expect, wanted, str(path)))
            forks.finish()
    for n, names in late:
        try_at_import(forks, mutants[n].path, mutants[n].code, names, partial(note, mutants[n]))
    forks.finish()
    for n, status in found:
        yield mutants[n], status


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
    parser.add_argument("--least", type=float, default=LEAST, help="percent that must die")
    parser.add_argument("--log", type=Path, help="file that gets a line of JSON for each mutant")
    parser.add_argument("--again", type=Path, help="a log, whose survivors alone are tried")
    parser.add_argument("--kept", type=Path, help="folder that keeps what each test executes")
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

    def judged(mutant: Mutant, status: str) -> str:
        is_left = status in (SURVIVED, NOT_RUN)
        return ACCEPTED if is_left and named(mutant) in accepted else status

    def report(mutant: Mutant, status: str) -> None:
        status = judged(mutant, status)
        if chosen.log:
            with chosen.log.open("a") as log:
                log.write(json.dumps([status, *named(mutant)]) + "\n")
        if status in (SURVIVED, NOT_RUN):
            print(f"{status}: {mutant}", flush=True)

    for name in chosen.names:
        for room, paths in modules_of(name):
            modules = []
            for path in paths:
                module = Module(path)
                mutants = module.mutants(chosen.most, f"{chosen.seed} {path.stem}")
                mutants = [one for one in mutants if not chosen.again or named(one) in left]
                modules.append((module, mutants))
                counts[path.relative_to(FORMAT).as_posix()]["possible"] = module.count
            named_tests = [one for part in ROOMS[room][1] for one in (ROOT / "tests").glob(part)]
            tests = chosen.tests or sorted(named_tests)
            kept = (chosen.kept or scratch) / f"{room}.json"
            for mutant, status in try_room(forks, modules, tests, chosen.seconds, kept, report):
                counts[named(mutant)[0]][judged(mutant, status)] += 1
    return summary(counts, chosen.least)


def summary(counts: dict[str, Counter[str]], least: float) -> int:
    """Print a line for each module; return 1 if fewer than ``least`` percent died."""
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
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} seconds of processors")
    return int(share < least and total[SURVIVED] + total[NOT_RUN] > 0)


if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # no threads before forks
    os.chdir(ROOT)
    # The packages that the format imports, so that each fork begins with them.
    for name in ("msgpack", "numcodecs", "obstore", "pyarrow.compute", "yaml", "zstandard"):
        __import__(name)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mutation-", dir=memory) as folder:
        sys.exit(main(Path(folder)))
