"""Writes that fail leave the branch as it was, and can be repeated."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from helpers.raised import raises
from helpers.spark.written import (
    DIMS,
    LATITUDES,
    grid_frame,
    hours,
    messages,
    reference_dataset,
    temperatures,
    written_grid,
)
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import icechunk_spark
from icechunk_format.errors import AlreadyExistsError, InvalidInputError, StorageError
from icechunk_format.repository import Repository
from icechunk_spark.writing import planned as planned_write

pytestmark = [pytest.mark.core, pytest.mark.needs_reference]


@pytest.fixture
def path(tmp_path):
    return written_grid(tmp_path, 2, chunks={"time": 1}, message="Create")


def unchanged(path):
    assert messages(path)[0] == "Create"
    np.testing.assert_array_equal(
        reference_dataset(path)["t2m"].sel(latitude=LATITUDES).values, temperatures(hours(0, 2))
    )


def test_a_failing_row_leaves_the_branch_as_it_was(spark, path):
    broken = grid_frame(spark, hours(0, 40)).withColumn(
        "t2m",
        F.expr("if(time = '2024-07-02 10:00', raise_error('sensor lost'), t2m)").cast("float"),
    )
    with pytest.raises(PySparkException, match="sensor lost"):
        icechunk_spark.write(broken, path, mode="append")
    unchanged(path)


def test_a_killed_worker_leaves_the_branch_as_it_was(spark, path, tmp_path, monkeypatch):
    """The Python process of a task dies once the write is planned and under way."""
    planned = tmp_path / "planned"
    plan_write = planned_write.plan_write

    def plan(*arguments, **more):
        planned.touch()
        return plan_write(*arguments, **more)

    def dies(batches):
        for batch in batches:
            if planned.exists():
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    monkeypatch.setattr(planned_write, "plan_write", plan)
    frame = grid_frame(spark, hours(2, 2))
    with pytest.raises(StorageError, match="Python process of a task died") as caught:
        icechunk_spark.write(
            frame.mapInArrow(dies, frame.schema), path, mode="append", compute_once=False
        )
    assert planned.exists()
    (line,) = str(caught.value).splitlines()
    assert f"branch 'main' of {path}" in line
    assert line.endswith("The same write can be run again")
    unchanged(path)


def stored_files(path):
    return {
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if not folder.endswith("overwritten")
    }


def test_a_failed_commit_deletes_nothing(spark, path, monkeypatch):
    stored = set()

    def fails(plan, receipts, *more):
        stored.update(stored_files(path))
        raise StorageError("the answer of the store was lost", outcome_unknown=True)

    monkeypatch.setattr(planned_write, "finish_write", fails)
    more = grid_frame(spark, hours(2, 2))
    before = stored_files(path)
    with pytest.raises(StorageError, match="was lost"):
        icechunk_spark.write(more, path, mode="append")
    monkeypatch.undo()
    assert stored > before
    assert stored_files(path) == stored
    unchanged(path)
    icechunk_spark.write(more, path, mode="append")
    assert reference_dataset(path).sizes["time"] == 4


def test_a_failing_first_write_leaves_no_repository(spark, tmp_path):
    """Chunks may lie there, but nobody sees a repository; and the write can be run again."""
    place = str(tmp_path / "new")
    frame = grid_frame(spark, hours(0, 40))
    # Blocks come in order, so chunks of earlier hours are stored by then.
    broken = frame.withColumn(
        "t2m",
        F.expr("if(time = '2024-07-02 10:00', raise_error('sensor lost'), t2m)").cast("float"),
    )
    options = {"dims": DIMS, "chunks": {"time": 1}}
    with pytest.raises(PySparkException, match="sensor lost"):
        icechunk_spark.write(broken, place, **options)
    left = stored_files(place)
    assert not os.path.exists(os.path.join(place, "repo"))
    assert not any("snapshots" in name for name in left)
    icechunk_spark.write(frame, place, **options)
    assert stored_files(place) > left
    assert reference_dataset(place).sizes["time"] == 40


@pytest.fixture
def beside_a_rival(monkeypatch):
    """Let a rival act once, between the tasks of a write and its commit."""

    def begin(act):
        once = planned_write._receipts

        def with_a_rival(*arguments):
            receipts = once(*arguments)
            monkeypatch.setattr(planned_write, "_receipts", once)
            act()
            return receipts

        monkeypatch.setattr(planned_write, "_receipts", with_a_rival)

    return begin


def test_somebody_else_creates_the_repository_meanwhile(spark, tmp_path, beside_a_rival):
    place = str(tmp_path / "new")
    beside_a_rival(lambda: Repository.create(place, check_clean_root=False))
    icechunk_spark.write(grid_frame(spark, hours(0, 2)), place, dims=DIMS, message="Ours")
    assert messages(place) == ["Ours", "Repository initialized"]
    assert reference_dataset(place).sizes["time"] == 2


def test_somebody_else_creates_the_arrays_meanwhile(spark, tmp_path, beside_a_rival):
    place = str(tmp_path / "new")
    frame = grid_frame(spark, hours(0, 2))
    beside_a_rival(lambda: icechunk_spark.write(frame, place, dims=DIMS, message="Theirs"))
    with raises(AlreadyExistsError, kind="arrays", group="/"):
        icechunk_spark.write(grid_frame(spark, hours(0, 3)), place, dims=DIMS)
    assert messages(place) == ["Theirs", "Repository initialized"]


def test_a_place_with_other_files_is_refused_before_any_job(spark, tmp_path):
    place = tmp_path / "new"
    place.mkdir()
    (place / "notes.txt").write_text("not a repository")
    never = grid_frame(spark, hours(0, 2)).selectExpr("*").withColumn("t2m", F.expr("t2m / 0"))
    with raises(AlreadyExistsError, found=("notes.txt",)):
        icechunk_spark.write(never, str(place), dims=DIMS)
    assert [found.name for found in place.iterdir()] == ["notes.txt"]


def test_rows_that_vanish_between_the_two_passes(spark, path, tmp_path):
    """The source gives all rows to the job for coordinates, and fewer to the one that writes."""
    coordinates_known = tmp_path / "known"
    frame = grid_frame(spark, hours(0, 6)).coalesce(1)

    def fewer_each_time(batches):
        for batch in batches:
            yield batch.slice(1) if coordinates_known.exists() else batch
        coordinates_known.touch()

    changing = frame.mapInArrow(fewer_each_time, frame.schema)
    with pytest.raises(InvalidInputError, match=r"had 72 rows .* cache\(\) or checkpoint\(\)"):
        icechunk_spark.write(changing, path, mode="append", compute_once=False)
    unchanged(path)


def test_a_repeated_task_changes_nothing(spark, path, monkeypatch):
    """A second attempt stores chunks of its own, which no commit mentions."""
    once = planned_write._receipts

    def twice(*arguments):
        once(*arguments)  # an attempt whose receipts are lost
        return once(*arguments)

    monkeypatch.setattr(planned_write, "_receipts", twice)
    icechunk_spark.write(grid_frame(spark, hours(2, 3)), path, mode="append")
    np.testing.assert_array_equal(
        reference_dataset(path)["t2m"].sel(latitude=LATITUDES).values, temperatures(hours(0, 5))
    )


def test_rows_that_are_not_aligned_after_all(spark, path):
    scattered = grid_frame(spark, hours(2, 2)).repartition(4)
    with pytest.raises(ValueError, match=r"distribution|two tasks|chunk"):
        icechunk_spark.write(scattered, path, mode="append", distribution="none")
    unchanged(path)


def test_rows_that_are_aligned_need_no_shuffle(spark, path):
    aligned = grid_frame(spark, hours(2, 4)).repartition(2, "time")
    icechunk_spark.write(aligned, path, mode="append", distribution="none")
    np.testing.assert_array_equal(
        reference_dataset(path)["t2m"].sel(latitude=LATITUDES).values, temperatures(hours(0, 6))
    )
