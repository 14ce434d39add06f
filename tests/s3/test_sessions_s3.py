"""Conditional writes of a real S3 server decide races of commits, for both clients."""

import multiprocessing
import uuid

import pytest
from helpers.sessions.model import (
    Model,
    OurDriver,
    RandomChanges,
    array_document,
    group_document,
    stored_contents,
)

from icechunk_format.errors import AlreadyExistsError
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location

WRITERS, COMMITS = 3, 3


@pytest.fixture(params=["obstore", "fsspec"])
def location(request, s3_server, shared_bucket):
    url = f"s3://{shared_bucket}/{uuid.uuid4()}"
    return Location(url, client=request.param, options=s3_server.storage_options)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_versions_hold_what_the_sessions_changed(location, spec_version):
    repository = Repository.create(location, spec_version=spec_version)
    with pytest.raises(AlreadyExistsError):
        Repository.create(location)
    model = Model()
    changes = RandomChanges(model, seed=1)
    for number in range(4):
        session = repository.writable_session()
        changes.session(OurDriver(session), steps=8)
        result = session.commit(f"commit {number}", allow_empty=True)
        assert stored_contents(repository, result.snapshot_id) == model.keys()


def write_rows(location, writer, barrier):
    repository = Repository.open(location)
    barrier.wait()
    for number in range(COMMITS):
        session = repository.writable_session()
        session.set_chunk("/a", [writer * COMMITS + number], b"%d-%d" % (writer, number))
        session.commit(f"{writer}-{number}")


@pytest.mark.parametrize("spec_version", [1, 2])
def test_processes_that_commit_to_one_bucket_lose_nothing(location, spec_version):
    repository = Repository.create(location, spec_version=spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document())
    total = WRITERS * COMMITS
    session.create_array("/a", array_document((total,), (1,)), shape=(total,), num_chunks=(total,))
    session.commit("base")
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(WRITERS)
    processes = [
        context.Process(target=write_rows, args=(location, writer, barrier))
        for writer in range(WRITERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    contents = stored_contents(repository, repository.resolve())
    assert {key: data for key, data in contents.items() if "/c/" in key} == {
        f"a/c/{writer * COMMITS + number}": b"%d-%d" % (writer, number)
        for writer in range(WRITERS)
        for number in range(COMMITS)
    }
    messages = [info.message for info in repository.ancestry()]
    assert len(messages) == len(set(messages)) == total + 2
