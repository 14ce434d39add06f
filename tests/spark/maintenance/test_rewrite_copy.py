"""Rewriting and copying as Spark jobs do what the functions of one process do; secrets stay secret.

The same work on Spark Connect is in ``tests/spark/test_spark_connect.py``.
"""

from __future__ import annotations

import operator
from functools import partial

import pytest
from helpers.files.appended import STEPS, WIDTH, build_appended
from helpers.raised import raises
from helpers.sessions.model import group_document, stored_contents

from icechunk_format import maintenance as one_process
from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError
from icechunk_format.repository import Repository
from icechunk_spark import maintenance
from icechunk_spark.jobs import task_rows


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build_appended(tmp_path_factory.mktemp("maintenance") / "appended")


def contents(repository, branch="main"):
    return stored_contents(repository, repository.resolve(branch=branch))


def test_copies_and_rewrites_what_one_process_would(spark, built, tmp_path):
    copied = maintenance.copy(spark, built.location.url, str(tmp_path / "copy"))
    expected = one_process.copy(built.location, str(tmp_path / "expected"))
    assert copied == expected
    assert copied.chunks == STEPS * WIDTH
    # The driver stores snapshots and transaction logs, tasks all else, and read what they store.
    files = Repository.open(str(tmp_path / "copy")).storage.list
    moved = sum(file.size for name in ("chunks/", "manifests/") for file in files(name))
    assert copied.totals.bytes_read == copied.totals.bytes_written == moved
    copy = Repository.open(str(tmp_path / "copy"))
    assert contents(copy) == contents(built)
    assert [i.id for i in copy.ancestry()] == [i.id for i in built.ancestry()]
    again = maintenance.copy(spark, built.location.url, str(tmp_path / "copy"))
    assert (again.snapshots, again.manifests, again.chunks) == (0, 0, 0)

    planned = maintenance.rewrite_manifests(spark, str(tmp_path / "copy"), dry_run=True)
    done = maintenance.rewrite_manifests(
        spark, str(tmp_path / "copy"), message="fewer", metadata={"by": "spark"}
    )
    assert planned.manifests_after == done.manifests_after == 2
    assert done.references == 2 * STEPS * WIDTH
    assert done.manifests_before > 2
    assert contents(copy) == contents(built)
    info = next(iter(copy.ancestry()))
    assert (info.message, info.metadata["by"]) == ("fewer", "spark")
    assert planned.totals is None
    assert done.totals.bytes_written > 0
    assert maintenance.rewrite_manifests(spark, str(tmp_path / "copy")).commit is None
    splitting = [["any_array", [{"condition": {"Axis": 0}, "num_chunks": 5}]]]
    split = maintenance.rewrite_manifests(
        spark, str(tmp_path / "copy"), splitting=splitting, paths=["/large"], amend=True
    )
    assert split.manifests_after == 1 + 5
    assert split.commit.parent_id == info.parent_id
    assert contents(copy) == contents(built)


def test_an_interrupted_copy_goes_on(spark, built, tmp_path):
    target = str(tmp_path / "target")
    maintenance.copy(spark, built.location.url, target, history=False)
    copy = Repository.open(target)
    gone = sorted(info.key for info in copy.storage.list("chunks/"))[::3]
    assert not copy.storage.delete_many(["repo", *gone])
    again = maintenance.copy(spark, built.location.url, target, history=False)
    assert again.chunks == len(gone)
    assert again.skipped_chunks == STEPS * WIDTH - len(gone)
    assert contents(copy) == contents(built)
    assert len(list(copy.ancestry())) == 2


def test_errors_of_tasks_and_options_are_ours(spark, built, tmp_path):
    broken = str(tmp_path / "broken")
    one_process.copy(built.location, broken)
    storage = Repository.open(broken).storage
    [chunk] = [info.key for info in storage.list("chunks/")][:1]
    storage.delete_many([chunk])
    with pytest.raises(NotFoundError, match=f"{chunk}.*nothing was published"):
        maintenance.copy(spark, broken, str(tmp_path / "never"))
    assert not Repository.exists(str(tmp_path / "never"))
    with raises(InvalidInputError, option="where"):
        maintenance.copy(spark, broken, str(tmp_path / "never"), where="time > 3")
    with raises(InvalidInputError, target=broken):
        maintenance.copy(spark, broken, broken)
    session = Repository.open(broken).writable_session()
    session.create_group("/own", group_document())
    session.commit("their own")
    with raises(ConflictError, branch="main"):
        maintenance.copy(spark, built.location.url, broken)
    maintenance.copy(spark, built.location.url, broken, target_branch="other")
    assert set(Repository.open(broken).branches()) == {"main", "other"}


def test_tasks_hold_no_credential_and_get_a_task_each(spark):
    rows = task_rows.work_rows(spark, [{"task": n} for n in range(7)])
    assert rows.rdd.getNumPartitions() == 7
    # Of a module that workers can import, unlike this one.
    secret = partial(operator.concat, "s3cr3t-token")
    task = task_rows.with_receipts(lambda batches: map(secret, task_rows.tasks_in(batches)))
    plan = rows.mapInArrow(task, "receipt binary")
    assert "s3cr3t" not in plan._jdf.queryExecution().toString()
    answers = task_rows.on_executors(spark, secret, [str(n) for n in range(9)])
    assert sorted(answers) == [f"s3cr3t-token{n}" for n in range(9)]
    assert task_rows.on_executors(spark, secret, []) == []
