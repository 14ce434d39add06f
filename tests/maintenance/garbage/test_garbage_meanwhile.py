"""Collections that die, or run beside other changes, lose nothing in use.

Requests fail one by one, and others commit, put branches on garbage and upgrade meanwhile. What
refs show never changes, and a collection that is run again finishes what another one began.
"""

import pytest
from helpers.files.maintenance_repositories import (
    PartCollector,
    build_untidy,
    collect,
    commit,
    keys_of,
    soon,
)
from helpers.raised import raises
from helpers.storage.faulty_storage import Fault, FaultyStorage

from icechunk_format.errors import ConflictError, IcechunkError, NotFoundError
from icechunk_format.maintenance.garbage.collect import collect_from
from icechunk_format.maintenance.garbage.marks import OneProcessCollector
from icechunk_format.maintenance.garbage.result import Phase
from icechunk_format.repository.lifecycle import restore as restoring
from icechunk_format.repository.state import races

# -- crashes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.RESPONSE_LOST])
@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_collection_that_dies_anywhere_leaves_a_whole_repository(
    spec_version, fault, monkeypatch
):
    monkeypatch.setattr("icechunk_format.repository.state.publish.time.sleep", lambda _: None)
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


def test_a_repository_that_never_rests_is_given_up(monkeypatch):
    monkeypatch.setattr(races, "MOST_LOST_RACES", 4)
    built = build_untidy()
    snapshots = [built.ids["side 4"], built.ids["side 5"], built.ids["gone"]]

    def move():
        # Always on something that this attempt is going to drop.
        name = f"mover-{storage.times}"
        built.repository.create_branch(name, snapshots[storage.times % 3])
        if storage.times > 1:
            built.repository.delete_branch(f"mover-{storage.times - 1}")

    storage = Interrupted(built.storage, move, every=True)
    with raises(ConflictError, attempts=5):
        collect(built, soon(), storage)
    built.contents()


# -- garbage that is used again -----------------------------------------------------------------
# Nothing reaches "side 4" and "side 5" any more, they are old, and their data are to be deleted.


def amended(repository, branch):
    session = repository.writable_session(branch)
    session.set_chunks("/values", [[20, 0]], [b"amended"])
    session.amend("amended")


def restore(built):
    built.repository.restore("main", built.ids["side 5"])


def restore_by_way_of_a_branch(built):
    built.repository.create_branch("way", built.ids["side 5"])
    restore(built)
    built.repository.delete_branch("way")


def amend(built):
    # Its parent stays, so the new version stands on nothing that goes.
    built.repository.reset_branch("side", built.ids["side 4"])
    amended(built.repository, "side")


def amend_on_a_new_branch(built):
    built.repository.create_branch("new", built.ids["side 4"])
    amended(built.repository, "new")


def fast_forward(built):
    built.repository.create_branch("way", built.ids["side 5"])
    built.repository.fast_forward("side", "way")
    built.repository.delete_branch("way")


def tag_and_restore(built):
    built.repository.create_tag("found", built.ids["side 5"])
    restore(built)
    built.repository.delete_tag("found")


def expire(built):
    built.repository.create_branch("new", built.ids["side 5"])
    commit(built.repository, 11, "new")
    built.repository.expire_snapshots(soon())


REVIVALS = [
    restore,
    restore_by_way_of_a_branch,
    amend,
    amend_on_a_new_branch,
    fast_forward,
    tag_and_restore,
    expire,
]


def revived(built, revive, shown):
    revive(built)
    shown.update(built.contents())


@pytest.mark.parametrize("make_collector", [OneProcessCollector, PartCollector])
@pytest.mark.parametrize("revive", REVIVALS)
def test_garbage_that_is_used_again_before_the_collection_changes_the_state_stays(
    revive, make_collector
):
    built, shown = build_untidy(), {}
    storage = Interrupted(built.storage, lambda: revived(built, revive, shown))
    place = built.repository.location if make_collector is PartCollector else storage
    collector = make_collector(place, soon())
    collect_from(storage, collector, spec_version=2, older_than=soon())
    assert storage.times
    assert built.contents() == shown


@pytest.mark.parametrize("revive", REVIVALS)
def test_garbage_is_not_used_again_once_it_is_listed_no_more(revive):
    built = build_untidy()

    class Sweeping(OneProcessCollector):
        def sweep(self, phase, kept):
            if phase is Phase.SNAPSHOTS:
                with pytest.raises(NotFoundError):
                    revive(built)
            return super().sweep(phase, kept)

    collect_from(built.storage, Sweeping(built.storage, soon()), spec_version=2, older_than=soon())
    built.contents()


def test_in_version_1_the_branch_goes_back_when_the_restored_version_was_collected(monkeypatch):
    built = build_untidy(1)
    tip = built.repository.resolve(branch="main")
    difference = restoring.difference

    def slowly(*given, **options):
        log = difference(*given, **options)
        collect(built, soon())
        return log

    monkeypatch.setattr(restoring, "difference", slowly)
    with raises(NotFoundError, match="nothing was changed", kind="snapshot"):
        restore(built)
    assert built.repository.resolve(branch="main") == tip
    built.contents()
