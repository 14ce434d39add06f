"""Expiration takes old snapshots out of history, and keeps every change that others need.

Random histories with branches, tags and detached snapshots are expired as pure values; what must
hold afterwards is said as rules. Then repositories of both spec versions, with others at work and
with dry runs.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from helpers.files.maintenance_repositories import build_untidy, collect, commit, keys_of
from helpers.raised import raises
from helpers.sessions.model import stored_contents
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo, decode, encode
from icechunk_format.encoding.repo_info.updates import Availability, RepoStatus, UpdateKind
from icechunk_format.errors import ConflictError, InvalidInputError, ReadOnlyError
from icechunk_format.repository.lifecycle.expire import ExpireResult, expire, expire_snapshots
from icechunk_format.repository.state.transitions import FeatureFlag, add_commit


def snapshot_id(number):
    return SnapshotId(bytes([number]) * 12)


@st.composite
def histories(draw):
    """Draw a root and up to a dozen snapshots below it, with refs on some."""
    count = draw(st.integers(1, 12))
    snapshots = {}
    for number in range(count):
        parent = None if number == 0 else snapshot_id(draw(st.integers(0, number - 1)))
        inherited = draw(st.booleans()) and number > 0
        snapshots[snapshot_id(number)] = SnapshotInfo(
            id=snapshot_id(number),
            parent_id=parent,
            flushed_at=draw(st.integers(0, 20)),
            message=f"{number}",
            pruned_ancestor_tx_logs=(snapshot_id(100 + number),) if inherited else (),
        )
    some = st.integers(0, count - 1).map(snapshot_id)
    return RepoInfo(
        branches={"main": draw(some), **draw(st.dictionaries(st.sampled_from("abc"), some))},
        tags=draw(st.dictionaries(st.sampled_from("xyz"), some)),
        deleted_tags=("w",),
        snapshots=snapshots,
        status=RepoStatus(set_at=0),
    )


def test_a_commit_after_an_expiry_that_keeps_many_tags(monkeypatch):
    """The lists of former ancestors are as many ids as the square of the tags."""
    count, tags = 600, 300
    ids = [SnapshotId(sha256(b"%d" % number).digest()[:12]) for number in range(count)]
    snapshots = {
        own: SnapshotInfo(id=own, parent_id=above, flushed_at=number, message="")
        for number, (own, above) in enumerate(zip(ids, [None, *ids], strict=False))
    }
    info = RepoInfo(
        branches={"main": ids[-1]},
        tags={f"{number}": ids[number] for number in range(1, count, 2)},
        snapshots=dict(sorted(snapshots.items())),
        status=RepoStatus(set_at=0),
    )
    expired = expire(info, count)[0].info
    assert len(expired.snapshots) == tags + 1
    for number in (1, 2 * tags - 1):
        assert [*expired.snapshots[ids[number]].pruned_ancestor_tx_logs] == ids[1:number]
    data = encode(expired)
    # Each list begins like the next shorter one, and is stored beside it.
    assert len(data) < 100 * tags

    made = []
    check = SnapshotId.__post_init__
    monkeypatch.setattr(
        "icechunk_format.encoding.ids.ObjectId.__post_init__", lambda own: made.append(check(own))
    )
    new = SnapshotInfo(id=SnapshotId(b"n" * 12), parent_id=ids[-1], flushed_at=count, message="")
    grown = add_commit(decode(data), "main", new).info
    written = encode(grown)
    assert len(made) < 20 * tags
    assert len(written) < 100 * tags
    monkeypatch.undo()
    assert decode(written) == grown
    assert grown.transaction_logs() == {*ids, new.id}


def logs_of(info, snapshot):
    """Return the transaction logs from the root to a snapshot, oldest first."""
    found = []
    for ancestor in info.ancestry(snapshot):
        found = [*ancestor.pruned_ancestor_tx_logs, ancestor.id, *found]
    return found


@settings(deadline=None, max_examples=150)
@given(histories(), st.integers(0, 21), st.booleans(), st.booleans())
def test_what_every_expiration_keeps(info, cutoff, branches_go, tags_go):
    change, done = expire(
        info, cutoff, delete_expired_branches=branches_go, delete_expired_tags=tags_go
    )
    new, released = change.info, set(map(SnapshotId.parse, done.released_snapshots))
    assert set(new.snapshots) == set(info.snapshots) - released
    for kept in new.snapshots.values():
        old = info.snapshots[kept.id]
        assert replace(kept, parent_id=None, pruned_ancestor_tx_logs=()) == replace(
            old, parent_id=None, pruned_ancestor_tx_logs=()
        )
        # Nothing is lost of what led to it, and no order is changed.
        assert logs_of(new, kept.id) == logs_of(info, kept.id)
        if str(kept.id) in done.edited_snapshots:
            assert kept.parent_id == snapshot_id(0)
        else:
            assert kept == old
    for gone in released:
        assert info.snapshots[gone].flushed_at < cutoff
        assert info.snapshots[gone].parent_id is not None
    for snapshot in info.snapshots.values():
        if snapshot.flushed_at >= cutoff:
            assert snapshot.id in new.snapshots
    assert new.branches["main"] == info.branches["main"]
    assert set(new.branches) == set(info.branches) - set(done.deleted_branches)
    assert set(new.tags) == set(info.tags) - set(done.deleted_tags)
    assert new.deleted_tags == tuple(sorted({"w", *done.deleted_tags}))
    assert branches_go or not done.deleted_branches
    assert tags_go or not done.deleted_tags
    # What was left can be written, which needs every ref and parent to be listed.
    written = decode(encode(new))
    assert written.snapshots == new.snapshots
    # Once more has nothing left to do.
    _, again = expire(new, cutoff, delete_expired_branches=branches_go, delete_expired_tags=tags_go)
    assert again == ExpireResult()


def line(*numbers, tags=(), main=None, ages=None):
    """Return a chain of snapshots, a second apart."""
    ids = [snapshot_id(n) for n in numbers]
    snapshots = {
        one: SnapshotInfo(
            id=one,
            parent_id=ids[place - 1] if place else None,
            flushed_at=place if ages is None else ages[place],
            message="",
        )
        for place, one in enumerate(ids)
    }
    return RepoInfo(
        branches={"main": snapshot_id(main if main is not None else numbers[-1])},
        tags={name: snapshot_id(number) for name, number in dict(tags).items()},
        snapshots=snapshots,
        status=RepoStatus(set_at=0),
    )


def test_the_oldest_kept_snapshot_stands_on_the_root_over_kept_tags():
    info = line(0, 1, 2, 3, 4, 5, tags={"keep": 2})
    change, done = expire(info, 4)
    new = change.info
    assert set(done.released_snapshots) == {str(snapshot_id(1)), str(snapshot_id(3))}
    assert set(done.edited_snapshots) == {str(snapshot_id(2)), str(snapshot_id(4))}
    assert new.snapshots[snapshot_id(4)].parent_id == snapshot_id(0)
    assert new.snapshots[snapshot_id(4)].pruned_ancestor_tx_logs == tuple(
        map(snapshot_id, (1, 2, 3))
    )
    assert new.snapshots[snapshot_id(2)].pruned_ancestor_tx_logs == (snapshot_id(1),)
    # A second expiration passes on what the first one gathered.
    later = expire(new, 5)[0].info
    assert later.snapshots[snapshot_id(5)].pruned_ancestor_tx_logs == tuple(
        map(snapshot_id, (1, 2, 3, 4))
    )


def test_main_and_the_root_never_expire():
    info = line(0, 1, 2, tags={"first": 0})
    change, done = expire(info, 100, delete_expired_branches=True, delete_expired_tags=True)
    assert done.released_snapshots == (str(snapshot_id(1)),)
    assert change.info.tags == {"first": snapshot_id(0)}
    assert change.info.branches == info.branches


def test_tags_go_only_where_tags_may_be_deleted():
    info = line(0, 1, 2, tags={"old": 1})
    locked = replace(info, disabled_feature_flags=(int(FeatureFlag.DELETE_TAG),))
    with raises(ReadOnlyError, match="deleting tags is switched off", flag=5):
        expire(locked, 2, delete_expired_tags=True)
    assert expire(locked, 2)[1].deleted_tags == ()
    assert expire(locked, 0, delete_expired_tags=True)[1].deleted_tags == ()


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_repository_forgets_old_versions_and_keeps_its_contents(spec_version):
    built = build_untidy(spec_version)
    repository = built.repository
    shown = built.contents()
    keys = keys_of(built.storage)
    cutoff = built.instants["main 1"]
    planned = repository.expire_snapshots(cutoff, dry_run=True)
    assert keys_of(built.storage) == keys
    done = repository.expire_snapshots(cutoff)
    assert planned == replace(done, dry_run=True)
    assert built.ids["main 0"] in done.released_snapshots
    assert built.contents() == shown
    main = [str(info.id) for info in repository.ancestry(branch="main")]
    assert main[-1] == built.ids["root"]
    assert built.ids["main 0"] not in main
    assert keys <= keys_of(built.storage)
    commit(repository, 11)
    if spec_version == 2:
        kinds = [update.kind for update in repository.operations()]
        assert kinds[1] is UpdateKind.EXPIRATION_RAN
        assert repository.diff(built.ids["root"], main[0]).missing_logs in ((), [])


@pytest.mark.parametrize("spec_version", [1, 2])
def test_refs_go_with_expired_tips_where_asked_for(spec_version):
    built = build_untidy(spec_version)
    later = datetime.now(UTC) + timedelta(seconds=5)
    done = built.repository.expire_snapshots(
        later, delete_expired_branches=True, delete_expired_tags=True
    )
    assert (done.deleted_branches, done.deleted_tags) == (("side",), ("kept",))
    assert built.repository.branches().keys() == {"main"}
    assert built.repository.tags() == {}
    assert built.repository.deleted_tags() == ("kept",)


@pytest.mark.parametrize("age", ["0min", timedelta(0)])
def test_a_cutoff_may_be_an_age(age):
    repository = build_untidy().repository
    everything = repository.expire_snapshots(datetime.now(UTC), dry_run=True)
    assert everything.released_snapshots
    assert repository.expire_snapshots(age, dry_run=True) == everything
    assert not repository.expire_snapshots("30d", dry_run=True).released_snapshots
    with raises(InvalidInputError, argument="older_than"):
        repository.expire_snapshots("3m")


def test_in_version_1_what_a_ref_keeps_is_not_released():
    built = build_untidy(1)
    reached = {str(info.id) for info in built.repository.snapshots()}
    later = datetime.now(UTC) + timedelta(seconds=5)
    planned = built.repository.expire_snapshots(later, dry_run=True)
    done = built.repository.expire_snapshots(later)
    stay = {str(info.id) for info in built.repository.snapshots()}
    assert set(done.released_snapshots) == reached - stay
    assert str(built.repository.resolve(branch="main")) not in done.released_snapshots
    assert planned == replace(done, dry_run=True)


def test_a_commit_that_comes_first_is_seen():
    built = build_untidy()

    class Overtaken:
        done = False

        def __getattr__(self, name):
            return getattr(built.storage, name)

        def put(self, *args, **kwargs):
            if not self.done:
                self.done = True
                built.note("late", commit(built.repository, 12))
            return built.storage.put(*args, **kwargs)

    done = expire_snapshots(Overtaken(), built.instants["late" if "late" in built.ids else "end"])
    assert built.ids["late"] not in done.released_snapshots
    tip = built.repository.snapshot_info(built.ids["late"])
    assert str(tip.parent_id) == built.ids["root"]
    assert built.ids["amended"] in done.released_snapshots


def test_what_cannot_be_expired_says_why():
    built = build_untidy()
    with raises(InvalidInputError, argument="older_than"):
        built.repository.expire_snapshots(datetime(2024, 7, 1))
    built.repository.set_status(Availability.READ_ONLY, "audit")
    with raises(ReadOnlyError, reason="audit"):
        built.repository.expire_snapshots(built.instants["end"])
    dry = built.repository.expire_snapshots(built.instants["end"], dry_run=True)
    assert isinstance(dry, ExpireResult)
    assert dry.released_snapshots


# -- others at work ----------------------------------------------------------------------------


def expired_during_a_write(*, collected):
    """Begin a session, commit twice beside it, and expire its base and the first commit."""
    built = build_untidy()
    repository = built.repository
    base = repository.resolve(branch="main")
    session = repository.writable_session()
    commit(repository, 20)
    commit(repository, 21)
    cutoff = datetime.now(UTC) + timedelta(seconds=5)
    repository.expire_snapshots(cutoff)
    assert base not in {info.id for info in repository.snapshots()}
    if collected:
        collect(built, cutoff)
    return repository, session


@pytest.mark.parametrize("collected", [False, True])
def test_a_session_whose_base_expired_meanwhile_commits(collected):
    repository, session = expired_during_a_write(collected=collected)
    session.set_chunks("/values", [[29, 0]], [b"long"])
    done = session.commit("after a long time")
    assert done.rebased == 1
    contents = stored_contents(repository, done.snapshot_id)
    assert contents["values/c/29/0"] == b"long"
    assert contents["values/c/20/0"] == bytes([20]) * 700
    assert contents["values/c/21/0"] == bytes([21]) * 700


def test_what_expired_meanwhile_is_a_conflict_all_the_same():
    repository, session = expired_during_a_write(collected=False)
    session.set_chunks("/values", [[20, 0]], [b"mine"])
    with raises(ConflictError, branch="main", kinds=("CHUNKS_WRITTEN_TWICE",), paths=("/values",)):
        session.commit("after a long time")
    assert stored_contents(repository, repository.resolve())["values/c/20/0"] == bytes([20]) * 700


def test_what_the_session_began_with_is_no_conflict():
    repository, session = expired_during_a_write(collected=False)
    # Written by the version that the session began with, whose log is pruned as well.
    session.set_chunks("/values", [[7, 0]], [b"mine"])
    done = session.commit("after a long time")
    assert done.rebased == 1
    contents = stored_contents(repository, done.snapshot_id)
    assert contents["values/c/7/0"] == b"mine"
    assert contents["values/c/21/0"] == bytes([21]) * 700


def test_a_branch_goes_forward_over_what_expired():
    built = build_untidy()
    repository = built.repository
    repository.create_branch("audit", repository.resolve())
    commit(repository, 20, "audit")
    tip = commit(repository, 21, "audit")
    # The tip of main stays, but the versions of the other branch do not stand on it any more.
    repository.expire_snapshots(datetime.now(UTC) + timedelta(seconds=5))
    behind = repository.resolve(branch="main")
    assert behind not in {info.id for info in repository.ancestry(branch="audit")}
    assert set(repository.diff(behind, tip).updated_chunks["/values"][:, 0].tolist()) == {
        20,
        21,
        35,
        36,
    }
    assert repository.fast_forward("main", "audit") == tip
    with raises(ConflictError, branch="side"):
        repository.fast_forward("side", "main")
