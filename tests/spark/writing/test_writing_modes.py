"""The four modes of ``df.write`` leave what another library then reads."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.raised import raises
from helpers.spark.written import (
    LATITUDES,
    LONGITUDES,
    grid_frame,
    hours,
    messages,
    reference_dataset,
    reference_group,
    temperatures,
    write_grid,
)

import icechunk_spark
from icechunk_format.errors import AlreadyExistsError, InvalidInputError, UnsupportedError

pytestmark = [pytest.mark.core, pytest.mark.needs_reference, pytest.mark.each_spark]

DIMS = "time,latitude,longitude"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "weather")


@pytest.fixture
def four_hours(path):
    write_grid(path, hours(0, 4), chunks={"time": 2})


def test_create_is_the_default(spark, path):
    frame = grid_frame(spark, hours(0, 4))
    frame.write.format("icechunk").option("dims", DIMS).option("chunks", "time=2").save(path)
    found = reference_dataset(path)
    assert found["t2m"].dims == ("time", "latitude", "longitude")
    np.testing.assert_array_equal(found["time"].values, hours(0, 4))
    # New coordinates are stored in order.
    np.testing.assert_array_equal(found["latitude"].values, np.sort(LATITUDES))
    np.testing.assert_array_equal(found["longitude"].values, LONGITUDES)
    np.testing.assert_array_equal(
        found["t2m"].sel(latitude=LATITUDES).values, temperatures(hours(0, 4))
    )
    assert reference_group(path)["t2m"].chunks[0] == 2


def test_append_extends_time_again(spark, path):
    write_grid(path, hours(0, 3), chunks={"time": 2})
    for day in range(2):
        more = grid_frame(spark, hours(3 + 2 * day, 2))
        more.write.format("icechunk").mode("append").save(path)
    found = reference_dataset(path)
    times = hours(0, 7)
    np.testing.assert_array_equal(found["time"].values, times)
    np.testing.assert_array_equal(found["t2m"].sel(latitude=LATITUDES).values, temperatures(times))
    assert len(messages(path)) == 4


@pytest.mark.usefixtures("four_hours")
def test_append_replaces_cells_at_known_coordinates(spark, path):
    changed = grid_frame(spark, hours(1, 1), np.full((1, 4, 3), -5.0))
    changed.write.format("icechunk").mode("append").save(path)
    expected = temperatures(hours(0, 4))
    expected[1] = -5
    found = reference_dataset(path)
    np.testing.assert_array_equal(found["t2m"].sel(latitude=LATITUDES).values, expected)


@pytest.mark.usefixtures("four_hours")
def test_overwrite_leaves_the_old_version_readable(spark, path):
    before = str(icechunk_format_head(path))
    grid_frame(spark, hours(50, 2)).write.format("icechunk").mode("overwrite").option(
        "dims", DIMS
    ).save(path)
    np.testing.assert_array_equal(reference_dataset(path)["time"].values, hours(50, 2))
    old = spark.read.format("icechunk").option("snapshot", before).load(path)
    assert old.count() == 4 * 12


def icechunk_format_head(path):
    from icechunk_format import Repository

    return Repository.open(path).resolve(branch="main")


@pytest.mark.usefixtures("four_hours")
def test_errorifexists_refuses_existing_arrays(spark, path):
    frame = grid_frame(spark, hours(9, 1))
    for mode in (None, "error", "errorifexists"):
        with raises(AlreadyExistsError, kind="arrays", group="/"):
            frame.write.format("icechunk").mode(mode).option("dims", DIMS).save(path)
    assert reference_dataset(path).sizes["time"] == 4


def test_ignore_does_nothing_where_arrays_exist(spark, path):
    write = grid_frame(spark, hours(0, 1)).write.format("icechunk").option("dims", DIMS)
    write.mode("ignore").save(path)
    again = grid_frame(spark, hours(5, 1)).write.format("icechunk").option("dims", DIMS)
    again.mode("ignore").save(path)
    np.testing.assert_array_equal(reference_dataset(path)["time"].values, hours(0, 1))
    assert len(messages(path)) == 2


def test_write_answers_with_the_commit(spark, path):
    frame = grid_frame(spark, hours(0, 2))
    done = icechunk_spark.write(
        frame, path, dims=DIMS.split(","), chunks={"time": 1}, message="Two hours"
    )
    assert done.branch == "main"
    assert done.rows == 24
    assert not done.is_skipped
    assert messages(path)[0] == "Two hours"
    assert str(done.snapshot_id) == str(icechunk_format_head(path))
    assert icechunk_spark.write(frame, path, mode="ignore").is_skipped


def test_other_formats_are_untouched(spark, tmp_path):
    frame = grid_frame(spark, hours(0, 2))
    frame.write.mode("overwrite").partitionBy("latitude").parquet(str(tmp_path / "p"))
    frame.write.save(str(tmp_path / "default"), format="json")
    assert spark.read.parquet(str(tmp_path / "p")).count() == 24
    assert spark.read.json(str(tmp_path / "default")).count() == 24


def test_unregister_gives_sparks_own_writer_back(spark, path):
    icechunk_spark.unregister(spark)
    try:
        assert type(spark.range(1).write).__module__.startswith("pyspark.")
        assert not hasattr(spark.range(1).write, "_icechunk_options")
    finally:
        icechunk_spark.register(spark)
    assert hasattr(spark.range(1).write, "_icechunk_options")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda w: w.partitionBy("latitude"), UnsupportedError, "set the chunk shape"),
        (lambda w: w.mode("append").option("chunk", "time=1"), InvalidInputError, "'chunks'"),
        (lambda w: w.option("tag", "v1"), InvalidInputError, "does not apply to write"),
        (lambda w: w.option("txnAppId", "job"), InvalidInputError, "txnVersion"),
        (lambda w: w.option("encoding", "{t2m: 1}"), InvalidInputError, "JSON"),
        (lambda w: w.option("minDensity", "2"), InvalidInputError, "from 0 to 1"),
        (lambda w: w.option("layout", "summary"), InvalidInputError, "for reading"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(spark, path, change, error, says):
    writer = change(grid_frame(spark, hours(0, 1)).write.format("icechunk"))
    with pytest.raises(error, match=says):
        writer.save(path)


def test_catalog_tables_are_refused_with_the_way_that_works(spark):
    writer = grid_frame(spark, hours(0, 1)).write.format("icechunk")
    with pytest.raises(UnsupportedError, match=r"save\(path\)"):
        writer.saveAsTable("weather")
    with raises(UnsupportedError, method="insertInto"):
        writer.insertInto("weather")
