"""Programs that use named credentials in every way, and a search for them in all that they left.

The programs take the URL of a repository that does not exist and a folder, and from their input a
line of JSON: right credentials and wrong ones. They print READY, and end after another line.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helpers.spark.session import environment_of_a_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

WRONG_SECRET = "canary-wrong-secret-77aa"

PATIENT = {
    "spark.python.authenticate.socketTimeout": "600s",
    "spark.network.timeout": "600s",
    "spark.executor.heartbeatInterval": "60s",
}
# Refused calls of each program.
REFUSED = 7

# Parts of both programs.
WORKFLOWS = """
assert icechunk_spark.read(spark, f"{path}-streamed", credentials="weather").count() == 24
assert icechunk_spark.rechunk(spark, path, chunks={"x": 1}, credentials="weather")
icechunk_spark.mirror(spark, path, str(folder / "mirror"), credentials="weather")
assert icechunk_spark.freshness(str(folder / "mirror"), spark=spark, credentials="weather").is_fresh
"""

REFUSALS = """
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
"""

# Third argument: the master.
CLASSIC = (
    """
import json, os, sys, traceback, urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path
from pyspark.sql import SparkSession
import icechunk_spark

path, folder, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.stdin.readline())
master = sys.argv[3] if len(sys.argv) > 3 else "local[2]"
good, wrong = given["good"], given["wrong"]
builder = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "true")
    .config("spark.ui.port", "0")
    .config("spark.driver.memory", "1g")
    .config("spark.executor.memory", "512m")
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
"""
    + WORKFLOWS
    + """

other = spark.newSession()
icechunk_spark.register(other, credentials={"weather": wrong})

"""
    + REFUSALS
    + """
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
)

# Third argument: the URL of a server of Spark Connect, whose environment has the name `served`, and
# whose Spark has `configured`, which clients do not see.
CONNECT = (
    """
import json, sys, traceback
from datetime import datetime, timedelta, timezone
from pathlib import Path
from pyspark.sql import SparkSession
import icechunk_spark

path, folder, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.stdin.readline())
good, wrong = given["good"], given["wrong"]
spark = SparkSession.builder.remote(sys.argv[3]).getOrCreate()

def renewed():
    return {**good, "expires_at": datetime.now(timezone.utc) + timedelta(hours=1)}

names = {"weather": good, "wrong": wrong, "renewed": renewed}
icechunk_spark.register(spark, credentials=names)
frame = spark.range(24).selectExpr("id div 4 AS x", "id % 4 AS y", "cast(id AS float) AS v")
to = frame.write.format("icechunk").option("credentials", "weather").options(dims="x,y")
to.mode("overwrite").save(path)
print(repr(icechunk_spark.write(frame, path, mode="append", credentials="renewed")))
for name in ("served", "renewed", "weather"):
    read = spark.read.format("icechunk").option("credentials", name).load(path)
    read.explain(True)
    assert read.where("x > 2").count() == 12, name
    if name != "served":  # of the server's environment, and a function plans in the client
        assert icechunk_spark.read(spark, path, credentials=name).count() == 24
    sql = f"SELECT sum(v) FROM icechunk('{path}', credentials => '{name}')"
    spark.sql(f"EXPLAIN EXTENDED {sql}").show(truncate=False)
    assert spark.sql(sql).first()[0] == 276
icechunk_spark.view(spark, "fresh", path, credentials="renewed")
spark.sql("EXPLAIN EXTENDED SELECT sum(v) FROM fresh WHERE x > 1").show(truncate=False)
assert spark.sql("SELECT sum(v) FROM fresh").first()[0] == 276
assert icechunk_spark.attach(spark, {"tables": {"named": {"path": path, "credentials": "weather"}}})
assert [row["rows"] for row in icechunk_spark.tables(spark).collect()] == [24]
for name, kind in (("source", "TEMPORARY"), ("shared", "GLOBAL TEMPORARY")):
    options = f"path '{path}', credentials 'served'"
    spark.sql(f"CREATE {kind} VIEW {name} USING icechunk OPTIONS ({options})")
spark.sql("EXPLAIN EXTENDED SELECT * FROM source").show(truncate=False)
assert spark.table("source").count() == 24
other = spark.newSession()
assert other.table("global_temp.shared").count() == 24
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
"""
    + WORKFLOWS
    + """
icechunk_spark.register(other, credentials={"weather": wrong})

"""
    + REFUSALS
    + """
sql = f"SELECT * FROM icechunk('{path}', credentials => 'nobody')"
fails(lambda: spark.sql(sql).schema, "nobody")
fails(lambda: icechunk_spark.read(spark, path, credentials="configured"), "named 'configured'")
fails(lambda: icechunk_spark.read(other, path, credentials="weather").count())
fails(lambda: icechunk_spark.register(spark, storage_from_spark=True), "storage.from_spark")
print("READY", flush=True)
sys.stdin.readline()
spark.stop()
"""
)


@contextlib.contextmanager
def running(
    program: str, folder: Path, path: str, good: Mapping[str, str], *arguments: str
) -> Iterator[Any]:
    """Run a program in a folder until it is ready; yield its log; then let it end."""
    for name in ("events", "scratch", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, path, str(folder), *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment_without_credentials(folder),
            cwd=folder,
        )
        try:
            given = {"good": dict(good), "wrong": {**good, "secret": WRONG_SECRET}}
            process.stdin.write(json.dumps(given) + "\n")
            process.stdin.flush()
            while process.poll() is None and "READY" not in log.read_text():
                time.sleep(0.5)
            assert "READY" in log.read_text(), log.read_text()[-4000:]
            yield log
            process.stdin.write("end\n")
            process.stdin.flush()
            assert process.wait(timeout=120) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(timeout=15)
    text = log.read_text()
    assert "DID NOT FAIL" not in text
    assert text.count("FAILED AS IT SHOULD") == REFUSED


def environment_without_credentials(folder: Path) -> dict[str, str]:
    """Return the variables of a program whose temporary files are in a folder."""
    environment = environment_of_a_program(
        SPARK_LOCAL_DIRS=str(folder / "scratch"),
        TMPDIR=str(folder / "tmp"),
        SPARK_AUTH_SOCKET_TIMEOUT="600",
    )
    # A Python worker may take longer to start than Spark waits, on a machine with other work.
    patient = " ".join(f"--conf {name}={value}" for name, value in PATIENT.items())
    environment["PYSPARK_SUBMIT_ARGS"] = f"{patient} {environment['PYSPARK_SUBMIT_ARGS']}"
    return {name: v for name, v in environment.items() if not name.startswith("AWS_")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """How much a search has read."""

    files: int
    bytes: int


def search(folders: Sequence[Path], canaries: Sequence[str]) -> Searched:
    """Assert that no file below some folders has one of the credentials; return what was read."""
    files = size = 0
    for folder in folders:
        for file in folder.rglob("*"):
            if file.is_file():
                data = file.read_bytes()
                assert not any(canary.encode() in data for canary in canaries), file
                files, size = files + 1, size + len(data)
    return Searched(files=files, bytes=size)
