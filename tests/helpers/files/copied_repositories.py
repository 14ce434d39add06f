"""Makes repositories to copy, and compares a copy with its source."""

import itertools

from helpers.sessions.model import array_document, group_document, stored_contents

from icechunk_format.repository.repository import Repository
from icechunk_format.storage.location import Location

_numbers = itertools.count()


def place():
    """Return an empty place in memory."""
    return Location(f"memory://copy-{next(_numbers)}")


def commit(repository, number, branch="main"):
    """Commit a chunk whose content is a number, and return the id of the version."""
    session = repository.writable_session(branch)
    if session.node("/a") is None:
        session.create_group("/", group_document())
        session.create_array("/a", array_document((9,), (1,)), shape=(9,), num_chunks=(9,))
    session.set_chunks("/a", [[number % 9]], [bytes([number]) * 700])
    return session.commit(f"commit {number}").snapshot_id


def repository_of(commits, spec_version=2):
    """Make a repository with some commits."""
    repository = Repository.create(place(), spec_version=spec_version)
    for number in range(commits):
        commit(repository, number)
    return repository


def history(repository, branch="main"):
    """Return id, parent, message and time of each version of a branch."""
    return [
        (i.id, i.parent_id, i.message, i.flushed_at) for i in repository.ancestry(branch=branch)
    ]


def assert_same(source, target, branch="main", target_branch="main"):
    """Compare history and contents of the versions of two branches."""
    assert history(target, target_branch) == history(source, branch)
    for info in source.ancestry(branch=branch):
        assert stored_contents(target, info.id) == stored_contents(source, info.id)
