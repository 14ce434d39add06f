"""Repositories are copied between a folder and S3, by both clients and by Spark."""

import uuid

import pytest
from helpers.raised import raises
from helpers.sessions.model import Model, OurDriver, RandomChanges, stored_contents

from icechunk_format.errors import NotFoundError
from icechunk_format.maintenance import copy, rewrite_manifests
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location


@pytest.fixture(params=["obstore", "fsspec"])
def location(request, s3_server, shared_bucket):
    url = f"s3://{shared_bucket}/{uuid.uuid4()}"
    return Location(url, client=request.param, options=s3_server.storage_options)


def versions(repository):
    return {info.id: stored_contents(repository, info.id) for info in repository.ancestry()}


def test_there_and_back_again(location, tmp_path):
    source = Repository.create(str(tmp_path / "source"))
    source.update_config({"storage": {"unsafe_use_conditional_update": False}})
    changes = RandomChanges(Model(), seed=3)
    for number in range(4):
        session = source.writable_session()
        changes.session(OurDriver(session), steps=25)
        session.commit(f"commit {number}", allow_empty=True)
    done = copy(source.location, location)
    remote = Repository.open(location)
    assert versions(remote) == versions(source)
    assert done.bytes >= sum(info.size for info in remote.storage.list("chunks/"))
    # What a local folder says about conditional updates must not reach a bucket.
    assert "storage" not in remote.config.raw
    assert not copy(source.location, location).snapshots

    chunks = sorted(info.key for info in remote.storage.list("chunks/"))
    assert len(chunks) > 2
    remote.storage.delete_many(["repo", *chunks[:2]])
    again = copy(source.location, location)
    assert (again.chunks, again.skipped_chunks) == (2, len(chunks) - 2)

    splitting = [["any_array", [{"condition": "Any", "num_chunks": 2}]]]
    rewritten = rewrite_manifests(location, splitting=splitting)
    session = remote.writable_session()
    changes.session(OurDriver(session), steps=5)
    session.commit("on S3", allow_empty=True)
    assert stored_contents(remote, remote.resolve()) == changes.model.keys()
    copy(location, str(tmp_path / "back"))
    back = Repository.open(str(tmp_path / "back"))
    assert versions(back) == versions(remote)
    assert rewritten.commit is None or rewritten.commit.snapshot_id in versions(back)

    remote.storage.delete_many([chunks[0]])
    with raises(NotFoundError, kind="object", key=chunks[0]):
        copy(location, str(tmp_path / "never"))
    assert not Repository.exists(str(tmp_path / "never"))


def test_executors_copy_past_the_driver(location, spark, tmp_path):
    from icechunk_spark import maintenance

    source = Repository.create(str(tmp_path / "source"))
    changes = RandomChanges(Model(), seed=5)
    for number in range(2):
        session = source.writable_session()
        changes.session(OurDriver(session), steps=25)
        session.commit(f"commit {number}", allow_empty=True)
    options = {f"storage.{name}": value for name, value in location.options.items()}
    options["storage.client"] = location.client
    done = maintenance.copy(
        spark, source.location.url, location.url, target_options=options, history=False
    )
    remote = Repository.open(location)
    assert stored_contents(remote, done.snapshot_id) == changes.model.keys()
    assert maintenance.rewrite_manifests(spark, location.url, **options).commit is None
    back = maintenance.copy(spark, location.url, str(tmp_path / "back"), source_options=options)
    assert versions(Repository.open(str(tmp_path / "back"))) == versions(remote)
    assert back.chunks == done.chunks
