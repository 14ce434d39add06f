"""Processes that read and write one repository together, and the outcomes of their commits.

Each writer commits to its own two chunks, always the same bytes in both, and every fourth writer
also adds one to a counter that all of these share: a read, and a commit that must conflict if
another writer was quicker. After each commit, it reads its own chunks back as a new reader.
Imports nothing but the library, since many processes import it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from helpers.sessions.model import array_document, group_document

from icechunk_format.errors import CommitOutcomeUnknownError, ConflictError
from icechunk_format.repository import Repository

COUNTERS_EVERY = 4
BY_DAY_PROCESSES, BY_DAY_TURNS = 8, 4
BY_NIGHT_PROCESSES, BY_NIGHT_SECONDS = 200, 600.0


@dataclass
class Outcomes:
    """The outcomes of the commits of one writer."""

    number: int
    landed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    added: int = 0
    conflicts: int = 0
    commit_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    descriptors: int = 0
    threads: int = 0
    error: str = ""


def prepare(location, writers, spec_version=2):
    """Create the repository that all share."""
    repository = Repository.create(location, spec_version=spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document())
    document = array_document((writers, 64), (1, 32))
    session.create_array("/own", document, shape=(writers, 64), num_chunks=(writers, 2))
    session.create_array("/sum", array_document((8,), (8,)), shape=(8,), num_chunks=(1,))
    session.set_chunk("/sum", [0], (0).to_bytes(8, "big"))
    session.commit("base")


def chunks_at(repository, path, lo, hi):
    """Return the chunks of a box at the tip of main, read by references."""
    reader = repository.writable_session()
    refs = reader.chunk_refs(path, lo, hi)
    return repository.chunk_source().fetch(refs, range(len(refs)))


def _commit(repository, outcomes, message, change):
    """Commit a change until it lands or its outcome is unknown; True if it landed."""
    while True:
        session = repository.writable_session()
        change(session)
        try:
            began = time.monotonic()
            session.commit(message)
        except ConflictError:
            outcomes.conflicts += 1
        except CommitOutcomeUnknownError:
            outcomes.unknown.append(message)
            return False
        else:
            outcomes.commit_s.append(time.monotonic() - began)
            outcomes.landed.append(message)
            return True


def _turn(repository, outcomes, turn):
    number = outcomes.number
    payload = f"{number} {turn}".encode().ljust(32)

    def own(session):
        session.set_chunks("/own", [[number, 0], [number, 1]], [payload, payload])

    if not _commit(repository, outcomes, f"own {number} {turn}", own):
        return
    began = time.monotonic()
    found = chunks_at(Repository.open(repository.location), "/own", [number, 0], [number + 1, 2])
    outcomes.read_s.append(time.monotonic() - began)
    if list(found) != [payload, payload]:
        raise AssertionError(f"{number} reads {found} after it wrote {payload}")
    if number % COUNTERS_EVERY == 0:

        def add(session):
            refs = session.chunk_refs("/sum", [0], [1])
            [before] = repository.chunk_source().fetch(refs, [0])
            session.set_chunk("/sum", [0], (int.from_bytes(before, "big") + 1).to_bytes(8, "big"))

        outcomes.added += _commit(repository, outcomes, f"sum {number} {turn}", add)


def _writer(location, number, turns, seconds, barrier, results):
    outcomes = Outcomes(number)
    try:
        repository = Repository.open(location)
        barrier.wait(900)
        until = time.monotonic() + seconds
        turn = 0
        while turn < turns if turns else time.monotonic() < until:
            _turn(repository, outcomes, turn)
            turn += 1
        gc.collect()
        outcomes.descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc") else 0
        outcomes.threads = threading.active_count()
    except BaseException as error:
        outcomes.error = f"{type(error).__name__}: {error}"
    results.put(outcomes)


def run(location, processes, *, turns=0, seconds=0.0):
    """Let the processes work, each for some turns or seconds; return the outcomes of each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["icechunk_format.repository.repository", "icechunk_format.storage.local.store"]
    )
    barrier, results = context.Barrier(processes), context.Queue()
    writers = [
        context.Process(target=_writer, args=(location, n, turns, seconds, barrier, results))
        for n in range(processes)
    ]
    for writer in writers:
        writer.start()
    outcomes = [results.get(timeout=seconds + 600) for _ in writers]
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * processes
    return sorted(outcomes, key=lambda one: one.number)


def _quantiles(values):
    ordered = sorted(values) or [0.0]
    at = {name: ordered[int((len(ordered) - 1) * part)] for name, part in _QUANTILES.items()}
    return ", ".join(f"{name} {value:.2f}" for name, value in at.items())


_QUANTILES = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "most": 1.0}


def report(outcomes, where):
    """Print commits by writer, conflicts and latencies."""
    commits = [len(one.landed) for one in outcomes]
    print(f"\n{where}: {len(outcomes)} processes, {sum(commits)} commits landed")
    print(f"  commits by writer: least {min(commits)}, {_quantiles(commits)}")
    print(
        f"  conflicts {sum(o.conflicts for o in outcomes)}, of unknown outcome "
        f"{sum(len(o.unknown) for o in outcomes)}"
    )
    print(f"  seconds of a commit: {_quantiles([s for o in outcomes for s in o.commit_s])}")
    print(
        f"  seconds of an opening and a read: {_quantiles([s for o in outcomes for s in o.read_s])}"
    )
    print(
        f"  most descriptors {max(o.descriptors for o in outcomes)}, "
        f"threads {max(o.threads for o in outcomes)}"
    )


def check(location, outcomes):
    """Compare the repository with the outcomes of the writers; each committed."""
    assert [one.error for one in outcomes if one.error] == []
    repository = Repository.open(location)
    found = Counter(info.message for info in repository.ancestry())
    assert max(found.values()) == 1
    landed = {message for one in outcomes for message in one.landed}
    unknown = {message for one in outcomes for message in one.unknown}
    assert landed <= set(found)
    assert set(found) - landed - unknown == {"base", "Repository initialized"}
    assert min(len(one.landed) for one in outcomes) >= 1
    for one in outcomes:
        left, right = chunks_at(repository, "/own", [one.number, 0], [one.number + 1, 2])
        number, turn = left.split()
        assert left == right
        assert int(number) == one.number
        last = [m for m in [*one.landed, *one.unknown] if m.startswith("own") and m in found][-1]
        assert last == f"own {one.number} {int(turn)}"
    [total] = chunks_at(repository, "/sum", [0], [1])
    added = [message for message in found if message.startswith("sum")]
    assert int.from_bytes(total, "big") == len(added) >= sum(one.added for one in outcomes)
    from icechunk_format.maintenance import verify  # which the writers need not import

    wrong = [finding for finding in verify(location).to_pylist() if finding["severity"] != "info"]
    assert wrong == []


def check_load(location, spec_version, processes, *, turns=0, seconds=0.0):
    """Let the processes work on a new repository, print a report, and check the outcome."""
    prepare(location, processes, spec_version)
    outcomes = run(location, processes, turns=turns, seconds=seconds)
    report(outcomes, f"{location}, version {spec_version}")
    check(location, outcomes)
