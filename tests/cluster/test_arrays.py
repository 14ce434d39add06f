"""Arrays are made from arrays on S3 while executors die, tasks are copied and others write.

One driver program runs all on a standalone cluster; `rechunk` is made to shuffle. Every call ends
in one commit with each chunk once, or in none.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import icechunk
import numpy as np
import pytest
import zarr
from helpers.servers.s3 import running_s3_server

pytestmark = pytest.mark.needs_reference
icechunk.set_logs_filter("off")

SHAPE, CHUNKS, SERIES = (24, 40, 40), (1, 40, 40), {"time": -1, "y": 10, "x": 10}

DRIVER = """
import json, os, signal, sys, threading, time
from pathlib import Path
import icechunk, zarr
from pyspark import TaskContext
from pyspark.sql import SparkSession
import icechunk_spark
from icechunk_spark.jobs import pieces, task_rows

master, folder, storage = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
icechunk.set_logs_filter("off")
builder = SparkSession.builder.master(master)
for name, value in {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.python.daemon.module": "icechunk_spark.daemon",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "2s",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
plain = task_rows.collected
options = {f"storage.{name}": value for name, value in storage["options"].items()}

def is_first(mark):
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def disturbed(what, mark, after=lambda: None):
    # The task has stored all of its chunks when it is disturbed.
    def collected(rows, step, *earlier):
        def run(batches):
            answer = list(step(batches))
            # Whichever attempt is first: Spark may copy a task, or end one, before it comes here.
            if what and TaskContext.get().partitionId() == 1 and is_first(mark):
                if what == "kill":
                    # A worker is a child of the daemon, which is a child of the executor's JVM.
                    status = Path(f"/proc/{os.getppid()}/stat").read_text()
                    os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
                time.sleep(120)
            yield from answer
        found = plain(rows, run, *earlier)
        after()
        return found
    pieces.collected = task_rows.collected = collected

def repository(url):
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return icechunk.Repository.open(icechunk.s3_storage(
        bucket=bucket, prefix=prefix, region="us-east-1", allow_http=True, force_path_style=True,
        access_key_id=storage["options"]["key"], secret_access_key=storage["options"]["secret"],
        endpoint_url=storage["options"]["endpoint_url"],
    ))

def change(url, add):
    session = repository(url).writable_session("main")
    array = zarr.open_group(session.store)["t"]
    if add:
        array.append(array[:4] + 1000)
    else:
        array[5], array[20] = 7, 8  # in two blocks, and so two tasks
    session.commit("changed")

def rechunk(url, sizes):
    # Memory for a part of the array, so that it is shuffled.
    done = icechunk_spark.rechunk(spark, url, chunks=sizes, memory="40k", **options)
    totals = done.commit.totals
    return [done.shuffled, totals.chunks_decoded, totals.chunks_encoded]

def identity(dataset):
    return dataset

def copy(url, target):
    done = icechunk_spark.map_blocks(
        spark, url, identity, to=target, blocks={"time": 2}, follow=True, **options
    )
    return [done.blocks, done.computed]

def answer(what, how, *arguments):
    if how == "append":
        appended = []
        after = lambda: appended or appended.append(change(arguments[0], True))
        disturbed(None, None, after)
    elif how == "both":
        gate = threading.Barrier(2)
        disturbed(None, None, lambda: gate.wait(120))
    else:
        disturbed(how, folder / f"{what}-{how}")
    if what == "race":
        found = [None, None]
        def one(number, sizes):
            try:
                found[number] = rechunk(arguments[0], sizes)
            except Exception as error:
                found[number] = type(error).__name__
        threads = [
            threading.Thread(target=one, args=pair) for pair in enumerate(arguments[1])
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return found
    return {"rechunk": rechunk, "copy": copy, "change": change}[what](*arguments)

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    try:
        found = answer(*json.loads(line))
    except Exception as error:
        found = {"error": str(error)}
    print(json.dumps(found), flush=True)
spark.stop()
"""


@pytest.fixture(scope="module")
def s3_server():
    with running_s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def drive(cluster, s3_server, tmp_path_factory):
    """Return a function that lets the driver program do one thing, and returns its result."""
    folder = tmp_path_factory.mktemp("arrays")
    cluster.start_workers()
    log = folder / "driver.log"
    driver = subprocess.Popen(
        [
            *(sys.executable, "-c", DRIVER, cluster.master_url, str(folder)),
            json.dumps({"options": s3_server.storage_options}),
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("wb"), text=True,
        env=cluster.environment,
    )  # fmt: skip

    def line():
        text = driver.stdout.readline()
        assert text, log.read_text()[-4000:]
        return json.loads(text)

    def run(*request):
        driver.stdin.write(json.dumps(request) + "\n")
        driver.stdin.flush()
        found = line()
        assert not isinstance(found, dict), found["error"]
        if len(request) > 1 and request[1] in ("kill", "slow"):
            assert (folder / f"{request[0]}-{request[1]}").exists()
            (folder / f"{request[0]}-{request[1]}").unlink()
        return found

    try:
        assert line() == "ready"
        yield run
        driver.stdin.close()
        assert driver.wait(timeout=120) == 0, log.read_text()[-4000:]
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait(timeout=15)


@pytest.fixture
def new_place(s3_server):
    """Return a function that makes a repository of maps, or a place for one."""
    bucket = s3_server.new_bucket()

    def make(name, values=None):
        if values is not None:
            session = icechunk.Repository.create(storage(bucket, name)).writable_session("main")
            zarr.open_group(session.store).create_array(
                "t", data=values, chunks=CHUNKS, dimension_names=["time", "y", "x"]
            )
            session.commit("maps")
        return f"s3://{bucket}/{name}"

    def storage(bucket, name):
        return icechunk.s3_storage(
            bucket=bucket, prefix=name, region="us-east-1", allow_http=True, force_path_style=True,
            access_key_id=s3_server.access_key, secret_access_key=s3_server.secret_key,
            endpoint_url=s3_server.endpoint_url,
        )  # fmt: skip

    def opened(url):
        return icechunk.Repository.open(storage(bucket, url.rpartition("/")[2]))

    make.opened = opened
    return make


@pytest.fixture
def values():
    return np.random.default_rng(3).random(SHAPE).astype("f4")


def assert_holds(repository, values, chunks, commits):
    """Compare all values, and assert that each chunk has one reference."""
    session = repository.readonly_session("main")
    array = zarr.open_group(session.store, mode="r")["t"]
    assert array.chunks == chunks
    np.testing.assert_array_equal(array[:], values)

    async def coordinates():
        return [tuple(at) async for at in session.chunk_coordinates("/t")]

    assert sorted(asyncio.run(coordinates())) == list(np.ndindex(*array.cdata_shape))
    assert len(list(repository.ancestry(branch="main"))) == commits


@pytest.mark.parametrize("how", ["kill", "slow"])
def test_a_rechunk_ends_in_one_commit(drive, new_place, values, how):
    """An executor dies with the pieces that it kept for others, or a copy of a task is faster."""
    url = new_place("maps", values)
    commits, decoded, encoded = drive("rechunk", how, url, SERIES)
    # Pieces that died with the executor are read again, and counted; blocks are written once.
    assert (commits, encoded) == (1, 16)
    assert decoded == 24 or (how == "kill" and 24 < decoded <= 48)
    assert_holds(new_place.opened(url), values, (24, 10, 10), 3)


@pytest.mark.parametrize("how", ["kill", "slow"])
def test_a_copy_follows_in_one_commit(drive, new_place, values, how):
    url, target = new_place("maps", values), new_place("copy")
    assert drive("copy", how, url, target) == [12, 12]
    assert_holds(new_place.opened(target), values, (2, 40, 40), 2)
    drive("change", None, url, False)
    values[5], values[20] = 7, 8
    assert drive("copy", how, url, target) == [12, 2]
    assert_holds(new_place.opened(target), values, (2, 40, 40), 3)


def test_one_of_two_rechunks_of_an_array_wins(drive, new_place, values):
    url = new_place("maps", values)
    sizes = [SERIES, {"time": 12, "y": 20, "x": 20}]
    found = drive("race", "both", url, sizes)
    won = next(number for number, one in enumerate(found) if one != "ConflictError")
    assert found[won][0] == 1
    assert found[1 - won] == "ConflictError"
    assert_holds(new_place.opened(url), values, [(24, 10, 10), (12, 20, 20)][won], 3)


def test_an_append_beside_a_rechunk_is_included(drive, new_place, values):
    url = new_place("maps", values)
    assert drive("rechunk", "append", url, {"time": 12, "y": 10, "x": 10})[0] == 1
    values = np.concatenate([values, values[:4] + 1000])
    assert_holds(new_place.opened(url), values, (12, 10, 10), 4)


def test_an_append_beside_a_copy_is_for_its_next_run(drive, new_place, values):
    url, target = new_place("maps", values), new_place("copy")
    assert drive("copy", "append", url, target) == [12, 12]
    assert_holds(new_place.opened(target), values, (2, 40, 40), 2)
    assert drive("copy", None, url, target) == [14, 2]
    values = np.concatenate([values, values[:4] + 1000])
    assert_holds(new_place.opened(target), values, (2, 40, 40), 3)
