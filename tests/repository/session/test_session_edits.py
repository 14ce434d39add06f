"""Groups and arrays are created, moved and deleted, or the session stays as it was."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.builder import add_array
from helpers.grids.sessions import grid_session
from helpers.raised import raises
from helpers.sessions.model import array_document, group_document

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.manifest.chunk_refs import native_refs, virtual_refs
from icechunk_format.errors import AlreadyExistsError, InvalidInputError, NotFoundError


def without_bytes():
    """Return a reference to a chunk of the repository that is damaged: it has no bytes."""
    refs = native_refs([[0]], np.ones((1, 12), np.uint8), [5])
    return replace(refs, length=np.zeros(1, np.uint64))


def test_changes_that_cancel_out_leave_nothing(repository):
    session = grid_session(repository, (2,))
    session.create_group("/g", group_document())
    session.commit("first")
    session = repository.writable_session()
    session.update_metadata("/a", array_document((2,), (1,), version=9))
    session.update_metadata("/a", array_document((2,), (1,)))
    add_array(session, "/g/b", (2,))
    session.set_chunk("/g/b", [0], b"gone")
    session.delete("/g/b")
    assert not session.has_changes
    with raises(InvalidInputError, branch="main"):
        session.commit("nothing")
    result = session.commit("nothing", allow_empty=True)
    assert repository.transaction_log(result.snapshot_id).is_empty


def test_ids_outlive_updates_and_moves_but_not_recreation(repository_v2):
    session = grid_session(repository_v2, (2,))
    session.create_group("/g", group_document())
    node_id = session.node("/a").id
    session.commit("first")
    session = repository_v2.writable_session()
    session.update_metadata("/a", array_document((2,), (1,), version=1))
    session.commit("second")
    session = repository_v2.writable_session()
    session.move("/a", "/g/b")
    moved = session.commit("third")
    assert repository_v2.snapshot(moved.snapshot_id).node("/g/b").id == node_id
    log = repository_v2.transaction_log(moved.snapshot_id)
    assert [(m.from_path, m.to_path, m.is_array) for m in log.moved_nodes] == [("/a", "/g/b", True)]
    assert (log.new_arrays, log.updated_arrays, log.deleted_arrays) == ((), (), ())
    session = repository_v2.writable_session()
    session.delete("/g")
    session.create_group("/g", group_document())
    add_array(session, "/g/b", (2,))
    assert session.node("/g/b").id != node_id
    last = session.commit("fourth")
    log = repository_v2.transaction_log(last.snapshot_id)
    assert node_id in log.deleted_arrays
    assert len(log.deleted_groups) == len(log.new_groups) == len(log.new_arrays) == 1


def test_a_move_to_and_fro_is_no_change(repository_v2):
    session = grid_session(repository_v2, (2,))
    session.create_group("/g", group_document())
    session.create_group("/g/h", group_document())
    session.commit("first")
    session = repository_v2.writable_session()
    session.move("/g", "/k")
    session.move("/a", "/k/h/a")
    session.move("/k/h/a", "/a")
    session.move("/k", "/g")
    assert not session.has_changes
    assert [node.path for node in session.nodes()] == ["/", "/a", "/g", "/g/h"]


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda s: s.create_group("/a", b""), AlreadyExistsError, "a node at '/a' already"),
        (lambda s: s.create_group("/x/y", b""), NotFoundError, "needs the group '/x'"),
        (lambda s: s.create_group("/a/y", b""), InvalidInputError, "'/a' is an array"),
        (lambda s: s.create_group("y", b""), InvalidInputError, "not a node path"),
        (lambda s: s.delete("/x"), NotFoundError, "no group or array at '/x'"),
        (lambda s: s.set_chunk("/", [0], b"x"), InvalidInputError, "is a group"),
        (lambda s: s.set_chunk("/x", [0], b"x"), NotFoundError, "no group or array"),
        (lambda s: s.set_chunk("/a", [2], b"x"), InvalidInputError, r"\(2,\) is outside"),
        (lambda s: s.set_chunk("/a", [-1], b"x"), InvalidInputError, "from 0 to"),
        (lambda s: s.set_chunk("/a", [0, 0], b"x"), InvalidInputError, "2 dimensions"),
        (lambda s: s.set_chunk("/a", [0.5], b"x"), InvalidInputError, "must be integers"),
        (lambda s: s.set_refs("/a", without_bytes()), InvalidInputError, "'/a' has no bytes"),
        (lambda s: s.set_chunk("/a", [0], b""), InvalidInputError, "has no bytes"),
        (lambda s: s.set_chunks("/a", [[0]], []), InvalidInputError, "0 chunks were given for 1"),
        (
            lambda s: s.set_chunks("/a", [[0], [0]], [b"x", b"x" * 600]),
            InvalidInputError,
            "coordinates repeat",
        ),
        (lambda s: s.delete_chunks("/a", [[7]]), InvalidInputError, "is outside"),
        (lambda s: s.shift("/a", [1, 1]), InvalidInputError, "offset of 2 axes"),
        (lambda s: s.chunk_refs("/a", [0], [1, 1]), InvalidInputError, "a box of 1 and 2"),
        (lambda s: s.update_metadata("/a", b"", shape=[1]), InvalidInputError, "give both"),
        (
            lambda s: s.update_metadata("/a", b"", shape=[1, 1], num_chunks=[1, 1]),
            InvalidInputError,
            "1 dimensions and cannot become one of 2",
        ),
        (
            lambda s: s.update_metadata("/", b"", shape=[1], num_chunks=[1]),
            InvalidInputError,
            "no shape",
        ),
        (
            lambda s: s.create_array("/b", b"", shape=[1], num_chunks=[1, 1]),
            InvalidInputError,
            "must agree",
        ),
        (
            lambda s: s.create_array("/b", b"", shape=[2**64], num_chunks=[1]),
            InvalidInputError,
            "cannot have",
        ),
        (lambda s: s.commit("x", on_conflict="retry"), InvalidInputError, "on_conflict='retry'"),
        (lambda s: s.commit("x", resolve="mine"), InvalidInputError, "resolve='mine'"),
        (lambda s: s.commit("x", metadata={"a": object()}), InvalidInputError, "object"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(repository, act, error, message):
    session = grid_session(repository, (2,))
    before = session.nodes()
    with pytest.raises(error, match=message):
        act(session)
    assert session.nodes() == before
    assert len(session.chunk_refs("/a", [0], [2])) == 0
    session.commit("still usable")


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/", "/x", InvalidInputError),
        ("/g", "/g/x", InvalidInputError),
        ("/g", "/g", InvalidInputError),
        ("/g", "/a", AlreadyExistsError),
        ("/x", "/y", NotFoundError),
        ("/g", "/x/y", NotFoundError),
        ("/g", "/a/y", InvalidInputError),
    ],
)
def test_moves_that_cannot_be(repository_v2, source, target, error):
    session = grid_session(repository_v2, (2,))
    session.create_group("/g", group_document())
    session.commit("first")
    session = repository_v2.writable_session()
    with pytest.raises(error):
        session.move(source, target)
    assert not session.has_changes


def test_one_session_moves_or_edits(repository_v2):
    session = grid_session(repository_v2, (2,))
    with raises(InvalidInputError, match="commit the changes first", moved=False):
        session.move("/a", "/b")
    session.commit("first")
    session = repository_v2.writable_session()
    session.move("/a", "/b")
    for act in (
        lambda: session.set_chunk("/b", [0], b"x"),
        lambda: session.create_group("/g", b""),
        lambda: session.update_metadata("/b", b""),
        lambda: session.delete("/b"),
    ):
        with raises(InvalidInputError, moved=True):
            act()
    assert [node.path for node in session.nodes()] == ["/", "/b"]


def test_new_nodes_have_the_ids_that_are_returned_or_given(repository):
    session = repository.writable_session()
    assert session.create_group("/", group_document()) == session.node("/").id
    document = array_document((2,), (1,))
    made = session.create_array("/a", document, shape=[2], num_chunks=[2])
    assert made == session.node("/a").id
    given = NodeId(bytes(range(NodeId.SIZE)))
    options = {"shape": [2], "num_chunks": [2], "node_id": given}
    assert session.create_array("/b", document, **options) == given
    found = repository.snapshot(session.commit("both").snapshot_id)
    assert (found.node("/a").id, found.node("/b").id) == (made, given)


def test_a_virtual_chunk_may_have_no_bytes(repository):
    session = grid_session(repository, (2,))
    session.set_refs("/a", virtual_refs([[1]], ["s3://bucket/empty"], [0], [0]))
    assert session.chunk_refs("/a", [0], [2]).coords.tolist() == [[1]]
    session.commit("empty")
