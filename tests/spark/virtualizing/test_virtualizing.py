"""``icechunk_spark.virtualize`` on Spark: one call from files to rows, the report, and Connect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.archives import files as made
from helpers.archives.running import concatenated
from helpers.raised import raises
from helpers.spark.connect_client import answer_over_connect

import icechunk_spark
from icechunk_format.errors import InvalidInputError

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference


def test_files_become_rows_and_broken_ones_a_report(spark, tmp_path):
    files = made.archive(tmp_path / "files", made.packed, count=4)
    Path(files[3]).write_bytes(b"")
    path = str(tmp_path / "repository")
    with raises(InvalidInputError, refused=1) as caught:
        icechunk_spark.virtualize(spark, files, path, concat_dim="time")
    report = caught.value.facts["report"]
    assert [row.file[-4:] for row in report.where("status = 'refused'").collect()] == ["3.nc"]
    frame = spark.createDataFrame([(file, 1) for file in files], "url string, size int")
    done = icechunk_spark.virtualize(
        spark, frame, path, concat_dim="time", on_mismatch="skip", message="three files"
    )
    assert (done.files_added, done.files_skipped, done.references) == (3, 1, 12)
    rows = icechunk_spark.read(spark, path, virtual_authorize=done.places)
    assert rows.count() == 3 * made.STEPS * made.ROWS * made.COLUMNS
    assert rows.where("t2m IS NULL").count() == 1
    again = icechunk_spark.virtualize(spark, files[:3], path, concat_dim="time")
    assert (again.snapshot_id, again.files_skipped) == (done.snapshot_id, 3)


def test_files_with_packings_of_their_own_are_copied_by_executors(spark, tmp_path):
    def own(path, number):
        how = {"dtype": "int16", "scale_factor": 0.5 + number, "_FillValue": -1}
        made.dataset(number).to_netcdf(path, engine="h5netcdf", encoding={"t2m": how})

    files = made.archive(tmp_path / "files", own, count=4)
    path = str(tmp_path / "repository")
    how = {"concat_dim": "time", "copy": True, "chunks": {"time": 8, "x": 4}}
    done = icechunk_spark.virtualize(spark, files[:3], path, **how)
    assert (done.files_copied, done.references, done.chunks) == (3, 0, 4)
    done = icechunk_spark.virtualize(spark, files, path, **how)
    assert (done.files_copied, done.files_skipped, done.chunks) == (1, 3, 2)
    assert {row.status for row in done.report.collect()} == {"copied", "known"}
    found = icechunk_spark.read(spark, path).toPandas()
    found = found.sort_values(["time", "y", "x"], ascending=[True, False, True])
    np.testing.assert_array_equal(found["t2m"], concatenated(files)["t2m"].values.ravel())


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"chunks": {"time": 1}}, "copy=True"),
        ({"copy": "some"}, "mismatching"),
        ({"on_mismatch": "ignore"}, "'fail' or 'skip'"),
        ({"parser": "nc"}, "hdf"),
        ({"bramch": "x"}, "branch"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_a_job(how, text, spark, tmp_path):
    with pytest.raises(InvalidInputError, match=text) as caught:
        icechunk_spark.virtualize(spark, "x/*.nc", str(tmp_path / "repository"), **how)
    assert caught.value.facts["option"] == next(iter(how))


def test_a_frame_without_names_of_files_is_refused(spark, tmp_path):
    with pytest.raises(InvalidInputError, match="one of url, path, file, location"):
        icechunk_spark.virtualize(spark, spark.range(1).selectExpr("id a", "id b"), str(tmp_path))


CLIENT = """
import json, sys
from pyspark.sql import SparkSession
import icechunk_spark

pattern, path = sys.argv[1:]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
done = icechunk_spark.virtualize(spark, pattern, path, concat_dim="time")
rows = icechunk_spark.read(spark, path, virtual_authorize=done.places).count()
statuses = [row.status for row in done.report.collect()]
print(json.dumps([done.files_added, done.references, statuses, rows]))
spark.stop()
"""


def test_it_works_over_connect(tmp_path):
    made.archive(tmp_path / "files")
    pattern, path = f"{tmp_path}/files/*.nc", str(tmp_path / "repository")
    cells = 3 * made.STEPS * made.ROWS * made.COLUMNS
    assert answer_over_connect(CLIENT, pattern, path) == [3, 12, ["taken"] * 3, cells]
