"""Nodes of a session are refused where the base and its changes leave no place for them."""

import pytest
from helpers.builder import add_array, new_repository
from helpers.raised import raises
from helpers.sessions.model import array_document, group_document

from icechunk_format.errors import InvalidInputError, NotFoundError


@pytest.fixture
def session():
    session = new_repository().writable_session()
    session.create_group("/", group_document())
    session.create_group("/g", group_document())
    add_array(session, "/g/a", (4,))
    return session


def test_invalid_paths_are_told_from_missing_nodes(session):
    with raises(NotFoundError, kind="node", name="/nothing"):
        session.delete("/nothing")
    for path in ("relative", "/a//b", "/a/", "/a/../b"):
        with raises(InvalidInputError):
            session.delete(path)


def test_a_group_has_no_shape(session):
    with raises(InvalidInputError, match="is a group, which has no shape", name="/g"):
        session.update_metadata("/g", group_document(), shape=(1,), num_chunks=(1,))
    with raises(
        InvalidInputError, match="has 1 dimensions and cannot become one of 2", name="/g/a"
    ):
        document = array_document((1, 1), (1, 1))
        session.update_metadata("/g/a", document, shape=(1, 1), num_chunks=(1, 1))


@pytest.mark.parametrize(
    ("num_chunks", "names", "problem"),
    [
        ((1,), None, "2 dimensions in its shape, 1 in its chunk grid and none in its names"),
        ((1, 1), ("x",), "2 dimensions in its shape, 2 in its chunk grid and 1 in its names"),
    ],
)
def test_dimensions_must_agree(session, num_chunks, names, problem):
    with raises(InvalidInputError, match=problem):
        session.create_array(
            "/n",
            array_document((2, 2), (1, 1)),
            shape=(2, 2),
            num_chunks=num_chunks,
            dimension_names=names,
        )


def test_the_root_becomes_an_array_only_if_nothing_is_below(session):
    def make_root():
        session.create_array("/", array_document((4,), (1,)), shape=(4,), num_chunks=(4,))

    session.delete("/")
    session.create_group("/", group_document())
    session.create_group("/g", group_document())
    session.delete("/")
    make_root()
    assert session.node("/").array is not None
    assert session.node("/g") is None


def test_a_grown_array_has_no_limit():
    repository = new_repository()
    session = repository.writable_session()
    add_array(session, "/a", (4,))
    session.commit("base")
    session = repository.writable_session()
    for length in (6, 8):
        document = array_document((length,), (1,), length)
        session.update_metadata("/a", document, shape=(length,), num_chunks=(length,))
    changes = session._tree.changes.chunks
    assert all(one.clip is None and one.is_empty for one in changes.values())
