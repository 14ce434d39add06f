"""What every storage must do, as one suite of tests that takes any of them.

A test module subclasses :class:`StorageContract` and gives a fixture ``storage`` with an empty
root.
"""

from __future__ import annotations

import pickle
import threading
from datetime import UTC, datetime, timedelta

import pytest

from icechunk_format.errors import (
    ChunkModifiedError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from icechunk_format.storage.protocol import (
    CreateOnly,
    ObjectVersion,
    ReadRequest,
    ReplaceIfUnchanged,
    Storage,
)

AWKWARD_KEYS = [
    "plain",
    "deep/er/and/deeper",
    "with space/and+plus",
    "percent%20encoded",
    "query?and#hash&amp",
    "ünïcode/雪",
    "dots.in.name/..hidden/x..y",
    "tag.v1.0/ref.json",
    "tilde~and'quote\"",
]


def write_new(storage: Storage, key: str, data: bytes) -> ObjectVersion:
    written = storage.put(key, data)
    assert written is not None
    return written


def assert_refused(attempt, status, option, *, secrets):
    """Assert that a server refuses a call, and that the error names the option, not its value."""
    with pytest.raises(StorageError) as caught:
        attempt()
    assert caught.value.facts["status"] == status
    assert not caught.value.outcome_unknown
    assert option in str(caught.value)
    for secret in secrets:
        assert secret not in str(caught.value)


class StorageContract:
    # Whole objects

    def test_an_object_comes_back_as_it_was_written(self, storage: Storage):
        version = write_new(storage, "a/b", b"hello")
        fetched = storage.get("a/b")
        assert fetched.data == b"hello"
        assert type(fetched.data) is bytes
        assert fetched.version.etag == version.etag
        assert fetched.last_modified is not None
        assert abs(datetime.now(UTC) - fetched.last_modified) < timedelta(minutes=5)

    @pytest.mark.parametrize("key", AWKWARD_KEYS)
    def test_keys_are_verbatim(self, storage: Storage, key: str):
        write_new(storage, key, key.encode())
        assert storage.get(key).data == key.encode()
        assert storage.get_many([ReadRequest(key=key, start=0, end=3)]) == [key.encode()[:3]]
        assert storage.head(key) is not None
        assert [info.key for info in storage.list()] == [key]
        assert storage.delete_many([key]) == []
        assert storage.head(key) is None

    def test_an_empty_object_is_an_object(self, storage: Storage):
        write_new(storage, "empty", b"")
        assert storage.get("empty").data == b""
        info = storage.head("empty")
        assert info is not None
        assert info.size == 0

    def test_a_large_object_survives(self, storage: Storage):
        data = bytes(range(256)) * 4096 * 40  # 40 MiB: above the size at which reads are cut
        write_new(storage, "large", data)
        assert storage.get("large").data == data
        (joined,) = storage.get_many([ReadRequest(key="large", start=5, end=len(data) - 7)])
        assert joined == data[5:-7]

    def test_what_is_missing_is_not_found(self, storage: Storage):
        with pytest.raises(NotFoundError) as caught:
            storage.get("nothing/here")
        assert caught.value.facts["key"] == "nothing/here"
        assert caught.value.facts["kind"] == "object"
        assert storage.head("nothing/here") is None
        assert list(storage.list("nothing/")) == []

    def test_a_folder_is_not_an_object(self, storage: Storage):
        write_new(storage, "folder/file", b"x")
        assert storage.head("folder") is None
        with pytest.raises(NotFoundError):
            storage.get("folder")

    @pytest.mark.parametrize(
        "key", ["", "/a", "../a", "a/../b", "a//b", "a/", ".", "a\\b", "a\0b", "a\nb", "x" * 1025]
    )
    def test_keys_cannot_leave_the_root(self, storage: Storage, key: str):
        for attempt in (
            lambda: storage.get(key),
            lambda: storage.head(key),
            lambda: storage.put(key, b""),
            lambda: storage.put_many([(key, b"")]),
            lambda: storage.delete_many([key]),
            lambda: storage.copy(key, "fine"),
            lambda: storage.copy("fine", key),
            lambda: storage.get_many([ReadRequest(key=key)]),
        ):
            with pytest.raises(InvalidInputError):
                attempt()

    # Ranges

    def test_ranges(self, storage: Storage):
        write_new(storage, "digits", b"0123456789")
        assert storage.get("digits", start=2, end=5).data == b"234"
        assert storage.get("digits", start=7).data == b"789"
        assert storage.get("digits", end=3).data == b"012"
        assert storage.get("digits", start=4, end=4).data == b""

    def test_many_ranges_come_back_in_order(self, storage: Storage):
        write_new(storage, "digits", b"0123456789")
        write_new(storage, "letters", b"abcdefghij")
        requests = [
            ReadRequest(key="digits", start=8, end=10),
            ReadRequest(key="letters", suffix=3),
            ReadRequest(key="digits", start=0, end=4),
            ReadRequest(key="digits", start=2, end=6),
            ReadRequest(key="letters"),
            ReadRequest(key="letters", start=9),
            ReadRequest(key="digits", start=3, end=3),
            ReadRequest(key="digits", start=8, end=10),
        ]
        assert storage.get_many(requests) == [
            b"89", b"hij", b"0123", b"2345", b"abcdefghij", b"j", b"", b"89",
        ]  # fmt: skip
        assert storage.get_many([]) == []

    def test_hundreds_of_objects_at_once(self, storage: Storage):
        items = [(f"many/{i}", b"%d" % i * 10) for i in range(200)]
        versions = storage.put_many(items)
        assert len(versions) == 200
        requests = [ReadRequest(key=key, start=1) for key, _ in reversed(items)]
        assert storage.get_many(requests) == [data[1:] for _, data in reversed(items)]
        info = storage.head("many/7")
        assert info is not None
        assert versions[7].etag == info.version.etag

    @pytest.mark.parametrize(
        ("request_", "expected", "found"),
        [
            (ReadRequest(key="short", start=2, end=9), 7, 2),
            (ReadRequest(key="short", start=4, end=5), 1, 0),
            (ReadRequest(key="short", start=90, end=99), 9, 0),
            (ReadRequest(key="short", suffix=9), 9, 4),
        ],
    )
    def test_an_object_that_is_shorter_than_asked_is_an_error(
        self, storage: Storage, request_: ReadRequest, expected: int, found: int
    ):
        write_new(storage, "short", b"0123")
        with pytest.raises(StorageError, match="short") as caught:
            storage.get_many([request_])
        assert caught.value.facts["expected"] == expected
        assert caught.value.facts["found"] == found

    def test_one_missing_object_fails_the_batch(self, storage: Storage):
        write_new(storage, "there", b"0123")
        with pytest.raises(NotFoundError) as caught:
            storage.get_many([ReadRequest(key="there"), ReadRequest(key="gone", start=0, end=2)])
        assert caught.value.facts["key"] == "gone"

    # Checksums of virtual chunks

    def test_a_range_of_the_expected_version_is_read(self, storage: Storage):
        etag = write_new(storage, "source", b"0123456789").etag
        info = storage.head("source")
        assert info is not None
        later = int(info.last_modified.timestamp()) + 1
        requests = [
            ReadRequest(key="source", start=1, end=3, if_match=etag),
            ReadRequest(key="source", start=1, end=3, if_match=f'"{etag}"'),
            ReadRequest(key="source", start=1, end=3, if_unmodified_since=later),
            # References keep whole seconds, cut off below.
            ReadRequest(key="source", start=1, end=3, if_unmodified_since=later - 1),
        ]
        assert storage.get_many(requests) == [b"12"] * 4

    def test_a_range_of_another_version_is_refused(self, storage: Storage):
        old = write_new(storage, "source", b"0123456789").etag
        write_new(storage, "source", b"abcdefghij")
        with pytest.raises(ChunkModifiedError) as caught:
            storage.get_many([ReadRequest(key="source", start=1, end=3, if_match=old)])
        assert caught.value.facts["key"] == "source"
        with pytest.raises(ChunkModifiedError):
            storage.get_many([ReadRequest(key="source", suffix=2, if_unmodified_since=86_400)])

    # Conditions

    def test_create_only_has_one_winner(self, storage: Storage):
        first = storage.put("new", b"first", condition=CreateOnly())
        assert first is not None
        assert storage.put("new", b"second", condition=CreateOnly()) is None
        assert storage.get("new").data == b"first"
        assert storage.get("new").version.etag == first.etag

    def test_replace_needs_the_version_that_is_there(self, storage: Storage):
        first = write_new(storage, "repo", b"one")
        second = storage.put("repo", b"two", condition=ReplaceIfUnchanged(version=first))
        assert second is not None
        lost = storage.put("repo", b"three", condition=ReplaceIfUnchanged(version=first))
        assert lost is None
        assert storage.get("repo").data == b"two"
        again = ReplaceIfUnchanged(version=storage.get("repo").version)
        assert storage.put("repo", b"three", condition=again) is not None
        assert storage.get("repo").data == b"three"

    def test_a_version_can_come_from_any_verb(self, storage: Storage):
        write_new(storage, "repo", b"0")
        for step in range(3):
            info = storage.head("repo")
            assert info is not None
            (listed,) = storage.list("repo")
            fetched = storage.get("repo").version
            assert info.version.etag == listed.version.etag == fetched.etag
            version = (info.version, listed.version, fetched)[step]
            written = storage.put(
                "repo", b"%d" % step, condition=ReplaceIfUnchanged(version=version)
            )
            assert written is not None

    def test_what_is_gone_cannot_be_replaced(self, storage: Storage):
        version = write_new(storage, "repo", b"one")
        storage.delete_many(["repo"])
        condition = ReplaceIfUnchanged(version=version)
        assert storage.put("repo", b"two", condition=condition) is None
        assert storage.head("repo") is None

    def test_rival_creators_in_threads_have_one_winner(self, storage: Storage):
        outcomes = in_threads(8, lambda i: storage.put("tag", b"%d" % i, condition=CreateOnly()))
        winners = [i for i, outcome in enumerate(outcomes) if outcome is not None]
        assert len(winners) == 1
        assert storage.get("tag").data == b"%d" % winners[0]

    def test_increments_of_rival_threads_add_up(self, storage: Storage):
        write_new(storage, "counter", b"0")
        in_threads(4, lambda _: increment(storage, "counter", 5))
        assert storage.get("counter").data == b"20"

    # Listing, deleting, copying

    def test_list_finds_what_begins_with_the_prefix(self, storage: Storage):
        keys = ["repo", "snapshots/A", "snapshots/B", "snapshot", "refs/branch.main/ref.json"]
        storage.put_many((key, key.encode()) for key in keys)

        def listed(prefix: str) -> list[str]:
            return sorted(info.key for info in storage.list(prefix))

        assert listed("") == sorted(keys)
        assert listed("snapshots/") == ["snapshots/A", "snapshots/B"]
        assert listed("snapshots/A") == ["snapshots/A"]
        assert listed("snap") == ["snapshot", "snapshots/A", "snapshots/B"]
        assert listed("refs/branch.") == ["refs/branch.main/ref.json"]
        assert listed("refs/tag.") == []
        assert {info.key: info.size for info in storage.list()} == {k: len(k) for k in keys}
        with pytest.raises(InvalidInputError):
            list(storage.list("../"))

    def test_folders_are_those_directly_below_the_root(self, storage: Storage):
        keys = ["repo", "a/repo", "a/chunks/x", "b/c/d", "a.b/x", "deep/er/than/that"]
        storage.put_many((key, key.encode()) for key in keys)
        assert sorted(storage.folders()) == ["a", "a.b", "b", "deep"]

    def test_list_is_complete_beyond_a_page(self, storage: Storage):
        keys = {f"chunks/{i:05}" for i in range(1050)}
        storage.put_many((key, b"") for key in keys)
        assert {info.key for info in storage.list("chunks/")} == keys

    def test_list_by_the_first_letters_of_names(self, storage: Storage):
        alphabet = "019AHZaz-_"
        keys = {f"chunks/{a}{b}{i}" for a in alphabet for b in alphabet for i in range(3)}
        keys |= {f"chunks/{a}" for a in "0AZ"} | {"chunk", "chunks0", "manifests/A0"}
        storage.put_many((key, b"") for key in keys)
        for start in [*alphabet, "00", "A0", "AZ", "zz", "A00", "b", "~"]:
            prefix = f"chunks/{start}"
            listed = [info.key for info in storage.list(prefix)]
            assert sorted(listed) == sorted(k for k in keys if k.startswith(prefix)), prefix

    def test_list_tells_when_objects_changed(self, storage: Storage):
        write_new(storage, "a", b"")
        (info,) = storage.list()
        assert info.last_modified.tzinfo is not None
        assert abs(datetime.now(UTC) - info.last_modified) < timedelta(minutes=5)

    def test_delete_many_leaves_the_others(self, storage: Storage):
        storage.put_many((f"chunks/{i}", b"x") for i in range(20))
        assert storage.delete_many(["chunks/1", "chunks/never", "chunks/7", "elsewhere"]) == []
        left = {info.key for info in storage.list()}
        assert left == {f"chunks/{i}" for i in range(20)} - {"chunks/1", "chunks/7"}
        assert storage.delete_many([]) == []

    def test_copy(self, storage: Storage):
        write_new(storage, "repo", b"old")
        copied = storage.copy("repo", "overwritten/repo.1")
        assert copied is not None
        assert storage.get("overwritten/repo.1").data == b"old"
        assert storage.get("overwritten/repo.1").version.etag == copied.etag
        write_new(storage, "repo", b"new")
        storage.copy("repo", "overwritten/repo.1")
        assert storage.get("overwritten/repo.1").data == b"new"
        with pytest.raises(NotFoundError):
            storage.copy("gone", "overwritten/repo.2")

    def test_copy_of_a_version(self, storage: Storage):
        old = write_new(storage, "repo", b"old")
        assert storage.copy("repo", "b1", source_version=old) is not None
        write_new(storage, "repo", b"new one")
        assert storage.copy("repo", "b2", source_version=old) is None
        assert storage.head("b2") is None

    def test_a_storage_can_travel(self, storage: Storage):
        write_new(storage, "a", b"here")
        other = pickle.loads(pickle.dumps(storage))
        assert other.get("a").data == b"here"
        assert other.root_url == storage.root_url


def increment(storage: Storage, key: str, times: int) -> None:
    """Add one to a number in an object, ``times`` times, against whoever does the same."""
    for _ in range(times):
        while True:
            fetched = storage.get(key)
            condition = ReplaceIfUnchanged(version=fetched.version)
            if storage.put(key, b"%d" % (int(fetched.data) + 1), condition=condition) is not None:
                break


def in_threads(count, function):
    """Call ``function(i)`` in ``count`` threads that start together; return the results."""
    start = threading.Barrier(count)
    results = [None] * count

    def run(i):
        start.wait()
        results[i] = function(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results
