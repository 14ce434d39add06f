"""Damage to the repo info file is named by its field, and gives typed errors only."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from helpers.damage.files import damaged_files
from helpers.files.repo_infos import TIP_ID, made, small_repository, snapshot_table
from helpers.raised import raises

from icechunk_format.encoding.envelope import FileType, wrap
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import lists
from icechunk_format.encoding.repo_info.lists import REF, UPDATE
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.values.metadata_items import METADATA_ITEM
from icechunk_format.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from icechunk_format.encoding.tables.writer import TableWriter


def test_damaged_metadata_does_not_keep_a_repository_shut() -> None:
    def item(w: TableWriter) -> int:
        return w.offsets(
            [w.table(METADATA_ITEM, name=w.string("a"), value=w.blob(b"\xff\xff\xff"))]
        )

    found = repo_info.decode(made(metadata=item), object_key="overwritten/repo.1")
    assert found.branches == {"main": TIP_ID}
    with pytest.raises(FormatError) as caught:
        found.metadata  # noqa: B018 - reading is what fails
    assert caught.value.facts["object_key"] == "overwritten/repo.1"
    assert "'a'" in caught.value.facts["field"]


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
            {"snapshots": lambda w: w.offsets([snapshot_table(w, message=w.blob(b"\xff"))])},
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
            {"tags": lambda w: w.offsets([w.table(REF, name=w.string("t"), snapshot_index=1)])},
            "tags[0].snapshot_index",
        ),
        ({"tags": lambda w: w.offsets([w.table(REF)])}, "tags[0].name"),
        (
            {"tags": lambda w: w.offsets([w.table(REF, name=w.string("t")) for _ in range(2)])},
            "tags[1].name",
        ),
        ({"tags": lambda w: w.offsets([w.table(REF, name=w.blob(b"\xff"))])}, "tags[0].name"),
        ({"deleted_tags": lambda w: w.offsets([w.blob(b"\xff")])}, "deleted_tags[0]"),
        ({"metadata": lambda w: w.offsets([w.table(METADATA_ITEM)])}, "metadata[0].name"),
        (
            {"metadata": lambda w: w.offsets([w.table(METADATA_ITEM, name=w.string("a"))])},
            "metadata[0].value",
        ),
        ({"repo_before_updates": lambda w: w.string("../repo")}, "repo_before_updates"),
        ({"latest_updates": update_of(0, EMPTY)}, "latest_updates[0].update_type"),
        (
            {"latest_updates": lambda w: w.offsets([w.table(UPDATE, update_type_type=1)])},
            "latest_updates[0].update_type",
        ),
        ({"latest_updates": update_of(5, EMPTY)}, "latest_updates[0].update_type.name"),
        ({"latest_updates": update_of(12, EMPTY)}, "latest_updates[0].update_type.new_snap_id"),
    ],
)
@pytest.mark.parametrize("in_bulk", [False, True])
def test_contradictions_are_named(
    changes: dict[str, Any], field: str, in_bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_bulk:
        monkeypatch.setattr(lists, "MIN_ROWS", 1)
    with raises(FormatError, field=field, object_key="repo", file_type="repo info"):
        repo_info.decode(made(**changes))


def test_other_files_are_refused() -> None:
    data = wrap(b"", file_type=FileType.SNAPSHOT, spec_version=2)
    with raises(FormatError, object_key="repo", field="header.file_type"):
        repo_info.decode(data)


def test_damaged_files_give_typed_errors_only() -> None:
    named: set[object] = set()
    original = repo_info.encode(small_repository())
    outcomes = {"read": 0, "refused": 0}
    for damaged in damaged_files(original, FileType.REPO_INFO, count=1500, seed=20240701):
        try:
            found = repo_info.decode(damaged, object_key="repo.7")
            found.metadata  # noqa: B018 - must not fail otherwise either
            for info in found.snapshots.values():
                info.metadata  # noqa: B018
                found.ancestry(info.id)
            outcomes["read"] += 1
        except (FormatError, UnsupportedError) as error:
            named.add(error.facts["object_key"])
            outcomes["refused"] += 1
    assert outcomes["refused"] > 500
    assert named == {"repo.7"}
    assert outcomes["read"] > 50


def test_a_root_beyond_the_payload_is_refused() -> None:
    data = wrap(struct.pack("<I", 1 << 20) + b"Ichk", file_type=FileType.REPO_INFO, spec_version=2)
    with pytest.raises(FormatError):
        repo_info.decode(data)
