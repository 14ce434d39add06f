"""Sixteen processes commit to one branch on S3, each to chunks of its own.

Peer: the reference with its conflict solver, on the same server in the same run. What counts is
commits per second from the moment when all processes are ready until the last commit, and what a
lost race costs: ``manifests`` above one a commit are work done again.
"""

from __future__ import annotations

import time
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore
from measurement import Row, interleaved, row
from repositories import S3Place, reference_s3_storage
from s3_server import running_s3_server

if TYPE_CHECKING:
    from argparse import Namespace
    from multiprocessing.sharedctypes import SynchronizedArray
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

    from pyspark.sql import SparkSession
    from s3_server import S3Server

BENCHMARK = "rival-writers"
WRITERS = 16
_CHUNK = 1_000


def run(_: SparkSession | None, __: Path, options: Namespace) -> list[Row]:
    commits = max(1, round(4 * options.scale))
    with running_s3_server() as server:
        cases: dict[str, Any] = {
            "this library": partial(race, server, commit_here, commits),
            "reference": partial(race, server, commit_with_reference, commits),
        }
        timings = interleaved(cases, rounds=options.rounds, warm_up=False)
    rows = []
    for case, timing in timings.items():
        seconds, written = timing.value
        timing.wall[:] = [seconds]
        figures = {
            "commits": WRITERS * commits,
            "commits_per_s": round(WRITERS * commits / seconds, 1),
            **written,
        }
        rows.append(row(BENCHMARK, case, timings, figures=figures))
    rows[0].versus, rows[0].goal = "reference", "ratio >= 2, no write repeated"
    rows[0].ratio = rows[1].wall_s / rows[0].wall_s
    return rows


def race(server: S3Server, commit: Any, commits: int) -> tuple[float, dict[str, int]]:
    """Let the writers run, make sure that nothing was lost; return seconds and objects written."""
    bucket = server.new_bucket()
    repository = reference_repository(server, bucket, create=True)
    import zarr

    session = repository.writable_session("main")
    zarr.create_array(
        session.store,
        name="v",
        shape=(WRITERS * commits * _CHUNK,),
        chunks=(_CHUNK,),
        dtype="f8",
        compressors=None,
    )
    session.commit("an empty array")
    before = _objects(server, bucket)
    context = get_context("spawn")
    ready = context.Barrier(WRITERS + 1)
    ends = context.Array("d", WRITERS)
    processes = [
        context.Process(target=write, args=(server, bucket, commit, number, commits, ready, ends))
        for number in range(WRITERS)
    ]
    for process in processes:
        process.start()
    ready.wait(timeout=120)
    started = time.time()
    for process in processes:
        process.join()
    seconds = max(ends) - started
    if any(process.exitcode for process in processes):
        raise AssertionError("a writer failed")
    store = reference_repository(server, bucket).readonly_session("main").store
    values = zarr.open_array(store, path="v", mode="r")[:]
    if not np.array_equal(values[::_CHUNK], 1 + np.arange(WRITERS * commits)):
        raise AssertionError("a commit was lost")
    after = _objects(server, bucket)
    return seconds, {kind: after[kind] - before[kind] for kind in after}


def write(
    server: S3Server,
    bucket: str,
    commit: Any,
    number: int,
    commits: int,
    ready: Barrier,
    ends: SynchronizedArray[float],
) -> None:
    """Be one writer: open, wait for the others, commit, and note when the last commit was done."""
    act = commit(server, bucket)
    ready.wait(timeout=120)
    for turn in range(commits):
        act(number * commits + turn)
    ends[number] = time.time()


def commit_here(server: S3Server, bucket: str) -> Any:
    """Return what writes and commits a chunk with this library."""
    from icechunk_format import Location, Repository

    repository = Repository.open(Location(f"s3://{bucket}/r", options=server.storage_options))

    def act(chunk: int) -> None:
        session = repository.writable_session("main")
        session.set_chunk("/v", [chunk], np.full(_CHUNK, chunk + 1, dtype="<f8").tobytes())
        session.commit(f"chunk {chunk}")

    return act


def commit_with_reference(server: S3Server, bucket: str) -> Any:
    """Return what writes and commits a chunk with the reference."""
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
