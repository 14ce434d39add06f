"""Expiration and collection through Spark leave what those of one process leave.

One untidy repository on disk is copied, and each way tidies a copy. What tasks do in between
(parting, packing, reading in rows) is tested without Spark in ``tests/maintenance``.
"""

import json
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from helpers.files.maintenance_repositories import FOREIGN, build_untidy, commit
from helpers.raised import raises
from helpers.sessions.model import stored_contents

import icechunk_format.maintenance as one_process
import icechunk_spark.maintenance as jobs
from icechunk_format.encoding.ids import encode_many
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.maintenance.garbage.collect import collect_from
from icechunk_format.maintenance.garbage.parts import SweepTask
from icechunk_format.maintenance.garbage.result import Phase
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.location import Location
from icechunk_spark.jobs.task_rows import with_receipts
from icechunk_spark.maintenance import collect_tasks
from icechunk_spark.maintenance.collect import SparkCollector, _depth


@pytest.fixture(scope="module")
def untidy(tmp_path_factory):
    """Build repositories of both spec versions on disk."""
    places = {}
    for version in (1, 2):
        place = tmp_path_factory.mktemp("untidy") / f"v{version}"
        places[version] = place, build_untidy(version, location=str(place))
    return places


def copy_of(place, target):
    # With the times of the files, which a collection judges by.
    shutil.copytree(place, target, copy_function=shutil.copy2)
    return str(target)


def files_of(place):
    storage = Repository.open(place).storage
    return {found.key for found in storage.list() if not found.key.startswith("overwritten/")}


def sizes_of(place):
    return {found.key: found.size for found in Repository.open(place).storage.list()}


def soon():
    return datetime.now(UTC) + timedelta(seconds=5)


@pytest.mark.parametrize("version", [1, 2])
def test_spark_leaves_what_one_process_leaves(spark, untidy, version, tmp_path):
    place, built = untidy[version]
    with_spark, alone = copy_of(place, tmp_path / "spark"), copy_of(place, tmp_path / "alone")
    cutoff = built.instants["main 1"]
    expired = jobs.expire_snapshots(spark, with_spark, cutoff)
    assert expired == one_process.expire_snapshots(alone, cutoff)
    assert expired.released_snapshots
    # A cutoff within history, so that some of what nothing reaches is new.
    cutoff = built.instants["gone"]
    done = jobs.collect_garbage(spark, with_spark, cutoff)
    assert done == one_process.collect_garbage(alone, cutoff)
    kept = sizes_of(with_spark).items()
    marked = [
        size
        for key, size in kept
        if key.startswith(("snapshots/", "manifests/")) and size > len(b"foreign")
    ]
    # Tasks read what they mark, list the kinds of objects, and delete some.
    assert done.totals.bytes_read == sum(marked)
    assert done.totals.requests >= len(marked) + done.chunks_deleted + 4
    assert files_of(with_spark) == files_of(alone)
    assert set(FOREIGN) <= files_of(with_spark)
    for age in ("0min", timedelta(0)):
        done = jobs.collect_garbage(spark, with_spark, age, dry_run=True)
        assert done == one_process.collect_garbage(alone, age, dry_run=True)
        assert done.chunks_deleted
    metadata_cache().clear()
    ours, theirs = Repository.open(with_spark), Repository.open(alone)
    key = lambda info: info.id  # noqa: E731
    assert sorted(ours.snapshots(), key=key) == sorted(theirs.snapshots(), key=key)


def test_what_is_committed_while_executors_mark_is_marked_as_well(spark, untidy, tmp_path):
    place, _ = untidy[2]
    repository = Repository.open(copy_of(place, tmp_path / "copy"))

    class Meanwhile(SparkCollector):
        def mark(self, kept):
            super().mark(kept)
            commit(repository, 17)

    # This reckless cutoff does not protect the new files.
    collector = Meanwhile(spark, repository.location, soon(), dry_run=False)
    collect_from(repository.storage, collector, spec_version=2, older_than=soon())
    collector.close()
    shown = stored_contents(repository, repository.resolve())
    assert shown["values/c/17/0"] == bytes([17]) * 700


def test_a_dry_run_counts_and_changes_nothing(spark, untidy, tmp_path):
    place, _ = untidy[2]
    copy = copy_of(place, tmp_path / "copy")
    before = files_of(copy)
    planned = jobs.collect_garbage(spark, copy, soon(), dry_run=True)
    assert files_of(copy) == before
    done = one_process.collect_garbage(copy, soon())
    assert planned.dry_run
    assert planned.chunks_deleted == done.chunks_deleted > 0
    assert planned.bytes_deleted == done.bytes_deleted


def test_a_missing_manifest_is_told_as_such_and_nothing_goes(spark, untidy, tmp_path):
    place, built = untidy[2]
    copy = copy_of(place, tmp_path / "copy")
    snapshot = Repository.open(copy).snapshot(built.ids["main 1"])
    keys = {f"manifests/{name}" for name in encode_many(snapshot.manifest_files.ids)}
    storage = Repository.open(copy).storage
    storage.delete_many(keys)
    before = files_of(copy)
    with pytest.raises(NotFoundError, match="although a kept snapshot needs it"):
        jobs.collect_garbage(spark, copy, soon())
    assert files_of(copy) == before


def test_options_that_mean_nothing_are_refused(spark, tmp_path):
    with raises(InvalidInputError, option="where"):
        jobs.collect_garbage(spark, str(tmp_path), soon(), where="x > 1")
    with pytest.raises(InvalidInputError, match="metadata table 'chunks'"):
        jobs.expire_snapshots(spark, f"{tmp_path}#chunks", soon())


def test_credentials_stay_out_of_plans(spark, untidy, tmp_path):
    """What Spark shows of a job names no option of the store."""
    secret = "wJalrXUtnFEMI-secret"
    location = Location("s3://bucket/weather", options={"key": "AKIA", "secret": secret})
    collector = SparkCollector(spark, location, soon(), dry_run=True)
    task = partial(
        collect_tasks.sweep,
        SweepTask(location=location, phase=Phase.CHUNKS, older_than=soon(), depth=1, dry_run=True),
    )
    rows = collector._frame([(0, b"")], number={0: 0})
    frame = rows.mapInArrow(with_receipts(task), "answer binary")
    plan = frame._jdf.queryExecution().toString()
    assert secret not in plan
    assert secret not in repr(task)
    assert secret not in json.dumps(frame.schema.jsonValue())


def test_parts_are_cut_finer_for_more_references():
    assert _depth(10**6) == 1
    assert _depth(10**9) == 2
