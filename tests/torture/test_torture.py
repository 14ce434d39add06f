"""Every promise holds after many writers and readers over an unreliable store.

The store is slow, throttles, resets connections, cuts bodies, loses answers, does things late and
shows old states of ``repo``. What must hold, whatever it does:

* a commit that was said to have landed is in the history of its branch, once;
* a commit that was said to have failed is not in it;
* every version holds its parent's contents and its own changes, and nothing else;
* what readers read of a version is what that version holds;
* branches and tags are there, or gone, as those who changed them were told;
* the reference library sees the same history and the same contents;
* ``verify`` finds nothing.

Actors take turns in an order that comes from the seed, so a failure can be seen again::

    make torture SECONDS=600
    TORTURE_SEED=12345 python -m pytest tests/torture -k replay
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from collections import Counter, defaultdict

import pytest
from helpers.sessions.model import stored_contents
from helpers.storage.faulty_storage import UnreliableStorage
from torture.actors import Keeper, Notes, Reader, Writer, applied, first_contents, keys_of, make
from torture.turns import Turns

from icechunk_format.errors import StorageError
from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_files as objects
from icechunk_format.repository.files.metadata_files import ObjectCache
from icechunk_format.repository.state import publish, races
from icechunk_format.storage import location as location_module
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.memory import MemorySpace, MemoryStorage

SECONDS = float(os.environ.get("TORTURE_SECONDS", "6"))
FIRST_SEED = int(os.environ.get("TORTURE_SEED", "1000"))
LEAST_SEEDS = 5

pytestmark = pytest.mark.core


def is_mutable(key):
    return key == "repo" or key.startswith("refs/")


class Torture:
    """One seed: a repository, its actors, and what came of them."""

    def __init__(self, seed, monkeypatch):
        self.seed = seed
        self.chance = random.Random(seed)
        self.spec_version = self.chance.choice([1, 2, 2, 2])
        self.space = MemorySpace()
        self.turns = Turns(self.chance)
        self.store = UnreliableStorage(
            MemoryStorage("torture", space=self.space),
            self.chance,
            turn=self.turns.hand_on,
            stale_keys=is_mutable,
        )
        self.notes = Notes()
        self.location = Location(f"memory://torture-{seed}-{time.monotonic_ns()}")
        monkeypatch.setattr(location_module, "_make", lambda _: self.store)
        # Each actor is a process of its own, as far as it can know.
        self.caches = defaultdict(lambda: ObjectCache(1 << 22))
        monkeypatch.setattr(objects, "metadata_cache", lambda: self.caches[self.turns.current])
        monkeypatch.setattr(secrets, "token_bytes", self.chance.randbytes)
        monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
        monkeypatch.setattr(races, "_LONGEST_PAUSE", 0.0)

    def run(self):
        repository = Repository.create(self.location, spec_version=self.spec_version)
        session = repository.writable_session()
        for change in first_contents():
            make(session, change)
        first = session.commit("first").snapshot_id
        repository.create_branch("dev", first)
        self.first = str(first)
        kinds = [Writer] * self.chance.randint(2, 6) + [Reader] * self.chance.randint(0, 2)
        kinds += [Keeper] * self.chance.randint(0, 2)
        actors = [
            kind(
                f"{kind.__name__.lower()}{number}",
                Repository(self.location, spec_version=self.spec_version),
                random.Random(self.chance.random()),
                self.notes,
                rounds=self.chance.randint(2, 5),
            )
            for number, kind in enumerate(kinds)
        ]
        self.store.forget()
        self.store.rate = self.chance.choice([0.0, 0.02, 0.05, 0.1, 0.25])
        self.turns.run([actor.run for actor in actors])
        self.store.rate = 0.0
        self.store.settle()
        self.caches.clear()
        return Repository(self.location, spec_version=self.spec_version)

    def check(self, repository, folder):
        branches = {branch: list(repository.ancestry(branch=branch)) for branch in ("main", "dev")}
        self.check_what_writers_were_told(branches)
        self.known = {str(info.id): info for info in repository.snapshots()}
        self.notes_by_message = {note.message: note for note in self.notes.commits}
        self.contents = {self.first: applied({}, first_contents())}
        for history in branches.values():
            for info in reversed(history):
                expected = keys_of(self.contents_of(str(info.id)))
                assert stored_contents(repository, info.id) == expected, info
        for snapshot, seen in self.notes.read:
            assert seen == keys_of(self.contents_of(snapshot)), snapshot
        self.check_refs(repository)
        findings = verify(self.location, deep=False).to_pylist()
        assert not [found for found in findings if found["severity"] != "info"], findings
        self.check_with_reference(repository, branches, folder)

    def check_what_writers_were_told(self, branches):
        replaced = {note.replaces for note in self.notes.commits if note.outcome != "failed"}
        for branch, history in branches.items():
            found = Counter(info.message for info in history)
            for note in self.notes.commits:
                times = found[note.message]
                if note.branch != branch:
                    assert times == 0, f"{note} is on branch {branch}"
                elif note.outcome == "landed" and note.snapshot not in replaced:
                    assert times == 1, f"told to have landed, {times} times there: {note}"
                elif note.outcome == "failed":
                    assert times == 0, f"told to have failed, and is there: {note}"
                else:
                    assert times <= 1, note

    def contents_of(self, snapshot):
        """Return what a version must hold: its parent's contents, and its own changes."""
        found = self.contents.get(snapshot)
        if found is None:
            info = self.known[snapshot]
            note = self.notes_by_message.get(info.message)
            if note is None:
                assert info.parent_id is None
                found = {}
            else:
                before = note.base if note.amends else str(info.parent_id)
                found = applied(self.contents_of(before), note.changes)
            self.contents[snapshot] = found
        return found

    def check_refs(self, repository):
        there = {"tag": repository.tags(), "branch": repository.branches()}
        for (kind, name), state in self.notes.refs.items():
            if state != "either":
                assert (name in there[kind]) == (state == "there"), (kind, name, state)

    def check_with_reference(self, repository, branches, folder):
        if sys.version_info < (3, 12):
            return  # There is no reference then, and everything else is checked all the same.
        icechunk = pytest.importorskip("icechunk")
        icechunk.set_logs_filter("off")
        storage = open_storage(self.location)
        for info in storage.list():
            target = folder / info.key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(storage.get(info.key).data)
        theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
        for branch, history in branches.items():
            seen = [(info.id, info.message) for info in theirs.ancestry(branch=branch)]
            assert seen == [(str(info.id), info.message) for info in history]
        store = theirs.readonly_session("main").store
        assert read_store(store) == stored_contents(repository, branches["main"][0].id)


def read_store(store):
    import asyncio

    from zarr.core.buffer import default_buffer_prototype

    async def read():
        return {
            key: (await store.get(key, default_buffer_prototype())).to_bytes()
            async for key in store.list()
        }

    return asyncio.run(read())


def torture(seed, folder):
    with pytest.MonkeyPatch.context() as patch:
        made = Torture(seed, patch)
        made.check(made.run(), folder)
    return made


@pytest.mark.skipif("TORTURE_SEED" in os.environ, reason="one seed is looked at")
def test_whatever_the_store_does_nothing_is_lost_and_nothing_is_made_up(tmp_path):
    deadline = time.monotonic() + SECONDS
    seed, requests, troubles, outcomes = FIRST_SEED, 0, Counter(), Counter()
    # A few seeds in any case: how much lands must not hang on how busy the machine is.
    while time.monotonic() < deadline or seed < FIRST_SEED + LEAST_SEEDS:
        # The last line of a failing run: the seed with which it can be seen again.
        print(f"TORTURE_SEED={seed}", flush=True)
        made = torture(seed, tmp_path / str(seed))
        requests += len(made.store.trace)
        troubles.update({kind.name: count for kind, count in made.store.counts.items()})
        outcomes.update(note.outcome for note in made.notes.commits)
        outcomes.update(made.notes.failures)
        seed += 1
    print(f"{seed - FIRST_SEED} seeds, {requests} requests, {dict(troubles)}, {dict(outcomes)}")
    assert outcomes["landed"] > 10


@pytest.mark.skipif("TORTURE_SEED" not in os.environ, reason="set TORTURE_SEED to replay a run")
def test_replay(tmp_path):
    torture(FIRST_SEED, tmp_path)


def test_a_seed_brings_the_same_run_again(tmp_path):
    runs = [torture(7, tmp_path / str(number)) for number in range(2)]
    # Names of copies hold the time of day.
    traces = [
        [
            (verb, key.partition("overwritten/")[0], trouble)
            for verb, key, trouble in run.store.trace
        ]
        for run in runs
    ]
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100


def test_what_the_store_does_late_is_done(monkeypatch):
    made = Torture(3, monkeypatch)
    made.store.rate = 1.0
    made.chance.choice = lambda options: options[-2] if len(options) == 6 else options[0]
    with pytest.raises(StorageError):
        made.store.put("a", b"1")
    made.store.settle()
    assert made.store.inner.get("a").data == b"1"
