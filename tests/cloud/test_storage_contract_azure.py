"""Azure's blob service keeps the storage contract, with each kind of Azure's credentials.

The service is Azurite; see ``azurite_server.py``. The tests are skipped, with the reason, where
there is no Node.
"""

from __future__ import annotations

import uuid

import pytest
from helpers.builder import add_array
from helpers.servers.azurite import ACCOUNT_KEY
from helpers.sessions.contract import assert_snapshots_hold_random_changes
from helpers.sessions.model import stored_contents
from helpers.storage.contract import StorageContract, assert_refused

from icechunk_format.errors import ConflictError, NotFoundError, StorageError
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import CreateOnly, ReplaceIfUnchanged


class TestAzure(StorageContract):
    @pytest.fixture
    def storage(self, azure, container):
        url = f"az://{container}/{uuid.uuid4()}/root %20"
        return open_storage(Location(url, options=azure.storage_options))


@pytest.fixture
def opened(azure, container):
    """Open a fresh root with other options than the usual ones."""

    def open_with(bucket=container, without=(), **changes):
        options = {**azure.storage_options, **changes}
        options = {name: value for name, value in options.items() if name not in without}
        return open_storage(Location(f"az://{bucket}/{uuid.uuid4()}", options=options))

    return open_with


def test_a_batch_with_keys_that_are_not_there_deletes_the_rest(opened):
    # Azure's batch request reports a missing blob as a failure; it must not hide the others.
    storage = opened()
    storage.put_many((f"chunks/{i:03}", b"x") for i in range(40))
    doomed = [f"chunks/{i:03}" for i in range(0, 80, 2)]
    assert storage.delete_many(doomed) == []
    left = {info.key for info in storage.list()}
    assert left == {f"chunks/{i:03}" for i in range(1, 40, 2)}


def test_a_missing_container_is_named(opened):
    storage = opened(bucket="no-such-container")
    for attempt in (
        lambda: storage.get("a"),
        lambda: storage.put("a", b""),
        lambda: list(storage.list()),
        lambda: storage.put("a", b"", condition=CreateOnly()),
    ):
        with pytest.raises(NotFoundError, match="bucket does not exist") as caught:
            attempt()
        assert caught.value.facts["kind"] == "bucket"
        assert "no-such-container" in str(caught.value)


def test_a_wrong_key_is_refused_and_never_shown(opened):
    wrong = "Y2FuYXJ5LXdyb25nLWtleQ=="
    storage = opened(account_key=wrong)
    for attempt in (
        lambda: storage.get("a"),
        lambda: storage.put("a", b""),
        lambda: storage.put("a", b"", condition=CreateOnly()),
        lambda: list(storage.list()),
        lambda: storage.copy("a", "b"),
        lambda: storage.delete_many(["a", "b"]),
    ):
        assert_refused(attempt, 403, "storage.account_key", secrets=(wrong, ACCOUNT_KEY))


def test_a_connection_string_says_it_all(azure, opened):
    usual = ("account_name", "account_key", "endpoint_url")
    storage = opened(without=usual, connection_string=azure.connection_string)
    assert storage.put("a", b"x", condition=CreateOnly()) is not None
    assert storage.get("a").data == b"x"


def test_an_endpoint_may_lack_its_scheme_and_end_with_a_slash(azure, opened):
    bare = azure.endpoint_url.removeprefix("http://") + "/"
    storage = opened(endpoint_url=bare, allow_http="true")
    storage.put("a", b"x")
    assert storage.get("a").data == b"x"


def test_a_shared_access_signature_allows_what_it_names(azure, opened):
    storage = opened(without=("account_key",), sas_token=azure.sas_token("rwdlc"))
    storage.put("a", b"x")
    assert [info.key for info in storage.list()] == ["a"]
    token = azure.sas_token("r")
    reader = opened(without=("account_key",), sas_token=f"?{token}")
    with pytest.raises(NotFoundError):
        reader.get("a")
    with pytest.raises(StorageError) as caught:
        reader.put("a", b"x", condition=CreateOnly())
    assert caught.value.facts["status"] == 403
    assert token.rpartition("sig=")[2] not in str(caught.value)


def test_losing_is_told_from_every_other_refusal(opened):
    storage = opened()
    first = storage.put("repo", b"one", condition=CreateOnly())
    assert first is not None
    # The same bytes again: an entity tag of Azure names the write, not the content.
    second = storage.put("repo", b"one")
    assert second.etag != first.etag
    stale = ReplaceIfUnchanged(version=first)
    assert storage.put("repo", b"two", condition=stale) is None
    assert storage.put("gone", b"two", condition=stale) is None
    assert storage.head("gone") is None


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_repository_lives_on_azure(azure, container, spec_version):
    location = Location(f"az://{container}/{uuid.uuid4()}", options=azure.storage_options)
    assert_snapshots_hold_random_changes(location, spec_version, seed=3, commits=2)


def test_two_sessions_that_change_one_chunk_conflict_on_azure(azure, container):
    location = Location(f"az://{container}/{uuid.uuid4()}", options=azure.storage_options)
    repository = Repository.create(location)
    session = repository.writable_session()
    add_array(session, "/a", (4,))
    session.commit("base")
    rivals = [Repository.open(location).writable_session() for _ in range(3)]
    for number, (rival, chunk) in enumerate(zip(rivals, (0, 1, 0), strict=True)):
        rival.set_chunk("/a", [chunk], b"%d" % number)
    rivals[0].commit("first")
    rivals[1].commit("beside it")
    with pytest.raises(ConflictError):
        rivals[2].commit("over the first")
    contents = stored_contents(repository, repository.resolve())
    assert {key: data for key, data in contents.items() if "/c/" in key} == {
        "a/c/0": b"0",
        "a/c/1": b"1",
    }
