"""A session reads the chunks of a box as a reader of its commit would, and no other manifests."""

import numpy as np
import pytest
from helpers.builder import add_array, new_repository
from helpers.grids.sessions import grid_session, set_block
from helpers.sessions.model import array_document
from helpers.storage.faulty_repositories import faulty_repository

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.files import metadata_cache, store_manifests
from icechunk_format.repository.files.chunk_files import store_chunks
from icechunk_format.repository.session import shifted


def receipts_of(session, path, *parts):
    """Store manifests of chunks, one for each part, as executors do; return the receipts."""
    storage, found = session._storage, []
    for coords in parts:
        at = np.array(coords).reshape(len(coords), 1)
        refs = store_chunks(storage, at, [b"y" * 600] * len(at), inline_threshold=64)
        [receipts] = store_manifests(storage, session.format, [(session.node(path).id, [refs])])
        found += receipts
    return found


def places(session, low=0, high=8, path="/a"):
    return session.chunk_refs(path, [low], [high]).coords[:, 0].tolist()


def test_a_box_is_read_from_the_manifests_that_meet_it():
    _, repository = faulty_repository(2)
    session = repository.writable_session()
    receipts = receipts_of(session, "/a", [2, 3], [6, 7])
    session.add_manifests("/a", receipts)
    metadata_cache().clear()
    repository.faulty.requests.clear()
    assert places(session, 3, 6) == [3]
    near, far = (f"manifests/{receipt.manifest_id}" for receipt in receipts)
    assert repository.faulty.requests == [("get", near)]
    assert places(session) == [0, 2, 3, 6, 7]
    assert ("get", far) in repository.faulty.requests


def test_chunks_that_a_smaller_shape_dropped_are_not_read_again(repository):
    session = grid_session(repository, (6,))
    set_block(session, range(5))
    session.commit("base")
    session = repository.writable_session()
    for length in (2, 6):
        document = array_document((length,), (1,))
        session.update_metadata("/a", document, shape=[length], num_chunks=[length])
        assert places(session) == [0, 1]
    set_block(session, [4])
    assert places(session) == [0, 1, 4]


def test_manifests_outside_of_the_grid_are_refused(repository):
    session = grid_session(repository, (3,))
    receipts = receipts_of(session, "/a", [1], [3])
    with pytest.raises(InvalidInputError, match=r"\(3,\) is outside"):
        session.add_manifests("/a", receipts)
    assert places(session) == []
    session.add_manifests("/a", receipts[:1])
    assert places(session) == [1]


def test_a_manifest_of_another_array_holds_no_chunks_of_this_one():
    repository = new_repository()
    session = grid_session(repository, (8,))
    add_array(session, "/b", (8,))
    set_block(session, [7])
    session.add_manifests("/a", receipts_of(session, "/b", [1, 2]))
    assert places(session) == [7]
    session.commit("mixed up")
    assert places(repository.writable_session()) == [7]


@pytest.mark.parametrize(
    ("offset", "moved"),
    [((0, 1), [[0, 1], [2, 2]]), ((-1, 0), [[1, 1]]), ((0, -2), []), ((1, 1), [[1, 1]])],
)
def test_shifted_references_stay_in_the_grid_and_keep_their_chunks(offset, moved):
    at = [[0, 0], [2, 1]]
    session = grid_session(new_repository(), (3, 3))
    refs = store_chunks(session._storage, np.array(at), [b"a", b"b"], inline_threshold=64)
    found = shifted(refs, offset, np.array([[0, 3], [0, 3]]))
    assert found.coords.tolist() == moved
    kept = [row for row, place in enumerate(at) if (np.add(place, offset)).tolist() in moved]
    starts = refs.strings.starts[kept].tolist()
    assert found.strings.starts.tolist() == starts
