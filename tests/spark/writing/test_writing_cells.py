"""Rows that Spark writes land in their cells, and mistakes leave the branch as it was.

Every refused write must leave the branch as it was, so each of these tests looks at it afterwards.
"""

from __future__ import annotations

import datetime
import decimal
import json

import numpy as np
import pytest
from helpers.raised import raises
from helpers.spark.written import (
    DIMS,
    GRID_TYPES,
    LATITUDES,
    cells,
    grid_frame,
    hours,
    messages,
    reference_dataset,
    reference_group,
    temperatures,
    written_grid,
)
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import IcechunkError, InvalidInputError

pytestmark = pytest.mark.needs_reference


@pytest.fixture
def path(tmp_path):
    """Write a repository with four hours of temperatures, two to a chunk."""
    return written_grid(tmp_path, 4, chunks={"time": 2, "latitude": 2, "longitude": 3})


@pytest.fixture
def refused(path):
    """Run an append that must fail, and check that nothing came of it; return what was said."""

    def run(frame, **options):
        before = messages(path)
        with pytest.raises(IcechunkError) as caught:
            icechunk_spark.write(frame, path, mode="append", **options)
        assert messages(path) == before
        np.testing.assert_array_equal(
            reference_dataset(path)["t2m"].sel(latitude=LATITUDES).values,
            temperatures(hours(0, 4)),
        )
        return str(caught.value)

    return run


# --- which cells change -----------------------------------------------------------------------


def test_a_part_of_a_chunk_is_patched(spark, path):
    one = spark.createDataFrame([(hours(1, 1)[0].item(), 55.0, 2.5, -1.0)], GRID_TYPES)
    icechunk_spark.write(one, path, mode="append")
    expected = temperatures(hours(0, 4))
    expected[1, 1, 1] = -1
    found = reference_dataset(path)["t2m"].sel(latitude=LATITUDES)
    np.testing.assert_array_equal(found.values, expected)


def test_nulls_are_missing_values_of_floats(spark, path):
    frame = grid_frame(spark, hours(4, 1)).withColumn(
        "t2m", F.expr("CASE WHEN latitude = 45 THEN NULL ELSE t2m END").cast("float")
    )
    icechunk_spark.write(frame, path, mode="append")
    found = reference_dataset(path)["t2m"].sel(latitude=LATITUDES).values
    assert np.isnan(found[4, 3]).all()
    np.testing.assert_array_equal(found[4, :3], temperatures(hours(4, 1))[0, :3])


def test_chunks_without_a_row_are_not_stored(spark, tmp_path):
    path = str(tmp_path / "sparse")
    frame = grid_frame(spark, hours(0, 8)).where("time < '2024-07-01 02:00' or latitude = 60")
    icechunk_spark.write(frame, path, dims=DIMS, chunks={"time": 2, "latitude": 1, "longitude": 3})
    refs = spark.read.format("icechunk").option("layout", "refs").load(path)
    # Four rows of latitude for the first two hours, then one.
    assert refs.where("array = 't2m' or array = '/t2m'").count() == 4 + 3


def test_names_that_sql_must_quote(spark, tmp_path):
    path = str(tmp_path / "names")
    frame = spark.range(4).selectExpr("id AS `x.y`", "cast(id AS double) AS `wind speed`")
    icechunk_spark.write(frame, path, dims=["x.y"])
    back = spark.read.format("icechunk").load(path)
    assert cells(back.toDF("x", "v"), ["x"], "v") == {(i,): float(i) for i in range(4)}


def test_types_of_labels_and_values(spark, tmp_path):
    path = str(tmp_path / "types")
    rows = [
        (
            station,
            datetime.date(2024, 7, 1 + day),
            day % 2 == 0,
            day,
            f"{station} {day}",
            datetime.timedelta(hours=day),
            decimal.Decimal(2**63 + day),
        )
        for station in ("Zürich", "Bergen")
        for day in range(3)
    ]
    frame = spark.createDataFrame(
        rows,
        "station string, day date, dry boolean, n smallint, note string,"
        " sunshine interval day to second, big decimal(20,0)",
    ).withColumn("day", F.col("day").cast("timestamp_ntz"))
    icechunk_spark.write(frame, path, dims=["station", "day"])
    back = spark.read.format("icechunk").load(path).select(*frame.columns)
    assert [f.dataType for f in back.schema] == [f.dataType for f in frame.schema]
    assert sorted(back.collect()) == sorted(frame.collect())


def test_times_mean_the_same_in_every_session_time_zone(spark, tmp_path):
    path = str(tmp_path / "zones")
    # The session is five and a half hours east of Greenwich.
    frame = spark.sql(
        "SELECT timestamp '2024-07-01 05:30:00' + make_interval(0,0,0,0,cast(id as int)) AS time,"
        " cast(id AS float) AS v FROM range(3)"
    )
    icechunk_spark.write(frame, path, dims=["time"])
    np.testing.assert_array_equal(reference_dataset(path)["time"].values, hours(0, 3))


# --- mistakes ---------------------------------------------------------------------------------


def test_two_rows_for_one_cell(spark, refused):
    frame = grid_frame(spark, hours(4, 2))
    doubled = frame.union(frame.where("latitude = 50 and longitude = 2.5").limit(1))
    said = refused(doubled)
    assert "latitude" in said
    assert "50" in said
    assert "2.5" in said


def test_null_and_nan_labels(spark, refused):
    frame = grid_frame(spark, hours(4, 1))
    holes = frame.withColumn("latitude", F.expr("nullif(latitude, 50D)"))
    assert "latitude" in refused(holes)
    nans = frame.withColumn("latitude", F.expr("if(latitude = 50, double('NaN'), latitude)"))
    assert "latitude" in refused(nans)


def test_a_label_that_nearly_is_one(spark, refused):
    frame = grid_frame(spark, hours(4, 1)).withColumn("latitude", F.col("latitude") + 1e-5)
    said = refused(frame)
    assert "latitude" in said
    assert "45.0" in said
    assert "45.00001" in said


def test_float_labels_meet_double_ones(spark, tmp_path):
    """A float32 latitude is matched as the stored float64, not as a new line of the grid."""
    path = str(tmp_path / "tenths")
    tenths = spark.range(20).selectExpr("cast(id / 10 AS float) AS y", "cast(id AS float) AS v")
    icechunk_spark.write(tenths, path, dims=["y"])
    doubles = spark.range(20).selectExpr("id / 10 AS y", "cast(-id AS float) AS v")
    icechunk_spark.write(doubles, path, mode="append")
    np.testing.assert_array_equal(reference_group(path)["v"][:], -np.arange(20, dtype="f4"))


def test_types_are_checked_before_any_job(spark, refused):
    ran = spark.sparkContext.accumulator(0)

    def counted(batches):
        for batch in batches:
            ran.add(1)
            yield batch

    frame = grid_frame(spark, hours(4, 1)).withColumn("t2m", F.lit("warm"))
    said = refused(frame.mapInArrow(counted, frame.schema))
    assert "t2m" in said
    assert "string" in said.lower()
    assert ran.value == 0


def test_dimensions_must_be_known(spark, tmp_path):
    frame = grid_frame(spark, hours(0, 1))
    with pytest.raises(InvalidInputError, match="dims"):
        icechunk_spark.write(frame, str(tmp_path / "new"))
    with raises(
        InvalidInputError, columns=("time", "latitude", "longitude", "t2m"), dim="lattitude"
    ):
        icechunk_spark.write(frame, str(tmp_path / "new"), dims=["time", "lattitude"])


def test_columns_that_no_array_holds(spark, tmp_path):
    frame = grid_frame(spark, hours(0, 1)).withColumn("m", F.create_map(F.lit(1), F.lit(2)))
    with raises(InvalidInputError, variable="m", found="map<int32, int32>"):
        icechunk_spark.write(frame, str(tmp_path / "new"), dims=DIMS)
    twice = grid_frame(spark, hours(0, 1)).select("*", "t2m")
    with pytest.raises(InvalidInputError, match="more than one column 't2m'"):
        icechunk_spark.write(twice, str(tmp_path / "new"), dims=DIMS)


def test_rows_that_change_between_two_looks_are_noticed(spark, refused):
    def measured(batches):
        import pyarrow as pa

        for batch in batches:
            index = batch.schema.get_field_index("latitude")
            random = np.random.default_rng().uniform(0, 1000, batch.num_rows)
            yield batch.set_column(index, "latitude", pa.array(random))

    frame = grid_frame(spark, hours(4, 1))
    said = refused(frame.mapInArrow(measured, frame.schema), minDensity=0, computeOnce="false")
    assert "not deterministic" in said


def test_the_last_line_of_an_error_stands_alone(spark, path):
    frame = grid_frame(spark, hours(4, 1))
    with pytest.raises(IcechunkError) as caught:
        icechunk_spark.write(frame.union(frame), path, mode="append")
    assert len(str(caught.value).splitlines()) == 1
    assert json.dumps(str(caught.value))


def test_dimensions_that_were_computed_or_were_partitions_stay_dimensions(spark, path, tmp_path):
    read = spark.read.format("icechunk").load(path)
    read.write.partitionBy("time").parquet(str(tmp_path / "days"))
    days = spark.read.parquet(str(tmp_path / "days"))
    later = read.selectExpr("time + interval 1 day AS time", "latitude", "longitude", "t2m")
    for name, frame, hour in (
        ("parquet", days.withColumn("time", F.col("time").cast("timestamp_ntz")), 0),
        ("computed", later, 24),
    ):
        target = str(tmp_path / name)
        icechunk_spark.write(frame, target)
        found = reference_dataset(target)["t2m"]
        assert found.dims == tuple(DIMS)
        np.testing.assert_array_equal(found["time"].values, hours(hour, 4).astype("M8[ns]"))
        np.testing.assert_array_equal(
            found.sel(latitude=LATITUDES).values, temperatures(hours(0, 4))
        )
