"""Ctrl-C cancels the jobs of the interrupted call, leaves the branch, and nothing else changes."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.spark.connect_client import answer_over_connect
from helpers.spark.session import environment_of_a_program

import icechunk_spark
from icechunk_format.repository import Repository
from icechunk_spark.jobs import cancelling
from icechunk_spark.jobs.cancelling import cancellable, only_own_jobs

ROOT = Path(icechunk_spark.__file__).parent
ACTIONS = {"collect", "toArrow", "toPandas", "toLocalIterator", "isEmpty", "first", "head", "take"}
SECONDS = 120


def marking(mark, end):
    """Return a function for ``mapInArrow`` that grows a file until another one exists."""

    def step(batches):
        for batch in batches:
            deadline = time.monotonic() + SECONDS
            while not Path(end).exists() and time.monotonic() < deadline:
                with Path(mark).open("a") as file:
                    file.write("x")
                time.sleep(0.05)
            yield batch

    return step


@contextlib.contextmanager
def interrupting_when(path):
    """Send SIGINT to this process as soon as a file exists."""
    stop = threading.Event()

    def watch():
        while not stop.wait(0.05):
            if path.exists():
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.core
@pytest.mark.each_spark
def test_an_interrupt_cancels_only_the_jobs_of_its_call(spark, tmp_path):
    context, handler = spark.sparkContext, signal.getsignal(signal.SIGINT)
    path, written = str(tmp_path / "r"), tmp_path / "written"
    icechunk_spark.write(spark.range(4).selectExpr("id AS x", "1D AS v"), path, dims=["x"])
    tip = Repository.open(path).resolve(branch="main")

    other, go, found = tmp_path / "other", tmp_path / "go", []
    rows = spark.range(0, 1, 1, 1).mapInArrow(marking(other, go), "id bigint")
    beside = threading.Thread(target=lambda: found.extend(rows.collect()))
    beside.start()
    try:
        own = spark.range(0, 1, 1, 1).mapInArrow(marking(written, tmp_path / "never"), "id bigint")
        frame = own.selectExpr("id AS x", "2D AS v")
        context.setLocalProperty("spark.job.description", "nightly")
        context.addJobTag("team")
        with interrupting_when(written), pytest.raises(KeyboardInterrupt):
            icechunk_spark.write(frame, path, mode="overwrite", dims=["x"])
        size = written.stat().st_size
        assert context.getLocalProperty("spark.job.description") == "nightly"
        assert set(context.getJobTags()) == {"team"}
        assert signal.getsignal(signal.SIGINT) is handler
        assert Repository.open(path).resolve(branch="main") == tip
        assert icechunk_spark.read(spark, path).where("v = 1").count() == 4
        assert written.stat().st_size == size
        assert beside.is_alive()
    finally:
        context.setLocalProperty("spark.job.description", None)
        context.removeJobTag("team")
        go.touch()
        beside.join()
    assert len(found) == 1


def test_an_error_of_an_action_is_raised_as_it_is(spark):
    def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        cancellable(spark, fail)


@pytest.mark.parametrize("is_pysparks", [True, False])
def test_only_the_handler_of_pyspark_is_replaced(is_pysparks):
    def handler(number, frame):
        """Do nothing."""

    if is_pysparks:
        handler.__module__ = "pyspark.core.context"
    before = signal.signal(signal.SIGINT, handler)
    try:
        with only_own_jobs():
            inside = signal.getsignal(signal.SIGINT)
        assert inside is (signal.default_int_handler if is_pysparks else handler)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_every_action_is_run_so_that_it_can_be_cancelled():
    found = []
    of_arrow = ROOT / "reading" / "result_rows.py"
    # The jobs of an iterator run in the loop of the user, not in a call.
    of_iterators = {ROOT / "jobs" / "metrics.py", ROOT / "mapping" / "iterating.py"}
    for file in sorted({*ROOT.rglob("*.py")} - {of_arrow, *of_iterators}):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                is_count = node.func.attr == "count" and not node.args
                if node.func.attr in ACTIONS or is_count:
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.func.attr}")
    assert found == []


@pytest.mark.each_spark
def test_stopping_a_stream_cancels_the_jobs_of_its_batch(spark, tmp_path):
    path, mark = tmp_path / "r", tmp_path / "mark"
    step = marking(mark, tmp_path / "never")

    def write(batch, number):
        if batch.isEmpty():
            return
        rows = batch.limit(1).mapInArrow(step, batch.schema).selectExpr("value AS x", "1D AS v")
        icechunk_spark.write(rows, str(path), dims=["x"])

    stream = spark.readStream.format("rate").load()
    query = stream.writeStream.foreachBatch(write).start()
    deadline = time.monotonic() + SECONDS
    while not mark.exists() and time.monotonic() < deadline and query.isActive:
        time.sleep(0.05)
    query.stop()
    assert mark.exists()
    assert not path.exists()
    assert tasks_end(mark)


def tasks_end(mark):
    """Return True if a file stops growing."""
    for _ in range(SECONDS // 2):
        size = mark.stat().st_size
        time.sleep(2)
        if mark.stat().st_size == size:
            return True
    return False


START = """
import json, os, signal, sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
import icechunk_spark
from icechunk_format.repository import Repository

def session(**kind):
    builder = SparkSession.builder
    for name, value in kind.items():
        builder = getattr(builder, name)(value)
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()

def prepare(spark, folder):
    rows = spark.range(6).selectExpr("id AS x", "double(id) AS v")
    icechunk_spark.write(rows, folder + "/in", dims=["x"], chunks={"x": 1})

def run(spark, folder):
    mark = folder + "/mark"
    def marked(ds):
        import time
        from pathlib import Path
        from pyspark import TaskContext
        for _ in range(1200 if TaskContext.get() is not None else 0):
            with Path(mark).open("a") as file:
                file.write("x")
            time.sleep(0.05)
        return ds
    try:
        icechunk_spark.map_blocks(
            spark, folder + "/in", marked, to=folder + "/out", blocks={"x": 1}
        )
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "came to its end"

def state(spark, folder):
    found = Repository.open(folder + "/out") if Path(folder, "out").exists() else None
    return {
        "rows": icechunk_spark.read(spark, folder + "/in").count(),
        "commits": len(list(found.ancestry(branch="main"))) if found else 0,
    }

def sized(folder):
    return Path(folder, "mark").stat().st_size
"""

SCRIPT = """
folder = sys.argv[1]
spark = session(master="local[2]")
prepare(spark, folder)
answer = {"raised": run(spark, folder), "size": sized(folder)}
tracker = spark.sparkContext.statusTracker()
answer["jobs"] = list(tracker.getActiveJobsIds())
answer.update(state(spark, folder))
answer["grown"] = sized(folder) - answer.pop("size")
print("ANSWER " + json.dumps(answer), flush=True)
"""


@pytest.mark.each_spark
def test_a_script_gets_sigint(tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-c", START + SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_of_a_program(),
    )
    try:
        while not (tmp_path / "mark").exists() and started.poll() is None:
            time.sleep(0.1)
        started.send_signal(signal.SIGINT)
        out, errors = started.communicate(timeout=4 * SECONDS)
    finally:
        started.kill()
    assert started.returncode == 0, errors[-4000:]
    answer = json.loads(out.strip().splitlines()[-1].removeprefix("ANSWER "))
    assert answer["commits"] <= 1
    del answer["commits"]
    assert answer == {"raised": "KeyboardInterrupt", "jobs": [], "rows": 6, "grown": 0}


CLIENT = """
folder = sys.argv[1]
spark = session(remote="local[2]")
prepare(spark, folder)
spark.addTag("team")
def interrupt():
    while not Path(folder, "mark").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
answer = {"raised": run(spark, folder), "tags": sorted(spark.getTags())}
answer.update(state(spark, folder))
for _ in range(60):
    size = sized(folder)
    time.sleep(2)
    answer["ends"] = sized(folder) == size
    if answer["ends"]:
        break
print("ANSWER " + json.dumps(answer), flush=True)
"""


@pytest.mark.nightly
def test_an_interrupt_of_a_client_of_connect(tmp_path):
    answer = answer_over_connect(START + CLIENT, str(tmp_path))
    assert answer.pop("commits") <= 1
    assert answer == {"raised": "KeyboardInterrupt", "tags": ["team"], "rows": 6, "ends": True}


@pytest.mark.nightly
def test_the_interrupt_of_a_notebook(tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(env=environment_of_a_program(), startup_timeout=SECONDS)
    folder = repr(str(tmp_path))

    def value(code):
        """Run a cell; return the JSON that it prints."""
        printed = []

        def keep(message):
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        client.execute_interactive(code, output_hook=keep, timeout=4 * SECONDS)
        return json.loads("".join(printed).strip().splitlines()[-1])

    def interrupt():
        while not (tmp_path / "mark").exists():
            time.sleep(0.1)
        manager.interrupt_kernel()

    try:
        value(f"{START}\nspark = session(master='local[2]')\nprepare(spark, {folder})\nprint(1)")
        threading.Thread(target=interrupt, daemon=True).start()
        assert value(f"print(json.dumps(run(spark, {folder})))") == "KeyboardInterrupt"
        size = (tmp_path / "mark").stat().st_size
        after = value(f"print(json.dumps(state(spark, {folder})))")
        assert after["rows"] == 6
        assert after["commits"] <= 1
        assert (tmp_path / "mark").stat().st_size == size
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_bar_shows_the_words_of_a_job(spark, tmp_path, capsys):
    path = str(tmp_path / "r")
    cancelling.set_progress(spark, True)
    try:
        icechunk_spark.write(spark.range(4).selectExpr("id AS x", "1D AS v"), path, dims=["x"])
    finally:
        cancelling.set_progress(spark, False)
    shown = capsys.readouterr().err
    assert "collecting coordinates" in shown
    assert "writing v in 1 task" in shown
    assert "100%" in shown
    icechunk_spark.read(spark, path).count()
    icechunk_spark.maintenance.verify(spark, path)
    assert "verifying" not in capsys.readouterr().err
