"""Repositories on an S3 server that throttles, stalls, repeats and loses requests stay whole.

A proxy stands between the clients and the server (``helpers/servers/proxy.py``). Nothing measures
time: the proxy counts requests. By night, with more objects (``STORED_OBJECTS``); ``STORAGE_SEEDS``
is the number of random histories.
"""

from __future__ import annotations

import itertools
import os
import random
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from helpers.servers.proxy import RANDOM, Trouble, running_proxy
from helpers.servers.s3 import ACCESS_KEY
from helpers.sessions.model import array_document, group_document, stored_contents

from icechunk_format.encoding.ids import ChunkId
from icechunk_format.errors import CommitOutcomeUnknownError, ConflictError, StorageError
from icechunk_format.maintenance import collect_garbage, expire_snapshots, verify
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan

PAYLOAD = bytes(range(256)) * 4
OBJECTS = 40
SEEDS = int(os.environ.get("STORAGE_SEEDS", "20"))


@pytest.fixture
def proxy(s3_server):
    with running_proxy(s3_server) as running:
        yield running


@pytest.fixture(params=["obstore", "fsspec"])
def location(request, proxy, shared_bucket):
    url = f"s3://{shared_bucket}/{uuid.uuid4()}"
    options = {**proxy.server.storage_options, "timeout": "60"}
    return Location(url, client=request.param, options=options)


def by_day(client):
    """Run a test with one client by day, and with the other by night."""
    other = "fsspec" if client == "obstore" else "obstore"
    night = pytest.param(other, marks=pytest.mark.nightly)
    return pytest.mark.parametrize("location", [client, night], indirect=True)


@pytest.fixture
def direct(location, s3_server):
    """Return the same folder without the proxy."""
    return Location(location.url, options=s3_server.storage_options)


def new_array(session, number):
    """Create the array `/a` of that many chunks, which are too large to be stored in manifests."""
    session.create_group("/", group_document())
    shape = number, 3 + len(PAYLOAD)
    document = array_document(shape, (1, shape[1]), dimension_names=["x", "y"])
    session.create_array(
        "/a", document, shape=shape, num_chunks=(number, 1), dimension_names=["x", "y"]
    )


def write_all(session, number, mark=0):
    chunks = [bytes([mark, i % 256, i >> 8 & 255]) + PAYLOAD for i in range(number)]
    session.set_chunks("/a", [[i, 0] for i in range(number)], chunks)


def scanned_rows(location):
    metadata_cache().clear()
    repository = Repository.open(location)
    dataset = open_dataset(repository, repository.resolve())
    plan = dataset.plan(dataset.table())
    batches = itertools.chain.from_iterable(run_scan(plan.context, task) for task in plan.tasks)
    return sum(batch.num_rows for batch in batches)


def assert_sound(location):
    findings = verify(location).to_pylist()
    assert [one for one in findings if one["severity"] != "info"] == []


def tidied(location):
    now = datetime.now(UTC) + timedelta(seconds=5)
    expire_snapshots(location, now)
    return collect_garbage(location, now)


# -- limits ------------------------------------------------------------------------------------


def throttled_work(proxy, location, objects, limits):
    """Write, overwrite, read and collect that many chunks; return the result of the collection."""
    proxy.limits, proxy.burst = limits, 0.1
    repository = Repository.create(location)
    for mark in range(2):
        session = repository.writable_session()
        if mark == 0:
            new_array(session, objects)
        write_all(session, objects, mark)
        session.commit(f"version {mark}")
    contents = stored_contents_of_chunks(location, objects)
    assert all(data[0] == 1 for data in contents)
    return tidied(location)


def stored_contents_of_chunks(location, objects):
    metadata_cache().clear()
    repository = Repository.open(location)
    contents = stored_contents(repository, repository.resolve())
    return [contents[f"a/c/{i}/0"] for i in range(objects)]


def check_counts(proxy):
    refused = proxy.met(Trouble.SLOW_DOWN)
    needed = len(proxy.seen) - refused
    print(f"{len(proxy.seen)} requests, of which {refused} were refused and {needed} were needed")
    assert refused > 0
    # Each request that was not refused was needed once.
    assert len(proxy.seen) <= 2 * needed


def test_work_under_limits_takes_at_most_twice_the_requests(proxy, location, direct):
    done = throttled_work(proxy, location, OBJECTS, (90.0, 60.0))
    check_counts(proxy)
    assert done.chunks_deleted == OBJECTS
    assert done.objects_failed_to_delete == 0
    assert_sound(direct)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_much_work_under_limits_takes_at_most_twice_the_requests(proxy, location, direct):
    objects = int(os.environ.get("STORED_OBJECTS", "100000")) // 20
    done = throttled_work(proxy, location, objects, (157.0, 100.0))
    check_counts(proxy)
    assert done.chunks_deleted == objects
    assert_sound(direct)


def collect_much(proxy, location, direct, objects, limits):
    """Collect so many objects that no snapshot refers to, under limits."""
    Repository.create(direct)
    chance = random.Random(objects)
    keys = [f"chunks/{ChunkId(chance.randbytes(12))}" for _ in range(objects)]
    open_storage(direct).put_many((key, b"garbage") for key in keys)
    # Each object of a deletion counts, as on S3.
    proxy.limits = limits
    done = tidied(location)
    assert done.chunks_deleted == objects
    assert done.objects_failed_to_delete == 0
    assert_sound(direct)


@by_day("obstore")
def test_a_collection_under_limits_deletes_all(proxy, location, direct):
    collect_much(proxy, location, direct, 1_200, (157.0, 1500.0))
    assert len(proxy.seen) <= 2 * (len(proxy.seen) - proxy.met(Trouble.SLOW_DOWN))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_large_collection_under_limits_takes_at_most_twice_the_requests(proxy, location, direct):
    objects = int(os.environ.get("STORED_OBJECTS", "100000"))
    collect_much(proxy, location, direct, objects, (157.0, 500.0))
    check_counts(proxy)


def test_a_deletion_of_which_the_server_refuses_a_part_is_completed(proxy, location, direct):
    storage = open_storage(location)
    storage.put_many((f"chunks/{i}", b"x") for i in range(20))
    proxy.seen.clear()
    proxy.troubles = [Trouble.SOME_REFUSED] * 2
    assert storage.delete_many([f"chunks/{i}" for i in range(20)]) == []
    assert list(open_storage(direct).list()) == []
    assert len(proxy.seen) == 3


# -- one trouble at a time ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "spec_version"),
    [
        ("obstore", 2),
        ("fsspec", 1),
        pytest.param("obstore", 1, marks=pytest.mark.nightly),
        pytest.param("fsspec", 2, marks=pytest.mark.nightly),
    ],
    indirect=["location"],
)
def test_a_change_of_refs_under_trouble_lands_once(proxy, location, spec_version):
    """Whatever happens to the conditional write of a commit, of a branch and of a tag."""
    # A stall lasts until the client gives up.
    proxy.stall_seconds = 60.0
    location = replace(location, options={**location.options, "timeout": "2"})
    repository = Repository.create(location, spec_version=spec_version)
    session = repository.writable_session()
    new_array(session, 4)
    base = session.commit("base").snapshot_id
    proxy.meets = lambda method, path: (
        method == "PUT" and (path.endswith("/repo") or "/refs/" in path)
    )
    names = []

    def under(trouble, change):
        proxy.troubles = [trouble]
        change()
        assert proxy.troubles == []

    # The first is last, since it slows down what follows.
    for trouble in reversed([t for t in Trouble if t is not Trouble.SOME_REFUSED]):
        session = repository.writable_session()
        write_all(session, 4)
        names.append(trouble.name)
        under(trouble, lambda: session.commit(names[-1]))  # noqa: B023 - called at once
        if trouble is not Trouble.STALL:  # which takes the time of a timeout
            under(trouble, lambda: repository.create_branch(names[-1], base))
            under(trouble, lambda: repository.create_tag(names[-1], base))
    metadata_cache().clear()
    fresh = Repository.open(location)
    assert [info.message for info in fresh.ancestry()][:-1] == [*reversed(names), "base"]
    names.remove("STALL")
    assert {name for name, tip in fresh.branches().items() if tip == base} == set(names)
    assert fresh.tags() == dict.fromkeys(names, base)
    assert_sound(location)


# -- all troubles at once ----------------------------------------------------------------------


@by_day("fsspec")
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, SEEDS))]
)
def test_random_troubles_leave_a_whole_repository(proxy, location, direct, seed):
    repository = Repository.create(location)
    session = repository.writable_session()
    new_array(session, 16)
    session.commit("base")
    proxy.chance, proxy.rate, proxy.stall_seconds = random.Random(seed), 0.08, 0.2
    proxy.kinds = RANDOM
    landed, open_ends = [], []
    for number in range(8):
        try:
            session = repository.writable_session()
            write_all(session, 16, number + 1)
            session.commit(str(number))
            landed.append(str(number))
        except CommitOutcomeUnknownError:
            open_ends.append(str(number))
        except (StorageError, ConflictError):
            continue
        if number == 4:
            tidied(location)
    assert scanned_rows(location) == 16 * (3 + len(PAYLOAD))
    proxy.rate = 0.0
    metadata_cache().clear()
    sound = Repository.open(direct)
    messages = [info.message for info in sound.ancestry()]
    assert len(messages) == len(set(messages))
    assert set(messages) - {"base", "Repository initialized"} <= {*landed, *open_ends}
    # Snapshots before the collection have expired.
    assert {one for one in landed if int(one) > 4} <= set(messages)
    [last] = {data[0] for data in stored_contents_of_chunks(direct, 16)}
    assert messages[0] == str(last - 1)
    assert_sound(direct)


# -- keys and clocks ---------------------------------------------------------------------------


def refused_change(proxy, location, spoil):
    """Return the error of a commit that the server refuses from its first object on."""
    repository = Repository.create(location)
    session = repository.writable_session()
    new_array(session, 4)
    base = repository.resolve()
    write_all(session, 4)
    spoil()
    with pytest.raises(StorageError) as caught:
        session.commit("refused")
    proxy.expired.clear()
    proxy.skew = 0.0
    assert repository.resolve() == base
    assert not caught.value.outcome_unknown
    again = session.commit("allowed")
    assert stored_contents(repository, again.snapshot_id)["a/c/3/0"][3:] == PAYLOAD
    return str(caught.value).splitlines()[-1]


def test_keys_that_expire_in_the_middle_are_named(proxy, location):
    line = refused_change(proxy, location, lambda: proxy.expired.add(ACCESS_KEY))
    assert "ExpiredToken" in line
    assert location.url in line
    assert "renew" in line
    assert proxy.met("ExpiredToken") <= 4  # those in flight, none of them repeated


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_clocks_that_differ_too_much_are_named(proxy, location, skew):
    line = refused_change(proxy, location, lambda: setattr(proxy, "skew", skew))
    assert "RequestTimeTooSkewed" in line
    assert location.url in line
    assert "clock" in line
