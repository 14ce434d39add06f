"""Executors in processes of their own read, fail and recover on a standalone cluster.

In local mode everything shares one machine's processes, and a reader that holds on to something
of the driver would pass. Here the driver is a program of its own, as users run it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers.spark.repositories import SHAPE, T2M

pytestmark = pytest.mark.needs_reference

DRIVER = """
import json, sys
from pyspark.sql import SparkSession, functions as F
import icechunk_spark

master, path = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.python.daemon.module", "icechunk_spark.daemon")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
icechunk_spark.register(spark, reader="source")
frame = spark.read.format("icechunk").load(path, rowsPerPartition=30)
by_function = icechunk_spark.read(spark, path, rowsPerPartition=30)

def answer():
    for table in (frame, by_function):
        count, total = table.agg(F.count("*"), F.sum("t2m")).first()
        print(json.dumps({"count": count, "sum": total}), flush=True)

def where_it_ran(batches):
    import os
    for batch in batches:
        yield batch.select([]).from_pydict({"pid": [os.getppid()]})

answer()
pids = {row.pid for row in frame.mapInArrow(where_it_ran, "pid long").collect()}
print(json.dumps({"partitions": frame.rdd.getNumPartitions(), "executors": len(pids)}), flush=True)
sys.stdin.readline()
answer()
try:
    spark.read.format("icechunk").option("where", "t2m >").load(path).count()
except Exception as error:
    print(json.dumps({"error": str(error)}), flush=True)
spark.stop()
"""


def test_two_executors_read_and_one_may_die(cluster, weather, tmp_path):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.master_url, weather.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "driver.log").open("wb"),
        text=True,
        env=cluster.environment,
    )

    def line() -> dict:
        text = driver.stdout.readline()
        assert text, (tmp_path / "driver.log").read_text()[-4000:]
        return json.loads(text)

    try:
        expected = {
            "count": int(np.prod(SHAPE)),
            "sum": pytest.approx(float(np.nansum(T2M.astype("f8")))),
        }
        assert line() == line() == expected
        spread = line()
        assert spread["partitions"] > 2
        assert spread["executors"] == 2
        # The worker and its executor go at once, as when a machine is lost.
        os.killpg(cluster.workers[1].pid, signal.SIGKILL)
        cluster.workers[1].wait(timeout=15)
        driver.stdin.write("go on\n")
        driver.stdin.flush()
        assert line() == line() == expected
        assert "where" in line()["error"]
        assert driver.wait(timeout=180) == 0
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait(timeout=15)
