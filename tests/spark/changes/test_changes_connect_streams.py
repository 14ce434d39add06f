"""Streams of a Spark Connect client: the source follows, and the sink stages its batches."""

from __future__ import annotations

from helpers.spark.connect_client import answer_over_connect
from helpers.spark.streams import append, commits_of_streams

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
import icechunk_spark

source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
icechunk_spark.register(spark)

def run():
    rows = spark.readStream.format("icechunk").option("maxSnapshotsPerTrigger", 2).load(source)
    writer = rows.writeStream.format("icechunk").option("checkpointLocation", checkpoint)
    writer = writer.option("dims", "time,x").option("chunks", "time=1").option("path", target)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(200)
    return str(query.id)

ids = [run(), run()]
count = spark.read.format("icechunk").load(target).count()
print("ANSWER " + json.dumps([ids, count]))
"""


def test_a_stream_from_one_repository_into_another(tmp_path):
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    for time in range(3):
        append(source, [time])
    ids, count = answer_over_connect(PROGRAM, source, target, str(tmp_path / "checkpoint"))
    assert ids[0] == ids[1]
    assert count == 6
    assert commits_of_streams(target) == [(ids[0], 0), (ids[0], 1)]
