"""Spark's writes leave no credential in logs, plans, scratch files or stored objects.

A program of its own writes with credentials in options, well and wrongly. Its log and Spark's event
log, everything that it printed and raised, plans, metadata tables, its scratch folders while it
still runs, and every object that it stored are searched for them.
"""

from __future__ import annotations

import json
import subprocess
import sys

import obstore
from helpers.servers.s3 import ACCESS_KEY, SECRET_KEY
from helpers.spark.session import environment_of_a_program

from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location

WRONG_SECRET = "canary-wrong-secret-5e01"
WRONG_KEY = "canary-key-id-77b3"
WRONG_TOKEN = "canary-session-token-19"
CANARIES = (SECRET_KEY, WRONG_SECRET, WRONG_KEY, WRONG_TOKEN)

SCRIPT = """
import json, os, pickle, sys, traceback
from pathlib import Path
from pyspark.sql import SparkSession
import icechunk_spark

path, folder, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.stdin.readline())
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config("spark.local.dir", str(folder / "scratch"))
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", (folder / "events").as_uri())
    .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
icechunk_spark.register(spark)
spark.sparkContext.setLogLevel("INFO")
frame = spark.range(24).selectExpr("id div 4 AS x", "id % 4 AS y", "cast(id AS float) AS v")
good, wrong = given["good"], given["wrong"]
options = {"dims": "x,y", "chunks": "x=2", "message": "written with credentials"}

frame.write.format("icechunk").options(**good, **options).save(path)
done = icechunk_spark.write(frame, path, mode="append", txnAppId="a", txnVersion=1, **good)
print(repr(done))
plain = frame.coalesce(1).write.format("icechunk").options(**good).option("distribution", "none")
plain.mode("append").save(path)
read = spark.read.format("icechunk").options(**good).load(path)
read.explain(True)
print(read, repr(read), read.count())
by_function = icechunk_spark.read(spark, path, **good)
by_function.explain(True)
print(by_function, repr(by_function), by_function.count())
for table in ("snapshots", "operations", "variables", "chunks"):
    for row in spark.read.format("icechunk").options(**good).load(f"{path}#{table}").collect():
        print(row)

def fails(action):
    try:
        action()
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        print("FAILED AS IT SHOULD", type(error).__name__)
        (folder / "pickles").mkdir(exist_ok=True)
        try:
            (folder / "pickles" / str(len(os.listdir(folder / "pickles")))).write_bytes(
                pickle.dumps(error.args)
            )
        except TypeError:
            pass

for options in wrong:
    fails(lambda: frame.write.format("icechunk").options(**options).mode("append").save(path))
    fails(lambda: icechunk_spark.write(frame, path, mode="append", **options))
    fails(lambda: icechunk_spark.read(spark, path, **options))
text = spark.range(3).selectExpr("id AS x", "id AS y", "'text' AS v")
fails(lambda: icechunk_spark.write(text, path, mode="append", **good))
fails(lambda: icechunk_spark.write(frame, path, mode="append", storage_secrte="x", **good))
twice = frame.union(frame)
fails(lambda: icechunk_spark.write(twice, path, mode="append", **good))
print("READY", flush=True)
sys.stdin.readline()
spark.stop()
"""


def searched(folder):
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            for canary in CANARIES:
                assert canary.encode() not in data, file


def test_nothing_that_a_write_leaves_holds_a_credential(s3_server, tmp_path):
    bucket = s3_server.new_bucket()
    path = f"s3://{bucket}/written"
    good = {f"storage.{name}": value for name, value in s3_server.storage_options.items()}
    wrong = [
        {**good, "storage.secret": WRONG_SECRET},
        {**good, "storage.key": WRONG_KEY},
        {**good, "storage.token": WRONG_TOKEN},
    ]
    for name in ("events", "scratch", "tmp"):
        (tmp_path / name).mkdir()
    environment = environment_of_a_program(
        SPARK_LOCAL_DIRS=str(tmp_path / "scratch"), TMPDIR=str(tmp_path / "tmp")
    )
    environment = {name: v for name, v in environment.items() if not name.startswith("AWS_")}
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        program = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, path, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        try:
            # Not by an argument: the list of processes is for everybody to read.
            program.stdin.write(json.dumps({"good": good, "wrong": wrong}) + "\n")
            program.stdin.flush()
            while program.poll() is None and "READY" not in log.read_text():
                with_timeout_wait(program)
            assert "READY" in log.read_text(), log.read_text()[-4000:]
            # Broadcasts and shuffles are on disk now, and gone afterwards.
            searched(tmp_path)
            program.stdin.write("end\n")
            program.stdin.flush()
            assert program.wait(timeout=120) == 0
        finally:
            if program.poll() is None:
                program.kill()
                program.wait(timeout=15)
    text = log.read_text()
    assert text.count("FAILED AS IT SHOULD") == 3 * len(wrong) + 3
    assert any((tmp_path / "events").rglob("*"))
    assert any((tmp_path / "pickles").iterdir())
    searched(tmp_path)
    store = s3_server.raw_store(bucket)
    found = [item for page in obstore.list(store) for item in page]
    assert len(found) > 10
    for item in found:
        data = bytes(obstore.get(store, item["path"]).bytes())
        for secret in (*CANARIES, ACCESS_KEY):
            assert secret.encode() not in data, item
    repository = Repository.open(Location(path, options=s3_server.storage_options))
    for info in repository.snapshots():
        said = f"{info.message} {info.metadata}"
        assert not any(secret in said for secret in (*CANARIES, ACCESS_KEY, "8333"))
    assert SECRET_KEY not in f"{repository.config} {list(repository.operations())}"


def with_timeout_wait(program):
    try:
        program.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return
