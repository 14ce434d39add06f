"""A Spark driver and its Python workers that read for many users serve each with its own rights.

One session reads many repositories, each read with the name of a user's credentials. The driver
and the workers, which Spark uses again, keep what earlier reads opened: a read without the right
must fail all the same, and memory, threads and open files must not grow with the number of reads::

    SPARK_TENANT_READS=300 pytest -s tests/torture/test_tenants_spark.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from helpers.spark.session import environment_of_a_program
from torture.tenants import READS_OF_SPARK, served_repositories

REPOSITORIES, USERS = 20, 5

PROGRAM = """
import gc, json, os, random, sys
from pathlib import Path
from pyspark.sql import SparkSession
from torture.tenants import held_by, location_of, may_read, value_of
import icechunk_spark

url, reads, repositories, users = sys.argv[1], *map(int, sys.argv[2:])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
names = [f"user-{number}" for number in range(users)]
credentials = {name: dict(location_of(url, name, 0).options) for name in names}
icechunk_spark.register(spark, credentials=credentials)
DAEMON = spark.conf.get("spark.python.daemon.module", "pyspark.daemon").encode()
chance, wrong, held, refused = random.Random(1), [], [], 0


def processes():
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    # The command line of the JVM names the module as well.
    called = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(bytes(1)) for pid in below}
    return [pid for pid, words in called.items() if words[1:3] == [b"-m", DAEMON]]


for number in range(reads):
    user, repository = chance.randrange(users), chance.randrange(repositories)
    path = f"s3://bucket/repository-{repository}"
    try:
        read = icechunk_spark.read(spark, path, credentials=f"user-{user}")
        found = {row["a"] for row in read.where("a > 0").collect()}
    except Exception as error:
        refused += 1
        if may_read(user, repository):
            wrong.append(f"{user} {repository}: {error}")
    else:
        if not may_read(user, repository) or found != {value_of(repository)[0]}:
            wrong.append(f"{user} {repository}: read {found}")
    if (number + 1) % (reads // 4) == 0:
        gc.collect()
        workers = [held_by(pid) for pid in processes()]
        largest = [max(values) for values in zip(*workers)]
        held.append({"driver": held_by(os.getpid()), "workers": largest})
print("ANSWER " + json.dumps({"held": held, "wrong": wrong[:10], "refused": refused}))
"""


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_users_of_one_driver_have_their_own_rights():
    reads = int(os.environ.get("SPARK_TENANT_READS", READS_OF_SPARK))
    with served_repositories(REPOSITORIES) as url:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url, *map(str, (reads, REPOSITORIES, USERS))],
            capture_output=True,
            text=True,
            env=environment_of_a_program(PYTHONPATH=os.pathsep.join(sys.path)),
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1].removeprefix("ANSWER "))
    print(f"\n{reads} reads of {REPOSITORIES} repositories as {USERS} users: {answer}")
    assert answer["wrong"] == []
    assert 0 < answer["refused"] < reads
    second, last = answer["held"][1], answer["held"][-1]
    for part in ("driver", "workers"):
        memory_mb, descriptors, threads = last[part]
        assert memory_mb <= second[part][0] + 60
        assert descriptors <= 600
        assert threads <= 400
