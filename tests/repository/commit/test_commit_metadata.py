"""Metadata that are not JSON are refused before anything is stored."""

import datetime

import pytest
from helpers.grids.sessions import grid_session, set_block
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.maintenance.rewriting.rewrite import rewrite_manifests
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.commit.commit import commit_metadata
from icechunk_format.tables.writing import check_options

NO_JSON = [
    {"app": b"binary"},
    {"app": {"nested": [1, b""]}},
    {"app": float("nan")},
    {"app": float("inf")},
    {"app": datetime.datetime(2024, 7, 1)},
    {"app": {1: "a number as a name"}},
    {"app": 2**64},
    {"app": "\ud800"},
    {1: "a number as a name"},
    {"\ud800": 1},
    {"app": 1, 2: 3},
    ["app"],
    "app",
]


@pytest.mark.parametrize("metadata", NO_JSON, ids=repr)
def test_what_is_no_json_is_refused_everywhere(repository, metadata):
    session = grid_session(repository, (4,))
    set_block(session, range(4))
    first = session.commit("first", metadata={"app": "test"}).snapshot_id
    session = repository.writable_session()
    set_block(session, range(2), payload=b"y")
    second = session.commit("second").snapshot_id
    session = repository.writable_session()
    set_block(session, range(1), payload=b"z")
    before = sorted(found.key for found in repository.storage.list(""))
    calls = [
        lambda: session.commit("more", metadata=metadata),
        lambda: session.flush("more", metadata=metadata),
        lambda: repository.restore("main", first, metadata=metadata),
        lambda: rewrite_manifests(repository.location, metadata=metadata),
        lambda: check_options(WriteOptions(metadata=metadata)),
    ]
    if repository.spec_version == 2:
        calls.append(lambda: session.amend("more", metadata=metadata))
        calls.append(lambda: repository.set_metadata(metadata))
    for call in calls:
        with pytest.raises(InvalidInputError, match="metadata"):
            call()
    assert [f.key for f in repository.storage.list("") if f.key not in before] == []
    assert repository.resolve() == second
    session.commit("more", metadata={"app": {"n": [1, 2.5, None, True, -1, "ö"]}})


def test_the_message_names_the_item(repository):
    session = grid_session(repository, (4,))
    with raises(InvalidInputError, name="source"):
        session.commit("first", metadata={"fine": 1, "source": b"x"})


def test_a_rebase_is_noted_beside_the_metadata_of_the_user(repository):
    grid_session(repository, (4,)).commit("first")
    late = repository.writable_session()
    set_block(late, range(1))
    for rounds in (1, 2):
        other = repository.writable_session()
        set_block(other, [rounds])
        other.commit("other")
    result = late.commit("late", metadata={"app": "test", "__icechunk": {"from": "a tool"}})
    metadata = repository.snapshot_info(result.snapshot_id).metadata
    notes = {"from": "a tool", "rebase_attempts": result.rebased}
    assert metadata == {"app": "test", "__icechunk": notes}
    assert result.rebased == 1


@pytest.mark.parametrize(("spec_version", "stored"), [(1, b"\x01"), (2, b"\x01\x08\x01")])
def test_metadata_are_stored_in_the_encoding_of_the_version(spec_version, stored):
    """MessagePack in version 1, FlexBuffers (value, unsigned 8 bit, width) in version 2."""
    found = commit_metadata({"a": 1}, spec_version=spec_version)
    assert (found.items, found.spec_version) == ((("a", stored),), spec_version)
