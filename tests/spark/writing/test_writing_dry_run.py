"""A dry run of a write says what the write does, and stores nothing."""

import pytest

import icechunk_spark
from icechunk_format.errors import AlreadyExistsError, InvalidInputError


def rows(spark, first, last):
    return spark.range(first * 10, last * 10).selectExpr(
        "id div 10 AS y", "id % 10 AS x", "double(id) AS v", "float(id) AS w"
    )


def stored(folder):
    return {str(one): one.stat().st_mtime_ns for one in folder.rglob("*") if one.is_file()}


@pytest.mark.each_spark
def test_a_dry_run_is_what_the_write_does(spark, tmp_path):
    place = tmp_path / "r"
    steps = [("errorifexists", 0, 5), ("append", 5, 12), ("append", 0, 3), ("overwrite", 0, 2)]
    for mode, first, last in steps:
        given = {"dims": ["y", "x"], "chunks": {"y": 4, "x": 4}, "mode": mode}
        frame, before = rows(spark, first, last), stored(tmp_path)
        planned = icechunk_spark.write(frame, str(place), dry_run=True, **given)
        assert stored(tmp_path) == before
        done = icechunk_spark.write(frame, str(place), **given)
        assert planned.dry_run
        assert not done.dry_run
        assert planned.commit is None
        assert (planned.rows, planned.chunks) == (done.rows, done.chunks)
        assert planned.message == done.message
    with pytest.raises(AlreadyExistsError):
        icechunk_spark.write(rows(spark, 0, 1), str(place), dims=["y", "x"], dry_run=True)
    with pytest.raises(InvalidInputError):
        icechunk_spark.write(
            rows(spark, 0, 1).selectExpr("y", "cast(null as bigint) AS x", "v"),
            str(tmp_path / "other"),
            dims=["y", "x"],
            dry_run=True,
        )
    assert not (tmp_path / "other").exists()


def test_rows_that_are_chunks_are_counted(spark, tmp_path):
    place, copy = str(tmp_path / "r"), tmp_path / "copy"
    icechunk_spark.write(rows(spark, 0, 5), place, dims=["y", "x"], chunks={"y": 2, "x": 10})
    icechunk_spark.write(rows(spark, 0, 5), str(copy), dims=["y", "x"], chunks={"y": 2, "x": 10})
    chunks = icechunk_spark.read(spark, place, layout="chunks")
    before = stored(copy)
    planned = icechunk_spark.write(chunks, str(copy), layout="chunks", mode="append", dry_run=True)
    assert stored(copy) == before
    assert planned.chunks == planned.rows == chunks.count()


def test_no_rows_are_nothing_to_write(spark, tmp_path):
    place = tmp_path / "r"
    icechunk_spark.write(rows(spark, 0, 5), str(place), dims=["y", "x"])
    planned = icechunk_spark.write(
        rows(spark, 0, 0), str(place), dims=["y", "x"], mode="append", dry_run=True
    )
    assert planned.is_skipped
