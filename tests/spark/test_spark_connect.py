"""Spark Connect reads, writes and keeps up the same data, with the same pinning and errors.

Classic and Connect sessions do not mix in one process, so one client runs everything in a process
of its own and answers with JSON. ``remote("local[2]")`` starts a server on this machine.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.damage.repository import LINES, Damaged, build_sound
from helpers.files.appended import STEPS, WIDTH, build_appended
from helpers.sessions.model import stored_contents
from helpers.spark.connect_client import answer_over_connect
from helpers.spark.repositories import SHAPE, T2M, T2M_V1
from helpers.spark.written import hours, messages, reference_dataset

from icechunk_format import maintenance
from icechunk_format.repository import Repository

pytestmark = pytest.mark.needs_reference

CLIENT = """
import json, os, sys
from datetime import datetime, timedelta, timezone
from pyspark.sql import SparkSession, functions as F
import icechunk_spark
from icechunk_spark import maintenance

weather, path, damaged, source, target = sys.argv[1:]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "Asia/Kolkata")
    .getOrCreate()
)
icechunk_spark.register(spark)
icechunk_spark.register(spark)
answer = {"connect": "connect" in type(spark).__module__}

# Reading
frame = spark.read.format("icechunk").load(weather)
answer["types"] = [field.dataType.simpleString() for field in frame.schema]
answer["count"], answer["sum"] = tuple(frame.agg(F.count("*"), F.sum("t2m")).first())
answer["where"] = spark.read.format("icechunk").load(weather, where="latitude >= 50").count()
by_function = icechunk_spark.read(spark, weather, where="latitude >= 50")
answer["function"] = by_function.count()
zoned = {"timestampType": "utc", "where": "hour(time) = 23"}
answer["zoned"] = [
    spark.read.format("icechunk").load(weather, **zoned).count(),
    icechunk_spark.read(spark, weather, **zoned).count(),
    spark.read.format("icechunk").load(weather, timestampType="utc").where(zoned["where"]).count(),
]
words = (weather, zoned["where"])
sql = "CREATE TEMPORARY VIEW z USING icechunk OPTIONS (path '%s', timestampType 'utc', where '%s')"
spark.sql(sql % words)
answer["zoned"].append(spark.table("z").count())
schema = frame.schema
for field in schema:
    assert field.metadata["icechunk"].pop("base")["branch"] == "main"
answer["function_schema_is_the_same"] = by_function.schema == schema
sql = "CREATE TEMPORARY VIEW v USING icechunk OPTIONS (path '%s', tag 'v1')" % weather
spark.sql(sql)
answer["view"] = spark.sql("SELECT count(t2m) FROM v").first()[0]
icechunk_spark.view(spark, "fresh", weather)
answer["fresh_view"] = spark.sql("SELECT count(*) FROM fresh").first()[0]
call = "SELECT count(*) FROM icechunk('%s', tag => 'v1', isel => 'time=0')" % weather
answer["table_function"] = spark.sql(call).first()[0]
points = spark.range(0, 4).selectExpr(
    "timestamp_ntz'2024-07-01' AS at", "60 - 5D * id AS lat", "2D * id AS lon"
)
on = {"time": "at", "latitude": "lat", "longitude": F.col("lon") + 360}
few = icechunk_spark.sample(points, weather, on=on, variables=["t2m"], tag="v1")
answer["few"] = [few.orderBy("lon").toArrow()["t2m"].to_pylist(), few.columns]
answer["few_shuffled"] = "Exchange" in few._explain_string()
many = icechunk_spark.sample(
    spark.range(200000).join(points), weather, on=on, variables=["t2m"], tag="v1"
)
answer["many"] = list(many.agg(F.count("*"), F.sum("t2m")).first())
answer["many_shuffled"] = "REBALANCE" in many._explain_string()
try:
    spark.read.format("icechunk").load(weather, tag="v9").count()
except Exception as error:
    answer["error"] = str(error)

# Writing
def rows(first, count, value):
    return spark.range(first * 6, (first + count) * 6).selectExpr(
        "timestamp_ntz '2024-07-01' + make_dt_interval(0, cast(id div 6 as int)) AS time",
        "cast(id % 6 AS double) AS latitude",
        f"cast({value} AS float) AS t2m",
    )
writer = rows(0, 4, "id").write.format("icechunk").option("dims", "time,latitude")
writer.option("chunks", "time=2").save(path)
def door(open_it):
    try:
        open_it(rows(9, 1, "0").writeTo("door").using("icechunk").option("path", path))
    except Exception as error:
        return "save(path)" in str(error) and not spark.catalog.tableExists("door")
    return False
answer["doors"] = [door(lambda writer: writer.create()), door(lambda w: w.createOrReplace())]
icechunk_spark.unregister(spark)
answer["doors"] += [door(lambda writer: writer.create()), door(lambda w: w.createOrReplace())]
icechunk_spark.register(spark)
view = "CREATE TEMPORARY VIEW stale USING icechunk OPTIONS (path '%s')" % path
spark.sql(view)
done = icechunk_spark.write(rows(3, 2, "-1"), path, mode="append", message="From afar")
try:
    spark.sql("INSERT OVERWRITE stale SELECT * FROM stale WHERE latitude > 2")
except Exception as error:
    answer["stale"] = str(error)
answer["rows"] = done.rows
doubled = rows(4, 1, "0").union(rows(4, 1, "1"))
for mode, again in (("error", rows(0, 1, "0")), ("append", doubled)):
    try:
        icechunk_spark.write(again, path, mode=mode, dims="time,latitude")
    except Exception as error:
        answer["written " + mode] = [type(error).__name__, str(error)]

# Maintenance
os.makedirs(path + "/chunks", exist_ok=True)
open(path + "/chunks/ZZZZZZZZZZZZZZZZZZZG", "wb").write(b"litter")
soon = datetime.now(timezone.utc) + timedelta(seconds=5)
answer["collected"] = [
    maintenance.collect_garbage(spark, path, soon, dry_run=dry).chunks_deleted
    for dry in (True, False, True)
]
found = maintenance.verify(spark, damaged, deep=True)
answer["findings"] = [row.asDict() for row in found.collect()]
copied = maintenance.copy(spark, source, target, target_branch="main")
packed = maintenance.rewrite_manifests(spark, target)
answer["copied"] = [copied.chunks, packed.manifests_after, packed.references]

rows(0, 1, "id").write.mode("overwrite").parquet(path + "-parquet")
answer["parquet"] = spark.read.parquet(path + "-parquet").count()
icechunk_spark.unregister(spark)
answer["undone"] = not hasattr(rows(0, 1, "id").write, "_icechunk_options")
print("ANSWER", json.dumps(answer))
spark.stop()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("connect") / "weather")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    build_sound(folder / "sound")
    copy = Damaged(folder / "sound", folder / "repository")
    copy.file(copy.chunk_key(LINES, 0)).unlink()
    copy.flip(copy.chunk_key(LINES, 2), 500)
    return str(copy.path)


@pytest.fixture(scope="module")
def appended(tmp_path_factory):
    return build_appended(tmp_path_factory.mktemp("appended") / "repository")


@pytest.fixture(scope="module")
def answer(weather, path, damaged, appended):
    source = appended.location.url
    return answer_over_connect(CLIENT, weather.path, path, damaged, source, f"{source}-copy")


def test_it_is_a_connect_session(answer):
    assert answer["connect"] is True


def test_rows(answer):
    assert answer["types"] == ["timestamp_ntz", "double", "double", "float", "double"]
    assert answer["count"] == int(np.prod(SHAPE))
    assert answer["sum"] == pytest.approx(float(np.nansum(T2M.astype("f8"))))
    assert answer["where"] == answer["function"] == 240
    assert answer["zoned"] == [120] * 4
    assert answer["doors"] == [True] * 4
    assert "ConflictError" in answer["stale"]
    assert answer["function_schema_is_the_same"] is True
    assert answer["view"] == int(np.prod(SHAPE)) - 3
    assert answer["fresh_view"] == np.prod(SHAPE)
    assert answer["table_function"] == np.prod(SHAPE[1:])


def test_sampling(answer):
    values = [float(T2M_V1[0, step, step]) for step in range(4)]
    assert answer["few"] == [values, ["at", "lat", "lon", "t2m"]]
    assert answer["many"] == [800_000, pytest.approx(200_000 * sum(values))]
    assert (answer["few_shuffled"], answer["many_shuffled"]) == (False, True)


def test_errors_of_reading(answer):
    assert "v9" in answer["error"]
    assert "v1" in answer["error"]


def test_rows_land(answer, path):
    assert answer["rows"] == 12
    expected = np.arange(30, dtype="float32").reshape(5, 6)
    expected[3:] = -1
    found = reference_dataset(path)
    np.testing.assert_array_equal(found["t2m"].values, expected)
    np.testing.assert_array_equal(found["time"].values, hours(0, 5))
    assert messages(path)[0] == "From afar"


def test_errors_of_writing_are_ours(answer):
    assert answer["written error"][0] == "AlreadyExistsError"
    assert answer["written append"][0] == "InvalidInputError"
    assert "latitude" in answer["written append"][1]


def test_garbage_is_collected(answer):
    planned, collected, left = answer["collected"]
    assert planned == collected >= 1
    assert left == 0


def test_a_damaged_repository_is_verified(answer, damaged):
    assert answer["findings"] == maintenance.verify(damaged, deep=True).to_pylist()


def test_a_repository_is_copied_and_its_manifests_are_rewritten(answer, appended):
    assert answer["copied"] == [STEPS * WIDTH, 2, 2 * STEPS * WIDTH]
    copy = Repository.open(f"{appended.location.url}-copy")
    assert stored_contents(copy, copy.resolve()) == stored_contents(appended, appended.resolve())


def test_other_formats_and_undoing(answer):
    assert answer["parquet"] == 6
    assert answer["undone"] is True
