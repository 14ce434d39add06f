"""A flow that reads the changes of a repository, and a sink that commits them to another one."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

dp.create_sink(
    "warm",
    "icechunk",
    {
        "path": spark.conf.get("weather.warm"),
        "dims": "time,station",
        "chunks": "time=24",
        "minDensity": "0",
    },
)


@dp.append_flow(target="warm")
def warm_readings() -> DataFrame:
    """Return the changed rows of the repository that are warm."""
    readings = spark.readStream.format("icechunk").load(spark.conf.get("weather.readings"))
    return readings.where("t2m > 290")
