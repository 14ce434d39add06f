"""Collects garbage of a repository of 100,000 objects at scale 1, half of them garbage.

Most objects are chunks, hard links to one file of a few bytes, since a collection reads no chunk.
Ten commits rewrite one array's manifest, each with all references so far, as appends do; as many
chunk objects again, and some manifests, are left by crashed writers. Each run gets a copy made of
hard links, with the times of the files, and all contestants must leave the same objects. There is
one round, regardless of ``--rounds``.

Memory: of a process that did nothing else for contestants of one process; for Spark, the growth of
the driver's Python process, since executors run elsewhere on a cluster.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, in_fresh_process, peak_memory_mb, tree_cpu_seconds

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import SparkSession

BENCHMARK = "collect"
_COMMITS = 10
# The copies are hard links, of which ext4 allows 65,000 for a file.
_NAMES_OF_A_FILE = 10_000
_KINDS = ("snapshots", "transactions", "manifests", "chunks")


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    count = max(2_000, round(100_000 * options.scale))
    place = folder / "untidy"
    build(place, count)
    cutoff = datetime.now(UTC) + timedelta(seconds=2)
    # The last one may have the original.
    copies = {name: _copied(place, folder / name) for name in ("one", "spark")} | {"theirs": place}
    one = in_fresh_process(collect_alone, str(copies["one"]), cutoff)
    _tell("one process", one.wall_s, one.cpu_s, one.peak_mb)
    theirs = in_fresh_process(collect_with_reference, str(copies["theirs"]), cutoff)
    _tell("reference", theirs.wall_s, theirs.cpu_s, theirs.peak_mb)
    spark_wall, spark_cpu, spark_mb, by_spark = _watched_with_spark(spark, copies["spark"], cutoff)
    _tell("Spark", spark_wall, spark_cpu, spark_mb)
    if not one.value == theirs.value == by_spark:
        raise AssertionError(f"counts differ: {one.value}, {by_spark}, {theirs.value}")
    left = {name: _objects(copy) for name, copy in copies.items()}
    if not left["one"] == left["spark"] == left["theirs"]:
        raise AssertionError("the contestants left different objects")
    figures = {"objects": count, "deleted": sum(one.value), "kept_refs": count // 2}
    rival = "reference"
    return [
        Row(
            benchmark=BENCHMARK,
            case="one process",
            wall_s=one.wall_s,
            cpu_s=one.cpu_s,
            peak_mb=one.peak_mb,
            versus=rival,
            ratio=theirs.wall_s / one.wall_s,
            cpu_ratio=theirs.cpu_s / one.cpu_s,
            figures=dict(figures),
        ),
        Row(
            benchmark=BENCHMARK,
            case="Spark (memory: growth of the driver's Python)",
            wall_s=spark_wall,
            cpu_s=spark_cpu,
            peak_mb=spark_mb,
            versus=rival,
            ratio=theirs.wall_s / spark_wall,
            cpu_ratio=theirs.cpu_s / spark_cpu,
            figures=dict(figures),
        ),
        Row(
            benchmark=BENCHMARK,
            case=rival,
            wall_s=theirs.wall_s,
            cpu_s=theirs.cpu_s,
            peak_mb=theirs.peak_mb,
        ),
    ]


def _tell(case: str, wall_s: float, cpu_s: float, peak_mb: float) -> None:
    text = f"  {case}: {wall_s:.2f} s, {cpu_s:.2f} s of processors, {peak_mb:.0f} MB"
    print(text, file=sys.stderr, flush=True)


def build(place: Path, count: int) -> None:
    """Create a repository of about `count` objects."""
    from icechunk_format.encoding.ids import encode_many
    from icechunk_format.encoding.manifest.chunk_refs import native_refs
    from icechunk_format.repository import Repository

    kept = count // 2
    ids = np.frombuffer(secrets.token_bytes(12 * count), dtype=np.uint8).reshape(count, 12)
    repository = Repository.create(str(place))
    document = (
        b'{"zarr_format":3,"node_type":"array","shape":[%d],"data_type":"uint8",'
        b'"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[8]}},'
        b'"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},'
        b'"fill_value":0,"codecs":[{"name":"bytes"}]}'
    )
    session = repository.writable_session()
    session.create_group("/", b'{"zarr_format":3,"node_type":"group"}')
    session.create_array("/values", document % (8 * kept), shape=(8 * kept,), num_chunks=(kept,))
    step = -(-kept // _COMMITS)
    for first in range(0, kept, step):
        rows = np.arange(first, min(kept, first + step))
        session.set_refs("/values", native_refs(rows[:, None], ids[rows], np.full(len(rows), 8)))
        session.commit(f"chunks from {first}")
        session = repository.writable_session()
    (place / "chunks").mkdir(exist_ok=True)
    _link_chunks(place / "chunks", ids)
    for name in encode_many(ids[: min(count // 100, 1000)]):
        (place / "manifests" / name).write_bytes(b"of a crashed writer")
    time.sleep(1)


def _link_chunks(folder: Path, ids: np.ndarray) -> None:
    """Create an object for each id, as hard links to a few files, which is faster than files."""
    from icechunk_format.encoding.ids import encode_many

    for begin in range(0, len(ids), _NAMES_OF_A_FILE):
        content = folder.parent / f".content-{begin}"
        content.write_bytes(b"8 bytes.")
        for name in encode_many(ids[begin : begin + _NAMES_OF_A_FILE]):
            os.link(content, folder / name)


def collect_alone(place: str, cutoff: datetime) -> tuple[int, ...]:
    """Collect in this process."""
    from icechunk_format.maintenance import collect_garbage

    return _counts(collect_garbage(place, cutoff))


def collect_with_reference(place: str, cutoff: datetime) -> tuple[int, ...]:
    """Collect with the reference library."""
    import icechunk

    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(place))
    return _counts(repository.garbage_collect(cutoff))


def _watched_with_spark(
    spark: SparkSession, place: Path, cutoff: datetime
) -> tuple[float, float, float, tuple[int, ...]]:
    from icechunk_spark.maintenance import collect_garbage

    before_mb = _forget_peak()
    started, cpu = time.perf_counter(), tree_cpu_seconds()
    result = collect_garbage(spark, str(place), cutoff)
    wall, used = time.perf_counter() - started, tree_cpu_seconds() - cpu
    return wall, used, max(0.0, peak_memory_mb() - before_mb), _counts(result)


def _forget_peak() -> float:
    """Reset the memory peak to the current use, and return it."""
    marks = Path("/proc/self/clear_refs")
    if marks.exists():
        marks.write_text("5")
    return peak_memory_mb()


def _counts(result: Any) -> tuple[int, ...]:
    return (
        result.snapshots_deleted,
        result.transaction_logs_deleted,
        result.manifests_deleted,
        result.chunks_deleted,
    )


def _copied(place: Path, target: Path) -> Path:
    subprocess.run(["cp", "-al", str(place), str(target)], check=True)
    return target


def _objects(place: Path) -> set[str]:
    return {f"{kind}/{name}" for kind in _KINDS for name in os.listdir(place / kind)}
