"""Commits report what landed and lose nothing, when stores fail and when others commit.

Every single request of a commit fails once in every way; many processes commit to one folder.
"""

from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.raised import raises
from helpers.sessions.contract import assert_processes_lose_nothing
from helpers.sessions.model import group_document, stored_contents
from helpers.storage.faulty_repositories import begin, fail_at, faulty_repository, heal
from helpers.storage.faulty_storage import Fault

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs, inline_refs, native_refs
from icechunk_format.encoding.object_keys import overwritten_key, snapshot_key
from icechunk_format.encoding.repo_info.updates import NewCommitUpdate
from icechunk_format.errors import CommitOutcomeUnknownError, InvalidInputError, StorageError
from icechunk_format.repository.commit import commit as commit_module
from icechunk_format.repository.files import metadata_cache
from icechunk_format.repository.state import publish
from icechunk_format.repository.state.repo_file import read_state

pytestmark = pytest.mark.usefixtures("no_pauses")


def requests_of_a_commit(spec_version):
    _, repository = faulty_repository(spec_version)
    session = begin(repository)
    repository.faulty.requests.clear()
    metadata_cache().clear()
    session.commit("measured")
    return list(repository.faulty.requests)


EXPECTED_KEYS = ["a/c/0", "a/c/1", "a/zarr.json", "g/zarr.json", "zarr.json"]


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("fault", Fault)
def test_every_request_of_a_commit_may_fail_once(spec_version, fault):
    requests = requests_of_a_commit(spec_version)
    assert {verb for verb, _ in requests} >= {"get", "put"}
    for number, (verb, key) in enumerate(requests):
        sound, repository = faulty_repository(spec_version)
        base = sound.resolve()
        session = begin(repository)
        fail_at(repository, fault, [number])
        is_the_decision = verb == "put" and (key == "repo" or key.startswith("refs/"))
        try:
            result = session.commit("tried")
        except StorageError:
            # Said to have failed, so it must have failed; and it can be tried again.
            assert not is_the_decision or fault is Fault.REFUSED, (number, verb, key)
            assert sound.resolve() == base
            heal(repository)
            result = session.commit("tried")
        assert sound.resolve() == result.snapshot_id, (number, verb, key)
        messages = [info.message for info in sound.ancestry()]
        assert messages == ["tried", "base", "Repository initialized"], (number, verb, key)
        contents = stored_contents(sound, result.snapshot_id)
        assert sorted(contents) == EXPECTED_KEYS
        assert contents["a/c/0"] == b"changed"
        if spec_version == 2:
            updates = [update.details for update in sound.operations()]
            assert sum(isinstance(update, NewCommitUpdate) for update in updates) == 2
            assert_copies_are_there(sound)


def assert_copies_are_there(repository):
    """Check that whatever the log says was replaced can be read."""
    info = read_state(repository.storage).info
    named = [update.backup_path for update in info.latest_updates[1:]]
    assert named
    for name in named:
        assert repository.storage.head(overwritten_key(name)) is not None, name


def test_a_copy_that_could_not_be_stored_is_never_counted_on():
    for number in range(len(requests_of_a_commit(2))):
        sound, repository = faulty_repository(2)
        session = begin(repository)
        fail_at(repository, Fault.REFUSED, [number])
        try:
            session.commit("tried")
        except StorageError:
            heal(repository)
            session.amend("amended")
        assert_copies_are_there(sound)


def test_a_commit_puts_its_copy_of_repo_with_the_snapshot():
    kinds = [(verb, key.partition("/")[0]) for verb, key in requests_of_a_commit(2)]
    # Before the clocks are compared: that is the next request that waits for an answer.
    together = kinds.index(("head", "snapshots")) - 3
    assert sorted(kinds[together:]) == [
        ("head", "snapshots"),
        ("put", "overwritten"),
        ("put", "repo"),
        ("put", "snapshots"),
        ("put", "transactions"),
    ]
    assert kinds[-1] == ("put", "repo")


@pytest.mark.parametrize("spec_version", [1, 2])
def test_the_outcome_is_unknown_only_if_nobody_can_look(spec_version):
    requests = requests_of_a_commit(spec_version)
    decision = max(n for n, (verb, _) in enumerate(requests) if verb == "put")
    for fault, landed in ((Fault.RESPONSE_LOST, True), (Fault.REQUEST_LOST, False)):
        sound, repository = faulty_repository(spec_version)
        base = sound.resolve()
        session = begin(repository)
        # The answer is lost, and so is every attempt to look at the store afterwards.
        fail_at(repository, fault, range(decision, decision + 100))
        with raises(CommitOutcomeUnknownError, key=...):
            session.commit("tried")
        assert (sound.resolve() != base) == landed


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("fault", [Fault.RESPONSE_LOST, Fault.REPEATED])
def test_what_fails_after_a_write_in_doubt_does_not_make_it_a_failure(spec_version, fault):
    """The answer to the decision is lost, the store is there again, and then fails once more."""
    requests = requests_of_a_commit(spec_version)
    decision = max(n for n, (verb, _) in enumerate(requests) if verb == "put")
    for later in (1, 2, 3):
        sound, repository = faulty_repository(spec_version)
        base = sound.resolve()
        session = begin(repository)
        fail_at(repository, fault, [decision, decision + later])
        try:
            result = session.commit("tried")
        except CommitOutcomeUnknownError:
            pass
        else:
            assert sound.resolve() == result.snapshot_id
        assert sound.resolve() != base


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_commit_whose_answer_was_lost_and_that_others_built_on_is_not_repeated(spec_version):
    requests = requests_of_a_commit(spec_version)
    decision = max(n for n, (verb, _) in enumerate(requests) if verb == "put")
    sound, repository = faulty_repository(spec_version)
    session = begin(repository)
    fail_at(repository, Fault.RESPONSE_LOST, [decision])
    put = repository.faulty.put

    def put_then_others(key, *args, **kwargs):
        try:
            return put(key, *args, **kwargs)
        except StorageError:
            other = sound.writable_session()
            other.create_group("/other", group_document())
            other.commit("other")
            raise

    repository.faulty.put = put_then_others
    result = session.commit("tried")
    assert result.rebased == 0
    messages = [info.message for info in sound.ancestry()]
    assert messages == ["other", "tried", "base", "Repository initialized"]


# -- many writers ------------------------------------------------------------------------------


@pytest.mark.parametrize("spec_version", [1, 2])
def test_processes_that_commit_to_one_folder_lose_nothing(tmp_path, spec_version):
    repository = assert_processes_lose_nothing(
        str(tmp_path), spec_version, start_method="fork", writers=8, commits=3
    )
    times = [info.flushed_at for info in repository.ancestry()]
    assert times == sorted(set(times), reverse=True)
    if spec_version == 2:
        updates = list(repository.operations())
        assert len(updates) == len(times) == 8 * 3 + 2
        assert [u.updated_at for u in updates] == sorted(
            {u.updated_at for u in updates}, reverse=True
        )


# -- clocks ------------------------------------------------------------------------------------


def test_a_clock_that_is_wrong_by_much_is_refused(monkeypatch):
    sound, _ = faulty_repository(2)
    base = sound.resolve()
    session = begin(sound)
    now = publish.now_in_microseconds()
    for shift, word in ((3_600_000_000, "ahead of"), (-3_600_000_000, "")):
        monkeypatch.setattr(commit_module, "now_in_microseconds", lambda s=shift: now + s)
        if shift > 0:
            with pytest.raises(InvalidInputError, match=f"3600 s {word} the clock"):
                session.commit("from another time")
            assert sound.resolve() == base
    # A clock that is behind cannot make a version older than its parent.
    session.commit("late")
    times = [info.flushed_at for info in sound.ancestry()]
    assert times[0] == times[1] + 1


def test_the_tolerated_difference_of_clocks(monkeypatch):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    there = int(at.timestamp() * 1_000_000)
    storage = SimpleNamespace(root_url="place", head=lambda key: SimpleNamespace(last_modified=at))
    monkeypatch.setattr(commit_module, "MAX_CLOCK_SKEW", 5_000_000)
    for ahead, words in ((5_000_001, "5 s ahead of"), (-9_000_000, "9 s behind")):
        new = SimpleNamespace(id=SnapshotId(bytes(12)), flushed_at=there + ahead)
        with raises(InvalidInputError, match=words, flushed_at=there + ahead):
            commit_module._check_clock(storage, new)
    for ahead in (5_000_000, 0, -5_000_000):
        new = SimpleNamespace(id=SnapshotId(bytes(12)), flushed_at=there + ahead)
        commit_module._check_clock(storage, new)


def test_a_snapshot_that_vanished_before_the_clocks_were_compared_is_named():
    storage = SimpleNamespace(root_url="memory://place", head=lambda key: None)
    new = SimpleNamespace(id=SnapshotId(bytes(12)), flushed_at=0)
    with raises(StorageError, match=f"'{snapshot_key(new.id)}' was stored in memory://place just"):
        commit_module._check_clock(storage, new)


def test_a_restored_version_is_dated_by_a_clock_that_is_right(monkeypatch):
    sound, _ = faulty_repository(2)
    first = sound.resolve()
    last = begin(sound).commit("last").snapshot_id
    now = publish.now_in_microseconds()
    monkeypatch.setattr(commit_module, "now_in_microseconds", lambda: now + 3_600_000_000)
    with pytest.raises(InvalidInputError, match="3600 s ahead of the clock"):
        sound.restore("main", first)
    assert sound.resolve() == last


def test_files_are_counted_by_kind():
    counted, other = commit_module.Written(), commit_module.Written()
    counted.add("snapshots", 1, 10)
    counted.add("snapshots", 2, 5)
    mixed = ChunkRefs.concat(
        [
            native_refs([[0], [1]], np.arange(24, dtype=np.uint8).reshape(2, 12), [5, 6]),
            inline_refs([[2]], [b"inline"]),
        ]
    )
    other.add_chunks(mixed)
    other.add("snapshots", 1, 1)
    counted.add_all(other)
    assert counted.files == {"snapshots": 4, "chunks": 2}
    assert counted.bytes == {"snapshots": 16, "chunks": 11}


def test_a_result_that_names_no_files_counts_none():
    result = commit_module.CommitResult(
        snapshot_id=commit_module.new_snapshot_id(), parent_id=None, branch="main"
    )
    assert (result.rebased, result.files_written, result.bytes_written) == (0, {}, {})


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_commit_reports_the_files_of_each_kind(spec_version):
    sound, _ = faulty_repository(spec_version)
    result = begin(sound).commit("counted")
    assert result.files_written.keys() == result.bytes_written.keys()
    counted = {"manifests": 1, "snapshots": 1, "transactions": 1}
    assert {kind: result.files_written[kind] for kind in counted} == counted
    key = snapshot_key(result.snapshot_id)
    assert result.bytes_written["snapshots"] == sound.storage.head(key).size
    ids = sound.snapshot(result.snapshot_id).manifest_files
    assert result.bytes_written["manifests"] in ids.size_bytes.tolist()
