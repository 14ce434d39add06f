"""Spark Connect reads the same rows, with the same pinning and the same errors.

Classic and Connect sessions do not mix in one process, so the client runs in one of its own and
answers with JSON. ``remote("local[2]")`` starts a server on this machine.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.spark.connect_client import answer_over_connect
from helpers.spark.repositories import SHAPE, T2M, T2M_V1

pytestmark = pytest.mark.needs_reference

CLIENT = """
import json, sys
from pyspark.sql import SparkSession, functions as F
import icechunk_spark

path = sys.argv[1]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
icechunk_spark.register(spark)
icechunk_spark.register(spark)
answer = {"connect": "connect" in type(spark).__module__}
frame = spark.read.format("icechunk").load(path)
answer["types"] = [field.dataType.simpleString() for field in frame.schema]
answer["count"], answer["sum"] = tuple(frame.agg(F.count("*"), F.sum("t2m")).first())
answer["where"] = spark.read.format("icechunk").load(path, where="latitude >= 50").count()
by_function = icechunk_spark.read(spark, path, where="latitude >= 50")
answer["function"] = by_function.count()
answer["function_schema_is_the_same"] = by_function.schema == frame.schema
sql = "CREATE TEMPORARY VIEW v USING icechunk OPTIONS (path '%s', tag 'v1')" % path
spark.sql(sql)
answer["view"] = spark.sql("SELECT count(t2m) FROM v").first()[0]
points = spark.range(0, 4).selectExpr(
    "timestamp_ntz'2024-07-01' AS at", "60 - 5D * id AS lat", "2D * id AS lon"
)
on = {"time": "at", "latitude": "lat", "longitude": F.col("lon") + 360}
few = icechunk_spark.sample(points, path, on=on, variables=["t2m"], tag="v1")
answer["few"] = [few.orderBy("lon").toArrow()["t2m"].to_pylist(), few.columns]
answer["few_shuffled"] = "Exchange" in few._explain_string()
many = icechunk_spark.sample(
    spark.range(200000).join(points), path, on=on, variables=["t2m"], tag="v1"
)
answer["many"] = list(many.agg(F.count("*"), F.sum("t2m")).first())
answer["many_shuffled"] = "REBALANCE" in many._explain_string()
try:
    spark.read.format("icechunk").load(path, tag="v9").count()
except Exception as error:
    answer["error"] = str(error)
print(json.dumps(answer))
spark.stop()
"""


@pytest.fixture(scope="module")
def answer(weather):
    return answer_over_connect(CLIENT, weather.path)


def test_it_is_a_connect_session(answer):
    assert answer["connect"] is True


def test_rows(answer):
    assert answer["types"] == ["timestamp_ntz", "double", "double", "float", "double"]
    assert answer["count"] == int(np.prod(SHAPE))
    assert answer["sum"] == pytest.approx(float(np.nansum(T2M.astype("f8"))))
    assert answer["where"] == answer["function"] == 240
    assert answer["function_schema_is_the_same"] is True
    assert answer["view"] == int(np.prod(SHAPE)) - 3


def test_sampling(answer):
    values = [float(T2M_V1[0, step, step]) for step in range(4)]
    assert answer["few"] == [values, ["at", "lat", "lon", "t2m"]]
    assert answer["many"] == [800_000, pytest.approx(200_000 * sum(values))]
    assert (answer["few_shuffled"], answer["many_shuffled"]) == (False, True)


def test_errors(answer):
    assert "v9" in answer["error"]
    assert "v1" in answer["error"]
