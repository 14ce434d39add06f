"""``icechunk_spark.sample``: rows and types stay, only chunks with points are read; streams."""

from __future__ import annotations

import datetime as dt
import warnings

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import reference_repository
from helpers.spark.repositories import LATITUDES, LONGITUDES, T2M, TIMES, add_array, commit
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table
from icechunk_spark.sampling import sample as sampling

pytestmark = [pytest.mark.needs_reference, pytest.mark.each_spark]

ON = {"time": "at", "latitude": "lat", "longitude": "lon"}


@pytest.fixture
def shuffled(monkeypatch):
    """Let points be shuffled however few there are."""
    monkeypatch.setattr(sampling, "_FEW_BYTES", -1)


@pytest.fixture
def points(spark):
    """Give points on and between labels, some NULL, beside columns of many types."""
    return spark.range(0, 240, 1, 4).selectExpr(
        "id",
        "if(id = 7, null, timestamp_ntz'2024-07-01' + make_dt_interval(0, cast(id % 43 AS int)))"
        " AS at",
        "35 + cast(id % 26 AS double) AS lat",
        "if(id = 9, double('NaN'), cast(id % 19 AS double)) AS lon",
        "array(id, null) AS numbers",
        "map('a', id) AS names",
        "named_struct('x', cast(id AS decimal(12, 3)), 'y', date'2024-07-01') AS `a.b`",
        "cast(at AS timestamp) AS instant",
        "cast(null AS binary) AS nothing",
    )


def nearest(labels, value):
    return int(np.argmin(np.abs(labels - value) - 1e-9 * (labels > value)))


def expected(row):
    if row["at"] is None or np.isnan(row["lon"]):
        return None
    # Of two labels that are equally near, the higher counts.
    time = nearest(TIMES.astype("i8"), np.datetime64(row["at"], "us").astype("i8") + 1)
    value = T2M[time, nearest(LATITUDES, row["lat"]), nearest(LONGITUDES, row["lon"])]
    return None if np.isnan(value) else float(value)


def check(result, points):
    rows = {row["id"]: row.asDict() for row in result.collect()}
    before = {row["id"]: row.asDict() for row in points.collect()}
    assert len(rows) == result.count() == len(before)
    for number, row in rows.items():
        value = row.pop("t2m")
        assert value == expected(row)
        lon, other = row.pop("lon"), before[number].pop("lon")
        assert lon == other or (np.isnan(lon) and np.isnan(other))
        assert row == before[number]


def test_every_row_stays_and_gets_the_nearest_value(spark, weather, points):
    result = icechunk_spark.sample(points, weather.path, on=ON, variables="t2m")
    assert result.columns == [*points.columns, "t2m"]
    assert [(f.name, f.dataType) for f in result.schema[:-1]] == [
        (f.name, f.dataType) for f in points.schema
    ]
    assert "Exchange" not in result._jdf.queryExecution().toString()
    check(result, points)


def test_shuffled_points_are_the_same(spark, weather, points, shuffled):
    result = icechunk_spark.sample(points, weather.path, on=ON, variables=["t2m"])
    told = result._jdf.queryExecution().toString()
    assert "REBALANCE" in told
    assert "icechunk_chunk_of_point" not in told
    check(result, points)


def test_expressions_labels_that_are_not_even_and_arrays(spark, weather, points, shuffled):
    stations = spark.createDataFrame([("Nice",), ("Bergen",), ("Oslo",)] * 10, "place string")
    result = icechunk_spark.sample(
        stations,
        weather.path,
        on={"station": F.initcap(F.upper("place"))},
        method="exact",
        keep="depth",
        group="ocean",
    )
    assert "icechunk_chunk_of_point" in result._jdf.queryExecution().toString()
    assert result.schema.simpleString() == (
        "struct<place:string,depth:array<bigint>,salinity:array<double>>"
    )
    found = {row["place"]: row["salinity"] for row in result.collect()}
    assert found == {"Nice": [8.0, 9.0, 10.0, 11.0], "Bergen": [0.0, 1.0, 2.0, 3.0], "Oslo": None}
    by_date = points.withColumn("on_day", F.to_date("at"))
    result = icechunk_spark.sample(
        by_date, weather.path, on={**ON, "time": "on_day"}, variables=["wind"], tag="v1"
    )
    assert result.where("wind IS NOT NULL").count() > 200


def test_outside_is_dropped_or_refused(spark, weather, points, last_line):
    away = points.withColumn("lat", F.col("lat") - F.when(F.col("id") < 5, 60).otherwise(0))
    options = {"on": ON, "variables": ["t2m"]}
    dropped = icechunk_spark.sample(away, weather.path, outside="drop", **options)
    assert dropped.count() == 235
    refused = icechunk_spark.sample(away, weather.path, outside="error", **options)
    told = last_line(refused.collect)
    assert "lat=-2" in told
    assert "is outside of the grid: 'latitude' ranges from 35.0 to 60.0; choose" in told


def test_only_chunks_with_points_are_read(spark, tmp_path, shuffled):

    values = np.random.default_rng(5).normal(size=(6, 60, 60))

    def fill(root):
        add_array(root, "v", values, ["t", "y", "x"], chunks=(1, 30, 30))

    commit(reference_repository(tmp_path / "grid"), "chunks", fill)
    path = str(tmp_path / "grid")
    refs = icechunk_spark.read(spark, path, layout="refs").collect()
    assert len(refs) == 24
    for ref in refs:
        # Points are in the corner of every second layer.
        if ref["chunk"][0] % 2 or ref["chunk"][1:] != [0, 0]:
            (tmp_path / "grid" / "chunks" / ref["chunk_id"]).unlink()
    points = spark.range(0, 5000, 1, 3).selectExpr(
        "cast(id % 3 * 2 AS int) AS t", "cast(id % 30 AS float) AS y", "id % 29 AS x"
    )
    result = icechunk_spark.sample(points, path, on={"t": "t", "y": "y", "x": "x"})
    rows = result.collect()
    assert len(rows) == 5000
    assert all(row["v"] == values[row["t"], int(row["y"]), row["x"]] for row in rows)


def test_a_chunk_with_very_many_points_is_shared(spark, weather, shuffled):
    points = spark.range(0, 100_000, 1, 8).selectExpr(
        "id", "timestamp_ntz'2024-07-01' AS at", "36D AS lat", "1D AS lon"
    )
    settings = {
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64k",
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "32k",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        result = icechunk_spark.sample(points, weather.path, on=ON, variables=["t2m"])
        tasks = result.groupBy(F.spark_partition_id()).count().collect()
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert sum(row["count"] for row in tasks) == 100_000
    assert len(tasks) > 1


def test_streams(spark, weather, points, tmp_path):
    points.select("id", "at", "lat", "lon").repartition(3).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id bigint, at timestamp_ntz, lat double, lon double")
    arriving = stream.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    result = icechunk_spark.sample(arriving, weather.path, on=ON, variables=["t2m"])
    assert result.isStreaming
    query = (
        result.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination(120)
    assert query.exception() is None
    check(spark.read.parquet(str(tmp_path / "out")), points.select("id", "at", "lat", "lon"))


def test_watermarks_of_a_stream_stay(spark, weather, tmp_path):
    source = tmp_path / "in"
    for number in range(3):
        late = spark.range(1).selectExpr(
            f"timestamp'2024-07-01' + make_dt_interval({number}) AS at", "36D AS lat", "1D AS lon"
        )
        late.write.mode("append").parquet(str(source))
    stream = spark.readStream.schema("at timestamp, lat double, lon double")
    arriving = stream.option("maxFilesPerTrigger", 1).parquet(str(source))
    arriving = arriving.withWatermark("at", "1 hour")
    sampled = icechunk_spark.sample(arriving, weather.path, on=ON, variables=["t2m"])
    counted = sampled.groupBy(F.window("at", "1 hour")).agg(F.count("*").alias("points"))
    query = (
        counted.writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination(120)
    assert query.exception() is None
    # The last day is later than the watermark that it makes.
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("window")
    # Windows begin at whole hours of UTC, which are none of the session's zone.
    days = found.selectExpr("day(window.end)", "points").collect()
    assert [tuple(row) for row in days] == [(1, 1), (2, 1)]


def test_rows_that_lie_nowhere_do_not_end_a_job(spark, weather, shuffled):
    odd = [None, 9.97e36, -9.97e36, float("inf"), float("-inf"), float("nan"), 1e300, 99.0]
    rows = [(35.0, 0.0), *((value, 0.0) for value in odd), *((35.0, value) for value in odd[:-1])]
    points = spark.createDataFrame(rows, "lat double, lon double").coalesce(1)
    on = {"latitude": "lat", "longitude": "lon"}
    chosen = {"on": on, "isel": "time=0", "variables": ["t2m"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = icechunk_spark.sample(points, weather.path, **chosen).collect()
        kept = icechunk_spark.sample(points, weather.path, outside="drop", **chosen).count()
    assert [row["lat"] for row in found if row["t2m"] is not None] == [35.0]
    assert len(found) == len(rows)
    assert kept == 1 + 4  # NULL and NaN are no places, and stay


def test_columns_of_any_type_and_name_stay(spark, weather, points, shuffled):
    more = points.selectExpr(
        "id", "at", "lat", "lon", "parse_json('[1, 2]') AS v", "id AS `a``b`", "lat AS v"
    )
    sampled = icechunk_spark.sample(more, weather.path, on=ON, variables=["t2m"])
    assert sampled.columns == ["id", "at", "lat", "lon", "v", "a`b", "v", "t2m"]
    assert sampled.dtypes[:-1] == more.dtypes
    plain = sampled.toDF("id", "at", "lat", "lon", "json", "name", "last", "t2m")
    for row in plain.selectExpr("*", "cast(json AS string) AS read").collect():
        assert (row["read"], row["name"], row["last"]) == ("[1,2]", row["id"], row["lat"])
        assert row["t2m"] == (None if (value := expected(row)) is None else pytest.approx(value))


def test_mistakes_are_told_before_any_job(spark, weather, points):
    def refused(words, kind=InvalidInputError, **options):
        given = {"on": ON, "variables": ["t2m"], **options}
        with pytest.raises(kind, match=words) as caught:
            icechunk_spark.sample(points, weather.path, **given)
        assert "\n" not in str(caught.value)

    refused(
        r"on\['time'\]='when': .* has no column of that name; it has id, at", on={"time": "when"}
    )
    refused("must be the name of a column", on={"time": 3})
    refused(r"on must be a dictionary .*, such as .* but is \['lat'\]", on=["lat"])
    refused("tolerance must be a dictionary.*1 hour.*3", tolerance=3)
    refused("'lattitude'.*did you mean 'latitude'", on={**ON, "lattitude": "lat"})
    refused("need a number.*cast", on={**ON, "latitude": "at"})
    refused("option 'where' does not apply to sample", where="t2m > 1")
    refused("option 'layout'", layout="chunks")
    refused("sample has no argument 'methd': did you mean 'method'", methd="nearest")
    refused("'v9'", kind=IcechunkError, tag="v9")
    with pytest.raises(InvalidInputError, match="of type list"):
        icechunk_spark.sample([1], weather.path, on=ON)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        icechunk_spark.sample(points, weather.path, on={"latitude": "lat", "longitude": "lon"})
    assert any("leaves out variables of group / with" in str(one.message) for one in told)
    at = points.withColumn("t2m", F.lit(dt.date(2024, 7, 1)))
    with pytest.raises(InvalidInputError, match="already have a column 't2m'"):
        icechunk_spark.sample(at, weather.path, on=ON, variables=["t2m"])


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("first", [2**53, 2**62 + 1])
def test_keys_that_doubles_cannot_tell_apart(spark, shuffled, tmp_path, first, step, ansi):
    keys = [first + number for number in range(6)][::step]
    table = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(np.arange(6.0))})
    write_table(str(tmp_path / "r"), table, WriteOptions(dims=("k",), chunks={"k": 2}))
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        points = spark.range(first - 2, first + 8).selectExpr("id", "if(id % 5 = 0, NULL, id) AS k")
        found = icechunk_spark.sample(points, str(tmp_path / "r"), on={"k": "k"}, method="exact")
        values = {row["id"]: row["v"] for row in found.collect()}
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    held = dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))
    assert values == {
        key: held.get(key) if key % 5 else None for key in range(first - 2, first + 8)
    }
