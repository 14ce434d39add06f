"""Spark Connect plans its writes like a classic session; the client needs the storage, too.

Classic and Connect sessions do not mix in one process, so the client runs in one of its own and
answers with JSON.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.spark.connect_client import answer_over_connect
from helpers.spark.written import hours, messages, reference_dataset

pytestmark = pytest.mark.needs_reference

CLIENT = """
import json, os, sys
from datetime import datetime, timedelta, timezone
from pyspark.sql import SparkSession
import icechunk_spark
from icechunk_spark import maintenance

path = sys.argv[1]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "Asia/Kolkata")
    .getOrCreate()
)
icechunk_spark.register(spark)
def frame(first, count, value):
    return spark.range(first * 6, (first + count) * 6).selectExpr(
        "timestamp_ntz '2024-07-01' + make_dt_interval(0, cast(id div 6 as int)) AS time",
        "cast(id % 6 AS double) AS latitude",
        f"cast({value} AS float) AS t2m",
    )
answer = {"connect": "connect" in type(spark).__module__}
writer = frame(0, 4, "id").write.format("icechunk").option("dims", "time,latitude")
writer.option("chunks", "time=2").save(path)
done = icechunk_spark.write(frame(3, 2, "-1"), path, mode="append", message="From afar")
answer["rows"], answer["snapshot"] = done.rows, str(done.snapshot_id)
doubled = frame(4, 1, "0").union(frame(4, 1, "1"))
for mode, again in (("error", frame(0, 1, "0")), ("append", doubled)):
    try:
        icechunk_spark.write(again, path, mode=mode, dims="time,latitude")
    except Exception as error:
        answer[mode] = [type(error).__name__, str(error)]
os.makedirs(path + "/chunks", exist_ok=True)
open(path + "/chunks/ZZZZZZZZZZZZZZZZZZZG", "wb").write(b"litter")
soon = datetime.now(timezone.utc) + timedelta(seconds=5)
collected = [
    maintenance.collect_garbage(spark, path, soon, dry_run=dry).chunks_deleted
    for dry in (True, False, True)
]
answer["collected"] = collected
frame(0, 1, "id").write.mode("overwrite").parquet(path + "-parquet")
answer["parquet"] = spark.read.parquet(path + "-parquet").count()
icechunk_spark.unregister(spark)
answer["undone"] = not hasattr(frame(0, 1, "id").write, "_icechunk_options")
print(json.dumps(answer))
spark.stop()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("connect") / "weather")


@pytest.fixture(scope="module")
def answer(path):
    return answer_over_connect(CLIENT, path)


def test_rows_land(answer, path):
    assert answer["connect"] is True
    assert answer["rows"] == 12
    expected = np.arange(30, dtype="float32").reshape(5, 6)
    expected[3:] = -1
    found = reference_dataset(path)
    np.testing.assert_array_equal(found["t2m"].values, expected)
    np.testing.assert_array_equal(found["time"].values, hours(0, 5))
    assert messages(path)[0] == "From afar"


def test_errors_are_ours(answer):
    assert answer["error"][0] == "AlreadyExistsError"
    assert answer["append"][0] == "InvalidInputError"
    assert "latitude" in answer["append"][1]


def test_garbage_is_collected(answer):
    planned, collected, left = answer["collected"]
    assert planned == collected >= 1
    assert left == 0


def test_other_formats_and_undoing(answer):
    assert answer["parquet"] == 6
    assert answer["undone"] is True
