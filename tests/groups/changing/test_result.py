"""A transaction of an application is found on its branch by the names that commits store."""

from types import SimpleNamespace

import pytest
from helpers.builder import add_array, new_repository
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import has_expired
from icechunk_format.groups.changing.result import (
    TXN_APP_ID,
    TXN_QUERY,
    TXN_VERSION,
    committed_before,
    find_committed,
    last_committed,
    txn_metadata,
)
from icechunk_format.options.write import WriteOptions


def transaction(version, **more):
    return WriteOptions(txn_app_id="app", txn_version=version, **more)


@pytest.fixture
def repository():
    """Make a repository with three commits of an application on the branch dev."""
    made = new_repository()
    made.create_branch("dev", made.resolve())
    for number, metadata in enumerate(
        (
            {"txnAppId": "app", "txnVersion": 4, "txnQuery": "q"},
            {"txnAppId": "app", "txnVersion": 6, "txnQuery": "q"},
            {"txnAppId": "app", "txnVersion": 2},
            {"note": "of another writer"},
        )
    ):
        session = made.writable_session("dev")
        add_array(session, f"/a{number}", (number + 1,))
        session.commit(f"commit {number}", metadata=metadata)
    return made


def test_names_in_the_metadata_of_a_commit():
    assert (TXN_APP_ID, TXN_VERSION, TXN_QUERY) == ("txnAppId", "txnVersion", "txnQuery")
    assert txn_metadata(transaction(3, metadata={"by": "me"})) == {
        "by": "me",
        "txnAppId": "app",
        "txnVersion": 3,
    }
    assert txn_metadata(WriteOptions(metadata={"by": "me"})) == {"by": "me"}
    assert txn_metadata(WriteOptions()) == {}


@pytest.mark.parametrize(
    ("version", "message"), [(2, "commit 2"), (6, "commit 1"), (4, "commit 0")]
)
def test_a_committed_version_is_found_and_gives_the_tip_of_its_branch(repository, version, message):
    options = transaction(version, branch="dev")
    assert committed_before(repository, options).message == message
    result = find_committed(repository, options)
    assert (result.is_skipped, result.branch) == (True, "dev")
    assert result.snapshot_id == repository.resolve(branch="dev") != repository.resolve()


def test_other_versions_branches_and_applications_are_not_committed(repository):
    for options in (
        transaction(3, branch="dev"),
        transaction(7, branch="dev"),
        transaction(6),
        transaction(6, branch="nothing"),
        WriteOptions(txn_app_id="another", txn_version=6, branch="dev"),
        WriteOptions(branch="dev"),
    ):
        assert committed_before(repository, options) is None
        assert find_committed(repository, options) is None


def test_the_newest_commit_of_an_application(repository):
    assert last_committed(repository, transaction(0, branch="dev")).message == "commit 2"
    assert last_committed(repository, transaction(0)) is None


@pytest.mark.parametrize("spec_version", [1, 2])
def test_nothing_has_expired_in_a_new_repository(spec_version):
    assert has_expired(new_repository(spec_version), "main") is False


def test_a_version_below_the_newest_is_refused_once_snapshots_have_expired(repository, monkeypatch):
    module = "icechunk_format.groups.changing.result.has_expired"
    monkeypatch.setattr(module, lambda *_: True)
    for version in (0, 5):
        with raises(InvalidInputError, option="txnVersion"):
            committed_before(repository, transaction(version, branch="dev"))
    assert committed_before(repository, transaction(7, branch="dev")) is None
    # On another branch, the application has no newer version.
    assert committed_before(repository, transaction(0)) is None


def test_a_skipped_write_is_logged_and_counts_nothing(repository, caplog):
    result = find_committed(repository, transaction(6, branch="dev"))
    [record] = caplog.records
    assert (record.levelname, "'dev'" in record.getMessage()) == ("WARNING", True)
    assert result.reason in record.getMessage()
    assert (result.rows, result.chunks, result.manifests) == (0, 0, 0)
    assert result.is_skipped
    assert not result.dry_run


def test_a_batch_that_is_newer_than_the_newest_one_reads_no_further():
    def ancestry(branch):
        for version in (6, 7):
            items = {TXN_APP_ID: "app", TXN_VERSION: version, TXN_QUERY: "q"}
            yield SimpleNamespace(metadata_items=items, metadata=items)
            read.append(version)

    read = []
    stand_in = SimpleNamespace(branches=lambda: ["main"], ancestry=ancestry)
    assert committed_before(stand_in, transaction(8)) is None
    assert read == []
