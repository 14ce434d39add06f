"""Two calls, one of them run whole before each request that the other sends to the store.

Whatever happens between two requests, every branch and tag shows a whole version afterwards, bytes
included, and a call that raised nothing has had its effect.

``make torture`` runs all interleavings, with ``INTERLEAVINGS=all``, rather than some of each pair.
"""

from __future__ import annotations

import os
import random

import pytest
from helpers.files.maintenance_repositories import build_untidy, collect, commit
from helpers.storage.faulty_storage import FaultyStorage

from icechunk_format.errors import IcechunkError
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_files
from icechunk_format.repository.files.metadata_files import ObjectCache

pytestmark = pytest.mark.usefixtures("no_pauses")

IS_WHOLE = os.environ.get("INTERLEAVINGS") == "all"
OF_EACH_PAIR, OF_EACH_CLOSE_PAIR = 2, 10


class InterruptedStorage(FaultyStorage):
    """``inner``, where something happens before one request."""

    interruption = staticmethod(lambda: None)

    def _request(self, verb, key, act, *, condition=None):
        if len(self.requests) in self.at:
            self.interruption()
        self.requests.append((verb, key))
        return act()


class InterruptedRepository(Repository):
    """A repository at such a storage."""

    interrupted: InterruptedStorage

    @property
    def storage(self):
        return self.interrupted


class Call:
    """A call by its own handle, opened before; by default its effect is not looked for."""

    def __init__(self, act, shows=lambda fresh, built, done: True):
        self.act, self.shows = act, shows


def points_to(kind, name, label):
    return lambda fresh, built, _: str(getattr(fresh, kind)().get(name)) == built.ids[label]


def is_gone(kind, name):
    return lambda fresh, built, _: name not in getattr(fresh, kind)()


def is_in_history(fresh, built, done):
    return str(done) in {str(info.id) for info in fresh.ancestry()}


CALLS = {
    "commit": Call(lambda r, b: commit(r, 9), is_in_history),
    "branch on garbage": Call(
        lambda r, b: r.create_branch("new", b.ids["side 5"]),
        points_to("branches", "new", "side 5"),
    ),
    "tag on garbage": Call(
        lambda r, b: r.create_tag("new", b.ids["side 5"]), points_to("tags", "new", "side 5")
    ),
    "reset to garbage": Call(
        lambda r, b: r.reset_branch("side", b.ids["side 5"]),
        points_to("branches", "side", "side 5"),
    ),
    "restore garbage": Call(
        lambda r, b: r.restore("main", b.ids["side 5"]).snapshot_id, is_in_history
    ),
    "delete branch": Call(lambda r, b: r.delete_branch("old"), is_gone("branches", "old")),
    "delete tag": Call(lambda r, b: r.delete_tag("old"), is_gone("tags", "old")),
    "configure": Call(
        lambda r, b: r.update_config({"inline_chunk_threshold_bytes": 77}),
        lambda fresh, built, _: fresh.config.inline_chunk_threshold_bytes == 77,
    ),
    "expire": Call(lambda r, b: r.expire_snapshots(b.instants["end"])),
    "collect": Call(lambda r, b: collect(b, b.instants["end"], r.storage)),
}


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def pristine(request):
    built = build_untidy(request.param)
    built.repository.create_branch("old", built.ids["main 1"])
    built.repository.create_tag("old", built.ids["main 1"])
    return built


def interrupted(built, at=()):
    location, version = built.repository.location, built.repository.spec_version
    repository = InterruptedRepository(location, spec_version=version)
    repository.interrupted = InterruptedStorage(built.storage, at=frozenset(at))
    return repository


def tried(call, repository, built):
    """Make a call as a process of its own; return what it gave, and the error that it raised."""
    with pytest.MonkeyPatch.context() as patch:
        cache = ObjectCache(1 << 22)
        patch.setattr(metadata_files, "metadata_cache", lambda: cache)
        try:
            return call.act(repository, built), None
        except IcechunkError as error:
            return None, error


def interleaved(pristine, first, second, number):
    """Run the second call before a request of the first one; return problems and both errors."""
    built = pristine.clone()
    other = Repository(built.repository.location, spec_version=built.repository.spec_version)
    repository = interrupted(built, {number})
    ends = []
    repository.interrupted.interruption = lambda: ends.append(tried(second, other, built))
    ends.insert(0, tried(first, repository, built))
    problems = []
    try:
        built.contents()
    except IcechunkError as error:
        problems.append(f"not whole: {error.message.splitlines()[0]}")
    fresh = Repository.open(built.repository.location)
    for call, (done, error) in zip((first, second), ends, strict=False):
        if error is None and not call.shows(fresh, built, done):
            problems.append("a call without an error has no effect")
    return problems, [error for _, error in ends], repository.interrupted.requests[number]


@pytest.mark.parametrize("first", CALLS)
def test_a_call_before_each_request_of_another_leaves_whole_versions(pristine, first):
    counter = interrupted(clone := pristine.clone())
    tried(CALLS[first], counter, clone)
    count = len(counter.interrupted.requests)
    found, chance = [], random.Random(first)
    for second in CALLS:
        numbers = range(count)
        # In version 1 no update of ``repo`` puts a collection and the use of garbage in order.
        is_close = "collect" in (first, second) and "garbage" in first + second
        if not IS_WHOLE:
            is_unordered = is_close and pristine.repository.spec_version == 1
            most = OF_EACH_CLOSE_PAIR if is_unordered else OF_EACH_PAIR
            numbers = chance.sample(numbers, min(most, count))
        for number in numbers:
            problems, errors, request = interleaved(pristine, CALLS[first], CALLS[second], number)
            shown = [error and type(error).__name__ for error in errors]
            found += [(problem, second, number, request, shown) for problem in problems]
    assert not found, "\n".join(map(str, found))
