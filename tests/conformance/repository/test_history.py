"""Refs, logs and settings that we wrote are those of the reference, and theirs are ours.

The reference expires, collects and migrates what we wrote; both go on after that.
"""

from datetime import UTC, datetime, timedelta

import icechunk
import pytest
from helpers.builder import add_array, reference_repository
from helpers.raised import raises
from helpers.reference.sessions import assert_both_hold, open_reference, start
from helpers.sessions.model import group_document, stored_contents

from icechunk_format.errors import ConflictError
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache


def test_the_reference_expires_and_collects_what_we_wrote(tmp_path):
    repository = start(tmp_path)
    for number in range(4):
        session = repository.writable_session()
        session.set_chunk("/b", [number], bytes([number]) * 700)
        session.commit(f"commit {number}")
    repository.create_tag("keep", list(repository.ancestry())[2].id)
    session = repository.writable_session()
    session.set_chunk("/b", [5], b"detached" * 200)
    detached = session.flush("detached")
    expected = stored_contents(repository, repository.resolve())
    theirs = open_reference(tmp_path)
    later = datetime.now(UTC) + timedelta(seconds=5)
    expired = theirs.expire_snapshots(later)
    assert len(expired) >= 2
    summary = theirs.garbage_collect(later)
    assert summary.snapshots_deleted >= 2
    assert summary.chunks_deleted >= 1
    ours, theirs = assert_both_hold(tmp_path, expected)
    assert detached not in {info.id for info in ours.ancestry()}
    assert stored_contents(ours, ours.resolve(tag="keep"))["b/c/1"] == bytes([1]) * 700
    # Both go on after the history was cut, over the pruned logs too.
    session = ours.writable_session()
    session.set_chunk("/b", [4], b"later")
    session.commit("later")
    expected["b/c/4"] = b"later"
    assert_both_hold(tmp_path, expected)


def test_we_rebase_over_history_that_the_reference_pruned(tmp_path):
    repository = Repository.create(str(tmp_path))
    early, conflicting, late = (repository.writable_session() for _ in range(3))
    session = repository.writable_session()
    session.create_group("/", group_document())
    pruned = session.commit("pruned").snapshot_id
    session = repository.writable_session()
    add_array(session, "/b", (6,))
    tip = session.commit("kept").snapshot_id
    open_reference(tmp_path).expire_snapshots(datetime.now(UTC) + timedelta(seconds=5))
    [kept, _] = repository.ancestry()
    assert (kept.id, kept.pruned_ancestor_tx_logs) == (tip, (pruned,))
    assert early.commit("empty", allow_empty=True).parent_id == tip
    conflicting.create_group("/", group_document())
    with raises(ConflictError, branch="main", kinds=("NODE_EXISTS",)):
        conflicting.commit("late")
    repository.storage.delete_many([f"transactions/{pruned}"])
    metadata_cache().clear()
    with pytest.raises(ConflictError, match=f"log {pruned} of snapshot {tip} is missing"):
        late.commit("empty", allow_empty=True)


def test_both_continue_one_log(tmp_path):
    config = icechunk.RepositoryConfig.default()
    config.num_updates_per_repo_info_file = 4
    reference_repository(tmp_path, config=config)
    for number in range(6):
        ours = Repository.open(str(tmp_path))
        ours.create_tag(f"ours-{number}", ours.resolve())
        theirs = open_reference(tmp_path)
        theirs.create_tag(f"theirs-{number}", theirs.lookup_branch("main"))
    their_log = list(open_reference(tmp_path).ops_log())
    our_log = list(Repository.open(str(tmp_path)).operations())
    assert len(their_log) == len(our_log) == 13
    names = [f"{who}-{n}" for n in reversed(range(6)) for who in ("theirs", "ours")]
    assert [entry.kind.name for entry in their_log[:-1]] == names
    assert [entry.details.name for entry in our_log[:-1]] == names


def refs_that_both_list(folder, branch, tag, spec_version=2):
    """Commit to a branch and fast-forward main to it; return repository, base and tip."""
    repository = start(folder, spec_version=spec_version)
    base = repository.resolve()
    repository.create_branch(branch, base)
    repository.create_tag(tag, base)
    repository.create_tag("gone", base)
    repository.delete_tag("gone")
    session = repository.writable_session(branch)
    session.set_chunk("/b", [0], b"dev")
    tip = session.commit("on dev").snapshot_id
    theirs = open_reference(folder)
    assert theirs.list_branches() == {"main", branch}
    assert theirs.lookup_branch(branch) == str(tip)
    assert theirs.list_tags() == {tag}
    with pytest.raises(icechunk.IcechunkError):
        theirs.create_tag("gone", str(base))
    assert repository.fast_forward("main", branch) == tip
    return repository, base, tip


def test_our_refs_are_theirs(tmp_path):
    repository, base, tip = refs_that_both_list(tmp_path, "dev/x", "v/1")
    theirs = open_reference(tmp_path)
    assert theirs.lookup_branch("main") == str(tip)
    theirs.reset_branch("main", str(base))
    theirs.create_tag("theirs", str(tip))
    repository.delete_branch("dev/x")
    assert repository.branches() == {"main": base}
    assert repository.tags() == {"theirs": tip, "v/1": base}
    kinds = [type(entry.kind).__name__ for entry in open_reference(tmp_path).ops_log()]
    assert kinds == [
        "BranchDeleted",
        "TagCreated",
        "BranchReset",
        "BranchReset",
        "NewCommit",
        "TagDeleted",
        "TagCreated",
        "TagCreated",
        "BranchCreated",
        "NewCommit",
        "RepoInitialized",
    ]


def test_our_refs_of_spec_version_1_are_theirs(tmp_path):
    repository, base, tip = refs_that_both_list(tmp_path, "dev", "v1", spec_version=1)
    assert open_reference(tmp_path).lookup_branch("main") == str(tip)
    repository.reset_branch("main", base, from_=tip)
    repository.delete_branch("dev")
    assert open_reference(tmp_path).list_branches() == {"main"}


def test_the_reference_migrates_what_we_wrote_in_spec_version_1(tmp_path):
    repository = start(tmp_path, spec_version=1)
    expected = stored_contents(repository, repository.resolve())
    theirs = open_reference(tmp_path)
    icechunk.upgrade_icechunk_repository(theirs, dry_run=False)
    ours, _ = assert_both_hold(tmp_path, expected)
    assert ours.spec_version == 2
    session = ours.writable_session()
    session.set_chunk("/b", [0], b"after")
    session.commit("after the migration")
    expected["b/c/0"] = b"after"
    assert_both_hold(tmp_path, expected)


def test_status_and_flags_are_honoured_by_both(tmp_path):
    repository = start(tmp_path)
    theirs = open_reference(tmp_path)
    theirs.set_feature_flag("move_node", False)
    session = repository.writable_session()
    with raises(Exception, flag=3):
        session.move("/b", "/c")
    repository.set_feature_flag(3, None)
    open_reference(tmp_path).rearrange_session("main")
