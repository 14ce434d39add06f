"""Processes die in the middle of a write: the branch has the whole commit, or is as it was.

Every test runs a driver program of its own on a standalone cluster and looks at the repository with
the reference library. Deaths are real: SIGKILL of an executor's JVM, or of the driver itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.spark.written import messages, reference_dataset, reference_repository

pytestmark = pytest.mark.needs_reference

HOURS, LATITUDES, LONGITUDES = 24, 8, 12
EARLIER = 2

DRIVER = """
import os, signal, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
import icechunk_spark
from icechunk_spark.writing import planned as planned_write
from icechunk_format.repository import Repository
from icechunk_format.tables.writing import plan as write_plan
from icechunk_format.storage.local.store import LocalStorage

what, master, path, folder, first, count, mode = sys.argv[1:]
write_plan._LEAST_ROWS_PER_UNIT = 100  # several tasks, though there are few rows
first, count, folder = int(first), int(count), Path(folder)
builder = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.sql.shuffle.partitions", "2")
)
if what == "speculate":
    builder = (
        builder.config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.minTaskRuntime", "100ms")
    )
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
icechunk_spark.register(spark)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def after(module, name):
    called = getattr(module, name)
    def dies(*arguments, **keywords):
        called(*arguments, **keywords)
        die()
    setattr(module, name, dies)

def kill_this_executor():
    # A worker is a child of the daemon, which is a child of the executor's JVM.
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(60)

def first_attempt(name):
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def disturbed(rows, step):
    def run(batches):
        if what == "speculate" and TaskContext.get().attemptNumber() > 0:
            (folder / "copied").touch()
        answer = list(step(batches))  # everything is stored by now
        if TaskContext.get().partitionId() == 1:
            if what == "kill-executor" and first_attempt("killed"):
                kill_this_executor()
            if what == "fail-once" and first_attempt("failed"):
                raise OSError("the network was down")
            if what == "speculate" and TaskContext.get().attemptNumber() == 0:
                time.sleep(120)
        yield from answer
    return undisturbed(rows, run)

if what in ("kill-executor", "fail-once", "speculate"):
    undisturbed = planned_write.collected
    planned_write.collected = disturbed
elif what == "die-after-tasks":
    after(planned_write, "_receipts")
elif what == "die-after-creation":
    after(Repository, "create")

grid = 8 * 12
frame = spark.range(first * grid, (first + count) * grid, numPartitions=3).selectExpr(
    "timestamp_ntz '2024-07-01' + make_dt_interval(0, cast(id div 96 as int)) AS time",
    "cast(id div 12 % 8 as double) AS latitude",
    "cast(id % 12 as double) AS longitude",
    "cast(id as double) AS t2m",
)
made = icechunk_spark.write(
    frame, path, mode=mode, dims="time,latitude,longitude", message=what,
    **({"chunks": "time=1"} if mode == "errorifexists" else {}),
)
print("wrote", made.rows, made.chunks, flush=True)
spark.stop()
"""


@pytest.fixture
def drive(cluster, tmp_path):
    """Run the driver program, and return its exit code and output."""

    def run(what, path, first, count, mode):
        cluster.start_workers()
        program = [sys.executable, "-c", DRIVER, what, cluster.master_url, str(path)]
        log = tmp_path / f"{what}.log"
        with log.open("wb") as stream:
            done = subprocess.run(
                [*program, str(tmp_path), str(first), str(count), mode],
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=cluster.environment,
                timeout=400,
                check=False,
            )
        wanted = -signal.SIGKILL if what.startswith("die") else 0
        assert done.returncode == wanted, log.read_text()[-4000:]
        return done.stdout

    return run


def write_hours(path, first, count, **options):
    """Write what the driver program writes, without Spark."""
    import pyarrow as pa

    from icechunk_format.options.write import WriteOptions
    from icechunk_format.tables.writing.in_process import write_table

    grid = LATITUDES * LONGITUDES
    ids = np.arange(first * grid, (first + count) * grid)
    start = np.datetime64("2024-07-01", "us")
    table = pa.table(
        {
            "time": start + ids // 96 * np.timedelta64(1, "h"),
            "latitude": (ids // 12 % 8).astype("f8"),
            "longitude": (ids % 12).astype("f8"),
            "t2m": ids.astype("f8"),
        }
    )
    dims = ("time", "latitude", "longitude")
    write_table(str(path), table, WriteOptions(dims=dims, **options))


@pytest.fixture
def path(tmp_path):
    """Return a repository with two hours."""
    place = tmp_path / "weather"
    write_hours(place, 0, EARLIER, chunks={"time": 1}, message="earlier")
    return place


def assert_holds(path, hours):
    values = reference_dataset(path)["t2m"].values
    expected = np.arange(hours * LATITUDES * LONGITUDES, dtype="f8")
    np.testing.assert_array_equal(values, expected.reshape(hours, LATITUDES, LONGITUDES))


def assert_each_chunk_is_stored_once(path, hours):
    """Every chunk has one reference, though there may be more objects than references."""
    from icechunk_format.repository import Repository

    session = Repository.open(str(path)).writable_session()
    refs = session.chunk_refs("/t2m", (0, 0, 0), (hours, 1, 1))
    assert sorted(map(tuple, refs.coords.tolist())) == [(hour, 0, 0) for hour in range(hours)]


@pytest.mark.parametrize("what", ["kill-executor", "fail-once", "speculate"])
def test_spark_repeats_tasks_and_one_whole_commit_lands(drive, path, tmp_path, what):
    """An attempt that has stored all of its chunks does not count, and another one does."""
    drive(what, path, EARLIER, HOURS, "append")
    assert messages(path)[:2] == [what, "earlier"]
    assert_holds(path, EARLIER + HOURS)
    assert_each_chunk_is_stored_once(path, EARLIER + HOURS)
    mark = {"kill-executor": "killed", "fail-once": "failed", "speculate": "copied"}[what]
    assert (tmp_path / mark).exists()


def test_a_driver_that_dies_leaves_the_branch_as_it_was(drive, path):
    head = reference_repository(path).lookup_branch("main")
    drive("die-after-tasks", path, EARLIER, HOURS, "append")
    assert reference_repository(path).lookup_branch("main") == head
    assert_holds(path, EARLIER)
    write_hours(path, EARLIER, HOURS, mode="append", message="again")
    assert messages(path)[:2] == ["again", "earlier"]
    assert_holds(path, EARLIER + HOURS)


def test_a_driver_that_dies_in_a_first_write(drive, tmp_path):
    path = tmp_path / "new"
    drive("die-after-creation", path, 0, 3, "errorifexists")
    assert messages(path) == ["Repository initialized"]
    write_hours(path, 0, 3, chunks={"time": 1}, message="again")
    assert messages(path) == ["again", "Repository initialized"]
    assert_holds(path, 3)


# --- the commit, request by request -----------------------------------------------------------


def in_a_child_that_dies(work, requests):
    """Run work in a forked process that dies before its n-th change of the store, if it has one."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        from icechunk_format.storage.local.store import LocalStorage

        left = [requests]

        def counted(change):
            def run(storage, *arguments, **keywords):
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return change(storage, *arguments, **keywords)

            return run

        for name in ("put", "put_many", "copy", "delete_many"):
            setattr(LocalStorage, name, counted(getattr(LocalStorage, name)))
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("is_first", [True, False], ids=["first write", "append"])
def test_a_driver_that_dies_before_any_request_of_its_commit(tmp_path, is_first):
    """The tasks are done; the commit dies before its first, second, ... change of the store."""
    import pyarrow as pa

    from icechunk_format.options.write import WriteOptions
    from icechunk_format.tables.writing.commit import finish_write
    from icechunk_format.tables.writing.in_process import write_part, write_table
    from icechunk_format.tables.writing.plan import plan_write
    from icechunk_format.tables.writing.prepare import prepare_write

    options = WriteOptions(mode="append", dims=("n",), message="more")
    earlier = pa.table({"n": pa.array([0, 1]), "v": [0.0, 1.0]})
    more = pa.table({"n": pa.array([2, 3]), "v": [2.0, 3.0]})

    def values(path):
        return reference_dataset(path)["v"].values.tolist()

    for requests in range(100):
        path = str(tmp_path / f"after-{requests}")
        if not is_first:
            write_table(path, earlier, WriteOptions(dims=("n",), message="earlier"))
        before = messages(path) if not is_first else []
        prepared = prepare_write(path, more.schema, options)
        plan = plan_write(prepared, {"n": more.column("n")}, more.num_rows)
        receipts = [write_part(plan, part, more) for part in plan.parts]
        status = in_a_child_that_dies(lambda: finish_write(plan, receipts), requests)  # noqa: B023
        whole = [2.0, 3.0] if is_first else [0.0, 1.0, 2.0, 3.0]
        if not Path(path, "repo").exists():
            assert is_first
        elif messages(path)[0] == "more":
            assert values(path) == whole
        else:
            assert messages(path) == (before or ["Repository initialized"])
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        write_table(path, more, options)
        assert values(path) == whole
    assert 2 < requests < 100
