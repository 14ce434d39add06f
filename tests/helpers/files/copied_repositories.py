"""Makes repositories to copy, and compares a copy with its source."""

from helpers.builder import add_array, new_repository
from helpers.sessions.model import stored_contents


def commit(repository, number, branch="main"):
    """Commit a chunk whose content is a number, and return the id of the version."""
    session = repository.writable_session(branch)
    if session.node("/a") is None:
        add_array(session, "/a", (9,))
    session.set_chunks("/a", [[number % 9]], [bytes([number]) * 700])
    return session.commit(f"commit {number}").snapshot_id


def repository_of(commits, spec_version=2):
    """Make a repository with some commits."""
    repository = new_repository(spec_version)
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
