"""Writes take branches, messages and versions of jobs, beside rival writers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

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
    reference_repository,
    temperatures,
    written_grid,
)

import icechunk_spark
from icechunk_format import Repository
from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError

pytestmark = pytest.mark.needs_reference


@pytest.fixture
def path(tmp_path):
    return written_grid(tmp_path, 2, chunks={"time": 1})


def test_write_audit_publish(spark, path):
    more = grid_frame(spark, hours(2, 1))
    options = {"branch": "audit", "createBranch": True, "mode": "append"}
    done = icechunk_spark.write(more, path, **options)
    assert reference_dataset(path).sizes["time"] == 2
    audited = spark.read.format("icechunk").option("branch", "audit").load(path)
    assert audited.where("t2m < 0").count() == 0
    Repository.open(path).fast_forward("main", "audit")
    assert reference_dataset(path).sizes["time"] == 3
    assert str(Repository.open(path).resolve(branch="main")) == str(done.snapshot_id)


def test_a_branch_that_is_not_there(spark, path):
    with raises(NotFoundError, kind="branch", name="audti"):
        icechunk_spark.write(grid_frame(spark, hours(2, 1)), path, mode="append", branch="audti")


def test_message_and_metadata(spark, path):
    grid_frame(spark, hours(2, 1)).write.format("icechunk").mode("append").option(
        "message", "Add the third hour"
    ).option("metadata", json.dumps({"run": 17, "by": "nightly"})).save(path)
    newest = next(iter(reference_repository(path).ancestry(branch="main")))
    assert newest.message == "Add the third hour"
    assert newest.metadata["run"] == 17
    assert newest.metadata["by"] == "nightly"


def test_a_version_that_is_committed_already_is_skipped(spark, path):
    more = grid_frame(spark, hours(2, 1))
    options = {"mode": "append", "txnAppId": "nightly", "txnVersion": 7}
    first = icechunk_spark.write(more, path, **options)
    changed = grid_frame(spark, hours(2, 1), np.zeros((1, 4, 3)))
    again = icechunk_spark.write(changed, path, **options)
    assert not first.is_skipped
    assert again.is_skipped
    assert again.reason
    found = reference_dataset(path)["t2m"].sel(latitude=LATITUDES).values
    np.testing.assert_array_equal(found, temperatures(hours(0, 3)))
    icechunk_spark.write(changed, path, **{**options, "txnVersion": 8})
    assert (reference_dataset(path)["t2m"].values[2] == 0).all()


@pytest.fixture
def interrupted(monkeypatch):
    """Let something else happen between the tasks of a write and its commit."""
    from icechunk_spark.writing import planned as planned_write

    finish = planned_write.finish_write

    def arrange(rival):
        waiting = [rival]

        def late(plan, receipts, *more):
            if waiting:
                waiting.pop()()
            return finish(plan, receipts, *more)

        monkeypatch.setattr(planned_write, "finish_write", late)

    return arrange


def values(number):
    return np.full((1, 4, 3), number, dtype="float32")


def test_writers_of_other_chunks_both_land(spark, path, interrupted):
    ours = grid_frame(spark, hours(0, 1), values(1))
    theirs = grid_frame(spark, hours(1, 1), values(2))
    interrupted(lambda: icechunk_spark.write(theirs, path, mode="append", message="theirs"))
    icechunk_spark.write(ours, path, mode="append", message="ours")
    found = reference_dataset(path)["t2m"].values
    assert (found[0] == 1).all()
    assert (found[1] == 2).all()
    assert messages(path)[:2] == ["ours", "theirs"]


def test_on_conflict_fail_does_not_try_again(spark, path, interrupted):
    ours = grid_frame(spark, hours(0, 1), values(1))
    theirs = grid_frame(spark, hours(1, 1), values(2))
    interrupted(lambda: icechunk_spark.write(theirs, path, mode="append", message="theirs"))
    with pytest.raises(ConflictError):
        icechunk_spark.write(ours, path, mode="append", onConflict="fail")
    assert messages(path)[0] == "theirs"


@pytest.mark.parametrize(("resolve", "left"), [(None, 2), ("ours", 1)])
def test_one_chunk_written_by_both(spark, path, interrupted, resolve, left):
    ours = grid_frame(spark, hours(0, 1), values(1))
    theirs = grid_frame(spark, hours(0, 1), values(2))
    interrupted(lambda: icechunk_spark.write(theirs, path, mode="append"))
    if resolve is None:
        with raises(ConflictError, variables=("t2m",)):
            icechunk_spark.write(ours, path, mode="append")
    else:
        icechunk_spark.write(ours, path, mode="append", resolve=resolve)
    assert (reference_dataset(path)["t2m"].values[0] == left).all()


def test_jobs_that_append_different_hours_at_the_same_time_all_land(spark, path):
    before = reference_dataset(path).sizes["time"]
    waiting = Barrier(3)

    def append(number):
        frame = grid_frame(spark, hours(10 + number, 1), values(number))
        waiting.wait(60)
        return icechunk_spark.write(frame, path, mode="append", message=f"hour {number}")

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(append, range(3)))
    assert sorted(messages(path)[:3]) == ["hour 0", "hour 1", "hour 2"]
    assert len({result.snapshot_id for result in done}) == 3
    found = reference_dataset(path)
    assert found.sizes["time"] == before + 3
    assert found.indexes["time"].is_monotonic_increasing
    for number in range(3):
        at = found["t2m"].sel(time=hours(10 + number, 1)[0])
        assert (at.sel(latitude=LATITUDES).values == number).all()


def test_spec_version_one(spark, tmp_path):
    path = str(tmp_path / "old")
    icechunk_spark.write(grid_frame(spark, hours(0, 2)), path, dims=DIMS, specVersion=1)
    assert reference_repository(path).spec_version == 1
    assert Repository.open(path).spec_version == 1
    icechunk_spark.write(grid_frame(spark, hours(2, 1)), path, mode="append")
    np.testing.assert_array_equal(
        reference_dataset(path)["t2m"].sel(latitude=LATITUDES).values, temperatures(hours(0, 3))
    )


def test_a_group_of_its_own(spark, path):
    frame = grid_frame(spark, hours(5, 1))
    icechunk_spark.write(frame, path, mode="append", group="/model/run", dims=DIMS)
    assert reference_dataset(path, group="model/run")["t2m"].shape == (1, 4, 3)
    assert reference_dataset(path).sizes["time"] == 2
    with pytest.raises(InvalidInputError):
        icechunk_spark.write(frame, path, mode="append", group="model//run", dims=DIMS)
