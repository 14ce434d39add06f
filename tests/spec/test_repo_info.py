"""The repo info file: what is written is read back, damage is named, history stays readable."""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace
from typing import Any

import pytest
from file_damage import damaged_files
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from icechunk_format.spec import repo_info, repo_updates
from icechunk_format.spec.envelope import FileType, unwrap, wrap
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.metadata_items import METADATA_ITEM, MetadataItems
from icechunk_format.spec.repo_info import REF, REPO, SNAPSHOT_INFO, RepoInfo, SnapshotInfo
from icechunk_format.spec.repo_updates import (
    REPO_STATUS,
    UPDATE,
    Availability,
    NewCommitUpdate,
    RepoInitializedUpdate,
    RepoStatus,
    RepoStatusChangedUpdate,
    UnknownUpdate,
    Update,
    UpdateKind,
)
from icechunk_format.spec.table_schema import TableSchema
from icechunk_format.spec.table_writer import TableWriter
from icechunk_format.spec.tables import read_root

ROOT_ID = SnapshotId(b"r" * 12)
TIP_ID = SnapshotId(b"a" * 12)

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
        "text": texts,
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


def small_repository() -> RepoInfo:
    """Two snapshots, all lists filled; the root sorts after the tip."""
    return RepoInfo(
        tags={"v1": ROOT_ID},
        branches={"main": TIP_ID, "other": ROOT_ID},
        deleted_tags=("v0",),
        snapshots={
            TIP_ID: SnapshotInfo(
                id=TIP_ID,
                parent_id=ROOT_ID,
                flushed_at=1_700_000_000_000_001,
                message="second",
                metadata_items=MetadataItems.of({"author": "someone", "count": 3}),
                pruned_ancestor_tx_logs=(SnapshotId(b"p" * 12),),
            ),
            ROOT_ID: SnapshotInfo(
                id=ROOT_ID, parent_id=None, flushed_at=1_700_000_000_000_000, message="first"
            ),
        },
        status=RepoStatus(
            availability=Availability.READ_ONLY, set_at=5, reason="moving to another region"
        ),
        latest_updates=(
            Update(details=NewCommitUpdate(branch="main", new_snap_id=TIP_ID), updated_at=3),
            Update(
                details=RepoStatusChangedUpdate(status=RepoStatus(set_at=2)),
                updated_at=2,
                backup_path="repo.2",
            ),
            Update(details=RepoInitializedUpdate(), updated_at=1, backup_path="repo.1"),
        ),
        repo_before_updates="repo.0",
        metadata_items=MetadataItems.of({"title": "weather", "list": [1, {"a": None}]}),
        config=b"\x00\x01\x02",
        enabled_feature_flags=(3,),
        disabled_feature_flags=(),
    )


@given(repositories())
@settings(max_examples=150, deadline=None)
def test_what_was_written_is_read(repository: RepoInfo) -> None:
    data = repo_info.encode(repository, level=1)
    found = repo_info.decode(data)
    assert found == repository
    assert repo_info.encode(found, level=1) == data
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
    with pytest.raises(NotFoundError, match="among the 2 snapshots"):
        repository.ancestry(SnapshotId(b"x" * 12))


def test_a_cycle_of_parents_is_refused() -> None:
    repository = small_repository()
    snapshots = dict(repository.snapshots)
    snapshots[ROOT_ID] = replace(snapshots[ROOT_ID], parent_id=TIP_ID)
    cyclic = repo_info.decode(repo_info.encode(replace(repository, snapshots=snapshots)))
    with pytest.raises(FormatError, match="its own ancestor"):
        cyclic.ancestry(TIP_ID)


def test_an_unlisted_parent_is_refused() -> None:
    repository = small_repository()
    orphaned = replace(repository, snapshots={TIP_ID: repository.snapshots[TIP_ID]})
    with pytest.raises(FormatError, match="not listed"):
        orphaned.ancestry(TIP_ID)
    with pytest.raises(InvalidInputError, match="not listed"):
        repo_info.encode(replace(orphaned, tags={}, branches={}))


# -- files made by hand --------------------------------------------------------------------------


def made(*, header_version: int = 2, **changes: Any) -> bytes:
    """Write a repository table by table; ``changes`` are fields, or functions of the writer."""
    writer = TableWriter()
    fields: dict[str, Any] = {
        "spec_version": 2,
        "tags": writer.offsets([]),
        "branches": writer.offsets([writer.table(REF, name=writer.text("main"))]),
        "deleted_tags": writer.offsets([]),
        "snapshots": lambda w: w.offsets([snapshot_table(w)]),
        "status": writer.table(REPO_STATUS, set_at=1),
        "latest_updates": writer.offsets([]),
    }
    fields |= changes
    resolved = {name: v(writer) if callable(v) else v for name, v in fields.items()}
    root = writer.table(REPO, **resolved)
    return wrap(
        writer.finish(root), file_type=FileType.REPO_INFO, spec_version=header_version, level=1
    )


def snapshot_table(w: TableWriter, **changes: Any) -> int:
    fields: dict[str, Any] = {"id": TIP_ID.raw, "parent_offset": -1, "message": w.text("m")}
    return w.table(SNAPSHOT_INFO, **(fields | changes))


def test_an_absent_parent_offset_is_index_zero() -> None:
    data = made(
        snapshots=lambda w: w.offsets(
            [
                snapshot_table(w),
                w.table(SNAPSHOT_INFO, id=ROOT_ID.raw, message=w.text("child")),
            ]
        )
    )
    assert repo_info.decode(data).snapshots[ROOT_ID].parent_id == TIP_ID


def test_unsorted_lists_are_sorted() -> None:
    data = made(
        snapshots=lambda w: w.offsets(
            [snapshot_table(w, id=ROOT_ID.raw), snapshot_table(w, parent_offset=0)]
        ),
        tags=lambda w: w.offsets(
            [w.table(REF, name=w.text(n), snapshot_index=1) for n in ("b", "a")]
        ),
    )
    found = repo_info.decode(data)
    assert list(found.snapshots) == [TIP_ID, ROOT_ID]
    assert found.snapshots[TIP_ID].parent_id == ROOT_ID
    assert list(found.tags.items()) == [("a", TIP_ID), ("b", TIP_ID)]
    assert found.branches == {"main": ROOT_ID}


def test_the_header_decides_the_encoding_of_metadata() -> None:
    def item(w: TableWriter) -> int:
        return w.offsets(
            [w.table(METADATA_ITEM, name=w.text("a"), value=w.blob(b"\x93\x01\x02\x03"))]
        )

    found = repo_info.decode(made(header_version=1, metadata=item))
    assert found.metadata == {"a": [1, 2, 3]}
    again = repo_info.decode(repo_info.encode(found))
    assert again.metadata == {"a": [1, 2, 3]}
    assert again.metadata_items.spec_version == 2


def test_damaged_metadata_does_not_keep_a_repository_shut() -> None:
    def item(w: TableWriter) -> int:
        return w.offsets([w.table(METADATA_ITEM, name=w.text("a"), value=w.blob(b"\xff\xff\xff"))])

    found = repo_info.decode(made(metadata=item), object_key="overwritten/repo.1")
    assert found.branches == {"main": TIP_ID}
    with pytest.raises(FormatError) as caught:
        found.metadata  # noqa: B018 - reading is what fails
    assert caught.value.facts["object_key"] == "overwritten/repo.1"
    assert "'a'" in caught.value.facts["field"]


UNKNOWN_DETAILS = TableSchema("FutureUpdate", number="u64", text="offset")


def future_update(w: TableWriter, *, backup: str | None) -> int:
    return w.table(
        UPDATE,
        update_type_type=17,
        update_type=w.table(UNKNOWN_DETAILS, number=5, text=w.text("x")),
        updated_at=9,
        backup_path=w.text(backup) if backup else None,
    )


def known_update(w: TableWriter, at: int, backup: str | None) -> int:
    schema = TableSchema("RepoInitializedUpdate")
    return w.table(
        UPDATE,
        update_type_type=1,
        update_type=w.table(schema),
        updated_at=at,
        backup_path=w.text(backup) if backup else None,
    )


def test_updates_of_newer_libraries_stay_readable_and_reachable() -> None:
    data = made(
        latest_updates=lambda w: w.offsets(
            [
                known_update(w, 10, None),
                future_update(w, backup="repo.9"),
                known_update(w, 8, "repo.8"),
            ]
        )
    )
    found = repo_info.decode(data)
    assert [u.kind for u in found.latest_updates] == [
        UpdateKind.REPO_INITIALIZED,
        UpdateKind.UNKNOWN,
        UpdateKind.REPO_INITIALIZED,
    ]
    assert found.latest_updates[1].details == UnknownUpdate(number=17)
    # Written again, the log continues in the backup that still has the entry.
    again = repo_info.decode(repo_info.encode(found))
    assert [u.updated_at for u in again.latest_updates] == [10]
    assert again.repo_before_updates == "repo.9"


def test_an_unknown_update_without_a_backup_is_never_lost() -> None:
    data = made(latest_updates=lambda w: w.offsets([future_update(w, backup=None)]))
    with pytest.raises(UnsupportedError, match="upgrade"):
        repo_info.encode(repo_info.decode(data))


def test_the_newest_update_has_no_backup() -> None:
    repository = replace(
        small_repository(),
        latest_updates=(
            Update(details=RepoInitializedUpdate(), updated_at=1, backup_path="repo.1"),
        ),
    )
    with pytest.raises(InvalidInputError, match="newest log entry"):
        repo_info.encode(repository)


def update_of(kind: int, schema: TableSchema, **fields: Any) -> Any:
    return lambda w: w.offsets(
        [w.table(UPDATE, update_type_type=kind, update_type=w.table(schema, **fields))]
    )


EMPTY = TableSchema("Empty")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tags": None}, "tags"),
        ({"branches": None}, "branches"),
        ({"deleted_tags": None}, "deleted_tags"),
        ({"snapshots": None}, "snapshots"),
        ({"status": None}, "status"),
        ({"latest_updates": None}, "latest_updates"),
        ({"spec_version": 0}, "spec_version"),
        ({"snapshots": lambda w: w.offsets([])}, "branches[0].snapshot_index"),
        ({"snapshots": lambda w: w.offsets([snapshot_table(w, id=None)])}, "snapshots[0].id"),
        (
            {"snapshots": lambda w: w.offsets([snapshot_table(w, message=None)])},
            "snapshots[0].message",
        ),
        (
            {"snapshots": lambda w: w.offsets([snapshot_table(w, parent_offset=1)])},
            "snapshots[0].parent_offset",
        ),
        (
            {"snapshots": lambda w: w.offsets([snapshot_table(w, parent_offset=-2)])},
            "snapshots[0].parent_offset",
        ),
        ({"snapshots": lambda w: w.offsets([snapshot_table(w)] * 2)}, "snapshots"),
        (
            {"tags": lambda w: w.offsets([w.table(REF, name=w.text("t"), snapshot_index=1)])},
            "tags[0].snapshot_index",
        ),
        ({"tags": lambda w: w.offsets([w.table(REF)])}, "tags[0].name"),
        (
            {"tags": lambda w: w.offsets([w.table(REF, name=w.text("t")) for _ in range(2)])},
            "tags[1].name",
        ),
        ({"tags": lambda w: w.offsets([w.table(REF, name=w.blob(b"\xff"))])}, "tags[0].name"),
        ({"deleted_tags": lambda w: w.offsets([w.blob(b"\xff")])}, "deleted_tags[0]"),
        ({"metadata": lambda w: w.offsets([w.table(METADATA_ITEM)])}, "metadata[0].name"),
        (
            {"metadata": lambda w: w.offsets([w.table(METADATA_ITEM, name=w.text("a"))])},
            "metadata[0].value",
        ),
        ({"repo_before_updates": lambda w: w.text("../repo")}, "repo_before_updates"),
        ({"latest_updates": update_of(0, EMPTY)}, "latest_updates[0].update_type"),
        (
            {"latest_updates": lambda w: w.offsets([w.table(UPDATE, update_type_type=1)])},
            "latest_updates[0].update_type",
        ),
        ({"latest_updates": update_of(5, EMPTY)}, "latest_updates[0].update_type.name"),
        ({"latest_updates": update_of(12, EMPTY)}, "latest_updates[0].update_type.new_snap_id"),
    ],
)
def test_contradictions_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError) as caught:
        repo_info.decode(made(**changes))
    assert caught.value.facts["field"] == field
    assert caught.value.facts["object_key"] == "repo"
    assert caught.value.facts["file_type"] == "repo info"


def test_what_is_newer_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedError, match=r"spec version 3.*upgrade"):
        repo_info.decode(made(spec_version=3))
    with pytest.raises(UnsupportedError, match=r"availability 3.*upgrade"):
        repo_info.decode(made(status=lambda w: w.table(REPO_STATUS, availability=3)))


def test_other_files_are_refused() -> None:
    data = wrap(b"", file_type=FileType.SNAPSHOT, spec_version=2)
    with pytest.raises(FormatError, match="repo info"):
        repo_info.decode(data)


def test_an_unknown_update_has_no_encoding() -> None:
    update = Update(details=UnknownUpdate(number=17), updated_at=1)
    with pytest.raises(InvalidInputError, match="does not know"):
        repo_updates.write_update(TableWriter(), update)


@pytest.mark.parametrize("flags", [(-1,), (2**16,)])
def test_flags_that_do_not_fit_are_refused(flags: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match="65535"):
        repo_info.encode(replace(small_repository(), enabled_feature_flags=flags))


def test_damaged_files_give_typed_errors_only() -> None:
    original = repo_info.encode(small_repository())
    outcomes = {"read": 0, "refused": 0}
    for damaged in damaged_files(original, FileType.REPO_INFO, count=1500, seed=20240701):
        try:
            found = repo_info.decode(damaged)
            found.metadata  # noqa: B018 - must not fail otherwise either
            for info in found.snapshots.values():
                info.metadata  # noqa: B018
                found.ancestry(info.id)
            outcomes["read"] += 1
        except (FormatError, UnsupportedError):
            outcomes["refused"] += 1
    assert outcomes["refused"] > 500
    assert outcomes["read"] > 50


def test_a_root_beyond_the_payload_is_refused() -> None:
    data = wrap(struct.pack("<I", 1 << 20) + b"Ichk", file_type=FileType.REPO_INFO, spec_version=2)
    with pytest.raises(FormatError):
        repo_info.decode(data)
