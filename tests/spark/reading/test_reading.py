"""Tables in Spark have the rows, types and versions of the repository."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from helpers.builder import reference_repository
from helpers.spark.repositories import (
    ELEVATION,
    LATITUDES,
    LONGITUDES,
    SALINITY,
    SHAPE,
    STATION_NAMES,
    T2M,
    T2M_V1,
    TIMES,
    WIND_STORED,
    add_array,
    commit,
)
from pyspark.sql import functions as F

from icechunk_spark.schema import column_metadata

pytestmark = [pytest.mark.core, pytest.mark.needs_reference, pytest.mark.each_spark]

by_both = pytest.mark.parametrize("load", ["source", "function"], indirect=True)

CELLS = int(np.prod(SHAPE))


def cube(table, name: str) -> np.ndarray:
    """Put a column of a collected table back onto the grid, by its coordinates."""
    times = np.searchsorted(TIMES, table["time"].to_numpy().astype("M8[us]"))
    latitudes = len(LATITUDES) - 1 - np.searchsorted(LATITUDES[::-1], table["latitude"].to_numpy())
    longitudes = np.searchsorted(LONGITUDES, table["longitude"].to_numpy())
    values = np.full(SHAPE, np.inf)
    values[times, latitudes, longitudes] = table[name].to_numpy(zero_copy_only=False)
    return values


def at(step: int):
    """Return the condition for one time step, as text: a datetime would be a TIMESTAMP."""
    return F.expr(f"time = TIMESTAMP_NTZ '{TIMES[step].item()}'")


# --- cells ------------------------------------------------------------------------------------


@by_both
def test_schema(read):
    frame = read()
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("time", "timestamp_ntz"),
        ("latitude", "double"),
        ("longitude", "double"),
        ("t2m", "float"),
        ("wind", "double"),
    ]
    metadata = column_metadata(frame.schema["t2m"])
    assert metadata["role"] == "variable"
    assert list(metadata["dimensions"]) == ["time", "latitude", "longitude"]
    assert metadata["chunks"] == [2, 3, 5]
    assert metadata["stored_dtype"] == "float32"
    assert metadata["attributes"]["units"] == "K"
    assert frame.schema["t2m"].metadata["comment"] == "2 metre temperature [K]"
    assert column_metadata(frame.schema["wind"])["encoding"]["scale_factor"] == 0.1
    assert column_metadata(frame.select("t2m").schema["t2m"]) == metadata


@by_both
def test_every_cell_has_its_value(read):
    table = read().toArrow()
    assert table.num_rows == CELLS
    np.testing.assert_array_equal(cube(table, "t2m"), T2M)
    expected = np.where(WIND_STORED == -999, np.nan, WIND_STORED * 0.1 + 5.0)
    np.testing.assert_allclose(cube(table, "wind"), expected, rtol=1e-6)


@by_both
def test_missing_values_are_null_and_aggregates_skip_them(read):
    row = read().agg(F.count("*"), F.count("t2m"), F.sum("t2m"), F.count("wind")).first()
    assert tuple(row)[:2] == (CELLS, CELLS - 3)
    assert row[2] == pytest.approx(np.nansum(T2M.astype("float64")), rel=1e-9)
    assert row[3] == CELLS - 4


def test_stored_values_without_decoding(read):
    frame = read(decodeCf="false", variables="wind")
    assert frame.schema["wind"].dataType.simpleString() == "smallint"
    assert frame.schema["time"].dataType.simpleString() == "bigint"
    assert frame.agg(F.sum("wind")).first()[0] == int(WIND_STORED.astype("int64").sum())


@by_both
def test_times_do_not_move_with_the_session_time_zone(read):
    row = read(variables="t2m", isel="latitude=0; longitude=0").agg(F.max("time")).first()
    assert row[0] == datetime.datetime(2024, 7, 2, 18)
    text = read(timestampType="utc").agg(F.max(F.unix_micros("time"))).first()[0]
    assert text == int(TIMES[-1].astype("int64"))


def test_variables_with_fewer_dimensions_are_repeated_when_named(read):
    frame = read(variables="t2m,elevation", isel="time=0:2")
    assert frame.columns == ["time", "latitude", "longitude", "t2m", "elevation"]
    assert frame.agg(F.sum("elevation")).first()[0] == 2 * int(ELEVATION.sum())


def test_a_variable_of_another_dimension_set(read):
    frame = read(variables="elevation")
    assert frame.columns == ["latitude", "longitude", "elevation"]
    assert frame.count() == ELEVATION.size


def test_groups(read):
    frame = read(group="ocean")
    rows = {(row.station, row.depth): row.salinity for row in frame.collect()}
    assert rows == {
        (str(name), depth): SALINITY[i, depth]
        for i, name in enumerate(STATION_NAMES)
        for depth in range(SALINITY.shape[1])
    }


# --- selecting --------------------------------------------------------------------------------


@by_both
def test_a_user_schema_selects_orders_and_widens(read):
    frame = read(schema="t2m double, Latitude double")
    assert frame.columns == ["t2m", "Latitude"]
    assert frame.agg(F.sum("t2m")).first()[0] == pytest.approx(np.nansum(T2M.astype("f8")))
    assert frame.agg(F.sum("Latitude")).first()[0] == pytest.approx(LATITUDES.sum() * 80)


def test_a_user_schema_with_time_as_timestamp(read):
    frame = read(schema="time timestamp")
    assert frame.agg(F.min(F.unix_micros("time"))).first()[0] == int(TIMES[0].astype("int64"))


def test_where_on_a_dimension_and_a_value(read):
    frame = read(where="time >= '2024-07-02' AND latitude BETWEEN 40 AND 50 AND t2m > 340")
    chosen = (LATITUDES >= 40) & (LATITUDES <= 50)
    values = T2M[4:][:, chosen]
    assert frame.count() == int((values > 340).sum())
    assert frame.agg(F.sum("t2m")).first()[0] == pytest.approx(float(values[values > 340].sum()))


def test_where_needs_no_column_of_the_schema(read):
    frame = read(schema="t2m float", where="wind IS NULL")
    rows = sorted(row.t2m for row in frame.collect())
    assert rows == sorted(T2M[WIND_STORED == -999].tolist())


def test_sel_and_isel(read):
    assert read(sel="time=2024-07-01T06:00:2024-07-01T18:00; latitude=45:55").count() == 3 * 3 * 10
    assert read(sel="latitude=44.9", **{"sel.method": "nearest"}).count() == 80
    assert read(isel="time=-1; latitude=0:2").count() == 20


@by_both
def test_nothing_selected_is_no_error(read):
    frame = read(where="latitude > 1000")
    assert frame.count() == 0
    assert frame.collect() == []
    assert read(where="t2m > 1e9").count() == 0


def test_spark_filters_are_always_right(read):
    frame = read()
    first, last = at(0), at(-1)
    assert frame.where(first).count() == 60
    assert frame.where(first).union(frame.where(last)).count() == 120
    assert frame.count() == CELLS


@by_both
def test_partitions_follow_the_option(read):
    few = read().rdd.getNumPartitions()
    many = read(rowsPerPartition="60").rdd.getNumPartitions()
    assert many > few
    table = read(rowsPerPartition="60", variables="t2m").toArrow()
    assert table.num_rows == CELLS
    np.testing.assert_array_equal(cube(table, "t2m"), T2M)


@by_both
def test_limit_stops_early(read):
    assert len(read().limit(3).collect()) == 3
    assert len(read().take(1)) == 1


# --- layouts ----------------------------------------------------------------------------------


@by_both
def test_chunks(read):
    frame = read(layout="chunks", variables="t2m")
    rows = frame.collect()
    assert len(rows) == 4 * 2 * 2
    for row in rows:
        box = tuple(slice(a, a + n) for a, n in zip(row.start, row.shape, strict=True))
        values = np.frombuffer(row.data, "<f4").reshape(row.shape)
        np.testing.assert_array_equal(values, T2M[box])


def test_refs(read):
    frame = read(layout="refs")
    kinds = {row["array"]: row["count"] for row in frame.groupBy("array").count().collect()}
    assert kinds["/t2m"] == 16
    assert set(frame.select("kind").distinct().toPandas()["kind"]) <= {"native", "inline"}


def test_summary(read):
    frame = read(layout="summary", variables="t2m", block="time=8,latitude=6,longitude=10")
    row = frame.first()
    assert frame.count() == 1
    assert row.t2m_count == CELLS - 3
    assert row.t2m_mean == pytest.approx(float(np.nanmean(T2M.astype("f8"))))
    assert row.time_last == datetime.datetime(2024, 7, 2, 18)


# --- versions ---------------------------------------------------------------------------------


def first_step(frame) -> float:
    return frame.where(at(0)).agg(F.max("t2m")).first()[0]


@by_both
def test_time_travel(read, weather):
    old, new = float(T2M_V1[0].max()), 1.0
    assert first_step(read()) == new
    assert first_step(read(branch="main")) == new
    assert first_step(read(tag="v1")) == old
    assert first_step(read(branch="dev")) == old
    assert first_step(read(snapshot=weather.v1)) == old
    assert first_step(read(versionAsOf=weather.v1)) == old
    assert first_step(read(asOf=weather.between.isoformat())) == old
    assert first_step(read(timestampAsOf=weather.between.isoformat(), branch="main")) == old


@by_both
def test_a_dataframe_is_pinned(load, tmp_path):
    path = str(tmp_path / "pinned")
    repository = reference_repository(path)
    commit(repository, "first", lambda root: add_array(root, "a", np.arange(4), ["x"]))

    # With a schema from the user, Spark asks us nothing at load, so its first action decides.
    untouched, used, typed = load(path), load(path), load(path, schema="a bigint")
    assert used.agg(F.sum("a")).first()[0] == 6
    assert typed.agg(F.sum("a")).first()[0] == 6
    commit(repository, "second", lambda root: root["a"].set_basic_selection(..., 100))
    assert used.agg(F.sum("a")).first()[0] == 6
    assert untouched.agg(F.sum("a")).first()[0] == 6
    assert typed.agg(F.sum("a")).first()[0] == 6
    assert load(path).agg(F.sum("a")).first()[0] == 400


# --- SQL --------------------------------------------------------------------------------------


def test_temporary_view(spark, weather):
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW old USING icechunk OPTIONS (path '{weather.path}',"
        " tag 'v1', where 'latitude >= 50', `sel.method` 'exact')"
    )
    count, largest = spark.sql("SELECT count(*), max(t2m) FROM old").first()
    assert count == 8 * 3 * 10
    assert largest == float(np.nanmax(T2M_V1[:, LATITUDES >= 50]))
    comments = {row.col_name: row.comment for row in spark.sql("DESCRIBE old").collect()}
    assert comments["t2m"] == "2 metre temperature [K]"
