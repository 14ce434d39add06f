"""The common ancestor of a merge: expired, amended, and of branches that merged one another."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from helpers.builder import add_array, commit_to, new_repository
from helpers.raised import raises
from helpers.sessions.model import group_document, stored_contents

from icechunk_format import ConflictError, Repository


def begun(spec_version=2):
    """Return a repository with an array /a of ten chunks and a group /x, and a branch dev."""
    repository = new_repository(spec_version)
    session = repository.writable_session()
    add_array(session, "/a", (10,))
    session.set_chunks("/a", [[i] for i in range(10)], [b"base"] * 10)
    session.create_group("/x", group_document())
    repository.create_branch("dev", session.commit("base").snapshot_id)
    return repository


def chunk(place, data):
    return lambda session: session.set_chunk("/a", [place], data)


def contents(repository, branch="main"):
    return stored_contents(repository, repository.resolve(branch=branch))


def expired(repository):
    repository.expire_snapshots(datetime.now(UTC) + timedelta(seconds=1))
    return Repository.open(repository.location)


@pytest.mark.parametrize(("spec_version", "upgraded"), [(1, False), (1, True), (2, False)])
def test_an_expired_ancestor_does_not_revert_the_target(spec_version, upgraded):
    repository = begun(spec_version)
    commit_to(repository, "main", lambda s: s.delete("/x"))
    commit_to(repository, "main", chunk(2, b"main"))
    commit_to(repository, "dev", lambda s: s.create_group("/d", group_document()))
    commit_to(repository, "dev", lambda s: s.create_group("/e", group_document()))
    repository = expired(repository)
    if upgraded:
        repository.upgrade()
    before = contents(repository)
    if spec_version == 1:
        with raises(ConflictError, source=...):
            repository.merge("dev")
        assert contents(repository) == before
        return
    repository.merge("dev")
    found = contents(repository)
    assert {key: found.get(key) for key in before} == before
    assert "x/zarr.json" not in found


def test_the_first_snapshot_is_a_common_ancestor_if_the_logs_explain_the_sides():
    repository = new_repository(1)
    repository.create_branch("dev", repository.resolve())
    for branch in ("dev", "main"):
        commit_to(repository, branch, lambda s: s.create_group("/", group_document(len(s.branch))))
        commit_to(repository, branch, lambda s: s.create_group(f"/{s.branch}", group_document()))
    with raises(ConflictError, kinds=("NODE_EXISTS",), paths=("/",)):
        repository.merge("dev")


@pytest.mark.parametrize("lost", [None, "expired", "amended"])
def test_a_second_merge_keeps_what_the_target_deleted(lost):
    repository = begun()
    commit_to(repository, "dev", lambda s: s.create_group("/new", group_document()))
    repository.set_attributes("/a", {"k": 1}, branch="dev")
    repository.merge("dev")
    if lost == "amended":
        session = repository.writable_session()
        session.set_attributes("/a", {"z": 1})
        session.amend("a better message")
    commit_to(repository, "main", lambda s: s.delete("/new"))
    repository.set_attributes("/a", {}, remove=["k"])
    commit_to(repository, "dev", lambda s: s.create_group("/later", group_document()))
    if lost == "expired":
        repository = expired(repository)
    if lost is not None:
        with raises(ConflictError, kinds=("NEW_NODE_DELETED", *["METADATA_UPDATED_TWICE"] * 2)):
            repository.merge("dev")
        return
    repository.merge("dev")
    found = contents(repository)
    assert "new/zarr.json" not in found
    assert "later/zarr.json" in found
    assert "k" not in json.loads(found["a/zarr.json"]).get("attributes", {})


def test_a_node_that_the_target_restored_stays():
    repository = begun()
    good = repository.resolve()
    commit_to(repository, "dev", lambda s: s.delete("/x"))
    repository.merge("dev")
    session = repository.writable_session()
    session.create_group("/other", group_document())
    session.amend("a better message")
    repository.restore("main", good)
    commit_to(repository, "dev", lambda s: s.create_group("/later", group_document()))
    with raises(ConflictError, kinds=("DELETED_NODE_RECREATED",), paths=("/x",)):
        repository.merge("dev")


@pytest.mark.parametrize("resolve", ["ours", "theirs"])
def test_branches_that_merged_one_another_do_not_take_a_side_silently(resolve):
    repository = begun()
    for name, data in (("a", b"aa"), ("b", b"bb")):
        repository.create_branch(name, repository.resolve())
        commit_to(repository, name, chunk(1, data))
        repository.create_branch(f"{name}1", repository.resolve(branch=name))
    repository.merge("b1", "a", resolve=resolve)
    repository.merge("a1", "b", resolve=resolve)
    with raises(ConflictError, kinds=..., paths=("/a",)):
        repository.merge("b", "a")
    assert repository.merge("b", "a", resolve="theirs").conflicts


def test_branches_that_merged_one_another_without_conflicts_are_merged():
    repository = begun()
    for place, name in enumerate("ab"):
        repository.create_branch(name, repository.resolve())
        commit_to(repository, name, chunk(place, name.encode()))
        repository.create_branch(f"{name}1", repository.resolve(branch=name))
    repository.merge("b1", "a")
    repository.merge("a1", "b")
    commit_to(repository, "b", chunk(5, b"later"))
    repository.merge("b", "a")
    found = contents(repository, "a")
    assert [found[f"a/c/{i}"] for i in (0, 1, 5)] == [b"a", b"b", b"later"]
