"""A stream out of one repository and into another on a standalone cluster, both on S3."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.servers.s3 import running_s3_server
from helpers.spark.streams import append, commits_of_streams

from icechunk_format.storage.location import Location

DRIVER = """
import json, sys
from pyspark.sql import SparkSession
import icechunk_spark

master, source, target, checkpoint, storage = sys.argv[1:]
storage = json.loads(storage)
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.python.daemon.module", "icechunk_spark.daemon")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
icechunk_spark.register(spark)

def answer():
    rows = spark.readStream.format("icechunk").options(maxSnapshotsPerTrigger=2, **storage)
    writer = rows.load(source).writeStream.format("icechunk").options(**storage)
    writer = writer.options(dims="time,x", chunks="time=1", checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start(target)
    query.awaitTermination(300)
    table = spark.read.format("icechunk").options(**storage).load(target)
    times = sorted(row.time for row in table.where("x = 0").collect())
    print(json.dumps([str(query.id), times]), flush=True)

answer()
sys.stdin.readline()
answer()
spark.stop()
"""


@pytest.fixture(scope="module")
def s3_server():
    with running_s3_server() as server:
        yield server


def test_a_stream_over_the_cluster_goes_on_where_it_was(cluster, s3_server, tmp_path):
    bucket, options = s3_server.new_bucket(), s3_server.storage_options
    source, target = (
        Location(f"s3://{bucket}/{name}", options=options) for name in ("source", "target")
    )
    storage = json.dumps({f"storage.{name}": value for name, value in options.items()})

    for time in range(3):
        append(source, [time])
    program = [sys.executable, "-c", DRIVER, cluster.master_url, source.url, target.url]
    log = tmp_path / "driver.log"
    driver = subprocess.Popen(
        [*program, str(tmp_path / "checkpoint"), storage],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.open("wb"),
        text=True,
        env=cluster.environment,
    )

    def line():
        text = driver.stdout.readline()
        assert text, log.read_text()[-4000:]
        return json.loads(text)

    try:
        query, times = line()
        assert times == [0, 1, 2]
        assert commits_of_streams(target) == [(query, 0), (query, 1)]
        append(source, [3, 1])
        driver.stdin.write("go on\n")
        driver.stdin.flush()
        assert line() == [query, [0, 1, 2, 3]]
        assert commits_of_streams(target)[-1] == (query, 2)
        assert driver.wait(timeout=180) == 0
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait(timeout=15)
