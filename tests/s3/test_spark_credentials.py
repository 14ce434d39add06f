"""Named credentials: used by every way to read and write, and shown by none.

A program of its own runs all of them, with event log and UI. Its log and the event log, what it
printed and raised, plans, the REST API of the UI, checkpoints, warehouse, scratch folders while it
still runs, and stored objects are searched for the credentials.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import obstore
from helpers.servers.s3 import SECRET_KEY
from helpers.spark.session import environment_of_a_program

WRONG_SECRET = "canary-wrong-secret-77aa"
CANARIES = (SECRET_KEY, WRONG_SECRET)

SCRIPT = """
import json, os, pickle, sys, traceback, urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path
from pyspark.sql import SparkSession
import icechunk_spark

path, folder, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.stdin.readline())
good, wrong = given["good"], given["wrong"]
builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "true")
    .config("spark.ui.port", "0")
    .config("spark.driver.memory", "1g")
    .config("spark.local.dir", str(folder / "scratch"))
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", (folder / "events").as_uri())
    .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    .config("spark.sql.shuffle.partitions", "2")
)
for name, value in good.items():
    name = {"key": "access.key"}.get(name, name)
    builder = builder.config(f"spark.icechunk.credentials.configured.{name}", value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("INFO")
replaces_sources = spark.version >= "4.2"

def renewed():
    return {**good, "expires_at": datetime.now(timezone.utc) + timedelta(hours=1)}

icechunk_spark.register(spark, credentials={"weather": good, "wrong": wrong, "renewed": renewed})
frame = spark.range(24).selectExpr("id div 4 AS x", "id % 4 AS y", "cast(id AS float) AS v")
to = frame.write.format("icechunk").option("credentials", "weather").options(dims="x,y")
to.mode("overwrite").save(path)
for name in ("configured", "renewed", "weather"):
    read = spark.read.format("icechunk").option("credentials", name).load(path)
    assert read.where("x > 2").count() == 12, read
    sql = f"SELECT sum(v) FROM icechunk('{path}', credentials => '{name}')"
    spark.sql(f"EXPLAIN EXTENDED {sql}").show(truncate=False)
    assert spark.sql(sql).first()[0] == 276
done = icechunk_spark.write(frame, path, mode="append", credentials="weather")
print(repr(done))
icechunk_spark.view(spark, "fresh", path, credentials="renewed")
spark.sql("EXPLAIN EXTENDED SELECT sum(v) FROM fresh WHERE x > 1").show(truncate=False)
assert spark.sql("SELECT sum(v) FROM fresh").first()[0] == 276
pinned = str(done.snapshot_id)
icechunk_spark.view(spark, "pinned", path, credentials="weather", snapshot=pinned)
assert spark.table("pinned").count() == 24
spark.sparkContext.setCheckpointDir(str(folder / "rdds"))
assert spark.table("fresh").checkpoint().count() == 24
read.write.mode("overwrite").saveAsTable("copied")

icechunk_spark.register(spark, reader="source", credentials={"weather": good, "wrong": wrong})
read = spark.read.format("icechunk").option("credentials", "weather").load(path)
read.explain(True)
assert read.count() == 24
if replaces_sources:
    options = f"path '{path}', credentials 'weather'"
    spark.sql(f"CREATE TEMPORARY VIEW source USING icechunk OPTIONS ({options})")
    spark.sql("EXPLAIN EXTENDED SELECT * FROM source").show(truncate=False)
    assert spark.table("source").count() == 24
    spark.sql("INSERT INTO source SELECT * FROM source")
stream = spark.readStream.format("icechunk").option("credentials", "weather").load(path)
for number, sink in enumerate((f"{path}-streamed", None)):
    to = stream.writeStream.option("checkpointLocation", str(folder / "checkpoints" / str(number)))
    to = to.trigger(availableNow=True)
    if sink is None:
        query = to.format("parquet").start(str(folder / "streamed"))
    else:
        query = to.format("icechunk").options(credentials="weather", dims="x,y").start(sink)
    query.awaitTermination()
    print(query.lastProgress, query.status)
icechunk_spark.register(spark, credentials={"weather": good, "wrong": wrong, "renewed": renewed})
assert icechunk_spark.read(spark, f"{path}-streamed", credentials="weather").count() == 24
assert icechunk_spark.rechunk(spark, path, chunks={"x": 1}, credentials="weather")
icechunk_spark.mirror(spark, path, str(folder / "mirror"), credentials="weather")
assert icechunk_spark.freshness(str(folder / "mirror"), spark=spark, credentials="weather").is_fresh

other = spark.newSession()
icechunk_spark.register(other, credentials={"weather": wrong})

def fails(action, word=""):
    try:
        action()
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        assert word in str(error), str(error)
        print("FAILED AS IT SHOULD", type(error).__name__)
        return
    print("DID NOT FAIL")

fails(lambda: icechunk_spark.read(spark, path, credentials="wrong"))
fails(lambda: icechunk_spark.write(frame, path, mode="append", credentials="wrong"))
fails(lambda: spark.sql(f"SELECT * FROM icechunk('{path}', credentials => 'wrong')").collect())
fails(lambda: spark.sql(f"SELECT * FROM icechunk('{path}', credentials => 'nobody')"), "nobody")
fails(lambda: icechunk_spark.read(other, path, credentials="weather").count())
fails(lambda: other.sql(f"SELECT * FROM icechunk('{path}', credentials => 'weather')").collect())
fails(lambda: icechunk_spark.view(other, "fresh", path, credentials="weather"))
assert spark.sql("SELECT sum(v) FROM fresh").first()[0] == 276
url = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
for page in ("sql?details=true&planDescription=true&length=1000", "environment", "jobs", "stages"):
    (folder / "pages").mkdir(exist_ok=True)
    text = urllib.request.urlopen(f"{url}/{page}").read()
    (folder / "pages" / page.partition("?")[0]).write_bytes(text)
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


def test_named_credentials_are_used_everywhere_and_shown_nowhere(s3_server, tmp_path):
    bucket = s3_server.new_bucket()
    path = f"s3://{bucket}/named"
    good = dict(s3_server.storage_options)
    given = {"good": good, "wrong": {**good, "secret": WRONG_SECRET}}
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
            program.stdin.write(json.dumps(given) + "\n")
            program.stdin.flush()
            while program.poll() is None and "READY" not in log.read_text():
                time.sleep(0.5)
            assert "READY" in log.read_text(), log.read_text()[-4000:]
            searched(tmp_path)
            program.stdin.write("end\n")
            program.stdin.flush()
            assert program.wait(timeout=120) == 0
        finally:
            if program.poll() is None:
                program.kill()
                program.wait(timeout=15)
    text = log.read_text()
    assert "DID NOT FAIL" not in text
    assert text.count("FAILED AS IT SHOULD") == 7
    assert "configured.access.key" in (tmp_path / "pages" / "environment").read_text()
    events = b"".join(f.read_bytes() for f in (tmp_path / "events").rglob("*") if f.is_file())
    assert b"SparkListenerSQLExecutionStart" in events
    assert path.encode() in events
    assert any((tmp_path / "checkpoints").rglob("*"))
    searched(tmp_path)
    store = s3_server.raw_store(bucket)
    found = [item for page in obstore.list(store) for item in page]
    assert len(found) > 10
    for item in found:
        data = bytes(obstore.get(store, item["path"]).bytes())
        assert not any(canary.encode() in data for canary in CANARIES), item
