"""Tasks count what they read, and the driver gets the counts of the last query."""

import pytest
from helpers.raised import raises
from helpers.spark.session import by_source
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import UnsupportedError


@pytest.fixture(scope="module")
def place(spark, tmp_path_factory):
    rows = spark.range(20_000).selectExpr("id div 100 AS y", "id % 100 AS x", "sin(id) AS v")
    path = str(tmp_path_factory.mktemp("metrics") / "r")
    done = icechunk_spark.write(rows, path, dims=["y", "x"], chunks={"y": 10, "x": 100})
    assert done.totals.chunks_encoded == done.chunks == 20
    written = done.commit.bytes_written
    # Tasks store manifests, too.
    assert 0 <= done.totals.bytes_written - written["chunks"] <= written["manifests"]
    assert done.totals.requests >= 20
    return path


def chunks(metrics):
    # Labels of dimensions are read once by each worker.
    return metrics.chunks_decoded // 20 * 20


@pytest.mark.each_spark
def test_each_query_has_counts_of_its_own(spark, place):
    frame = icechunk_spark.read(spark, place, variables=["v"])
    selected = icechunk_spark.read(spark, place, isel="y=0:10")
    assert icechunk_spark.last_read_metrics(selected) is None
    frame.collect()
    first = icechunk_spark.last_read_metrics(frame)
    assert (first.rows, chunks(first)) == (20_000, 20)
    estimate = icechunk_spark.estimate(None, place)
    assert first.bytes_read >= estimate.stored_bytes
    derived = frame.groupBy("y").agg(F.max(F.col("v") * F.col("v")))  # by Spark
    derived.collect()
    assert icechunk_spark.last_read_metrics(derived).rows == 20_000
    both = frame.union(frame)
    both.collect()
    assert icechunk_spark.last_read_metrics(both).rows == 40_000
    assert icechunk_spark.last_read_metrics(frame).rows == 40_000
    selected.collect()
    assert icechunk_spark.last_read_metrics(selected).rows == 1_000
    assert icechunk_spark.last_read_metrics(frame).rows == 40_000


@pytest.mark.each_spark
def test_an_iterator_has_counts_of_its_own(spark, place):
    selected = icechunk_spark.read(spark, place, isel="y=0:20")
    assert len(list(selected.toLocalIterator())) == 2_000
    assert icechunk_spark.last_read_metrics(selected).rows == 2_000
    assert len(list(selected.toLocalIterator(prefetchPartitions=True))) == 2_000
    assert icechunk_spark.last_read_metrics(selected).rows == 2_000
    twice = selected.union(selected)
    twice.collect()
    assert icechunk_spark.last_read_metrics(selected).rows == 4_000
    assert len(list(selected.toLocalIterator())) == 2_000
    assert icechunk_spark.last_read_metrics(selected).rows == 2_000


@pytest.mark.newest_spark
@pytest.mark.parametrize("prefetch", [False, True])
def test_the_jvm_keeps_no_rows_of_an_iterator(spark, prefetch):
    kept = spark.sparkContext._jsc.sc().dagScheduler().activeQueryToJobs()
    before = kept.size()
    rows = spark.range(0, 40, 1, 4).where("id >= 0")
    assert len(list(rows.toLocalIterator(prefetchPartitions=prefetch))) == 40
    assert kept.size() == before


def test_a_query_whose_tasks_are_stopped_does_not_count(spark, place):
    frame = icechunk_spark.read(spark, place, rows_per_partition=2_000)
    frame.limit(1).collect()
    assert icechunk_spark.last_read_metrics(frame) is None
    frame.collect()
    assert icechunk_spark.last_read_metrics(frame).tasks > 1


@pytest.mark.each_spark
def test_views_and_the_table_function_have_counts(spark, place):
    icechunk_spark.view(spark, "counted", place, variables=["v"])
    frame = spark.sql("SELECT y, sum(v * v) FROM counted GROUP BY y")
    assert icechunk_spark.last_read_metrics(frame) is None
    frame.collect()
    done = icechunk_spark.last_read_metrics(frame)
    assert (done.rows, chunks(done)) == (20_000, 20)
    called = spark.sql(f"SELECT * FROM icechunk('{place}', isel => 'y=0:10')")
    called.collect()
    assert icechunk_spark.last_read_metrics(called).rows == 1_000
    assert icechunk_spark.last_read_metrics(frame).rows == 20_000


def test_another_frame_has_none(spark, place):
    icechunk_spark.read(spark, place).count()
    assert icechunk_spark.last_read_metrics(spark.range(3)) is None
    assert icechunk_spark.last_read_metrics(by_source(spark).load(place)) is None


def test_connect_has_no_accumulators():
    class Frame:
        sparkSession = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()

    with raises(UnsupportedError, method="last_read_metrics"):
        icechunk_spark.last_read_metrics(Frame())
