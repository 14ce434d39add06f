"""Runs sixteen processes that commit to one branch on S3, each to its own chunks, at 0 and 20 ms.

Peer: the reference with its conflict solver, on the same server in the same run. Results are
commits per second, from the moment when all processes are ready until the last commit, and the cost
of lost races: more than one manifest for a commit is repeated work.

Limit: one writer without rivals. Commits to one branch are sequential, so sixteen writers are
faster than one only because they prepare commits concurrently, as far as processors allow. This S3
server delays concurrent conditional writes of one object by whole seconds, which the protocol does
not require: see ``meeting_writes``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import obstore
import obstore.exceptions
from helpers.servers.s3 import running_s3_server
from measurement import Row, interleaved, row
from peers.repositories import S3Place, reference_s3_storage
from peers.slow_network import delayed

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from helpers.servers.s3 import S3Server
    from pyspark.sql import SparkSession

BENCHMARK = "rival-writers"
WIRES_MS = (0, 20)
_CHUNK = 1_000


def run(_: SparkSession | None, __: Path, options: Namespace) -> list[Row]:
    commits = max(1, round(4 * options.scale))
    with contextlib.ExitStack() as stack:
        near = stack.enter_context(running_s3_server())
        writers = stack.enter_context(running_writers(16 if options.scale >= 0.1 else 3))
        address = urlsplit(near.endpoint_url)
        rows = []
        for delay in WIRES_MS:
            port = address.port or 80
            if delay:
                port = stack.enter_context(delayed(str(address.hostname), port, delay / 1000))
            server = replace(near, endpoint_url=f"http://127.0.0.1:{port}")
            rows += compare(server, f"{delay} ms", writers, commits, options.rounds)
        waits = max((meeting_writes(near, len(writers) // 2 + 1) for _ in range(3)), key=max)
    rows.append(
        Row(
            benchmark=BENCHMARK,
            case=f"{len(waits)} conditional writes that meet, the longest",
            wall_s=waits[-1],
            figures={"all": ", ".join(f"{seconds:.3f} s" for seconds in waits)},
        )
    )
    return rows


def compare(
    server: S3Server, wire: str, writers: list[Connection], commits: int, rounds: int
) -> list[Row]:
    """Race both libraries in turn, and run one writer alone with the same number of commits."""
    ours, theirs, alone = (f"{wire}, {who}" for who in ("this library", "reference", "one writer"))
    few = writers[:1]
    cases: dict[str, Any] = {
        ours: partial(race, server, commit_here, writers, commits),
        theirs: partial(race, server, commit_with_reference, writers, commits),
        alone: partial(race, server, commit_here, few, 4 * commits),
    }
    raced: dict[str, list[tuple[float, dict[str, int]]]] = {case: [] for case in cases}

    def timed(case: str) -> None:
        raced[case].append(cases[case]())

    # The first round does not count: processes import what they need in it.
    timings = interleaved({case: partial(timed, case) for case in cases}, rounds=rounds)
    done = {ours: len(writers) * commits, theirs: len(writers) * commits, alone: 4 * commits}
    for case, timing in timings.items():
        # Only the race counts, with the same number of commits for each writer.
        share = done[ours] / done[case]
        timing.wall[:] = [seconds * share for seconds, _ in raced[case][-rounds:]]
    rows = [
        row(
            BENCHMARK,
            case,
            timings,
            versus=theirs if case == ours else "",
            goal="ratio >= 2, no write repeated" if case == ours else "",
            figures={
                "commits": done[case],
                "commits_per_s": round(done[ours] / timing.wall_s, 1),
                **raced[case][-1][1],
            },
        )
        for case, timing in timings.items()
    ]
    return [*rows, row(BENCHMARK, ours, timings, versus=alone)]


def meeting_writes(server: S3Server, writers: int) -> list[float]:
    """Return the seconds of conditional writes of one object that are sent at once, ascending."""
    store = server.raw_store(server.new_bucket())
    obstore.put(store, "object", b"before")
    version = obstore.head(store, "object")["e_tag"]
    together = threading.Barrier(writers)

    def replace_object(_: int) -> float:
        together.wait()
        started = time.perf_counter()
        with contextlib.suppress(obstore.exceptions.PreconditionError):
            obstore.put(store, "object", b"after", mode={"e_tag": version})
        return time.perf_counter() - started

    with ThreadPoolExecutor(writers) as threads:
        return sorted(threads.map(replace_object, range(writers)))


def race(
    server: S3Server, commit: Any, writers: list[Connection], commits: int
) -> tuple[float, dict[str, int]]:
    """Run the writers, check that no commit was lost, and return seconds and written objects."""
    bucket = server.new_bucket()
    repository = reference_repository(server, bucket, create=True)
    import zarr

    count = len(writers) * commits
    session = repository.writable_session("main")
    zarr.create_array(
        session.store,
        name="v",
        shape=(count * _CHUNK,),
        chunks=(_CHUNK,),
        dtype="f8",
        compressors=None,
    )
    session.commit("an empty array")
    before = _objects(server, bucket)
    for number, writer in enumerate(writers):
        writer.send((server, bucket, commit, range(number * commits, (number + 1) * commits)))
    for writer in writers:
        writer.recv()
    started = time.time()
    for writer in writers:
        writer.send("go")
    seconds = max(writer.recv() for writer in writers) - started
    store = reference_repository(server, bucket).readonly_session("main").store
    values = zarr.open_array(store, path="v", mode="r")[:]
    if not np.array_equal(values[::_CHUNK], 1 + np.arange(count)):
        raise AssertionError("a commit was lost")
    after = _objects(server, bucket)
    return seconds, {kind: after[kind] - before[kind] for kind in after}


@contextlib.contextmanager
def running_writers(count: int) -> Iterator[list[Connection]]:
    """Start processes that write on a signal, and yield the connection to each."""
    context = get_context("spawn")
    ways, processes = [], []
    for _ in range(count):
        here, there = context.Pipe()
        process = context.Process(target=write, args=(there,), daemon=True)
        process.start()
        # Only the process then holds its end, so that a read fails after the process has died.
        there.close()
        ways.append(here)
        processes.append(process)
    try:
        yield ways
    finally:
        for way in ways:
            way.close()
        for process in processes:
            process.join()


def write(way: Connection) -> None:
    """Run one writer: open, wait for the others, commit, and send the time of the last commit."""
    with contextlib.suppress(EOFError):
        while True:
            server, bucket, commit, chunks = way.recv()
            act = commit(server, bucket)
            way.send("ready")
            way.recv()
            for chunk in chunks:
                act(chunk)
            way.send(time.time())


def commit_here(server: S3Server, bucket: str) -> Any:
    """Return a function that writes and commits a chunk with this library."""
    from icechunk_format import Location, Repository

    repository = Repository.open(Location(f"s3://{bucket}/r", options=server.storage_options))

    def act(chunk: int) -> None:
        session = repository.writable_session("main")
        session.set_chunk("/v", [chunk], np.full(_CHUNK, chunk + 1, dtype="<f8").tobytes())
        session.commit(f"chunk {chunk}")

    return act


def commit_with_reference(server: S3Server, bucket: str) -> Any:
    """Return a function that writes and commits a chunk with the reference."""
    import icechunk
    import zarr

    repository = reference_repository(server, bucket)

    def act(chunk: int) -> None:
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="v", mode="r+")
        array[chunk * _CHUNK : (chunk + 1) * _CHUNK] = chunk + 1
        session.commit(f"chunk {chunk}", rebase_with=icechunk.ConflictDetector())

    return act


def reference_repository(server: S3Server, bucket: str, *, create: bool = False) -> Any:
    import icechunk

    storage = reference_s3_storage(S3Place.on(server, bucket, "r"))
    return icechunk.Repository.create(storage) if create else icechunk.Repository.open(storage)


def _objects(server: S3Server, bucket: str) -> dict[str, int]:
    counts = dict.fromkeys(("chunks", "manifests", "snapshots", "transactions"), 0)
    for page in obstore.list(server.raw_store(bucket), "r"):
        for meta in page:
            kind = meta["path"].split("/")[1]
            if kind in counts:
                counts[kind] += 1
    return counts
