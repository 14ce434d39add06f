"""The log of a version lists all changes of a session, for all pairs of edits.

The states before and after are compared chunk by chunk. What differs is in the log, so that a rival
who wrote there finds a conflict; what does not differ, a rival may write.
"""

import itertools

import numpy as np
import pytest
from helpers.builder import add_array, new_repository
from helpers.raised import raises
from helpers.sessions.model import (
    Model,
    OurDriver,
    RandomChanges,
    array_document,
    group_document,
    stored_contents,
)

from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.repository.files import store_manifests
from icechunk_format.repository.files.chunk_files import store_chunks

BY_EXECUTORS = b"by an executor in session "


def places(coords):
    return np.array(coords, dtype=np.int64).reshape(len(coords), -1 if coords[0] else 0)


def add_manifest(session, path, coords, payloads):
    """Write chunks and their manifest as an executor does."""
    storage = session._storage
    refs = store_chunks(storage, places(coords), payloads, inline_threshold=64)
    parts = [(session.node(path).id, [refs])]
    [receipts] = store_manifests(storage, session.format, parts)
    session.add_manifests(path, receipts)


class EveryEdit(RandomChanges):
    """Random changes that meet one another: few arrays, resized again and again."""

    number = 0

    def session(self, driver, steps):
        self.number += 1
        super().session(driver, steps)

    def weights(self):
        return super().weights() | {
            self.set_chunks: 4,
            self.resize: 6,
            self.shift: 3,
            self.delete_chunks: 4,
            self.grow: 1,
            self.manifest: 4,
            self.delete: 0.3,
        }

    def resize(self, driver):
        self._resized.clear()
        super().resize(driver)

    def manifest(self, driver):
        path = self._some_array()
        if path is None:
            return
        node = self.model.nodes[path]
        tag = BY_EXECUTORS + b"%d " % self.number
        # Where another task's chunk is still to be seen, a second one is an error.
        coords = [c for c in self._some_coords(node) if not node.chunks.get(c, b"").startswith(tag)]
        if coords:
            payloads = [tag + self.random.randbytes(self.random.choice([7, 70])) for _ in coords]
            node.chunks.update(zip(coords, payloads, strict=True))
            add_manifest(driver.session, path, coords, payloads)


def state(repository, session):
    """Return path, document, grid and chunks of every node by its id, as a session sees them."""
    source = repository.chunk_source()
    found = {}
    for node in session.nodes():
        if node.array is None:
            found[node.id] = (node.path, node.user_data, None, {})
            continue
        grid = tuple(max(count, 1) for count in node.array.num_chunks)
        refs = session.chunk_refs(node.path, [0] * len(grid), grid)
        payloads = source.fetch(refs, np.arange(len(refs)))
        chunks = dict(zip(map(tuple, refs.coords.tolist()), payloads, strict=True))
        found[node.id] = (node.path, node.user_data, grid, chunks)
    return found


def changed_places(before, after):
    """Return where the chunks of an array differ, as far as its grid reaches now."""
    grid, (was, now) = after[2], (before[3], after[3])
    differing = {c for c in was.keys() | now.keys() if was.get(c) != now.get(c)}
    return {c for c in differing if all(i < n for i, n in zip(c, grid, strict=True))}


def assert_log_is_complete(repository, snapshot_id, before, after):
    log = repository.transaction_log(snapshot_id)
    new, gone = after.keys() - before.keys(), before.keys() - after.keys()
    both = before.keys() & after.keys()
    assert {*log.new_arrays, *log.new_groups} == new
    assert {*log.deleted_arrays, *log.deleted_groups} == gone
    updated = {i for i in both if before[i][1:3] != after[i][1:3]}
    assert {*log.updated_arrays, *log.updated_groups} == updated
    assert log.updated_chunks.keys() <= after.keys()
    for node_id, now in after.items():
        if now[2] is None:
            continue
        named = set(map(tuple, log.updated_chunks.get(node_id, np.empty((0, 0))).tolist()))
        assert changed_places(before.get(node_id, ("", b"", None, {})), now) <= named
        assert all(i < n for c in named for i, n in zip(c, now[2], strict=True))
    parent_id = repository.snapshot_info(snapshot_id).parent_id
    difference = repository.diff(parent_id, snapshot_id)
    assert {p: c.tolist() for p, c in difference.updated_chunks.items()} == {
        after[i][0]: c.tolist() for i, c in log.updated_chunks.items()
    }


@pytest.mark.parametrize("seed", range(12))
def test_the_log_of_random_edits_names_all_that_differs(seed):
    repository = new_repository(1 + seed % 2)
    changes = EveryEdit(Model(), seed)
    for _ in range(5):
        before = state(repository, session := repository.writable_session())
        changes.session(OurDriver(session), steps=12)
        seen = state(repository, session)
        done = session.commit("edits", allow_empty=True).snapshot_id
        assert stored_contents(repository, done) == changes.model.keys()
        after = state(repository, repository.writable_session())
        assert seen == after
        assert_log_is_complete(repository, done, before, after)


# -- pairs -------------------------------------------------------------------------------------


def resize(session, length, version=0):
    document = array_document((length,), (1,), version)
    session.update_metadata("/a", document, shape=(length,), num_chunks=(length,))


def within(session, coords):
    (length,) = session.node("/a").array.num_chunks
    return [[i] for i in coords if i < length]


def put(session, coords, payload):
    found = within(session, coords)
    if found:
        session.set_chunks("/a", found, [payload] * len(found))


def executors(session, coords):
    found = within(session, coords)
    # A chunk of another task that is still to be seen may not be written again.
    refs = session.chunk_refs("/a", [0], [8])
    found = [place for place in found if place not in refs.coords[refs.length == 20].tolist()]
    if found:
        add_manifest(session, "/a", found, [b"x" * 20] * len(found))


EDITS = {
    "set": lambda s: put(s, [0, 4], b"set"),
    "delete": lambda s: s.delete_chunks("/a", within(s, [0, 4])),
    "executors": lambda s: executors(s, [2, 4]),
    "shift": lambda s: s.shift("/a", [1]),
    "shift back": lambda s: s.shift("/a", [-1]),
    "shrink": lambda s: resize(s, 3),
    "shrink more": lambda s: resize(s, 1),
    "restore the shape": lambda s: resize(s, 6),
    "grow": lambda s: resize(s, 8),
    "attributes": lambda s: s.update_metadata("/a", array_document((6,), (1,), 7)),
}


def six_chunks():
    """Return a repository with an array of six chunks, of which the last one is missing."""
    repository = new_repository()
    session = repository.writable_session()
    add_array(session, "/a", (6,))
    put(session, range(5), b"base")
    session.commit("base")
    return repository


def rivals():
    """Yield what another writer does meanwhile, and the place that it writes."""
    for place in range(6):
        yield place, lambda s, place=place: put(s, [place], b"theirs")

    def grow_and_write(session):
        resize(session, 8, version=9)
        put(session, [7], b"theirs")

    yield 7, grow_and_write


@pytest.mark.parametrize("first", EDITS)
def test_no_pair_of_edits_loses_a_rivals_chunk(first):
    repository = six_chunks()
    base = repository.resolve()
    numbers = itertools.count()
    for second in EDITS:
        branch = f"alone-{next(numbers)}"
        repository.create_branch(branch, base)
        before = state(repository, session := repository.writable_session(branch))
        EDITS[first](session)
        EDITS[second](session)
        done = session.commit("ours", allow_empty=True).snapshot_id
        after = state(repository, repository.writable_session(branch))
        assert_log_is_complete(repository, done, before, after)
        [node_id] = [i for i, node in after.items() if node[0] == "/a"]
        length = after[node_id][2][0]
        losing = changed_places(before[node_id], after[node_id])
        losing |= {(i,) for i in range(length, 8) if length < 6}
        for place, rival in rivals():
            branch = f"beside-{next(numbers)}"
            repository.create_branch(branch, base)
            session = repository.writable_session(branch)
            EDITS[first](session)
            EDITS[second](session)
            other = repository.writable_session(branch)
            rival(other)
            other.commit("theirs")
            try:
                merged = session.commit("ours", allow_empty=True).snapshot_id
            except ConflictError:
                continue
            assert (place,) not in losing, (first, second, place)
            contents = stored_contents(repository, merged)
            assert contents[f"a/c/{place}"] == b"theirs", (first, second, place)


def test_chunks_that_come_back_with_the_shape_are_gone_and_the_log_says_so():
    repository = six_chunks()
    base = repository.resolve()
    session = repository.writable_session()
    resize(session, 2)
    resize(session, 6)
    assert session.has_changes
    done = session.commit("shrink, then grow").snapshot_id
    assert sorted(stored_contents(repository, done)) == [
        "a/c/0",
        "a/c/1",
        "a/zarr.json",
        "zarr.json",
    ]
    assert repository.diff(base, done).updated_chunks["/a"].tolist() == [[2], [3], [4]]


def test_shrinking_where_nothing_is_stored_and_growing_again_changes_nothing():
    repository = six_chunks()
    session = repository.writable_session()
    resize(session, 5)
    resize(session, 6)
    assert not session.has_changes


def test_a_rival_who_grew_the_array_keeps_what_lies_behind_the_old_shape():
    repository = six_chunks()
    session = repository.writable_session()
    resize(session, 5)
    resize(session, 6)
    session.update_metadata("/", group_document(3))
    other = repository.writable_session()
    resize(other, 8)
    put(other, [5, 7], b"theirs")
    other.commit("theirs")
    contents = stored_contents(repository, session.commit("ours").snapshot_id)
    assert contents["a/c/5"] == contents["a/c/7"] == b"theirs"


def test_deleted_and_shifted_chunks_are_in_the_log():
    repository = six_chunks()
    session = repository.writable_session()
    session.delete_chunks("/a", [[3], [4]])
    session.shift("/a", [-2])
    done = session.commit("delete, then shift").snapshot_id
    [coords] = repository.transaction_log(done).updated_chunks.values()
    assert coords[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("at", "conflicts"), [(1, False), (2, True), (7, True)])
def test_chunks_of_rivals_beyond_dropped_ones_conflict(at, conflicts):
    """Dropped chunks are not there, and a missing one is as much another cell as a stored one."""
    repository = six_chunks()
    with_room = repository.writable_session()
    resize(with_room, 8)
    with_room.commit("room")
    session, other = repository.writable_session(), repository.writable_session()
    session.drop_chunks_beyond("/a", (2,))
    session.delete_chunks("/a", [[3], [4], [5]])
    put(session, [2], b"ours")
    put(other, [at], b"theirs")
    other.commit("theirs")
    if conflicts:
        with raises(ConflictError):
            session.commit("ours")
        return
    done = session.commit("ours").snapshot_id
    contents = stored_contents(repository, done)
    assert {path for path in contents if "/c/" in path} == {"a/c/0", "a/c/1", "a/c/2"}
    assert contents["a/c/1"] == b"theirs"
    [coords] = repository.transaction_log(done).updated_chunks.values()
    assert coords[:, 0].tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "document",
    [
        array_document((6,), (1,)).replace(
            b'{"name": "regular", "configuration": {"chunk_shape": [1]}}',
            b'{"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": '
            b"[[1, 1, 4]]}}",
        ),
        b"no document",
    ],
)
def test_only_regular_grids_are_shifted(document):
    session = six_chunks().writable_session()
    session.update_metadata("/a", document)
    with raises(
        InvalidInputError,
        match=r"/a.*only the chunks of a 'regular' grid",
        name="/a",
        allowed=("regular",),
    ):
        session.shift("/a", [1])
    assert len(session.chunk_refs("/a", [0], [6])) == 5
