"""Google Cloud Storage keeps the storage contract, by conditions on generations.

The server is fake-gcs-server behind a translator of protocols; see ``gcs_server.py`` for what each
of them decides.
"""

from __future__ import annotations

import uuid

import pytest
from helpers.servers.gcs import TOKEN
from helpers.sessions.contract import assert_snapshots_hold_random_changes
from helpers.storage.contract import StorageContract, assert_refused

from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import CreateOnly, ReplaceIfUnchanged


class TestGoogle(StorageContract):
    @pytest.fixture
    def storage(self, google, bucket):
        url = f"gs://{bucket}/{uuid.uuid4()}/root %20"
        return open_storage(Location(url, options=google.storage_options))


def test_the_generation_decides_and_not_the_content(google, bucket):
    # The entity tag of Google is a digest: the same bytes written again have the same one.
    location = Location(f"gs://{bucket}/{uuid.uuid4()}", options=google.storage_options)
    storage = open_storage(location)
    first = storage.put("repo", b"one", condition=CreateOnly())
    second = storage.put("repo", b"one")
    assert first is not None
    assert second is not None
    assert first.generation != second.generation
    stale = ReplaceIfUnchanged(version=first)
    assert storage.put("repo", b"two", condition=stale) is None
    assert storage.put("gone", b"two", condition=stale) is None
    fresh = ReplaceIfUnchanged(version=second)
    assert storage.put("repo", b"two", condition=fresh) is not None


def test_a_wrong_token_is_refused_and_never_shown(google, bucket):
    wrong = "canary-wrong-token-90d1"
    options = {**google.storage_options, "token": wrong}
    storage = open_storage(Location(f"gs://{bucket}/{uuid.uuid4()}", options=options))
    for attempt in (
        lambda: storage.get("a"),
        lambda: storage.put("a", b""),
        lambda: storage.put("a", b"", condition=CreateOnly()),
        lambda: list(storage.list()),
        lambda: storage.delete_many(["a", "b"]),
    ):
        assert_refused(attempt, 401, "storage.token", secrets=(wrong, TOKEN))


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_repository_lives_on_google(google, bucket, spec_version):
    location = Location(f"gs://{bucket}/{uuid.uuid4()}", options=google.storage_options)
    assert_snapshots_hold_random_changes(location, spec_version, seed=4, commits=2)
