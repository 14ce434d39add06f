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
    """A change of this digest changes what other clients read: compare it with theirs first."""
    data = repo_info.encode(small_repository())
    payload = unwrap(data, file_type=FileType.REPO_INFO, object_key="k").payload
    assert hashlib.sha256(payload).hexdigest()[:16] == "e3d3cba3af317a10"
