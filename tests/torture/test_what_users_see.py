"""Users read helpful errors of full disks, lost rights, ended tokens and wrong clocks.

Each time nothing is committed by half, the last line of the error says what happened, where, and
what to do, and the very same session goes on when the cause is gone.
"""

from __future__ import annotations

import itertools
import os
import time

import pytest
from helpers.servers.http import Fault, misbehaving_server
from helpers.sessions.model import array_document, group_document, stored_contents

from icechunk_format.errors import InvalidInputError, StorageError
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.local import store as local
from icechunk_format.storage.location import Location
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan

PAYLOAD = bytes(range(256)) * 4


def begin(repository):
    session = repository.writable_session()
    session.create_group("/", group_document())
    document = array_document((8,), (1,), dimension_names=["x"])
    session.create_array("/a", document, shape=(8,), num_chunks=(8,))
    return session


def change_and_commit(session, message):
    session.set_chunks("/a", [[0], [1]], [PAYLOAD, PAYLOAD])
    return session.commit(message)


def last_line(error):
    return str(error).splitlines()[-1]


# -- a full disk -------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the kernel has no /dev/full")
@pytest.mark.parametrize("files_before", [0, 1, 3])
def test_a_full_disk(tmp_path, monkeypatch, files_before):
    repository = Repository.create(str(tmp_path))
    base = repository.resolve()
    session = begin(repository)
    real_open, left = os.open, [files_before]

    def full_after_a_while(path, flags, *args, **kwargs):
        if flags & os.O_CREAT and "lock" not in os.path.basename(str(path)):
            left[0] -= 1
            if left[0] < 0:
                # What is written here meets the kernel's own "no space left on device".
                open(path, "wb").close()
                return real_open("/dev/full", os.O_WRONLY)
        return real_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(local.os, "open", full_after_a_while)
    with pytest.raises(StorageError) as caught:
        change_and_commit(session, "does not fit")
    line = last_line(caught.value)
    assert "No space left on device" in line
    assert "free some space" in line
    assert str(tmp_path) in line
    assert not caught.value.outcome_unknown
    monkeypatch.setattr(local.os, "open", real_open)
    assert repository.resolve() == base
    # What could not be finished is nowhere under a name that counts.
    sizes = [f.stat().st_size for f in tmp_path.rglob("*") if f.is_file() and f.name[0] != "."]
    assert 0 not in sizes
    done = change_and_commit(session, "fits now")
    assert stored_contents(repository, done.snapshot_id)["a/c/1"] == PAYLOAD


# -- rights and tokens -------------------------------------------------------------------------


@pytest.fixture
def server():
    with misbehaving_server() as running:
        running.clock = time.time
        yield running


@pytest.fixture(params=["obstore", "fsspec"])
def location(request, server):
    options = {"anon": "true", "endpoint_url": server.url, "max_retries": "1"}
    return Location("s3://bucket/base", client=request.param, options=options)


@pytest.mark.parametrize("taken", ["chunks/", "manifests/", "snapshots/", "overwritten/", "repo"])
def test_the_right_to_write_is_taken_away_in_the_middle(server, location, taken):
    repository = Repository.create(location)
    base = repository.resolve()
    session = begin(repository)
    server.deny = lambda method, path: method == "PUT" and path.startswith(f"/bucket/base/{taken}")
    with pytest.raises(StorageError) as caught:
        change_and_commit(session, "not allowed")
    line = last_line(caught.value)
    assert "403" in line
    assert "s3://bucket/base" in line
    assert taken in line
    assert "storage.key" in line
    assert not caught.value.outcome_unknown
    server.deny = lambda method, path: False
    assert repository.resolve() == base
    done = change_and_commit(session, "allowed again")
    assert next(info.message for info in repository.ancestry()) == "allowed again"
    assert "a/c/0" in stored_contents(repository, done.snapshot_id)


def test_the_right_to_read_is_taken_away_in_the_middle(server, location):
    repository = Repository.create(location)
    change_and_commit(begin(repository), "readable")
    dataset = open_dataset(repository, repository.resolve())
    plan = dataset.plan(dataset.table())
    server.deny = lambda method, path: "/chunks/" in path
    metadata_cache().clear()
    with pytest.raises(StorageError) as caught:
        list(itertools.chain.from_iterable(run_scan(plan.context, task) for task in plan.tasks))
    line = last_line(caught.value)
    assert "403" in line
    assert "s3://bucket/base" in line
    assert "storage.key" in line


def test_a_token_that_ends_is_named(server, location):
    repository = Repository.create(location)
    server.faults.append(Fault(status=400, code="ExpiredToken"))
    with pytest.raises(StorageError) as caught:
        repository.branches()
    line = last_line(caught.value)
    assert "ExpiredToken" in line or "400" in line
    assert "storage.key" in line


# -- clocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skew", "refused"), [(590, None), (-590, None), (615, "behind"), (-615, "ahead of")]
)
def test_clocks_of_hosts_that_differ(server, location, skew, refused):
    """``flushed_at`` is this machine's time; a store that is ten minutes off says no."""
    repository = Repository.create(location)
    base = repository.resolve()
    session = begin(repository)
    server.clock = lambda: time.time() + skew
    if refused is None:
        session.commit("dated well enough")
        return
    with pytest.raises(InvalidInputError) as caught:
        session.commit("from another time")
    line = last_line(caught.value)
    assert f"61{line[line.index('dated 61') + 8]} s {refused} the clock of s3://bucket/base" in line
    assert "600 s are tolerated" in line
    assert "Nothing was committed" in line
    assert "clock of this machine" in line
    assert repository.resolve() == base
    server.clock = time.time
    session.commit("the clocks agree")


def test_a_parent_from_the_future_does_not_turn_history_around(server, location, monkeypatch):
    """A writer whose clock is behind dates its version just after its parent."""
    from icechunk_format.repository.commit import commit

    repository = Repository.create(location)
    real = commit.now_in_microseconds
    monkeypatch.setattr(commit, "now_in_microseconds", lambda: real() + 500_000_000)
    begin(repository).commit("eight minutes ahead")
    monkeypatch.setattr(commit, "now_in_microseconds", real)
    session = repository.writable_session()
    session.set_chunk("/a", [0], b"x")
    session.commit("on time")
    times = [info.flushed_at for info in repository.ancestry()]
    assert times == sorted(times, reverse=True)
    assert times[0] == times[1] + 1
