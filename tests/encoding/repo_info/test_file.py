"""The repo info file is read as it was written, and impossible states are refused."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from typing import Any

import pytest
from helpers.examples import by_day
from helpers.files.repo_infos import ROOT_ID, TIP_ID, small_repository
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import updates as repo_updates
from icechunk_format.encoding.repo_info.file import REPO, RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.state import SnapshotIds
from icechunk_format.encoding.repo_info.stored_snapshots import SNAPSHOT_INFO
from icechunk_format.encoding.repo_info.updates import (
    Availability,
    RepoInitializedUpdate,
    RepoStatus,
    Update,
    UpdateKind,
)
from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = st.binary(min_size=12, max_size=12).map(SnapshotId)
# Keys of maps are NUL-terminated in FlexBuffers.
keys = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
times = st.integers(0, 2**64 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
metadata = st.dictionaries(texts, json_values, max_size=3).map(MetadataItems.of)
flags = st.none() | st.lists(st.integers(0, 2**16 - 1), max_size=4).map(sorted).map(tuple)
backup_names = st.from_regex(r"repo\.[0-9]{14}\.[0-9A-Z]{20}", fullmatch=True)
statuses = st.builds(
    RepoStatus,
    availability=st.sampled_from(Availability),
    set_at=times,
    reason=st.none() | texts,
)


def details() -> st.SearchStrategy[Any]:
    """Build any known kind of update from the declaration of its fields."""
    stored = {
        "string": texts,
        "id12": ids,
        "u8": st.integers(0, 255),
        "u16": st.integers(0, 2**16 - 1),
        "bool": st.booleans(),
        "status": st.none() | statuses,
    }
    return st.one_of(
        st.builds(kind, **{name: stored[how] for name, how in fields.items()})
        for kind, fields in repo_updates._KINDS.values()
    )


@st.composite
def repositories(draw: st.DrawFn) -> RepoInfo:
    snapshot_ids = draw(st.lists(ids, min_size=1, max_size=6, unique=True))
    snapshots = {}
    for snapshot_id in sorted(snapshot_ids):
        snapshots[snapshot_id] = SnapshotInfo(
            id=snapshot_id,
            parent_id=draw(st.none() | st.sampled_from(snapshot_ids)),
            flushed_at=draw(times),
            message=draw(texts),
            metadata_items=draw(metadata),
            pruned_ancestor_tx_logs=tuple(draw(st.lists(ids, max_size=3))),
        )
    refs = st.dictionaries(texts, st.sampled_from(snapshot_ids), max_size=4)
    updates = draw(st.lists(details(), max_size=5))
    return RepoInfo(
        tags=draw(refs),
        branches=draw(refs),
        deleted_tags=tuple(sorted(draw(st.sets(texts, max_size=3)))),
        snapshots=snapshots,
        status=draw(statuses),
        latest_updates=tuple(
            Update(
                details=update,
                updated_at=draw(times),
                backup_path=draw(st.none() | backup_names) if position else None,
            )
            for position, update in enumerate(updates)
        ),
        repo_before_updates=draw(st.none() | backup_names),
        metadata_items=draw(metadata),
        config=draw(st.none() | st.binary(max_size=20)),
        enabled_feature_flags=draw(flags),
        disabled_feature_flags=draw(flags),
    )


@given(repositories())
@settings(max_examples=by_day(60), deadline=None)
def test_what_was_written_is_read(repository: RepoInfo) -> None:
    data = repo_info.encode(repository)
    found = repo_info.decode(data)
    assert found == repository
    assert repo_info.encode(found) == data
    assert list(found.snapshots) == sorted(found.snapshots)
    assert found.metadata == repository.metadata


def test_every_kind_of_update_has_a_class() -> None:
    assert set(repo_updates._KINDS) == set(UpdateKind) - {UpdateKind.UNKNOWN}
    assert max(UpdateKind) == 16


@pytest.mark.parametrize(
    ("word", "number", "fields"),
    [
        ("TagCreated", 5, {"name": "n"}),
        ("TagDeleted", 6, {"name": "n", "previous_snap_id": TIP_ID}),
        ("BranchCreated", 7, {"name": "n"}),
        ("BranchDeleted", 8, {"name": "n", "previous_snap_id": TIP_ID}),
        ("BranchReset", 9, {"name": "n", "previous_snap_id": TIP_ID}),
        ("NewCommit", 10, {"branch": "n", "new_snap_id": TIP_ID}),
    ],
)
def test_an_update_keeps_its_kind(word: str, number: int, fields: dict[str, object]) -> None:
    details = getattr(repo_updates, f"{word}Update")(**fields)
    log = (Update(details=details, updated_at=1),)
    (found,) = repo_info.decode(
        repo_info.encode(replace(small_repository(), latest_updates=log))
    ).latest_updates
    assert (int(found.kind), found.details, type(found.details)) == (number, details, type(details))


def test_values_survive_pickling() -> None:
    repository = small_repository()
    assert pickle.loads(pickle.dumps(repository)) == repository


def payload(data: bytes) -> bytes:
    return unwrap(data, file_type=FileType.REPO_INFO, object_key="repo").payload


def test_no_parent_is_stored_explicitly() -> None:
    """Absent would mean index 0, that is, a parent."""
    root = read_root(
        payload(repo_info.encode(small_repository())), REPO, object_key="repo", file_type="repo"
    )
    tip, first = root.children("snapshots", SNAPSHOT_INFO)
    assert (tip.has("parent_offset"), tip.number("parent_offset")) == (True, 1)
    assert (first.has("parent_offset"), first.number("parent_offset")) == (True, -1)
    assert first.has("metadata")
    assert not first.has("pruned_ancestor_tx_logs")


def test_lists_are_present_when_empty() -> None:
    empty = RepoInfo(status=RepoStatus(set_at=0))
    root = read_root(payload(repo_info.encode(empty)), REPO, object_key="repo", file_type="repo")
    for name in ("tags", "branches", "deleted_tags", "snapshots", "metadata", "latest_updates"):
        assert root.has(name), name
    for name in ("repo_before_updates", "config", "enabled_feature_flags", "extra"):
        assert not root.has(name), name
    assert repo_info.decode(repo_info.encode(empty)) == empty


def test_ancestry_runs_from_newest_to_root() -> None:
    repository = small_repository()
    assert [info.message for info in repository.ancestry(TIP_ID)] == ["second", "first"]
    assert [info.message for info in repository.ancestry(ROOT_ID)] == ["first"]
    with raises(NotFoundError, kind="snapshot"):
        repository.ancestry(SnapshotId(b"x" * 12))


def test_a_cycle_of_parents_is_refused() -> None:
    repository = small_repository()
    snapshots = dict(repository.snapshots)
    snapshots[ROOT_ID] = replace(snapshots[ROOT_ID], parent_id=TIP_ID)
    cyclic = repo_info.decode(repo_info.encode(replace(repository, snapshots=snapshots)))
    with raises(FormatError, match="is its own ancestor", field="snapshots.parent_offset"):
        cyclic.ancestry(TIP_ID)


def test_an_unlisted_parent_is_refused() -> None:
    repository = small_repository()
    orphaned = replace(repository, snapshots={TIP_ID: repository.snapshots[TIP_ID]})
    with raises(FormatError, field="snapshots.parent_offset"):
        orphaned.ancestry(TIP_ID)
    with raises(InvalidInputError, match="does not list", allowed="a listed snapshot"):
        repo_info.encode(replace(orphaned, tags={}, branches={}))


def test_the_newest_update_has_no_backup() -> None:
    repository = replace(
        small_repository(),
        latest_updates=(
            Update(details=RepoInitializedUpdate(), updated_at=1, backup_path="repo.1"),
        ),
    )
    with raises(InvalidInputError, found="repo.1"):
        repo_info.encode(repository)


@pytest.mark.parametrize("flags", [(-1,), (2**16,)])
def test_flags_that_do_not_fit_are_refused(flags: tuple[int, ...]) -> None:
    with raises(InvalidInputError, found=list(flags), allowed=(0, 65535)):
        repo_info.encode(replace(small_repository(), enabled_feature_flags=flags))


def test_the_bytes_stay_as_they_are() -> None:
    """Bytes that change need a comparison with the files of the reference first."""
    data = repo_info.encode(small_repository())
    payload = unwrap(data, file_type=FileType.REPO_INFO, object_key="k").payload
    assert hashlib.sha256(payload).hexdigest()[:16] == "e3d3cba3af317a10"


def test_kinds_have_the_numbers_of_the_specification() -> None:
    words = (
        "unknown repo_initialized repo_migrated config_changed metadata_changed tag_created "
        "tag_deleted branch_created branch_deleted branch_reset new_commit commit_amended "
        "new_detached_snapshot gc_ran expiration_ran feature_flag_changed repo_status_changed"
    )
    assert {kind.name.lower(): int(kind) for kind in UpdateKind} == {
        word: number for number, word in enumerate(words.split())
    }
    numbers = {"ONLINE": 0, "READ_ONLY": 1, "OFFLINE": 2}
    assert {one.name: int(one) for one in Availability} == numbers


@pytest.mark.parametrize("count", [3, 40])
def test_the_bytes_of_a_long_log_stay_as_they_are(count: int) -> None:
    """Few entries are written one by one, many in bulk."""
    status = RepoStatus(availability=Availability.OFFLINE, set_at=3, reason="why")
    rare = [
        repo_updates.RepoMigratedUpdate(from_version=1, to_version=2),
        repo_updates.TagDeletedUpdate(name="v", previous_snap_id=TIP_ID),
        repo_updates.BranchCreatedUpdate(name="dev"),
        repo_updates.FeatureFlagChangedUpdate(id=300, new_value=True, is_set=False),
        repo_updates.RepoStatusChangedUpdate(status=status),
        repo_updates.RepoStatusChangedUpdate(status=None),
        RepoInitializedUpdate(),
    ]
    commits = [
        repo_updates.NewCommitUpdate(branch=f"b{n % 3}", new_snap_id=SnapshotId(bytes([n]) * 12))
        for n in range(count)
    ]
    log = [
        Update(details=one, updated_at=1000 - n, backup_path=f"repo.{n}" if n else None)
        for n, one in enumerate(commits + rare)
    ]
    repository = replace(small_repository(), latest_updates=tuple(log))
    data = repo_info.encode(repository)
    assert repo_info.decode(data).latest_updates == tuple(log)
    digest = hashlib.sha256(payload(data)).hexdigest()[:16]
    assert digest == {3: "e3ba604bde37344d", 40: "31f4c9abdf81098a"}[count]


def test_ids_are_a_sequence() -> None:
    ids = [SnapshotId(bytes([n]) * 12) for n in range(4)]
    held = SnapshotIds.of(ids)
    assert SnapshotIds.of(held) is held
    assert (list(held), len(held), held[1], held[-1]) == (ids, 4, ids[1], ids[3])
    assert isinstance(held[1:3], SnapshotIds)
    assert held[1:3] == ids[1:3]
    assert held == tuple(ids)
    assert held != ids[:3]
    assert held != [*ids[:3], ids[0]]
    assert held != 7
    assert (held == 7) is False
    assert hash(held) == hash(SnapshotIds.of(ids))


def test_a_repository_knows_the_logs_that_it_refers_to() -> None:
    pruned = SnapshotId(b"p" * 12)
    assert small_repository().transaction_logs() == {ROOT_ID, TIP_ID, pruned}
    read = repo_info.decode(repo_info.encode(small_repository()))
    assert read.transaction_logs() == {ROOT_ID, TIP_ID, pruned}
    assert read.metadata == {"title": "weather", "list": [1, {"a": None}]}
    assert read.snapshots[TIP_ID].metadata == {"author": "someone", "count": 3}


def test_the_two_faults_of_a_history_are_told_apart() -> None:
    repository = small_repository()
    snapshots = dict(repository.snapshots)
    snapshots[ROOT_ID] = replace(snapshots[ROOT_ID], parent_id=TIP_ID)
    with raises(FormatError, match="is its own ancestor"):
        replace(repository, snapshots=snapshots).ancestry(TIP_ID)
    with raises(FormatError, match="is a parent, but is not listed"):
        replace(repository, snapshots={TIP_ID: snapshots[TIP_ID]}).ancestry(TIP_ID)


def test_a_state_has_nothing_but_its_status_at_first() -> None:
    empty = RepoInfo(status=RepoStatus(set_at=1))
    assert empty.spec_version == 2
    assert (empty.tags, empty.branches, empty.snapshots, empty.metadata) == ({}, {}, {}, {})
    assert (empty.deleted_tags, empty.latest_updates) == ((), ())
    assert empty.repo_before_updates is empty.config is None
    assert empty.enabled_feature_flags is empty.disabled_feature_flags is None
    assert repo_info.decode(repo_info.encode(empty)) == empty
