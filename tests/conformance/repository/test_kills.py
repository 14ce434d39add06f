"""A process that commits is killed at every step: the branch is as it was, or has the whole commit.

A child process commits through a storage that kills it (SIGKILL) right before or right after one
of its requests; each request in turn, for both spec versions. Then the reference opens what is
left, and both libraries commit on top of it.
"""

import asyncio
import multiprocessing
import os
import shutil
import signal

import icechunk
import pytest
from helpers.builder import add_array
from helpers.sessions.model import stored_contents
from helpers.storage.faulty_storage import FaultyStorage
from zarr.core.buffer import default_buffer_prototype

from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage

icechunk.set_logs_filter("off")
PROTOTYPE = default_buffer_prototype()


class KillingStorage(FaultyStorage):
    """Does its work, but for one request, before or after which the whole process dies."""

    killed_at: int | None = None
    after = False

    def _request(self, verb, key, act, **condition):
        number = len(self.requests)
        if number == self.killed_at and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return super()._request(verb, key, act, **condition)
        finally:
            # That something is not there is an answer as well.
            if number == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)


class WatchedRepository(Repository):
    watched: KillingStorage

    @property
    def storage(self):
        return self.watched


def build(directory, spec_version):
    repository = Repository.create(str(directory), spec_version=spec_version)
    session = repository.writable_session()
    add_array(session, "/a", (8,))
    session.set_chunks("/a", [[0], [1]], [b"old 0", b"old 1" * 200])
    session.commit("base")


def change(directory, operation, killed_at=None, after=False):
    """Commit, or amend: native and inline chunks, a new array, a manifest that is rewritten."""
    location = Location(str(directory))
    repository = WatchedRepository(location, spec_version=Repository.open(location).spec_version)
    repository.watched = KillingStorage(open_storage(location))
    repository.watched.killed_at, repository.watched.after = killed_at, after
    session = repository.writable_session()
    session.set_chunks("/a", [[1], [2]], [b"new 1" * 200, b"new 2"])
    add_array(session, "/b", (2,))
    session.set_chunk("/b", [1], b"new b" * 200)
    getattr(session, operation)("killed")
    return repository.watched.requests


def killed(directory, operation, number, after):
    """Make the change in a process of its own, which must die of the kill."""
    context = multiprocessing.get_context("fork")
    child = context.Process(target=change, args=(directory, operation, number, after))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


def reference(directory):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(directory)))


def reference_contents(repository):
    session = repository.readonly_session("main")

    async def collect():
        keys = [key async for key in session.store.list()]
        values = await asyncio.gather(*(session.store.get(key, PROTOTYPE) for key in keys))
        return {key: value.to_bytes() for key, value in zip(keys, values, strict=True)}

    return asyncio.run(collect())


def commit_on_top(directory, expected):
    theirs = reference(directory).writable_session("main")
    data = PROTOTYPE.buffer.from_bytes(b"by the reference")
    asyncio.run(theirs.store.set("a/c/5", data))
    theirs.commit("theirs")
    repository = Repository.open(str(directory))
    session = repository.writable_session()
    session.set_chunk("/a", [6], b"by us")
    session.commit("ours")
    expected = expected | {"a/c/5": b"by the reference", "a/c/6": b"by us"}
    assert reference_contents(reference(directory)) == expected
    assert stored_contents(repository, repository.resolve()) == expected


@pytest.mark.parametrize(
    ("operation", "spec_version"), [("commit", 2), ("commit", 1), ("amend", 2)]
)
def test_a_killed_commit_is_there_as_a_whole_or_not_at_all(tmp_path, operation, spec_version):
    base, done = tmp_path / "base", tmp_path / "done"
    build(base, spec_version)
    shutil.copytree(base, done)
    requests = change(done, operation)
    kinds = {key.split("/")[0] for verb, key in requests if verb in ("put", "copy")}
    parts = {"chunks", "manifests", "snapshots", "transactions"}
    assert kinds == parts | ({"refs"} if spec_version == 1 else {"overwritten", "repo"})
    states = {}
    for name, place in (("before", base), ("after", done)):
        opened = reference(place)
        messages = [info.message for info in opened.ancestry(branch="main")]
        states[name] = (messages, reference_contents(opened))
    assert states["before"] != states["after"]
    decision = max(n for n, (verb, _) in enumerate(requests) if verb == "put")
    for number in range(len(requests)):
        for after in (False, True):
            place = tmp_path / f"{number}-{after}"
            shutil.copytree(base, place)
            killed(place, operation, number, after)
            is_done = number > decision or (number == decision and after)
            opened = reference(place)
            found = [info.message for info in opened.ancestry(branch="main")]
            state = (found, reference_contents(opened))
            where = (*requests[number], "after" if after else "before")
            assert state == states["after" if is_done else "before"], where
            # Going on looks the same at every step; the first, the last and the decision will do.
            if number in (0, decision, len(requests) - 1):
                commit_on_top(place, state[1])
            shutil.rmtree(place)
