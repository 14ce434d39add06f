"""Metadata that are not JSON are refused before anything is stored."""

import datetime

import pytest
from helpers.grids.sessions import grid_session, set_block
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.maintenance.rewriting.rewrite import rewrite_manifests
from icechunk_format.options.write import WriteOptions
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
