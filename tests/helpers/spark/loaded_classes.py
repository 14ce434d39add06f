"""Keeps the classes that Spark loads in a file, from which the JVMs of the tests take them.

A JVM spends most of its start on reading and checking some 20,000 classes. The file is Java's own
(class data sharing). A JVM with other jars, or of another release, loads the classes as ever.

``python tests/helpers/spark/loaded_classes.py`` makes the file in the environment that runs it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

FILE = Path(sys.prefix) / "spark-classes.jsa"


def java_options() -> str:
    """Return the options of every JVM of the tests.

    Each lives for a minute or two: code that is compiled once and quickly serves it better than the
    best code, and two cores have no time for parallel collectors.
    """
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    if FILE.exists():
        options += f" -XX:SharedArchiveFile={FILE} -Xlog:cds=off -Xlog:cds+dynamic=off"
    return options


def main() -> None:
    """Use Spark as the tests do, and let its JVM write the classes when it ends."""
    FILE.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = java_options()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={FILE} -Xlog:disable")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    gateway = session.sparkContext._gateway
    with tempfile.TemporaryDirectory() as folder:
        rows = session.range(1000).selectExpr("id", "id % 10 AS key", "string(id) AS text")
        rows.write.parquet(f"{folder}/rows")
        stored = session.read.parquet(f"{folder}/rows")
        stored.groupBy("key").avg("id").orderBy("key").toPandas()
        joined = stored.join(rows.select("id"), "id")
        joined.mapInArrow(lambda batches: batches, joined.schema).count()
        stream = session.readStream.schema(rows.schema).parquet(f"{folder}/rows")
        stream.writeStream.format("noop").trigger(availableNow=True).option(
            "checkpointLocation", f"{folder}/checkpoint"
        ).start().awaitTermination()
        with contextlib.suppress(AnalysisException):
            session.read.format("icechunk").load(f"{folder}/nothing")
        session.stop()
    # The JVM ends with its input.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
