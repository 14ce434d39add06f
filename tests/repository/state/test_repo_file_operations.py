"""The operations log is read through its backups, and ends where a backup is missing."""

from dataclasses import replace

import pytest
from helpers.raised import raises

from icechunk_format.encoding.object_keys import REPO, overwritten_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info.updates import (
    BranchCreatedUpdate,
    RepoStatus,
    Update,
    UpdateKind,
)
from icechunk_format.errors import FormatError
from icechunk_format.repository import Repository


def updates(*seconds, backups=()):
    """Return updates newest first, as many as there are seconds."""
    return tuple(
        Update(
            details=BranchCreatedUpdate(name=f"at {second}"),
            updated_at=second,
            backup_path=backups[position] if position < len(backups) else None,
        )
        for position, second in enumerate(seconds)
    )


@pytest.fixture
def logged(memory_repository):
    """Write a log of three parts: 6, 5 in repo, 4, 3 in backup b, 2, 1 in backup a."""
    memory_repository.chain(1).write_v2(
        {"main": 1},
        latest_updates=updates(6, 5, backups=(None, "c")),
        repo_before_updates="b",
    )
    base = repo_info.decode(memory_repository.storage.get(REPO).data)
    for name, latest, before in (
        ("b", updates(4, 3, backups=(None, "x")), "a"),
        ("a", updates(2, 1), None),
    ):
        part = replace(base, latest_updates=latest, repo_before_updates=before)
        memory_repository.storage.put(overwritten_key(name), repo_info.encode(part))
    return memory_repository


def test_the_log_runs_through_its_backups(logged):
    found = list(Repository.open(logged.location).operations())
    assert [update.updated_at for update in found] == [6, 5, 4, 3, 2, 1]
    assert [update.backup_path for update in found] == [None, "c", "b", "x", "a", None]
    assert {update.kind for update in found} == {UpdateKind.BRANCH_CREATED}


def test_a_missing_backup_ends_the_log(logged):
    logged.storage.delete_many([overwritten_key("a")])
    found = Repository.open(logged.location).operations()
    assert [update.updated_at for update in found] == [6, 5, 4, 3]


def test_backups_are_read_only_when_the_log_gets_there(logged):
    logged.storage.put(overwritten_key("a"), b"damaged")
    found = Repository.open(logged.location).operations()
    assert [next(found).updated_at for _ in range(4)] == [6, 5, 4, 3]
    with raises(FormatError, object_key="overwritten/a", field="header"):
        next(found)


def test_backups_in_a_circle_are_an_error(logged):
    base = repo_info.decode(logged.storage.get(REPO).data)
    circle = replace(base, latest_updates=updates(2), repo_before_updates="b")
    logged.storage.put(overwritten_key("a"), repo_info.encode(circle))
    with raises(FormatError, field="repo_before_updates"):
        list(Repository.open(logged.location).operations())


def test_version_1_has_no_log_no_status_no_flags_no_metadata(memory_repository):
    memory_repository.chain(1).write_v1({"main": 1})
    repository = Repository.open(memory_repository.location)
    assert list(repository.operations()) == []
    assert repository.status is None
    assert repository.feature_flags() == {}
    assert repository.metadata == {}


def test_flags_and_status_are_told(memory_repository):
    memory_repository.chain(1).write_v2(
        {"main": 1}, enabled_feature_flags=(3,), disabled_feature_flags=(4, 9)
    )
    repository = Repository.open(memory_repository.location)
    assert repository.feature_flags() == {3: True, 4: False, 9: False}
    assert isinstance(repository.status, RepoStatus)
