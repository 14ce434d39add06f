"""Repositories whose storage fails at the requests that a test names."""

from helpers.builder import add_array, new_place
from helpers.sessions.model import group_document
from helpers.storage.faulty_storage import FaultyStorage

from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.location import Location
from icechunk_format.storage.memory import MemoryStorage


class FaultyRepository(Repository):
    """A repository at a storage that fails."""

    faulty: FaultyStorage

    @property
    def storage(self):
        return self.faulty


def faulty_repository(spec_version):
    """Create a repository with one commit; return it at a sound storage and at a faulty one."""
    url = new_place()
    sound = Repository.create(Location(url), spec_version=spec_version)
    session = sound.writable_session()
    add_array(session, "/a", (8,))
    session.set_chunk("/a", [0], b"base")
    session.commit("base")
    # What the commit remembers would save requests in the first session, and in no later one.
    metadata_cache().clear()
    faulty = FaultyRepository(Location(url), spec_version=spec_version)
    faulty.faulty = FaultyStorage(MemoryStorage(url.removeprefix("memory://")))
    return sound, faulty


def begin(repository):
    """Begin a session with changes of every kind of file."""
    session = repository.writable_session()
    session.set_chunks("/a", [[0], [1]], [b"changed", b"x" * 600])
    session.create_group("/g", group_document())
    return session


def fail_at(repository, fault, numbers):
    """Let the requests of these numbers fail, counted from now."""
    repository.faulty.requests.clear()
    repository.faulty.fault = fault
    repository.faulty.at = frozenset(numbers)
    metadata_cache().clear()


def heal(repository):
    """Let no request fail any more."""
    repository.faulty.at = frozenset()
