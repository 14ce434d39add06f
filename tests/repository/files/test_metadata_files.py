"""The cache of decoded files stays within its budget, loads once, and forgets failures."""

import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.servers.http import misbehaving_server
from helpers.sessions.model import group_document

from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.repository import Repository
from icechunk_format.repository.files import Loaded
from icechunk_format.repository.files import metadata_files as objects
from icechunk_format.repository.files.metadata_files import ObjectCache
from icechunk_format.storage.location import Location, open_storage


def loader(keys, loads, cost=10):
    """Return a load function that records which keys it was asked for."""

    def load(positions):
        loads.append([keys[p] for p in positions])
        return [Loaded(f"value of {keys[p]}", cost) for p in positions]

    return load


def test_a_kept_value_is_not_loaded_again():
    cache, loads = ObjectCache(100), []
    for keys in (["a"], ["a", "b"], ["b", "a", "a"]):
        assert cache.get_many(keys, loader(keys, loads)) == [f"value of {k}" for k in keys]
    assert loads == [["a"], ["b"]]


def test_the_least_recently_used_value_leaves_first():
    cache, loads = ObjectCache(30), []
    for key in ("a", "b", "c", "a", "d", "a", "b"):
        cache.get_many([key], loader([key], loads))
    assert loads == [["a"], ["b"], ["c"], ["d"], ["b"]]
    assert cache.used_bytes == 30


class Big:
    """A value larger than the budget."""


def test_what_is_larger_than_the_budget_is_found_as_long_as_it_is_used():
    cache, loads = ObjectCache(30), []

    def load(positions: list[int]) -> list[Loaded[Big]]:
        loads.append(positions)
        return [Loaded(Big(), 31) for _ in positions]

    [first] = cache.get_many(["big"], load)
    assert cache.get_many(["big"], load) == [first]
    assert cache.used_bytes == 0
    assert len(loads) == 1
    del first
    [again] = cache.get_many(["big"], load)
    assert len(loads) == 2
    cache.clear()
    assert cache.get_many(["big"], load) != [again]


def test_a_value_without_weak_references_is_handed_out_and_not_kept():
    cache, loads = ObjectCache(30), []
    for _ in range(2):
        assert cache.get_many(["big"], loader(["big"], loads, cost=31)) == ["value of big"]
    assert loads == [["big"], ["big"]]
    assert cache.used_bytes == 0


def test_what_may_change_is_not_kept():
    cache, loads = ObjectCache(30), []
    for _ in range(2):
        cache.get_many(["a"], loader(["a"], loads, cost=None))
    assert loads == [["a"], ["a"]]


def test_a_cleared_cache_holds_nothing():
    cache, loads = ObjectCache(30), []
    cache.get_many(["a", "b", "c"], loader(["a", "b", "c"], loads))
    cache.clear()
    assert cache.used_bytes == 0


def test_two_threads_that_ask_for_one_value_load_it_once():
    cache, loads = ObjectCache(100), []
    begun, go_on = threading.Event(), threading.Event()

    def slow(positions):
        loads.append(positions)
        begun.set()
        assert go_on.wait(10)
        return [Loaded("value", 1)]

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(cache.get_many, ["a"], slow)
        assert begun.wait(10)
        others = [threads.submit(cache.get_many, ["a"], slow) for _ in range(3)]
        go_on.set()
        assert [f.result(10) for f in (first, *others)] == [["value"]] * 4
    assert len(loads) == 1


def test_threads_that_need_each_others_values_both_get_them():
    cache = ObjectCache(100)
    barrier = threading.Barrier(2)

    def get(keys):
        waited = []

        def load(positions):
            if not waited:
                waited.append(barrier.wait(10))
            return [Loaded(keys[p], 1) for p in positions]

        # Claim the first key, then ask for both: the other thread holds the second one.
        return cache.get_many(keys[:1], load), cache.get_many(keys, load)

    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(get, keys) for keys in (["a", "b"], ["b", "a"])]
        assert [r.result(10)[1] for r in results] == [["a", "b"], ["b", "a"]]


def test_a_failed_load_reaches_its_caller_and_is_tried_again_by_the_next():
    cache, loads = ObjectCache(100), []

    def broken(positions):
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError, match="no"):
        cache.get_many(["a"], broken)
    assert cache.get_many(["a"], loader(["a"], loads)) == ["value of a"]


def test_a_waiting_thread_does_not_inherit_a_failure_of_another():
    cache = ObjectCache(100)
    begun, go_on = threading.Event(), threading.Event()

    def fails(positions):
        begun.set()
        assert go_on.wait(10)
        raise InvalidInputError("cancelled")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get_many, ["a"], fails)
        assert begun.wait(10)
        second = threads.submit(cache.get_many, ["a"], lambda positions: [Loaded("mine", 1)])
        go_on.set()
        assert second.result(10) == ["mine"]
        with pytest.raises(InvalidInputError):
            first.result(10)


@pytest.mark.parametrize(
    ("text", "expected"), [(None, objects.DEFAULT_CACHE_BYTES), ("0", 0), ("1000", 1000)]
)
def test_the_environment_sets_the_budget(monkeypatch, text, expected):
    monkeypatch.delenv(objects.CACHE_BYTES_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(objects.CACHE_BYTES_VARIABLE, text)
    assert objects._configured_cache_bytes() == expected


@pytest.mark.parametrize("text", ["-1", "256MB", ""])
def test_a_budget_that_is_no_number_is_an_error(monkeypatch, text):
    monkeypatch.setenv(objects.CACHE_BYTES_VARIABLE, text)
    with pytest.raises(InvalidInputError, match="whole number of bytes"):
        objects._configured_cache_bytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_process_starts_with_a_cache_of_its_own():
    parent_cache = objects.metadata_cache()
    # As if another thread of the parent were inside of the cache when the child is made.
    with parent_cache._lock:
        child = os.fork()
        if child == 0:
            is_own = objects.metadata_cache() is not parent_cache
            loaded = objects.metadata_cache().get_many(["a"], lambda _: [Loaded("value", 1)])
            os._exit(0 if is_own and loaded == ["value"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert objects.metadata_cache() is parent_cache


def test_a_session_after_a_commit_reads_no_snapshot_again(monkeypatch):
    repository = Repository.create(Location("memory://session-after-a-commit"))
    session = repository.writable_session()
    session.create_group("/", group_document())
    written = session.commit("first").snapshot_id
    monkeypatch.setattr(snapshot_file, "decode", refused)
    following = repository.writable_session()
    assert following.snapshot_id == written
    assert following.node("/").user_data == group_document()
    following.create_group("/g", group_document())
    following.commit("second")
    assert repository.writable_session().node("/g") is not None


def refused(*_, **__):
    raise AssertionError("a snapshot that this process has just written was decoded")


@pytest.mark.parametrize(
    "other",
    [
        {"endpoint_url": ""},
        {"key": "other"},
        {"secret": "other"},
        {"token": "other"},
        {"region": "eu-west-1"},
        {"anon": "true"},
        {"AWS_SESSION_TOKEN": "other"},
    ],
)
def test_what_one_access_read_is_not_given_to_another(other, monkeypatch):
    """Two servers may hold other objects under one URL, and credentials see what they may see."""
    with misbehaving_server() as first, misbehaving_server() as second:
        first.clock = time.time
        options = {"key": "k", "secret": "s", "endpoint_url": first.url, "max_retries": "0"}
        repository = Repository.create(Location("s3://bucket/r", options=options))
        session = repository.writable_session()
        session.create_group("/", group_document())
        snapshot_id = session.commit("kept").snapshot_id
        load = objects.load_snapshot
        same = open_storage(Location("s3://bucket/r", options=dict(options)))
        assert load(same, snapshot_id) is load(pickle.loads(pickle.dumps(same)), snapshot_id)

        asked = len(first.requests)
        if "endpoint_url" in other:
            other = {"endpoint_url": second.url}
        elif "AWS_SESSION_TOKEN" in other:
            monkeypatch.setenv("AWS_SESSION_TOKEN", "other")
            other = {}
        first.objects.clear()
        with pytest.raises(NotFoundError):
            load(open_storage(Location("s3://bucket/r", options=options | other)), snapshot_id)
        assert len(first.requests) + len(second.requests) > asked
