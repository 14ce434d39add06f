"""Branches, tags, ids and instants name one version, and errors list what exists."""

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from helpers.raised import raises

from icechunk_format.display.plain_text import to_timestamp
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import REPO, branch_ref_key, snapshot_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.repository import Repository
from icechunk_format.repository.history import parse_cutoff


def snapshot_id(number):
    return SnapshotId(bytes([number]) * 12)


def at_second(second):
    return datetime(2024, 7, 1, tzinfo=UTC) + timedelta(seconds=second)


@pytest.fixture
def repository(four_commits):
    return Repository.open(four_commits.location)


def test_branches_and_tags_come_sorted_and_without_deleted_ones(repository):
    assert repository.branches() == {"development": snapshot_id(3), "main": snapshot_id(4)}
    assert list(repository.branches()) == ["development", "main"]
    assert repository.tags() == {"v1.0": snapshot_id(2), "v1.1": snapshot_id(3)}
    assert repository.deleted_tags() == ("gone",)


@pytest.mark.parametrize(
    ("selection", "number"),
    [
        ({}, 4),
        ({"branch": "development"}, 3),
        ({"tag": "v1.0"}, 2),
        ({"snapshot": str(snapshot_id(1))}, 1),
        ({"snapshot": str(snapshot_id(1)).lower()}, 1),
        ({"snapshot": snapshot_id(3)}, 3),
        ({"as_of": at_second(4)}, 4),
        ({"as_of": at_second(3.999999)}, 3),
        ({"as_of": at_second(1)}, 1),
        ({"as_of": at_second(3).astimezone(timezone(timedelta(hours=9)))}, 3),
        ({"branch": "development", "as_of": at_second(100)}, 3),
    ],
)
def test_the_words_of_a_user_lead_to_one_snapshot(repository, selection, number):
    assert repository.resolve(**selection) == snapshot_id(number)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"branch": "main", "tag": "v1.0"}, "branch and tag are both given"),
        ({"tag": "v1.0", "snapshot": "x"}, "tag and snapshot are both given"),
        ({"tag": "v1.0", "as_of": at_second(1)}, "give as_of with a branch"),
        ({"snapshot": "1CECHNKREP0F1RSTCMT0", "as_of": at_second(1)}, "give as_of with a branch"),
        ({"snapshot": "nonsense"}, "20 characters of Crockford base 32"),
        ({"as_of": datetime(2024, 7, 1)}, "has no time zone"),
    ],
)
def test_words_that_cannot_be_meant_together_are_refused(repository, selection, message):
    with pytest.raises(InvalidInputError, match=message):
        repository.resolve(**selection)


@pytest.mark.parametrize(
    ("selection", "last_line"),
    [
        ({"branch": "mian"}, "branches that exist: main, development"),
        ({"branch": "with/slash"}, "branches that exist: development, main"),
        ({"tag": "v1.2"}, "tags that exist: v1.1, v1.0"),
        ({"tag": "gone"}, "tags that exist: v1.0, v1.1"),
    ],
)
def test_a_missing_ref_is_answered_with_those_that_exist(repository, selection, last_line):
    with pytest.raises(NotFoundError) as caught:
        repository.resolve(**selection)
    assert sorted(str(caught.value).splitlines()[-1].split(": ")[1].split(", ")) == sorted(
        last_line.split(": ")[1].split(", ")
    )
    assert caught.value.facts["kind"] in ("branch", "tag")
    assert "\n" not in str(caught.value)


def test_an_unknown_snapshot_is_answered_with_known_ones(repository):
    with raises(NotFoundError, match=f"{snapshot_id(3)}", name=str(snapshot_id(99))):
        repository.snapshot(snapshot_id(99))
    with pytest.raises(NotFoundError):
        repository.snapshot_info(snapshot_id(99))


def test_a_tag_in_place_of_an_id_is_answered_with_the_option(repository):
    with raises(InvalidInputError, option="snapshot", found="v1"):
        repository.resolve(snapshot="v1")


def test_an_instant_before_the_history_is_answered_with_its_beginning(repository):
    with raises(
        NotFoundError,
        match=r"begins at 2024-07-01T00:00:01\+00:00",
        kind="snapshot",
        branch="main",
        earliest="2024-07-01T00:00:01+00:00",
    ):
        repository.resolve(as_of=at_second(0.5))


def test_ancestry_is_newest_first_with_what_each_commit_said(repository):
    history = list(repository.ancestry(tag="v1.1"))
    assert [info.id for info in history] == [snapshot_id(n) for n in (3, 2, 1)]
    assert [info.message for info in history] == ["commit 3", "commit 2", "commit 1"]
    assert [info.metadata for info in history] == [{"number": n} for n in (3, 2, 1)]
    assert history[-1].parent_id is None
    assert to_timestamp(history[0].flushed_at) == at_second(3)


def test_a_snapshot_is_read_by_id_and_by_text(repository):
    assert repository.snapshot(snapshot_id(2)).message == "commit 2"
    assert repository.snapshot(str(snapshot_id(2))).message == "commit 2"
    assert repository.snapshot_info(str(snapshot_id(2))).message == "commit 2"


def test_a_handle_travels_as_its_location(repository):
    arrived = pickle.loads(pickle.dumps(repository))
    assert arrived.spec_version == repository.spec_version
    assert arrived.branches() == repository.branches()
    assert repr(arrived) == repr(repository)


def test_a_moved_branch_is_seen_at_once(four_commits, repository):
    assert repository.resolve() == snapshot_id(4)
    if repository.spec_version == 1:
        four_commits.storage.put(branch_ref_key("main"), v1_refs.encode_ref_json(snapshot_id(2)))
    else:
        info = repo_info.decode(four_commits.storage.get(REPO).data)
        changed = replace(info, branches={**info.branches, "main": snapshot_id(2)})
        four_commits.storage.put(REPO, repo_info.encode(changed))
    assert repository.resolve() == snapshot_id(2)


def test_repo_decides_for_version_2_although_refs_are_left_over(memory_repository):
    memory_repository.chain(3).write_v1({"main": 2})
    memory_repository.write_v2({"main": 3})
    repository = Repository.open(memory_repository.location)
    assert repository.spec_version == 2
    assert repository.resolve() == snapshot_id(3)


def test_a_snapshot_file_that_repo_does_not_list_does_not_exist(memory_repository):
    memory_repository.chain(3).write_snapshots(2)
    del memory_repository.snapshots[snapshot_id(3)]
    memory_repository.write_v2({"main": 2})
    with raises(NotFoundError, kind="snapshot"):
        Repository.open(memory_repository.location).snapshot(snapshot_id(3))


def test_a_file_copied_over_another_is_noticed(memory_repository):
    memory_repository.chain(3).write_v2({"main": 3})
    storage = memory_repository.storage
    storage.copy(snapshot_key(snapshot_id(1)), snapshot_key(snapshot_id(2)))
    with raises(FormatError, match="another file was copied over it", field="id") as caught:
        Repository.open(memory_repository.location).snapshot(snapshot_id(2))
    assert caught.value.facts["object_key"] == snapshot_key(snapshot_id(2))


def test_a_snapshot_whose_file_is_gone_is_told_from_an_unknown_one(memory_repository):
    memory_repository.chain(3).write_v2({"main": 3})
    memory_repository.storage.delete_many([snapshot_key(snapshot_id(2))])
    with raises(NotFoundError, kind="object", file_type="snapshot"):
        Repository.open(memory_repository.location).snapshot(snapshot_id(2))


def test_version_1_snapshot_files_are_read_anew_since_expiry_rewrites_them(memory_repository):
    memory_repository.chain(4).write_v1({"main": 4})
    repository = Repository.open(memory_repository.location)
    assert len(list(repository.ancestry())) == 4
    kept = memory_repository.snapshots[snapshot_id(4)]
    memory_repository.snapshots[snapshot_id(4)] = replace(kept, parent_id=snapshot_id(1))
    memory_repository.write_snapshots(1)
    assert [info.id for info in repository.ancestry()] == [snapshot_id(4), snapshot_id(1)]


def test_a_loop_in_the_history_of_version_1_ends_in_an_error(memory_repository):
    memory_repository.chain(3)
    root = memory_repository.snapshots[snapshot_id(1)]
    memory_repository.snapshots[snapshot_id(1)] = replace(root, parent_id=snapshot_id(3))
    memory_repository.write_v1({"main": 3})
    with raises(FormatError, match="which is its descendant", field="parent_id"):
        list(Repository.open(memory_repository.location).ancestry())


def test_a_missing_ancestor_of_version_1_is_named(memory_repository):
    memory_repository.chain(3).write_v1({"main": 3})
    memory_repository.storage.delete_many([snapshot_key(snapshot_id(1))])
    with raises(NotFoundError, match=f"its parent {snapshot_id(1)} is not", kind="snapshot"):
        list(Repository.open(memory_repository.location).ancestry())


def test_a_deleted_repository_is_reported_by_an_open_handle(memory_repository):
    memory_repository.chain(1).write_v2({"main": 1})
    repository = Repository.open(memory_repository.location)
    memory_repository.storage.delete_many([REPO])
    with raises(NotFoundError, kind="repository"):
        repository.branches()


def test_times_beyond_the_calendar_do_not_break_a_listing():
    assert to_timestamp(2**64 - 1).year == 9999


NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30d", NOW - timedelta(days=30)),
        ("12 h", NOW - timedelta(hours=12)),
        ("45min", NOW - timedelta(minutes=45)),
        ("4W", NOW - timedelta(weeks=4)),
        ("0s", NOW),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", NOW),
        ("2026-01-31 12:00:00 UTC", NOW),
    ],
)
def test_ages_and_times(text, meant):
    assert parse_cutoff(text, argument="older_than", now=NOW) == meant


def test_minutes_are_not_months():
    with raises(InvalidInputError, argument="older_than", found="3m"):
        parse_cutoff("3m", argument="older_than")
