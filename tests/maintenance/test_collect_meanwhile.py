"""A collection that dies, or that others change the repository under, loses nothing in use.

Requests fail one by one, and others commit, put branches on garbage and upgrade meanwhile. What
refs show never changes, and a collection that is run again finishes what another one began.
"""

import pytest
from faulty_storage import Fault, FaultyStorage
from upkeep_repositories import build_untidy, collect, commit, keys_of, soon

from icechunk_format.errors import ConflictError, IcechunkError
from icechunk_format.maintenance.collect import OneProcessCollector, collect_from

# -- crashes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.RESPONSE_LOST])
@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_collection_that_dies_anywhere_leaves_a_whole_repository(
    spec_version, fault, monkeypatch
):
    monkeypatch.setattr("icechunk_format.repository.publish.time.sleep", lambda _: None)
    reference = build_untidy(spec_version)
    counter = FaultyStorage(reference.storage)
    collect(reference, soon(), counter)
    left = shape_of(keys_of(reference.storage, without=["overwritten/"]))
    # A lost answer to a question is a question that was not answered.
    verbs = (
        ("put", "copy") if fault is Fault.RESPONSE_LOST else ("get", "head", "list", "put", "copy")
    )
    requests = [number for number, (verb, _) in enumerate(counter.requests) if verb in verbs]
    deletes = [number for number, (verb, _) in enumerate(counter.requests) if verb == "delete"]
    pristine = build_untidy(spec_version)
    shown = pristine.contents()
    # In version 1, history is walked snapshot by snapshot: one question of three is enough.
    for number in (*requests[:: 3 if spec_version == 1 else 1], *deletes[::8]):
        built = pristine.clone()
        faulty = FaultyStorage(built.storage, fault, {number})
        try:
            result = collect(built, soon(), faulty)
        except IcechunkError:
            pass
        else:
            # A single deletion that fails is reported, and later kinds wait for the next run.
            assert number not in deletes or result.objects_failed_to_delete
        assert built.contents() == shown, counter.requests[number]
        collect(built, soon())
        assert shape_of(keys_of(built.storage, without=["overwritten/"])) == left
    assert built.contents() == shown


def shape_of(keys):
    """Count objects by kind: ids differ from one repository to the next."""
    kinds = [key.partition("/")[0] for key in keys]
    return {kind: kinds.count(kind) for kind in kinds}


# -- others at the same time --------------------------------------------------------------------


class Interrupted:
    """A storage at which something happens once, just before `repo` is replaced."""

    def __init__(self, inner, action, *, every=False):
        self.inner, self.action, self.every = inner, action, every
        self.times = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def put(self, key, data, **kwargs):
        if key == "repo" and (self.every or not self.times):
            self.times += 1
            self.action()
        return self.inner.put(key, data, **kwargs)


def test_a_commit_during_a_collection_is_kept():
    built = build_untidy()
    storage = Interrupted(built.storage, lambda: built.note("late", commit(built.repository, 9)))
    collect(built, soon(), storage)
    assert str(built.repository.resolve(branch="main")) == built.ids["late"]
    # Its snapshot and log are older than this reckless cutoff, and stay all the same.
    assert built.storage.head(f"snapshots/{built.ids['late']}") is not None
    assert built.storage.head(f"transactions/{built.ids['late']}") is not None


def test_a_branch_put_on_garbage_during_a_collection_saves_it():
    built = build_untidy()
    reset = lambda: built.repository.reset_branch("side", built.ids["side 5"])  # noqa: E731
    collect(built, soon(), Interrupted(built.storage, reset))
    shown = built.contents()["branch side"]
    assert shown["values/c/5/0"] == bytes([5]) * 700


def test_a_commit_on_garbage_during_a_collection_saves_its_history():
    built = build_untidy()

    def revive():
        built.repository.create_branch("revived", built.ids["side 5"])
        commit(built.repository, 10, "revived")

    collect(built, soon(), Interrupted(built.storage, revive))
    ancestors = [str(info.id) for info in built.repository.ancestry(branch="revived")]
    assert built.ids["side 4"] in ancestors
    assert built.contents()["branch revived"]["values/c/10/0"] == bytes([10]) * 700


class Meanwhile(OneProcessCollector):
    """A collector during whose first marking something happens."""

    def __init__(self, storage, older_than, action):
        super().__init__(storage, older_than)
        self.action = action

    def mark(self, kept):
        super().mark(kept)
        action, self.action = self.action, lambda: None
        action()


def test_a_branch_put_on_garbage_saves_it_in_version_1_as_well():
    built = build_untidy(1)
    collector = Meanwhile(
        built.storage,
        soon(),
        lambda: built.repository.create_branch("revived", built.ids["side 5"]),
    )
    collect_from(built.storage, collector, spec_version=1, older_than=soon())
    shown = built.contents()["branch revived"]
    assert shown["values/c/5/0"] == bytes([5]) * 700


def test_an_upgrade_during_a_collection_stops_it():
    built = build_untidy(1)
    keys = keys_of(built.storage)
    collector = Meanwhile(built.storage, soon(), built.repository.upgrade)
    with pytest.raises(ConflictError, match="was upgraded to spec version 2"):
        collect_from(built.storage, collector, spec_version=1, older_than=soon())
    assert {key for key in keys if not key.startswith(("refs/", "config"))} <= keys_of(
        built.storage
    )


def test_a_repository_that_never_rests_is_given_up():
    built = build_untidy()
    snapshots = [built.ids["side 4"], built.ids["side 5"], built.ids["gone"]]

    def move():
        # Always on something that this attempt is going to drop.
        name = f"mover-{storage.times}"
        built.repository.create_branch(name, snapshots[storage.times % 3])
        if storage.times > 1:
            built.repository.delete_branch(f"mover-{storage.times - 1}")

    storage = Interrupted(built.storage, move, every=True)
    with pytest.raises(ConflictError, match="was changed 20 times"):
        collect(built, soon(), storage)
    built.contents()
