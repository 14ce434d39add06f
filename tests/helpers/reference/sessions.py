"""Sessions of the reference beside ours, on one repository in a folder.

``start`` creates it through us; ``ReferenceDriver`` makes the changes of ``session_model`` through
the reference; ``assert_both_hold`` compares what both show with what a model says.
"""

import asyncio

import icechunk
from helpers.builder import add_array
from helpers.sessions.model import group_document, stored_contents
from zarr.core.buffer import default_buffer_prototype

from icechunk_format import Repository

icechunk.set_logs_filter("off")


PROTOTYPE = default_buffer_prototype()


def open_reference(directory, config=None):
    """Open with the reference library."""
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(directory)), config)


class ReferenceDriver:
    """Makes changes in a session of the reference, through its Zarr store."""

    def __init__(self, session):
        self.session = session

    def _key(self, path, name):
        return f"{path[1:]}/{name}" if path != "/" else name

    def _set(self, items):
        async def run():
            for key, data in items:
                await self.session.store.set(key, PROTOTYPE.buffer.from_bytes(data))

        asyncio.run(run())

    def _chunk_key(self, path, coords):
        return self._key(path, "/".join(["c", *map(str, coords)]))

    def create_group(self, path, document):
        self._set([(self._key(path, "zarr.json"), document)])

    def create_array(self, path, node):
        self._set([(self._key(path, "zarr.json"), node.document)])

    def update(self, path, node):
        self._set([(self._key(path, "zarr.json"), node.document)])

    def set_chunks(self, path, coords, payloads):
        keys = [self._chunk_key(path, place) for place in coords]
        self._set(zip(keys, payloads, strict=True))

    def delete_chunks(self, path, coords):
        async def run():
            for place in coords:
                await self.session.store.delete(self._chunk_key(path, place))

        asyncio.run(run())

    def shift(self, path, offset):
        self.session.shift_array(path, offset)

    def delete(self, path):
        asyncio.run(self.session.store.delete_dir(path[1:]))

    def move(self, source, target):
        self.session.move(source, target)


def reference_contents(session):
    """Return every key of a session's store with its bytes."""

    async def collect():
        keys = [key async for key in session.store.list()]
        values = await asyncio.gather(*(session.store.get(key, PROTOTYPE) for key in keys))
        return {key: value.to_bytes() for key, value in zip(keys, values, strict=True)}

    return asyncio.run(collect())


def assert_both_hold(directory, keys, branch="main"):
    """Check that a branch holds just these keys and bytes for both; return both repositories."""
    ours = Repository.open(str(directory))
    assert stored_contents(ours, ours.resolve(branch=branch)) == keys
    theirs = open_reference(directory)
    assert reference_contents(theirs.readonly_session(branch)) == keys
    return ours, theirs


def start(directory, spec_version=2):
    """Create a repository with a few nodes through us; return it."""
    repository = Repository.create(str(directory), spec_version=spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document())
    session.create_group("/g", group_document())
    for path in ("/g/a", "/b"):
        add_array(session, path, (6,))
        session.set_chunks(
            path, [[i] for i in range(6)], [b"base" * (1 + 200 * i) for i in range(6)]
        )
    session.commit("base", metadata={"by": "us"})
    return repository


def put_chunk(store, key, data):
    """Set one key of a store of the reference."""
    asyncio.run(store.set(key, PROTOTYPE.buffer.from_bytes(data)))
