"""Users see branches, tags, differences and the log of operations.

Real repositories of both spec versions; what the object store does to them is tested elsewhere.
"""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from helpers.builder import add_array, new_repository
from helpers.raised import raises

from icechunk_format.encoding.repo_info.updates import Availability, UpdateKind
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
)
from icechunk_format.repository.state.transitions import FeatureFlag


def commit(repository, number, branch="main"):
    session = repository.writable_session(branch)
    if session.node("/a") is None:
        add_array(session, "/a", (99,))
    session.set_chunk("/a", [number], bytes([number + 1]))
    return session.commit(f"commit {number}").snapshot_id


@pytest.fixture(params=[1, 2])
def repository(request):
    return new_repository(request.param)


@pytest.fixture
def newest():
    return new_repository()


def test_the_graph_has_every_version_that_a_name_reaches(repository):
    first, second = commit(repository, 1), commit(repository, 2)
    root = list(repository.ancestry())[-1].id
    repository.create_branch("side", first)
    side = commit(repository, 3, "side")
    third = commit(repository, 4)
    repository.create_tag("v1", second)
    repository.create_tag("also", second)
    repository.create_branch("gone", second)
    lost = commit(repository, 5, "gone")
    repository.delete_branch("gone")
    graph = repository.graph()
    assert [entry.snapshot.id for entry in graph] == [third, side, second, first, root]
    assert lost not in {entry.snapshot.id for entry in graph}
    assert [(entry.branches, entry.tags) for entry in graph] == [
        (("main",), ()),
        (("side",), ()),
        ((), ("also", "v1")),
        ((), ()),
        ((), ()),
    ]
    place = {entry.snapshot.id: n for n, entry in enumerate(graph)}
    for entry in graph:
        parent = entry.snapshot.parent_id
        assert parent is None or place[parent] > place[entry.snapshot.id]


def test_a_branch_is_reset_only_from_where_it_was_expected(repository):
    first, second, third = (commit(repository, n) for n in range(3))
    with raises(ConflictError, branch="main", found=...):
        repository.reset_branch("main", first, second)
    assert repository.resolve() == third
    repository.reset_branch("main", first, third)
    assert repository.resolve() == first
    repository.reset_branch("main", str(third))
    assert repository.resolve() == third
    with pytest.raises(NotFoundError):
        repository.reset_branch("main", "0" * 20)


def test_a_branch_moves_forward_only_to_what_stands_on_it(repository):
    first = commit(repository, 0)
    repository.create_branch("audit", first)
    audited = commit(repository, 1, "audit")
    assert repository.fast_forward("main", "audit") == audited
    commit(repository, 2)
    later = commit(repository, 3, "audit")
    with raises(ConflictError, match="snapshots would be lost", branch="main"):
        repository.fast_forward("main", "audit")
    assert repository.branches()["audit"] == later


def test_names_that_are_taken_and_main_stay(repository):
    first = commit(repository, 0)
    repository.create_tag("v1", first)
    repository.delete_tag("v1")
    assert (repository.tags(), repository.deleted_tags()) == ({}, ("v1",))
    with raises(AlreadyExistsError, match="cannot be used again", kind="tag", name="v1"):
        repository.create_tag("v1", first)
    with pytest.raises(NotFoundError):
        repository.delete_tag("v1")
    with raises(InvalidInputError, name="main"):
        repository.delete_branch("main")
    repository.create_branch("b", first)
    with pytest.raises(AlreadyExistsError):
        repository.create_branch("b", first)


def test_flags_and_status_are_honoured(newest):
    first = commit(newest, 0)
    newest.create_tag("v1", first)
    for flag, action in (
        (FeatureFlag.CREATE_TAG, lambda: newest.create_tag("v2", first)),
        (FeatureFlag.DELETE_TAG, lambda: newest.delete_tag("v1")),
        (FeatureFlag.MOVE_NODE, lambda: newest.writable_session().move("/a", "/b")),
    ):
        newest.set_feature_flag(flag, False)
        assert newest.feature_flags() == {int(flag): False}
        with raises(ReadOnlyError, flag=int(flag)):
            action()
        newest.set_feature_flag(flag, None)
        action()
    newest.set_status(Availability.READ_ONLY, "moving house")
    for refused in (
        lambda: newest.writable_session(),
        lambda: newest.create_branch("b", first),
        lambda: newest.reset_branch("main", first),
        lambda: newest.restore("main", first),
        lambda: newest.set_metadata({}),
    ):
        with raises(ReadOnlyError, reason="moving house"):
            refused()
    assert newest.status.reason == "moving house"
    newest.set_status(Availability.ONLINE)
    commit(newest, 1)


def test_differences_hold_between_any_two_versions_of_a_line(repository):
    versions = [commit(repository, n) for n in range(5)]
    versions.append(repository.restore("main", versions[1]).snapshot_id)
    written = [{0}, {1}, {2}, {3}, {4}, {2, 3, 4}]
    for low, high in itertools.combinations(range(6), 2):
        changes = repository.diff(versions[low], versions[high])
        expected = set().union(*written[low + 1 : high + 1])
        assert set(changes.updated_chunks["/a"][:, 0].tolist()) == expected
    with raises(InvalidInputError, newer=...):
        repository.diff(versions[3], versions[1])


def test_differences_outlive_the_versions_in_between(newest):
    root = newest.resolve()
    versions = [commit(newest, n) for n in range(6)]
    before = newest.diff(root, versions[-1])
    cutoff = datetime.fromtimestamp(newest.snapshot_info(versions[3]).flushed_at / 1e6, UTC)
    newest.expire_snapshots(cutoff)
    assert [info.id for info in newest.ancestry()] == [*reversed(versions[3:]), root]
    after = newest.diff(root, versions[-1])
    assert after.missing_logs == ()
    assert after.new_arrays == before.new_arrays == ("/a",)
    assert (after.updated_chunks["/a"] == before.updated_chunks["/a"]).all()
    newest.expire_snapshots(datetime.now(UTC) + timedelta(hours=1))
    again = newest.diff(root, versions[-1])
    assert (again.updated_chunks["/a"] == before.updated_chunks["/a"]).all()


def test_the_log_tells_every_operation_through_all_of_its_copies(newest):
    newest.update_config({"num_updates_per_repo_info_file": 3})
    first = commit(newest, 0)
    newest.create_branch("b", first)
    newest.reset_branch("b", list(newest.ancestry())[-1].id)
    newest.delete_branch("b")
    newest.create_tag("t", first)
    newest.delete_tag("t")
    newest.set_metadata({"owner": "me"})
    newest.set_feature_flag(4, True)
    newest.set_status(Availability.ONLINE)
    session = newest.writable_session()
    session.set_chunk("/a", [1], b"x")
    session.amend("amended")
    session = newest.writable_session()
    session.set_chunk("/a", [2], b"x")
    session.flush("flushed")
    newest.expire_snapshots(datetime.now(UTC))
    operations = list(newest.operations())
    kinds = [operation.kind for operation in operations]
    assert kinds == [
        UpdateKind.EXPIRATION_RAN,
        UpdateKind.NEW_DETACHED_SNAPSHOT,
        UpdateKind.COMMIT_AMENDED,
        UpdateKind.REPO_STATUS_CHANGED,
        UpdateKind.FEATURE_FLAG_CHANGED,
        UpdateKind.METADATA_CHANGED,
        UpdateKind.TAG_DELETED,
        UpdateKind.TAG_CREATED,
        UpdateKind.BRANCH_DELETED,
        UpdateKind.BRANCH_RESET,
        UpdateKind.BRANCH_CREATED,
        UpdateKind.NEW_COMMIT,
        UpdateKind.CONFIG_CHANGED,
        UpdateKind.REPO_INITIALIZED,
    ]
    times = [operation.updated_at for operation in operations]
    assert times == sorted(times, reverse=True)
    assert newest.metadata == {"owner": "me"}
