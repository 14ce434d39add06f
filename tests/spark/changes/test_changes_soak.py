"""Two streams in a row, killed again and again, lose no batch and write none twice.

``STREAM_SOAK=1000`` runs a thousand batches with about 200 deaths, of which 10 kill the whole
process group; that takes half an hour. Without it, a few batches do.

Beside the streams, this process commits to the same branch, collects garbage, and follows.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from helpers.spark import soak
from helpers.spark.session import environment_of_a_program
from helpers.spark.streams import Query, commits_of_streams

from icechunk_format import Repository
from icechunk_format.maintenance import collect_garbage
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table

BATCHES = int(os.environ.get("STREAM_SOAK", "8"))
IS_FULL = "STREAM_SOAK" in os.environ
# Rates are drawn for both streams; the copy has far fewer batches, and some deaths are drawn for a
# request that the batch does not make.
DEATHS, KILLS = (BATCHES * 3 // 10, max(1, BATCHES // 100)) if IS_FULL else (3, 1)
# With this seed, a few batches meet two deaths and one kill.
SEED = 1611
PLACES = 40 if IS_FULL else 4
PAUSE = 1.0
# No write takes longer than that.
OLD = timedelta(minutes=2)


@pytest.mark.nightly
@pytest.mark.timeout(0 if IS_FULL else 600)
def test_no_batch_is_lost_and_none_is_written_twice(tmp_path):
    soak.write_files(tmp_path / "files", BATCHES, PLACES)
    stored, copied = str(tmp_path / "stored"), str(tmp_path / "copied")
    began = time.monotonic()
    with others_at_work(stored) as counts:
        starts = run_until_done(tmp_path)
    seconds = time.monotonic() - began
    struck = Counter(line.split()[0] for line in (tmp_path / "struck").read_text().splitlines())
    check_commits(stored)
    wanted = {}
    for number in range(BATCHES):
        wanted |= {(r["time"], r["x"]): r["t"] for r in soak.rows_of(number, PLACES)}
    assert table(stored) == wanted
    assert table(copied) == wanted
    left = collect_garbage(stored, datetime.now(UTC) - timedelta(microseconds=1))
    assert table(stored) == wanted
    assert left.snapshots_deleted + left.manifests_deleted > 0, "no attempt left anything"
    files = [path for path in Path(stored).rglob("*") if path.is_file()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(
        f"{BATCHES} batches in {seconds:.0f} s, {dict(struck)}, {starts} processes, {dict(counts)},"
        f" {len(commits_of_streams(copied))} batches of the copy, {len(files)} files of"
        f" {megabytes:.1f} MB; attempts that died had left {left.manifests_deleted} manifests"
    )
    assert struck.total() > 0


def run_until_done(folder: Path) -> int:
    """Start the program until it ends by itself; return how often."""
    program = [sys.executable, soak.__file__, folder, BATCHES, DEATHS, KILLS, SEED]
    places = [str(Path(soak.__file__).parents[2]), os.environ.get("PYTHONPATH")]
    environment = environment_of_a_program(PYTHONPATH=os.pathsep.join(filter(None, places)))
    for starts in range(1, 2 + 5 * KILLS + 5):
        with (folder / "output").open("wb") as output:
            done = subprocess.run(
                list(map(str, program)),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                check=False,
            )
        if done.returncode == 0:
            return starts
        told = (folder / "output").read_text(errors="replace")
        assert done.returncode == -9, told[-4000:]
    raise AssertionError("the program was killed more often than was drawn")


@contextmanager
def others_at_work(place: str):
    """Commit to the same branch, collect garbage and follow, until the block ends."""
    counts: Counter[str] = Counter()
    stopped = threading.Event()
    errors: list[BaseException] = []

    def at_work():
        rng, follower = random.Random(1), None
        try:
            while not stopped.wait(PAUSE * rng.random()):
                if not Repository.exists(place):
                    continue
                options = WriteOptions(mode="append", dims=("y",), chunks={"y": 64}, group="rival")
                write_rival(place, options, counts["rival commits"])
                counts["rival commits"] += 1
                if counts["rival commits"] % 10 == 0:
                    result = collect_garbage(place, datetime.now(UTC) - OLD)
                    counts["collections"] += 1
                    counts["manifests collected"] += result.manifests_deleted
                follower = follower or Query(place, group="/", maxSnapshotsPerTrigger="50")
                counts["rows followed"] += len(follower.batch() or ())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=at_work)
    thread.start()
    try:
        yield counts
    finally:
        stopped.set()
        thread.join()
    if errors:
        raise errors[0]


def write_rival(place: str, options: WriteOptions, number: int) -> None:
    """Commit something else to the same branch."""
    import pyarrow as pa

    write_table(place, pa.table({"y": [number], "noise": [float(number)]}), options)


def check_commits(place: str) -> None:
    """Compare what each commit of the stream wrote with the file of its batch."""
    told = commits_of_streams(place)
    assert [number for _, number in told] == list(range(BATCHES))
    assert len({query for query, _ in told}) == 1
    follower = Query(place, group="/", maxSnapshotsPerTrigger="1")
    for info in list(Repository.open(place).ancestry())[::-1]:
        rows = follower.batch() or []
        number = info.metadata.get("txnVersion")
        wanted = [] if number is None else soak.rows_of(number, PLACES)
        assert sorted(rows, key=lambda row: row["x"]) == wanted, info


def table(place: str) -> dict[tuple[int, float], float]:
    """Return the cells of a repository."""
    return {(row["time"], row["x"]): row["t"] for row in Query(place, group="/").batch() or ()}
