"""Refusals of S3 become typed, quick errors that name the place and no credential."""

from __future__ import annotations

import io
import logging
import pickle
import traceback
import uuid

import pytest
from helpers.servers.s3 import SECRET_KEY

from icechunk_format.errors import IcechunkError, InvalidInputError, NotFoundError, StorageError
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import CreateOnly, ReadRequest

WRONG_SECRET = "canary-wrong-secret-41f0"


@pytest.fixture(params=["obstore", "fsspec"])
def client(request):
    return request.param


def storage_with(s3_server, client, bucket, **changes):
    options = {**s3_server.storage_options, **changes}
    options = {name: value for name, value in options.items() if value is not None}
    return open_storage(Location(f"s3://{bucket}/{uuid.uuid4()}", client=client, options=options))


def last_line(error):
    return str(error).splitlines()[-1]


def test_wrong_credentials(s3_server, client, shared_bucket):
    storage = storage_with(s3_server, client, shared_bucket, secret=WRONG_SECRET)
    for attempt in (
        lambda: storage.get("a"),
        lambda: storage.head("a"),
        lambda: storage.put("a", b""),
        lambda: storage.put("a", b"", condition=CreateOnly()),
        lambda: list(storage.list()),
        lambda: storage.get_many([ReadRequest(key="a")]),
        lambda: storage.copy("a", "b"),
        lambda: storage.delete_many(["a", "b"]),
    ):
        with pytest.raises(StorageError) as caught:
            attempt()
        assert caught.value.facts["status"] == 403
        assert not caught.value.outcome_unknown
        assert "storage.key" in last_line(caught.value)
        assert "storage.region" in last_line(caught.value)


def test_anonymous_requests_are_not_signed(s3_server, client, shared_bucket):
    storage = storage_with(s3_server, client, shared_bucket, key=None, secret=None, anon="true")
    with pytest.raises(StorageError) as caught:
        storage.get("a")
    assert caught.value.facts["status"] == 403
    assert "AccessDenied" in caught.value.facts["reason"]


def test_a_bucket_that_does_not_exist_is_named(s3_server, client):
    storage = storage_with(s3_server, client, "no-such-bucket-4711")
    with pytest.raises(NotFoundError, match="bucket does not exist") as caught:
        storage.get("a")
    assert caught.value.facts["kind"] == "bucket"
    assert "no-such-bucket-4711" in last_line(caught.value)
    with pytest.raises(NotFoundError, match="bucket does not exist"):
        list(storage.list())
    assert storage.head("a") is None


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid", "http://192.0.2.1"]
)
def test_a_wrong_endpoint_fails_by_name(client, endpoint):
    options = {"key": "k", "secret": SECRET_KEY, "endpoint_url": endpoint}
    storage = open_storage(Location("s3://bucket/x", client=client, options=options))
    with pytest.raises(StorageError) as caught:
        storage.get("a")
    assert endpoint.removeprefix("http://") in last_line(caught.value)
    assert "storage.endpoint_url" in last_line(caught.value)


def test_half_a_key_pair_is_refused(client):
    storage = open_storage(Location("s3://bucket/x", client=client, options={"key": "k"}))
    with pytest.raises(InvalidInputError, match=r"storage\.secret"):
        storage.get("a")


def test_no_credentials_anywhere(client, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {"endpoint_url": "http://127.0.0.1:9"}
    storage = open_storage(Location("s3://bucket/x", client=client, options=options))
    with pytest.raises(StorageError, match=r"storage\.anon=true"):
        storage.get("a")


def test_an_unknown_profile(client):
    options = {"endpoint_url": "http://127.0.0.1:9", "profile": "nobody-4711"}
    storage = open_storage(Location("s3://bucket/x", client=client, options=options))
    with pytest.raises(InvalidInputError, match="nobody-4711"):
        storage.get("a")


def test_no_secret_in_anything_that_is_said(s3_server, client, shared_bucket):
    """Errors, tracebacks, pickled errors, representations and logs, for every failing verb."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    said = []
    try:
        for bucket, changes in (
            (shared_bucket, {"secret": WRONG_SECRET}),
            (shared_bucket, {"token": "canary-token-77aa"}),
            (shared_bucket, {"key": "canary-key-id-5b"}),
            (shared_bucket, {"region": "mars-north-1"}),
            ("no-such-bucket-4711", {}),
            (shared_bucket, {"endpoint_url": "http://127.0.0.1:9"}),
        ):
            storage = storage_with(s3_server, client, bucket, **changes)
            said += [repr(storage), str(storage), storage.root_url]
            for attempt in (
                lambda s=storage: s.get("a"),
                lambda s=storage: s.get_many([ReadRequest(key="a", start=0, end=4)]),
                lambda s=storage: s.put("a/../b", b""),
                lambda s=storage: s.put("a", b"", condition=CreateOnly()),
                lambda s=storage: list(s.list("b/")),
                lambda s=storage: s.copy("a", "b"),
            ):
                try:
                    attempt()
                except IcechunkError as error:
                    said.append("".join(traceback.format_exception(error)))
                    said.append(repr(pickle.loads(pickle.dumps(error)).facts))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    location = Location("s3://b/x", options={"key": "canary-key-id-5b", "secret": SECRET_KEY})
    said += [repr(location), str(location), repr(location.options), f"{location!s} {location!r}"]
    assert len(said) > 30
    canaries = (SECRET_KEY, WRONG_SECRET, "canary-token-77aa", "canary-key-id-5b")
    for text in said:
        assert not any(canary in text for canary in canaries), text
    # The clients' own debug logs are theirs, but what this library logs must be clean too.
    ours = [line for line in log.getvalue().splitlines() if "icechunk" in line]
    assert not any(canary in line for canary in canaries for line in ours)
