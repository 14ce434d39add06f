"""A stream whose labels the array would round ends with an error, and overwrites no other label."""

from __future__ import annotations

import pytest
from helpers.spark.session import source_session
from pyspark.errors import StreamingQueryException

import icechunk_spark
from icechunk_format.repository import Repository

pytestmark = pytest.mark.each_spark

# The type of labels, their encoding, a stored label, one that is rounded to it, and one that fits.
CASES = {
    "float32 days": (
        "timestamp_ntz",
        '{"x": {"dtype": "float32", "units": "days since 1858-11-17"}}',
        ("2024-01-01 00:00:00", "2024-01-01 00:02:00", "2024-01-01 06:00:00"),
    ),
    "packed": (
        "double",
        '{"x": {"dtype": "int16", "scale_factor": 0.5}}',
        ("10.0", "10.2", "10.5"),
    ),
}


def rows(spark, kind, label, value):
    return spark.range(1).selectExpr(f"cast('{label}' AS {kind}) AS x", f"{value}D AS v")


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_rounded_label_ends_the_stream(spark, tmp_path, name, registered):
    session = spark if registered else source_session(spark)
    kind, encoding, (stored, moved, held) = CASES[name]
    path, folder = str(tmp_path / "r"), str(tmp_path / "rows")
    icechunk_spark.write(rows(spark, kind, stored, 1), path, dims=["x"], encoding=encoding)

    def stream():
        source = session.readStream.schema(f"x {kind}, v double").parquet(folder)
        writer = source.writeStream.format("icechunk").option("path", path)
        query = (
            writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

    rows(spark, kind, held, 2).write.mode("append").parquet(folder)
    stream()
    before = Repository.open(path).resolve(branch="main")
    rows(spark, kind, moved, 3).write.mode("append").parquet(folder)
    with pytest.raises(StreamingQueryException, match="labels are not rounded"):
        stream()
    assert Repository.open(path).resolve(branch="main") == before
    found = icechunk_spark.read(spark, path).selectExpr("cast(x AS string) AS x", "v").collect()
    assert [(row["x"], row["v"]) for row in found] == [(stored, 1.0), (held, 2.0)]
