"""Both S3 clients repeat what is harmless, and report unknown outcomes.

The rules are those of ``storage/remote/request_policy.py``. The server is a fake with scripted
faults, because a real one cannot be made to lose an answer.
"""

from __future__ import annotations

from datetime import UTC, datetime

import obstore
import obstore.exceptions
import pytest
from helpers.raised import raises
from helpers.servers.http import Fault, etag, misbehaving_server

from icechunk_format.errors import NotFoundError, StorageError
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import (
    CreateOnly,
    ObjectVersion,
    ReadRequest,
    ReplaceIfUnchanged,
)

OLD, NEW = b"the old state", b"the new state"
OLD_VERSION = ObjectVersion(etag=etag(OLD).strip('"'))
REPO = "/bucket/base/repo"


@pytest.fixture(scope="module")
def running_server():
    with misbehaving_server() as server:
        yield server


@pytest.fixture
def server(running_server):
    running_server.objects.clear()
    running_server.faults.clear()
    running_server.requests.clear()
    return running_server


@pytest.fixture(params=["obstore", "fsspec"])
def storage(request, server):
    options = {"anon": "true", "endpoint_url": server.url, "max_retries": "3"}
    return open_storage(Location("s3://bucket/base", client=request.param, options=options))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=503, code="SlowDown"),
        Fault(drop="before"),
        Fault(cut=5, method="GET"),
    ],
    ids=["500", "throttled", "connection lost", "body cut off"],
)
def test_reads_are_repeated(server, storage, fault):
    server.objects[REPO] = OLD
    server.faults[:] = [fault, fault]
    assert storage.get("repo").data == OLD
    server.faults[:] = [fault]
    assert storage.get_many([ReadRequest(key="repo", start=4)] * 2) == [OLD[4:]] * 2


@pytest.mark.parametrize(
    "fault",
    [Fault(status=503, code="SlowDown"), Fault(drop="before"), Fault(cut=30), Fault(cut=3)],
    ids=["throttled", "connection lost", "body cut off", "nothing but the beginning"],
)
def test_a_listing_that_fails_is_never_taken_for_a_short_one(server, storage, fault):
    server.objects |= {f"/bucket/base/chunks/{name}": OLD for name in "abc"}
    server.faults[:] = [fault]
    assert sorted(info.key[-1] for info in storage.list("chunks/")) == ["a", "b", "c"]


def listed(monkeypatch, pages, fail_at):
    """Let listings of obstore have these pages, and the page of a number fail once."""
    asked = []

    def pages_behind(client, prefix, *, offset, chunk_size):
        asked.append(offset)
        for number, page in enumerate(pages):
            if offset is not None and page[-1] <= offset:
                continue
            if number == fail_at and len(asked) == 1:
                raise obstore.exceptions.GenericError("error decoding response body")
            now = datetime.now(UTC)
            yield [{"path": key, "size": 1, "last_modified": now, "e_tag": '"x"'} for key in page]

    monkeypatch.setattr(obstore, "list", pages_behind)
    return asked


def test_a_listing_goes_on_behind_the_last_page_that_came(server, monkeypatch):
    asked = listed(monkeypatch, [["base/a", "base/b"], ["base/c"], ["base/d"]], fail_at=2)
    options = {"anon": "true", "endpoint_url": server.url}
    found = open_storage(Location("s3://bucket/base", options=options)).list("")
    assert [info.key for info in found] == ["a", "b", "c", "d"]
    assert asked == [None, "base/c"]


def test_a_listing_without_an_order_that_fails_halfway_is_an_error(server, monkeypatch):
    listed(monkeypatch, [["base/b"], ["base/a"]], fail_at=1)
    options = {"anon": "true", "endpoint_url": server.url}
    found = open_storage(Location("s3://bucket--use1-az4--x-s3/base", options=options)).list("")
    assert next(found).key == "b"
    with raises(StorageError, match="cannot list", key=""):
        next(found)


@pytest.mark.parametrize(
    "fault",
    [Fault(status=500), Fault(status=503, code="SlowDown"), Fault(drop="after", method="PUT")],
    ids=["500", "throttled", "answer lost"],
)
def test_overwrites_are_repeated(server, storage, fault):
    server.faults[:] = [fault, fault]
    assert storage.put("repo", NEW) is not None
    assert server.objects[REPO] == NEW


def test_a_store_that_stays_down_is_an_error(server, storage):
    server.faults[:] = [Fault(status=503, code="ServiceUnavailable")] * 50
    with raises(
        StorageError, key="repo", reason="HTTP 503 ServiceUnavailable", status=503
    ) as caught:
        storage.get("repo")
    assert caught.value.facts["status"] == 503
    assert not caught.value.outcome_unknown
    assert server.count("GET") == 4  # the first, and max_retries


@pytest.mark.parametrize("status", [400, 401, 403])
def test_refusals_are_not_repeated(server, storage, status):
    server.faults[:] = [Fault(status=status, code="AccessDenied")] * 9
    with raises(StorageError, status=status):
        storage.get("repo")
    assert server.count("GET") == 1


def test_what_is_missing_is_asked_for_once(server, storage):
    with pytest.raises(NotFoundError):
        storage.get("repo")
    assert server.count("GET") == 1


CONDITIONS = [ReplaceIfUnchanged(version=OLD_VERSION), CreateOnly()]


@pytest.mark.parametrize("condition", CONDITIONS, ids=["replace", "create"])
@pytest.mark.parametrize(
    ("fault", "landed"),
    [
        (Fault(drop="after"), True),
        (Fault(drop="before"), False),
        (Fault(status=500), False),
        (Fault(status=503, code="ServiceUnavailable"), False),
    ],
    ids=["answer lost", "request lost", "500", "503"],
)
def test_a_conditional_write_without_an_answer_is_unknown(
    server, storage, condition, fault, landed
):
    if isinstance(condition, ReplaceIfUnchanged):
        server.objects[REPO] = OLD
    server.faults[:] = [fault]
    with raises(StorageError, match="may have landed", key="repo") as caught:
        storage.put("repo", NEW, condition=condition)
    assert caught.value.outcome_unknown
    # One request: a second one could have met the first and called it somebody else's.
    assert server.count("PUT") == 1
    assert (server.objects.get(REPO) == NEW) is landed


@pytest.mark.parametrize("condition", CONDITIONS, ids=["replace", "create"])
def test_a_conditional_write_that_was_throttled_is_sent_again(server, storage, condition):
    if isinstance(condition, ReplaceIfUnchanged):
        server.objects[REPO] = OLD
    server.faults[:] = [Fault(status=503, code="SlowDown")] * 2
    assert storage.put("repo", NEW, condition=condition) is not None
    assert server.count("PUT") == 3
    assert server.objects[REPO] == NEW


@pytest.mark.parametrize(
    ("status", "code"), [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")]
)
@pytest.mark.parametrize("condition", CONDITIONS, ids=["replace", "create"])
def test_a_conflict_is_lost(server, storage, condition, status, code):
    server.faults[:] = [Fault(status=status, code=code)]
    assert storage.put("repo", NEW, condition=condition) is None
    assert server.count("PUT") == 1


def test_a_refused_conditional_write_is_not_unknown(server, storage):
    server.faults[:] = [Fault(status=403, code="AccessDenied")]
    with pytest.raises(StorageError) as caught:
        storage.put("repo", NEW, condition=CreateOnly())
    assert not caught.value.outcome_unknown


def test_the_replacement_of_what_is_gone_is_lost(server, storage):
    server.faults[:] = [Fault(status=404, code="NoSuchKey")]
    condition = ReplaceIfUnchanged(version=OLD_VERSION)
    assert storage.put("repo", NEW, condition=condition) is None


def test_the_wrong_region_is_hinted_at(server, storage):
    server.faults[:] = [Fault(status=400, code="AuthorizationHeaderMalformed")]
    with raises(
        StorageError, key="repo", reason="HTTP 400 AuthorizationHeaderMalformed", status=400
    ):
        storage.get("repo")


def test_ranges_of_one_object_are_read_together(server, storage):
    server.objects["/bucket/base/big"] = bytes(range(256)) * 400
    server.objects["/bucket/base/far"] = bytes(200_000)
    near = [ReadRequest(key="big", start=i * 1000, end=i * 1000 + 16) for i in range(100)]
    expected = [(bytes(range(256)) * 400)[r.start : r.end] for r in near]
    assert storage.get_many(near) == expected
    assert server.count("GET") == 1
    server.requests.clear()
    apart = [ReadRequest(key="far", start=a, end=b) for a, b in ((0, 10), (150_000, 150_009))]
    assert [len(part) for part in storage.get_many(apart)] == [10, 9]
    assert server.count("GET") == 2
