"""A late version is written unless an expiration may have removed it from the history."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from helpers.builder import add_array
from helpers.grids.written_cells import DIMS, grid
from helpers.raised import raises

from icechunk_format import maintenance
from icechunk_format.encoding.object_keys import transaction_log_key
from icechunk_format.encoding.repo_info.updates import UnknownUpdate
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import has_expired
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.repository.state.publish import update_repo
from icechunk_format.repository.state.transitions import Transition
from icechunk_format.tables.writing.in_process import write_table

LONG_AGO = timedelta(days=30)


def write(place, version, **options):
    given = WriteOptions(mode="append", txn_app_id="nightly", txn_version=version, **options)
    return write_table(place, grid([version], [1]), given)


def build(place, *versions, spec_version=2):
    write_table(place, grid([0], [1]), replace(DIMS, spec_version=spec_version))
    for version in versions:
        write(place, version)
    return Repository.open(place)


def check_refused(place, version, **options):
    with raises(InvalidInputError, option="txnVersion"):
        write(place, version, **options)


def changed(repository, change):
    """Change the state of a repository; the log gets another entry like its newest one."""

    def transition(info):
        return Transition(info=change(info), details=info.latest_updates[0].details)

    update_repo(repository.storage, transition)
    return Repository.open(repository.location)


def unlisted(info):
    """Remove what snapshots say of the transaction logs of expired ones."""
    found = (replace(one, pruned_ancestor_tx_logs=()) for one in info.snapshots.values())
    return replace(info, snapshots={one.id: one for one in found})


@pytest.mark.parametrize("spec_version", [1, 2])
def test_an_expiration_of_nothing_leaves_late_versions_welcome(place, spec_version):
    repository = build(place, 1, 4, spec_version=spec_version)
    assert not repository.expire_snapshots(LONG_AGO).released_snapshots
    write(place, 5)
    assert not repository.expire_snapshots(LONG_AGO).released_snapshots
    assert not has_expired(Repository.open(place), "main")
    assert not write(place, 3).is_skipped
    assert write(place, 4).is_skipped


@pytest.mark.parametrize("spec_version", [1, 2])
def test_an_expiration_of_snapshots_refuses_late_versions(place, spec_version):
    repository = build(place, 1, 2, 4, spec_version=spec_version)
    assert repository.expire_snapshots(datetime.now(UTC)).released_snapshots
    assert has_expired(Repository.open(place), "main")
    check_refused(place, 3)
    assert write(place, 4).is_skipped
    assert not write(place, 5).is_skipped
    # A later expiration of nothing does not hide it.
    repository.expire_snapshots(LONG_AGO)
    check_refused(place, 3)


def test_an_expiration_by_a_library_that_lists_no_logs_is_found(place):
    """Libraries before spec 2.1 change the parent and list nothing."""
    repository = build(place, 1, 2, 4)
    repository.expire_snapshots(datetime.now(UTC))

    assert has_expired(changed(repository, unlisted), "main")
    check_refused(place, 3)


def test_an_expired_branch_does_not_shorten_another(place):
    repository = build(place, 1, 4)
    for version in (6, 7):
        write(place, version, branch="trial", create_branch=version == 6)
    repository = Repository.open(place)
    repository.delete_branch("trial")
    write(place, 8)
    repository.create_tag("v1", repository.resolve())
    # The commits of the main branch are protected by tags, so only those of the other one expire.
    for number, info in enumerate(repository.ancestry()):
        repository.create_tag(f"kept-{number}", info.id)
    assert len(repository.expire_snapshots(datetime.now(UTC)).released_snapshots) == 2
    assert not has_expired(Repository.open(place), "main")
    assert not write(place, 3).is_skipped


def test_a_branch_on_an_expired_commit_is_shortened(place):
    """The log does not tell where a branch begins."""
    repository = build(place, 1, 4)
    write(place, 9, branch="redo", create_branch=True)
    repository = Repository.open(place)
    assert not has_expired(repository, "redo")
    repository.expire_snapshots(LONG_AGO)
    write(place, 3, branch="redo")
    repository.expire_snapshots(datetime.now(UTC))
    assert has_expired(Repository.open(place), "redo")
    assert has_expired(changed(Repository.open(place), unlisted), "redo")
    check_refused(place, 2, branch="redo")


def test_a_branch_that_begins_with_its_tip_may_stand_on_expired_commits(place):
    build(place, 1, 4)
    write(place, 9, branch="redo", create_branch=True)
    write(place, 10)
    assert Repository.open(place).expire_snapshots(datetime.now(UTC)).released_snapshots
    repository = changed(Repository.open(place), unlisted)
    assert len(list(repository.ancestry(branch="redo"))) == 2
    assert has_expired(repository, "redo")


def test_an_amended_commit_is_no_expired_one(place):
    repository = build(place, 1, 4)
    session = repository.writable_session()
    session.set_attributes("/t", {"note": "amended"})
    session.amend("Better", metadata={"txnAppId": "nightly", "txnVersion": 4})
    write(place, 6)
    write(place, 9, branch="redo", create_branch=True)
    repository.expire_snapshots(LONG_AGO)
    for branch in ("main", "redo"):
        assert not has_expired(Repository.open(place), branch)
    assert not write(place, 3).is_skipped


def test_an_amended_commit_that_was_removed_is_no_expired_one(place):
    repository = build(place, 1)
    session = repository.writable_session()
    session.set_attributes("/t", {"note": "amended"})
    session.amend("Better", metadata={"txnAppId": "nightly", "txnVersion": 1})
    write(place, 9, branch="redo", create_branch=True)
    repository = Repository.open(place)
    for number, info in enumerate(repository.ancestry(branch="redo")):
        repository.create_tag(f"kept-{number}", info.id)
    # Only the snapshot that was amended goes.
    assert len(repository.expire_snapshots(datetime.now(UTC)).released_snapshots) == 1
    for branch in ("main", "redo"):
        assert not has_expired(Repository.open(place), branch)


def test_with_an_operation_that_is_not_known_an_expiration_counts(place, monkeypatch):
    repository = build(place, 1)
    repository.expire_snapshots(LONG_AGO)
    known = list(repository.operations())
    assert not has_expired(repository, "main")
    later = [replace(known[0], details=UnknownUpdate(number=99)), *known]
    monkeypatch.setattr(Repository, "operations", lambda _: iter(later))
    assert has_expired(repository, "main")


@pytest.mark.parametrize("expires", [True, False])
def test_a_log_without_its_beginning_is_not_trusted(place, expires):
    repository = build(place, 1, 4)
    if expires:
        repository.expire_snapshots(LONG_AGO)

    def cut(info):
        kept = tuple(one for one in info.latest_updates if one.kind.name != "REPO_INITIALIZED")
        return replace(info, latest_updates=kept, repo_before_updates=None)

    repository = changed(repository, cut)
    # Without an expiration, the first commit shows that it has no predecessor.
    assert has_expired(repository, "main") == expires


@pytest.mark.parametrize("is_expired", [True, False])
def test_an_upgrade_keeps_what_is_known(place, is_expired):
    repository = build(place, 1, 2, 4, spec_version=1)
    if is_expired:
        assert repository.expire_snapshots(datetime.now(UTC)).released_snapshots
    Repository.open(place).upgrade()
    write(place, 6)
    assert has_expired(Repository.open(place), "main") == is_expired
    if is_expired:
        check_refused(place, 3)
    else:
        assert not write(place, 3).is_skipped


def test_a_branch_without_commits_is_whole(place):
    repository = Repository.create(place)
    repository.expire_snapshots(LONG_AGO)
    assert not has_expired(repository, "main")


def without_log(repository):
    """Remove from the log its beginning and expirations, and what snapshots say of expired ones."""

    def cut(info):
        left = ("REPO_INITIALIZED", "EXPIRATION_RAN")
        kept = tuple(one for one in info.latest_updates if one.kind.name not in left)
        found = [replace(one, pruned_ancestor_tx_logs=()) for one in info.snapshots.values()]
        return replace(
            info,
            latest_updates=kept,
            repo_before_updates=None,
            snapshots={one.id: one for one in found},
        )

    return changed(repository, cut)


def test_without_a_log_the_oldest_commit_shows_whether_it_has_predecessors(place):
    repository = build(place, 1, 2, 4, 5)
    assert not has_expired(without_log(repository), "main")
    session = Repository.open(place).writable_session()
    add_array(session, "/beside", (2,))
    session.commit("only a new array")
    Repository.open(place).expire_snapshots(datetime.now(UTC))
    repository = without_log(Repository.open(place))
    assert len(list(repository.ancestry())) == 2
    assert has_expired(repository, "main")
    for number in range(3):
        session = Repository.open(place).writable_session()
        add_array(session, f"/later{number}", (2,))
        session.commit("later")
    assert has_expired(without_log(Repository.open(place)), "main")


def test_the_transaction_log_is_read_only_if_the_log_of_the_repository_is_not_whole(place):
    repository = build(place, 1, 4)
    first = list(repository.ancestry())[-2].id
    repository.storage.delete_many([transaction_log_key(first)])
    metadata_cache().clear()
    assert not has_expired(Repository.open(place), "main")
    assert has_expired(without_log(Repository.open(place)), "main")


def test_a_first_commit_after_one_of_a_branch_that_expired_is_not_late(place):
    repository = Repository.create(place)
    repository.create_branch("trial", repository.resolve())
    for branch in ("trial", "main"):
        session = Repository.open(place).writable_session(branch)
        add_array(session, f"/{branch}", (2,))
        session.commit(branch)
    repository = Repository.open(place)
    repository.delete_branch("trial")
    repository.create_tag("kept", repository.resolve())
    assert len(repository.expire_snapshots(datetime.now(UTC)).released_snapshots) == 1
    assert not has_expired(Repository.open(place), "main")


def test_a_flushed_snapshot_that_became_a_tip_is_known(place):
    repository = build(place, 1)
    session = repository.writable_session()
    session.set_attributes("/t", {"note": "flushed"})
    flushed = session.flush("beside")
    repository.reset_branch("main", flushed)
    repository.expire_snapshots(LONG_AGO)
    assert not has_expired(Repository.open(place), "main")


def test_a_commit_on_a_shortened_copy_does_not_make_it_whole(place):
    build(place, 1, 2, 4).expire_snapshots(datetime.now(UTC))
    without_log(Repository.open(place))
    maintenance.copy(place, f"{place}-copy")
    session = Repository.open(f"{place}-copy").writable_session()
    session.set_attributes("/t", {"note": "later"})
    session.commit("later")
    assert has_expired(Repository.open(f"{place}-copy"), "main")


def test_a_copy_has_no_log_of_its_commits(place):
    build(place, 1, 4)
    maintenance.copy(place, f"{place}-copy")
    copied = Repository.open(f"{place}-copy")
    assert not has_expired(copied, "main")
    copied.expire_snapshots(LONG_AGO)
    assert has_expired(copied, "main")
