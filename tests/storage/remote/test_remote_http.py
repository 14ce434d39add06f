"""Repositories on plain web servers are read in ranges by both clients, and never written."""

from __future__ import annotations

import pytest
from helpers.raised import raises
from helpers.servers.http import Fault, misbehaving_server

from icechunk_format.errors import (
    ChunkModifiedError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import CreateOnly, ReadRequest


@pytest.fixture(scope="module")
def server():
    with misbehaving_server() as running:
        running.objects["/data/era5/repo"] = b"0123456789"
        running.objects["/data/era5/chunks/with space"] = b"abcdef"
        yield running


@pytest.fixture(params=["obstore", "fsspec"])
def storage(request, server):
    return open_storage(Location(f"{server.url}/data/era5/", client=request.param))


def test_objects_and_ranges_are_read(storage):
    assert storage.is_read_only
    assert storage.get("repo").data == b"0123456789"
    assert storage.get("repo", start=2, end=5).data == b"234"
    requests = [
        ReadRequest(key="repo", start=7),
        ReadRequest(key="chunks/with space", start=1, end=3),
        ReadRequest(key="repo", suffix=2),
    ]
    assert storage.get_many(requests) == [b"789", b"bc", b"89"]
    info = storage.head("repo")
    assert info is not None
    assert info.size == 10


def test_what_is_missing(storage):
    assert storage.head("nothing") is None
    with pytest.raises(NotFoundError):
        storage.get("nothing")
    with pytest.raises(NotFoundError):
        storage.get_many([ReadRequest(key="nothing", start=0, end=2)])


def test_refusals(storage, server):
    server.faults[:] = [Fault(status=403)] * 3
    try:
        with raises(StorageError, status=403):
            storage.get("repo")
    finally:
        server.faults.clear()


def test_checksums(storage):
    with pytest.raises(ChunkModifiedError):
        storage.get_many([ReadRequest(key="repo", start=0, end=2, if_match="another")])


def test_nothing_is_written_or_listed(storage):
    for attempt in (
        lambda: storage.put("a", b""),
        lambda: storage.put("a", b"", condition=CreateOnly()),
        lambda: storage.put_many([("a", b"")]),
        lambda: storage.delete_many(["repo"]),
        lambda: storage.copy("repo", "b"),
    ):
        with pytest.raises(ReadOnlyError, match="read only"):
            attempt()
    with pytest.raises(UnsupportedError, match="no listing"):
        list(storage.list())
