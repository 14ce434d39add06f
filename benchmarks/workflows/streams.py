"""Measures streams of small batches as the history grows, and runs a soak with crashes and rivals.

The benchmark runs without Spark, and covers the staging of the rows of a batch and the commit.

- cost: one batch into the same small table, after 1, 100, 1,000 and (generated) 10,000 commits. The
  goal: after 10,000 commits, a batch takes at most 1.5 times as long as after one.
- soak: a thousand batches (``--scale 1``), two hundred of which crash at a request that a seeded
  generator selects, and are repeated as by Spark. Meanwhile, a reader follows the branch, a rival
  commits other cells, manifests are rewritten, and garbage is collected. At the end, every batch
  must be one commit, every cell must have the value of the input, and the reader must have the same
  table.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from measurement import Row, interleaved, row
from pyspark import TaskContext
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import backup_name
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info.updates import NewCommitUpdate, Update
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import CommitOutcomeUnknownError, StorageError
from icechunk_format.maintenance import collect_garbage
from icechunk_format.options.write import WriteOptions
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.repository import Repository
from icechunk_format.storage.local.store import LocalStorage
from icechunk_format.tables.writing.in_process import write_table
from icechunk_spark.changes import batches
from icechunk_spark.changes.source import IcechunkStreamReader
from icechunk_spark.changes.staged import StagedStreamWriter

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "streams"
STATIONS = 50
_PLACES = 40
_IN_A_ROW = 8
_LOGGED = 1_000  # entries of the log in the `repo` file, unless the configuration says otherwise
_SCHEMA = StructType(
    [
        StructField("time", LongType()),
        StructField("station", LongType()),
        StructField("t", DoubleType()),
    ]
)


class Killed(BaseException):
    """Simulates a crash of the process."""


class _Task:
    """The query and the batch of a Spark task."""

    now: ClassVar[dict[str, str]] = {}

    def getLocalProperty(self, name: str) -> str | None:
        return self.now.get(name)


def run(_: SparkSession | None, folder: Path, options: Namespace) -> list[Row]:
    TaskContext.get = classmethod(lambda cls: _Task())  # type: ignore[method-assign,assignment]
    batches._PAUSE_SECONDS = 0.0  # type: ignore[misc]
    return [*costs(folder, options), soak(folder, options)]


# -- batches after a long history ------------------------------------------------------------------


def costs(folder: Path, options: Namespace) -> list[Row]:
    """Measure consecutive batches after a short and after a long history.

    The batches are consecutive, since the process of a stream caches the state that it wrote last.
    """
    histories = sorted({1, *(max(2, round(n * options.scale)) for n in (100, 1_000, 10_000))})
    base = folder / "base"
    write_batch(base, 0, rows_of(0))
    cases: dict[str, Any] = {}
    for count in histories:
        own = folder / f"after-{count}"
        shutil.copytree(base, own)
        lengthen(own, count)
        number = [count]
        cases[f"{_IN_A_ROW} batches after {count:,} commits"] = partial(_next, own, number)
    timings = interleaved(cases, rounds=max(5, options.rounds))
    first = next(iter(timings))
    return [
        row(
            BENCHMARK,
            case,
            timings,
            versus="" if case == first else first,
            goal="" if case == first else "ratio >= 0.67",
            figures={"repo_object_kb": (folder / f"after-{count}" / "repo").stat().st_size // 1000},
        )
        for case, count in zip(timings, histories, strict=True)
    ]


def _next(place: Path, number: list[int]) -> None:
    for _ in range(_IN_A_ROW):
        number[0] += 1
        write_batch(place, number[0], rows_of(number[0]))


def lengthen(place: Path, count: int) -> None:
    """Insert commits of the same stream before the newest one, and into the log."""
    file = place / "repo"
    info = repo_info.decode(file.read_bytes())
    newest = info.snapshots[info.branches["main"]]
    parent = newest.parent_id
    listed = {key: value for key, value in info.snapshots.items() if key != newest.id}
    log = list(info.latest_updates)
    for number in range(1, count):
        own = SnapshotId(number.to_bytes(4, "big") * 3)
        told = {"txnAppId": "query", "txnVersion": 0, "rows": STATIONS}
        listed[own] = repo_info.SnapshotInfo(
            id=own,
            parent_id=parent,
            flushed_at=newest.flushed_at - count + number,
            message=f"write {STATIONS} rows",
            metadata_items=MetadataItems.of(told),
        )
        parent = own
        if number < _LOGGED:
            # Older entries than those of a few days are in the copies.
            at = newest.flushed_at - number
            name = backup_name(at // 1000, number.to_bytes(12, "big"))
            entry = NewCommitUpdate(branch="main", new_snap_id=own)
            log.append(Update(details=entry, updated_at=at, backup_path=name))
    listed[newest.id] = replace(newest, parent_id=parent)
    grown = replace(info, snapshots=listed, latest_updates=tuple(log))
    file.write_bytes(repo_info.encode(grown))


# -- a thousand batches ----------------------------------------------------------------------------


def soak(folder: Path, options: Namespace) -> Row:
    """Run a stream with crashes, rivals, readers and maintenance, and check the result."""
    place = folder / "soak"
    count, kills = max(20, round(1_000 * options.scale)), max(5, round(200 * options.scale))
    rng = random.Random(20260101)
    follower = Follower(place)
    wanted: dict[tuple[int, int], float] = {}
    seconds: list[float] = []
    deaths = 0
    for number in range(count):
        rows = rows_of(number)
        began = time.perf_counter()
        if number and deaths < kills and rng.random() < 2 * kills / count:
            with Faults(rng) as faults, suppress(Killed, StorageError, CommitOutcomeUnknownError):
                write_batch(place, number, rows)
            deaths += faults.struck
        write_batch(place, number, rows)
        seconds.append(time.perf_counter() - began)
        wanted |= {(r["time"], r["station"]): r["t"] for r in rows.to_pylist()}
        if number % 7 == 3:
            rival(place, number)
        if number % 5 == 4:
            follower.follow()
        if number % 100 == 99:
            # No writer is active between two batches, so the current time is a safe cutoff.
            collect_garbage(str(place), datetime.now(UTC) - timedelta(microseconds=1))
    follower.follow()
    told = [info.metadata for info in Repository.open(str(place)).ancestry()][::-1]
    landed = [m["txnVersion"] for m in told if m.get("txnAppId") == "query"]
    assert landed == list(range(count)), "a batch was lost, or landed twice"
    assert follower.table == wanted, "the reader has another table than the input"
    files = [path for path in place.rglob("*") if path.is_file()]
    tenth = max(1, count // 10)
    return Row(
        benchmark=BENCHMARK,
        case=f"soak of {count:,} batches",
        wall_s=float(np.median(seconds)),
        goal="0 lost, 0 twice",
        figures={
            "deaths": deaths,
            "lost": 0,
            "twice": 0,
            "first_tenth_s": round(float(np.median(seconds[:tenth])), 4),
            "last_tenth_s": round(float(np.median(seconds[-tenth:])), 4),
            "batches_of_the_reader": follower.batches,
            "rows_of_the_reader": follower.rows,
            "files": len(files),
            "mb_on_disk": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        },
    )


def rows_of(number: int) -> pa.Table:
    """Return the rows of a batch: all stations at one of a few times, so cells are rewritten."""
    time_of = number % _PLACES
    stations = np.arange(STATIONS)
    values = np.random.default_rng(number).normal(280, 10, STATIONS)
    return pa.table({"time": np.full(STATIONS, time_of), "station": stations, "t": values})


def write_batch(place: Path, number: int, rows: pa.Table) -> None:
    """Write a batch as Spark does: two tasks, then a commit by another writer."""
    request = parse_write_options(
        {
            "path": str(place),
            "dims": "time,station",
            "chunks": f"time=1,station={STATIONS}",
            "rewriteManifestsEvery": "250",
        },
        "writeStream",
    )
    _Task.now = {batches.QUERY_ID: "query", "streaming.sql.batchId": str(number)}
    writer = StagedStreamWriter(request, _SCHEMA)
    half = rows.num_rows // 2
    messages = [
        writer.write(iter(part.to_batches())) for part in (rows.slice(0, half), rows.slice(half))
    ]
    StagedStreamWriter(request, _SCHEMA).commit(messages, number)


def rival(place: Path, number: int) -> None:
    """Commit other cells to the same branch."""
    rows = pa.table({"y": [number], "noise": [float(number)]})
    options = WriteOptions(mode="append", dims=("y",), chunks={"y": 64}, group="rival")
    write_table(str(place), rows, options)


class Follower:
    """Follows the branch like Spark's source, and keeps the table of the changes."""

    def __init__(self, place: Path) -> None:
        options = {"path": str(place), "maxSnapshotsPerTrigger": "50", "group": "/"}
        self._reader = IcechunkStreamReader(options, _SCHEMA)
        self._at: dict[str, Any] | None = None
        self.table: dict[tuple[int, int], float] = {}
        self.batches = self.rows = 0

    def follow(self) -> None:
        start = self._at or self._reader.initialOffset()
        while True:
            end = json.loads(json.dumps(self._reader.latestOffset(start)))
            if end == start:
                break
            for part in self._reader.partitions(start, end):
                for batch in self._reader.read(part):
                    self.rows += batch.num_rows
                    for told in batch.to_pylist():
                        self.table[told["time"], told["station"]] = told["t"]
            self.batches += 1
            start = end
        self._at = start


class Faults:
    """Crashes, loses a response or fails at one random write request."""

    def __init__(self, rng: random.Random) -> None:
        self._left = rng.randint(0, 7)
        self._kind = rng.choice(["before", "after", "lost", "failed"])
        self.struck = 0
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> Faults:
        for name in ("put", "put_many", "delete_many", "copy"):
            self._originals[name] = getattr(LocalStorage, name)
            setattr(LocalStorage, name, self._wrapped(self._originals[name]))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(LocalStorage, name, original)

    def _wrapped(self, original: Any) -> Any:
        def call(store: Any, *arguments: Any, **keywords: Any) -> Any:
            self._left -= 1
            if self._left != -1:
                return original(store, *arguments, **keywords)
            self.struck = 1
            if self._kind == "before":
                raise Killed
            if self._kind == "failed":
                raise StorageError("the store is away")
            original(store, *arguments, **keywords)
            raise Killed if self._kind == "after" else StorageError("the answer was lost")

        return call
