"""Laws of repositories on any storage: random commits, and processes that commit at one moment.

Each function takes a location that is empty. Imports nothing but the library, since processes that
are spawned import it.
"""

from __future__ import annotations

import multiprocessing

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


def assert_snapshots_hold_random_changes(location, spec_version, *, seed, commits):
    """Create a repository once, commit random changes, and compare each snapshot with a model."""
    repository = Repository.create(location, spec_version=spec_version)
    with pytest.raises(AlreadyExistsError):
        Repository.create(location)
    model = Model()
    changes = RandomChanges(model, seed=seed)
    for number in range(commits):
        session = repository.writable_session()
        changes.session(OurDriver(session), steps=8)
        result = session.commit(f"commit {number}", allow_empty=True)
        for reader in (repository, Repository.open(location)):
            assert stored_contents(reader, result.snapshot_id) == model.keys()


def _write_rows(location, writer, commits, barrier):
    repository = Repository.open(location)
    barrier.wait()
    for number in range(commits):
        session = repository.writable_session()
        session.set_chunk("/a", [writer * commits + number], b"%d-%d" % (writer, number))
        session.commit(f"{writer}-{number}")


def assert_processes_lose_nothing(location, spec_version, *, start_method, writers, commits):
    """Let processes commit to one branch; return the repository, which holds all commits."""
    repository = Repository.create(location, spec_version=spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document())
    total = writers * commits
    session.create_array("/a", array_document((total,), (1,)), shape=(total,), num_chunks=(total,))
    session.commit("base")
    context = multiprocessing.get_context(start_method)
    barrier = context.Barrier(writers)
    processes = [
        context.Process(target=_write_rows, args=(location, writer, commits, barrier))
        for writer in range(writers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * writers
    contents = stored_contents(repository, repository.resolve())
    assert {key: data for key, data in contents.items() if "/c/" in key} == {
        f"a/c/{writer * commits + number}": b"%d-%d" % (writer, number)
        for writer in range(writers)
        for number in range(commits)
    }
    messages = [info.message for info in repository.ancestry()]
    assert len(messages) == len(set(messages)) == total + 2
    return repository
