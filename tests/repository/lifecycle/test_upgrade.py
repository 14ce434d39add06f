"""An upgrade that is interrupted between any two requests loses nothing and can be run again."""

import itertools

import pytest
from helpers.raised import raises
from helpers.storage.faulty_storage import Fault, FaultyStorage

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import (
    CONFIG_YAML,
    REPO,
    branch_ref_key,
    snapshot_key,
    tag_ref_key,
    tag_tombstone_key,
)
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.repo_info.updates import UpdateKind
from icechunk_format.errors import (
    ConflictError,
    FormatError,
    IcechunkError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
)
from icechunk_format.repository import Repository
from icechunk_format.repository.lifecycle.upgrade import upgrade_repository
from icechunk_format.storage.protocol import DeleteFailure

CONFIG = b"inline_chunk_threshold_bytes: 17\nfrom_the_future: {a: [1, null]}\n"
KILLED_FROM_ON = range(30)


@pytest.fixture
def version_1(memory_repository):
    memory_repository.chain(5)
    memory_repository.write_v1({"main": 4, "side": 5}, {"v1": 2, "gone": 3}, deleted_tags=["gone"])
    memory_repository.storage.put(CONFIG_YAML, CONFIG)
    return memory_repository


def contents(storage):
    return {found.key: storage.get(found.key).data for found in storage.list("")}


def assert_upgraded(memory_repository, branches=None):
    opened = Repository.open(memory_repository.location)
    assert opened.spec_version == 2
    number = {i: k for k, i in enumerate(memory_repository.snapshots, 1)}
    found = {name: number[tip] for name, tip in opened.branches().items()}
    assert found == (branches or {"main": 4, "side": 5})
    assert [number[info.id] for info in opened.ancestry(branch="side")] == [5, 4, 3, 2, 1]
    assert [info.metadata for info in opened.ancestry(tag="v1")] == [{"number": 2}, {"number": 1}]
    assert opened.deleted_tags() == ("gone",)
    assert opened.config.inline_chunk_threshold_bytes == 17
    assert opened.config.raw["from_the_future"] == {"a": [1, None]}
    log = list(opened.operations())
    assert log[0].kind is UpdateKind.REPO_MIGRATED
    assert all(newer.updated_at > older.updated_at for newer, older in itertools.pairwise(log))
    keys = contents(memory_repository.storage)
    assert not [key for key in keys if key.startswith("refs/") or key == CONFIG_YAML]


def test_an_upgrade_keeps_history_refs_and_configuration(version_1):
    opened = Repository.open(version_1.location)
    before = contents(version_1.storage)
    dry = opened.upgrade(dry_run=True)
    assert contents(version_1.storage) == before
    assert opened.spec_version == 1
    report = opened.upgrade()
    assert opened.spec_version == 2
    assert opened.branches() == Repository.open(version_1.location).branches()
    assert (report.snapshots, report.branches, report.tags, report.deleted_tags) == (5, 2, 1, 1)
    assert dry.files_deleted == report.files_deleted
    assert report.files_deleted[0] == "refs/branch.main/ref.json"
    assert (dry.dry_run, report.dry_run, report.was_half_done) == (True, False, False)
    assert_upgraded(version_1)
    after = contents(version_1.storage)
    assert {key: after[key] for key in after if key != REPO} == {
        key: data for key, data in before.items() if key not in report.files_deleted
    }


def test_an_upgraded_repository_is_left_alone(version_1):
    opened = Repository.open(version_1.location)
    opened.upgrade()
    before = contents(version_1.storage)
    again = opened.upgrade()
    assert not again.was_needed
    assert not again.was_half_done
    assert again.files_deleted == ()
    assert contents(version_1.storage) == before


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("first_dead_request", KILLED_FROM_ON)
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.RESPONSE_LOST])
def test_an_upgrade_killed_anywhere_is_finished_by_another_run(
    version_1, fault, first_dead_request
):
    # One answer is lost on the way, and nothing is sent after it.
    dying = FaultyStorage(version_1.storage, fault=fault, at=frozenset({first_dead_request}))
    dead = FaultyStorage(dying, at=frozenset(range(first_dead_request + 1, 1000)))
    try:
        upgrade_repository(dead)
    except IcechunkError:
        assert len(dying.requests) <= first_dead_request + 1
    else:
        assert len(dead.requests) <= first_dead_request
    reader = Repository.open(version_1.location)
    has_repo = version_1.storage.head(REPO) is not None
    assert reader.spec_version == (2 if has_repo else 1)
    assert len(list(reader.ancestry(branch="side"))) == 5
    assert set(reader.branches()) == {"main", "side"}
    assert reader.config.inline_chunk_threshold_bytes == 17
    reader.upgrade()
    assert_upgraded(version_1)


@pytest.mark.parametrize("number", KILLED_FROM_ON)
@pytest.mark.parametrize("fault", list(Fault))
def test_one_failing_request_leaves_an_upgrade_that_can_be_repeated(version_1, fault, number):
    try:
        upgrade_repository(FaultyStorage(version_1.storage, fault=fault, at={number}))
    except IcechunkError:
        upgrade_repository(version_1.storage)
    assert_upgraded(version_1)


def test_the_requests_of_an_upgrade_are_fewer_than_these_tests_kill(version_1):
    counting = FaultyStorage(version_1.storage)
    upgrade_repository(counting)
    assert 20 < len(counting.requests) <= len(KILLED_FROM_ON)
    writes = [(verb, key) for verb, key in counting.requests if verb in ("put", "delete", "copy")]
    assert writes[:2] == [("put", REPO), ("delete", "refs/branch.main/ref.json")]


class InterferingStorage(FaultyStorage):
    """Lets another writer act right after `repo` was created."""

    def put(self, key, data, *, condition=None, attributes=None):
        answer = super().put(key, data, condition=condition)
        if key == REPO and self.others:
            self.others.pop()(self.inner)
        return answer


def interfering(storage, *others):
    wrapped = InterferingStorage(storage)
    wrapped.others = list(others)
    return wrapped


def test_a_commit_of_version_1_during_the_upgrade_is_not_lost(version_1):
    # The chain's snapshot 5 stands on 4, where main is.
    def commit(storage):
        ids = list(version_1.snapshots)
        storage.put(branch_ref_key("main"), v1_refs.encode_ref_json(ids[4]))

    upgrade_repository(interfering(version_1.storage, commit))
    assert_upgraded(version_1, {"main": 5, "side": 5})


def test_refs_of_version_1_made_after_a_crash_are_brought_over(version_1):
    storage, ids = version_1.storage, list(version_1.snapshots)
    kept = contents(storage)
    upgrade_repository(storage)
    for key, data in kept.items():
        if key != REPO:
            storage.put(key, data)
    storage.delete_many([branch_ref_key("side")])
    storage.put(branch_ref_key("late"), v1_refs.encode_ref_json(ids[4]))
    storage.put(tag_ref_key("late"), v1_refs.encode_ref_json(ids[4]))
    report = upgrade_repository(storage)
    assert report.was_half_done
    opened = Repository.open(version_1.location)
    assert opened.branches() == {"late": ids[4], "main": ids[3]}
    assert opened.tags() == {"late": ids[4], "v1": ids[1]}


def test_files_that_are_left_when_main_is_gone_win_over_what_was_made_of_them(version_1):
    storage, ids = version_1.storage, list(version_1.snapshots)
    upgrade_repository(storage)
    storage.put(branch_ref_key("side"), v1_refs.encode_ref_json(ids[0]))
    storage.put(tag_tombstone_key("v1"), b"")
    upgrade_repository(storage)
    opened = Repository.open(version_1.location)
    assert opened.branches() == {"main": ids[3], "side": ids[0]}
    assert opened.tags() == {}
    assert opened.deleted_tags() == ("gone", "v1")


def test_files_that_are_left_do_not_undo_changes_of_version_2(version_1):
    storage, ids = version_1.storage, list(version_1.snapshots)
    kept = contents(storage)
    opened = Repository.open(version_1.location)
    opened.upgrade()
    opened.reset_branch("main", ids[1])
    opened.delete_branch("side")
    for key in kept:
        storage.put(key, kept[key])
    report = opened.upgrade()
    assert report.was_half_done
    assert opened.branches() == {"main": ids[1]}
    assert not list(storage.list("refs/"))


def test_versions_of_both_sides_are_never_dropped_silently(version_1):
    storage, ids = version_1.storage, list(version_1.snapshots)
    storage.put(branch_ref_key("side"), v1_refs.encode_ref_json(ids[3]))
    opened = Repository.open(version_1.location)
    opened.upgrade()
    opened.create_branch("newer", ids[0])
    late = branch_ref_key("side")
    storage.put(late, v1_refs.encode_ref_json(ids[4]))
    with raises(ConflictError, match=f"'side'.*{ids[4]}", kind="branch", name="side"):
        opened.upgrade()
    assert storage.head(late) is not None


def test_a_damaged_snapshot_matters_only_where_a_ref_reaches_it(version_1):
    storage, ids = version_1.storage, list(version_1.snapshots)
    damaged = storage.get(snapshot_key(ids[4])).data[:50]
    storage.put(snapshot_key(ids[4]), damaged)
    with raises(FormatError, match=str(ids[4]), field="payload"):
        upgrade_repository(storage)
    assert storage.head(REPO) is None
    storage.delete_many([branch_ref_key("side")])
    assert upgrade_repository(storage).snapshots == 4


@pytest.mark.parametrize(
    ("key", "data"),
    [
        (branch_ref_key("side"), b"{}"),
        (CONFIG_YAML, b"inline_chunk_threshold_bytes: many"),
        (branch_ref_key("side"), v1_refs.encode_ref_json(SnapshotId(b"x" * 12))),
    ],
)
def test_what_cannot_be_read_stops_the_upgrade_before_it_begins(version_1, key, data):
    version_1.storage.put(key, data)
    before = contents(version_1.storage)
    with pytest.raises((FormatError, NotFoundError)):
        upgrade_repository(version_1.storage)
    assert contents(version_1.storage) == before


def test_upgrading_nothing_is_refused(memory_repository):
    with raises(NotFoundError, match="nothing can be upgraded", kind="repository"):
        upgrade_repository(memory_repository.storage)


def test_a_store_that_cannot_be_written_is_only_looked_at(version_1):
    class Closed(FaultyStorage):
        is_read_only = True

    with pytest.raises(ReadOnlyError, match="can only be read"):
        upgrade_repository(Closed(version_1.storage))
    assert upgrade_repository(Closed(version_1.storage), dry_run=True).snapshots == 5


def test_a_file_that_cannot_be_deleted_is_named(version_1):
    failing = FaultyStorage(version_1.storage)
    failing.delete_many = lambda keys: []
    upgrade_repository(failing)
    assert Repository.open(version_1.location).spec_version == 2
    failing.delete_many = lambda keys: [DeleteFailure(key=k, reason="forbidden") for k in keys]
    with raises(
        StorageError, match=r"has spec version 2 now.*forbidden", key="refs/branch.main/ref.json"
    ):
        upgrade_repository(failing)


SHOWN = {
    "branches": lambda r: r.branches(),
    "tags": lambda r: r.tags(),
    "deleted tags": lambda r: r.deleted_tags(),
    "snapshots": lambda r: sorted(info.id for info in r.snapshots()),
    "graph": lambda r: [entry.snapshot.id for entry in r.graph()],
    "config": lambda r: r.config.raw,
    "status": lambda r: r.status.availability,
    "operations": lambda r: [update.kind for update in r.operations()],
    "as read": lambda r: (r.as_read().spec_version, r.as_read().tags()),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_handle_that_is_kept_over_an_upgrade_shows_what_a_new_one_shows(version_1, name):
    kept = Repository.open(version_1.location)
    Repository.open(version_1.location).upgrade()
    assert SHOWN[name](kept) == SHOWN[name](Repository.open(version_1.location))
    assert kept.spec_version == 2


@pytest.mark.parametrize(
    ("change", "shows"),
    [
        (
            lambda r: r.update_config({"inline_chunk_threshold_bytes": 5}),
            lambda r: r.config.inline_chunk_threshold_bytes == 5,
        ),
        (lambda r: r.create_tag("new", r.resolve()), lambda r: r.tags()["new"] == r.resolve()),
        (lambda r: r.delete_tag("v1"), lambda r: r.deleted_tags() == ("gone", "v1")),
        (lambda r: r.delete_branch("side"), lambda r: list(r.branches()) == ["main"]),
        (lambda r: r.set_metadata({"a": 1}), lambda r: r.metadata == {"a": 1}),
    ],
)
def test_what_a_handle_that_is_kept_over_an_upgrade_changes_is_read(version_1, change, shows):
    kept = Repository.open(version_1.location)
    Repository.open(version_1.location).upgrade()
    change(kept)
    assert shows(Repository.open(version_1.location))
    assert not {CONFIG_YAML} & contents(version_1.storage).keys()
    assert not list(version_1.storage.list("refs/"))
