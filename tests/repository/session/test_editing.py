"""Attributes, names and deletions are edited in commits of their own."""

import json

import pytest
from helpers.builder import add_array, new_repository
from helpers.raised import raises

from icechunk_format.errors import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)


def begun(spec_version=2):
    repository = new_repository(spec_version)
    session = repository.writable_session()
    add_array(session, "/a", (2,))
    session.set_chunk("/a", [1], b"x" * 600)
    session.commit("base")
    return repository


def document(repository, path):
    return json.loads(repository.snapshot(repository.resolve()).node(path).user_data)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_attributes_are_set_and_removed_and_the_rest_stays(spec_version):
    repository = begun(spec_version)
    before = document(repository, "/a")
    values = {"units": "K", "range": (1, 2.5), "flags": {"a": [True, None]}}
    done = repository.set_attributes("/a", values, remove=["version"])
    after = document(repository, "/a")
    assert after["attributes"] == {"units": "K", "range": [1, 2.5], "flags": {"a": [True, None]}}
    assert {**after, "attributes": 0} == {**before, "attributes": 0}
    assert repository.snapshot_info(done.snapshot_id).message.startswith("Edit attributes of /a")
    assert repository.set_attributes("/a", {"units": "K"}) is None
    repository.set_attributes("/", {"title": "t"}, message="Title")
    assert document(repository, "/")["attributes"]["title"] == "t"


@pytest.mark.parametrize(
    "value", [object(), float("nan"), {1: 2}, [b"x"], {"a": {2}}], ids=lambda v: type(v).__name__
)
def test_values_that_are_no_json_are_refused(value):
    repository = begun()
    tip = repository.resolve()
    with raises(InvalidInputError, name="bad"):
        repository.set_attributes("/a", {"bad": value})
    assert repository.resolve() == tip


def test_unknown_names_are_refused():
    repository = begun()
    with raises(InvalidInputError, match="to remove; it has version$", name="unitss"):
        repository.set_attributes("/a", {}, remove=["unitss"])
    repository.set_attributes("/a", {"b": 1, "a": 2}, remove=["version"])
    with raises(InvalidInputError, match="to remove; it has a, b$", name="unitss"):
        repository.set_attributes("/a", {}, remove=["unitss"])
    repository.set_attributes("/a", {}, remove=["a", "b"])
    with raises(InvalidInputError, match="to remove; it has none$", name="unitss"):
        repository.set_attributes("/a", {}, remove=["unitss"])
    with raises(InvalidInputError, match="is empty", name=""):
        repository.set_attributes("/a", {"": 1})
    for change in (
        lambda: repository.set_attributes("/b", {"a": 1}),
        lambda: repository.rename("/b", "/c"),
        lambda: repository.drop("/b"),
    ):
        with pytest.raises(NotFoundError):
            change()


def test_nodes_are_renamed_and_dropped():
    repository = begun()
    base = repository.resolve()
    repository.rename("/a", "/b")
    assert repository.snapshot(repository.resolve()).node("/a") is None
    done = repository.drop("/b", message="Gone")
    assert repository.snapshot(done.snapshot_id).node("/b") is None
    assert repository.snapshot(base).node("/a") is not None
    with pytest.raises(UnsupportedError):
        begun(1).rename("/a", "/b")


def test_a_session_takes_attributes_as_a_mapping():
    repository = begun()
    session = repository.writable_session()
    session.create_group("/g", {"title": "Ours", "years": [1, 2]})
    assert session.set_attributes("/g", {"title": None, "valid": True}, remove=["years"])
    assert not session.set_attributes("/g", {"valid": True})
    with pytest.raises(InvalidInputError, match="JSON"):
        session.create_group("/h", {"at": object()})
    with raises(NotFoundError, name="/h"):
        session.set_attributes("/h", {"a": 1})
    session.commit("Describe it")
    assert document(repository, "/g")["attributes"] == {"title": None, "valid": True}


@pytest.mark.parametrize("damaged", [b"{", b"[]", b'{"attributes": 1}'])
def test_a_damaged_document_is_named_with_its_file(damaged):
    repository = begun()
    session = repository.writable_session()
    session.update_metadata("/a", damaged)
    session.commit("damage")
    session = repository.writable_session()
    with raises(FormatError, match="'/a'", object_key=f"snapshots/{session.snapshot_id}"):
        session.set_attributes("/a", {"units": "K"})
