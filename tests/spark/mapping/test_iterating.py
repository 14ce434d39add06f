"""Iterators over rows of blocks return the rows that collect returns, in Arrow batches."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from pyspark.errors import PythonException
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_spark.mapping import iterating

pytestmark = pytest.mark.filterwarnings("ignore")
COLUMNS = (
    "number int, flag boolean, name string, at timestamp, local timestamp_ntz, day date,"
    " data binary, shape array<int>, patch array<float>, words array<string>, gaps array<double>"
)


@pytest.fixture(scope="module")
def place(spark, tmp_path_factory):
    # Here, since processes of Spark import this module by its name, without the helpers.
    from helpers.reference.xarray_datasets import store_dataset

    values = np.random.default_rng(0).normal(280, 10, (12, 4, 6)).astype("f4")
    values[1, 2, 3] = np.nan
    dataset = xr.Dataset({"t": (("time", "y", "x"), values)}, coords={"time": np.arange(12)})
    return store_dataset(dataset, tmp_path_factory.mktemp("iterating") / "r")


def patch(ds, block):
    if block.number == 2:
        return None
    values, time = ds["t"].values, dt.datetime(2024, 3, 31, 1, 30, block.number)
    row = {
        "number": block.number,
        "flag": block.number % 2 == 0,
        "name": f"block {block.number}",
        "at": time.replace(tzinfo=dt.UTC),
        "local": time,
        "day": time.date(),
        "data": values.tobytes(),
        "shape": list(values.shape),
        "patch": values.ravel(),
        "words": ["a", None],
        "gaps": [0.5, None],
    }
    rows = [row, dict.fromkeys(row) | {"number": -block.number}]
    types = {"data": pa.binary(), "patch": pa.list_(pa.float32()), "at": pa.timestamp("us", "UTC")}
    return pa.table({k: pa.array([r[k] for r in rows], types.get(k)) for k in row})


def by_number(rows):
    return sorted(rows, key=lambda row: row.number)


@pytest.mark.each_spark
@pytest.mark.parametrize(
    "zone", [pytest.param("UTC", marks=pytest.mark.nightly), "America/New_York"]
)
def test_rows_are_those_of_collect(spark, place, monkeypatch, zone):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = icechunk_spark.read_blocks(spark, place, patch, COLUMNS, blocks={"time": 2})
        for frame in (found, found.where("number > 0").orderBy(F.rand(1)).drop("words")):
            expected = by_number(frame.collect())
            for prefetch in (False, True):
                rows = by_number(frame.toLocalIterator(prefetchPartitions=prefetch))
                assert repr(rows) == repr(expected)
                assert [row.__fields__ for row in rows] == [row.__fields__ for row in expected]
                types = [[type(value) for value in row] for row in rows]
                assert types == [[type(value) for value in row] for row in expected]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.newest_spark
def test_patches_are_not_pickled_and_others_are(spark, place):
    found = icechunk_spark.read_blocks(spark, place, patch, COLUMNS, blocks={"time": 2})
    assert iterating._batches_of(found) is not None
    assert iterating._batches_of(found.where("number > 0").select("patch", "number")) is not None
    for pickled in (
        found.select("number"),
        found.select("patch", "patch"),
        found.selectExpr("patch", "struct(number) AS one"),
        icechunk_spark.read(spark, place).selectExpr("array(t) AS t"),
    ):
        assert iterating._batches_of(pickled) is None
        assert len(list(pickled.limit(3).toLocalIterator())) == 3


@pytest.mark.newest_spark
def test_the_jvm_keeps_no_batches(spark, place):
    kept = spark.sparkContext._jsc.sc().dagScheduler().activeQueryToJobs()
    found = icechunk_spark.read_blocks(spark, place, patch, COLUMNS, blocks={"time": 2})
    before = kept.size()
    for prefetch in (False, True):
        assert len(list(found.toLocalIterator(prefetchPartitions=prefetch))) == 10
        # One that ends early.
        assert next(iter(found.toLocalIterator(prefetchPartitions=prefetch))) is not None
    assert kept.size() == before


@pytest.mark.each_spark
def test_an_error_is_raised_in_its_own_line(spark, place):
    def fails(ds):
        raise LookupError("no such station")

    found = icechunk_spark.read_blocks(spark, place, fails, "data binary", blocks={"time": 2})
    with pytest.raises(PythonException) as caught:
        list(found.toLocalIterator(prefetchPartitions=True))
    lines = [line for line in str(caught.value).splitlines() if line.strip()]
    assert lines[-1].startswith("icechunk_format.errors.InvalidInputError: the function failed")
    assert not any("awaitResult" in line for line in lines)
