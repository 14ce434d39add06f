"""S3 clients work after forks, in rival processes, and when pickled to new ones."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
import uuid

import pytest
from helpers.storage.contract import increment

from icechunk_format.errors import UnsupportedError
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import ReadRequest


@pytest.fixture(params=["auto", "obstore", "fsspec"])
def client(request):
    return request.param


def location_of(s3_server, bucket, client):
    url = f"s3://{bucket}/{uuid.uuid4()}"
    return Location(url, client=client, options=s3_server.storage_options)


def in_forked_child(function):
    """Call ``function`` in a forked child; return what it returned, or the error as text."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run():
        try:
            sender.send(("value", function()))
        except BaseException:
            sender.send(("error", traceback.format_exc()))

    child = context.Process(target=run)
    child.start()
    assert receiver.poll(30), "the forked child hangs"
    outcome = receiver.recv()
    child.join(10)
    return outcome


@pytest.mark.parametrize("client", ["auto", "fsspec"])
def test_a_storage_that_was_used_works_in_a_forked_child(s3_server, shared_bucket, client):
    location = location_of(s3_server, shared_bucket, client)
    held = open_storage(location)
    held.put("from/parent", b"0123456789")
    assert held.get("from/parent").data == b"0123456789"

    def child():
        held.put("from/child", b"written after the fork")
        opened_anew = open_storage(location)
        return held.get("from/parent").data, opened_anew.get_many(
            [ReadRequest(key="from/parent", start=i, end=i + 1) for i in range(10)]
        )

    kind, value = in_forked_child(child)
    assert (kind, value) == ("value", (b"0123456789", [b"%d" % i for i in range(10)]))
    # The parent's own clients are none the worse for it.
    assert held.get("from/child").data == b"written after the fork"


def test_obstore_by_name_says_why_it_cannot_follow_a_fork(s3_server, shared_bucket):
    location = location_of(s3_server, shared_bucket, "obstore")
    held = open_storage(location)
    held.put("a", b"1")
    kind, text = in_forked_child(lambda: held.get("a"))
    assert kind == "error"
    assert UnsupportedError.__name__ in text
    assert "storage.client=fsspec" in text.splitlines()[-1]


def test_a_child_that_comes_first_has_its_own_clients(s3_server, shared_bucket, client):
    location = location_of(s3_server, shared_bucket, client)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(write_and_read, (pickle.dumps(location), "a")) == b"a"
    assert open_storage(location).get("a").data == b"a"


def write_and_read(pickled, key):
    storage = open_storage(pickle.loads(pickled))
    storage.put(key, key.encode())
    return storage.get(key).data


def test_increments_of_rival_processes_add_up(s3_server, shared_bucket):
    location = location_of(s3_server, shared_bucket, "auto")
    other = Location(location.url, client="fsspec", options=location.options)
    open_storage(location).put("counter", b"0")
    # Both clients take part: a version that one returned must mean the same to the other.
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=increment_in_process, args=(pickle.dumps(place), 10))
        for place in (location, other, location)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert open_storage(location).get("counter").data == b"30"


def increment_in_process(pickled, times):
    increment(open_storage(pickle.loads(pickled)), "counter", times)


def test_the_environment_gives_credentials_and_endpoint(
    s3_server, shared_bucket, client, monkeypatch
):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    location = Location(f"s3://{shared_bucket}/{uuid.uuid4()}", client=client)
    open_storage(location).put("a", b"1")
    assert open_storage(location).get("a").data == b"1"


def test_a_profile_of_the_aws_files_gives_credentials(
    s3_server, shared_bucket, client, monkeypatch, tmp_path
):
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    credentials = tmp_path / "credentials"
    credentials.write_text(
        "[lab]\n"
        f"aws_access_key_id = {s3_server.access_key}\n"
        f"aws_secret_access_key = {s3_server.secret_key}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    options = {"profile": "lab", "endpoint_url": s3_server.endpoint_url}
    location = Location(f"s3://{shared_bucket}/{uuid.uuid4()}", client=client, options=options)
    storage = open_storage(location)
    storage.put("a", b"1")
    assert storage.get("a").data == b"1"
