"""Repo info files that other and newer libraries wrote differently stay readable.

Whatever a newer library put into the log stays within reach when the file is written again.
"""

from __future__ import annotations

from helpers.files.repo_infos import ROOT_ID, TIP_ID, made, snapshot_table
from helpers.raised import raises

from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import updates as repo_updates
from icechunk_format.encoding.repo_info.lists import REF, UPDATE
from icechunk_format.encoding.repo_info.stored_snapshots import SNAPSHOT_INFO
from icechunk_format.encoding.repo_info.updates import (
    REPO_STATUS,
    UnknownUpdate,
    Update,
    UpdateKind,
)
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.encoding.values.metadata_items import METADATA_ITEM
from icechunk_format.errors import InvalidInputError, UnsupportedError


def test_an_absent_parent_offset_is_index_zero() -> None:
    data = made(
        snapshots=lambda w: w.offsets(
            [
                snapshot_table(w),
                w.table(SNAPSHOT_INFO, id=ROOT_ID.raw, message=w.string("child")),
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
            [w.table(REF, name=w.string(n), snapshot_index=1) for n in ("b", "a")]
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
            [w.table(METADATA_ITEM, name=w.string("a"), value=w.blob(b"\x93\x01\x02\x03"))]
        )

    found = repo_info.decode(made(header_version=1, metadata=item))
    assert found.metadata == {"a": [1, 2, 3]}
    again = repo_info.decode(repo_info.encode(found))
    assert again.metadata == {"a": [1, 2, 3]}
    assert again.metadata_items.spec_version == 2


UNKNOWN_DETAILS = TableSchema("FutureUpdate", number="u64", text="offset")


def future_update(w: TableWriter, *, backup: str | None) -> int:
    return w.table(
        UPDATE,
        update_type_type=17,
        update_type=w.table(UNKNOWN_DETAILS, number=5, text=w.string("x")),
        updated_at=9,
        backup_path=w.string(backup) if backup else None,
    )


def known_update(w: TableWriter, at: int, backup: str | None) -> int:
    schema = TableSchema("RepoInitializedUpdate")
    return w.table(
        UPDATE,
        update_type_type=1,
        update_type=w.table(schema),
        updated_at=at,
        backup_path=w.string(backup) if backup else None,
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
    with raises(UnsupportedError, found="UnknownUpdate(number=17)"):
        repo_info.encode(repo_info.decode(data))


def test_what_is_newer_asks_for_an_upgrade() -> None:
    with raises(UnsupportedError, object_key="repo", found=3, allowed=(1, 2)):
        repo_info.decode(made(spec_version=3))
    with raises(
        UnsupportedError,
        match=r"availability 3.*upgrade",
        object_key="repo",
        found=3,
        allowed=(0, 1, 2),
    ):
        repo_info.decode(made(status=lambda w: w.table(REPO_STATUS, availability=3)))


def test_an_unknown_update_has_no_encoding() -> None:
    update = Update(details=UnknownUpdate(number=17), updated_at=1)
    with raises(InvalidInputError, found="UnknownUpdate(number=17)"):
        repo_updates.write_update(TableWriter(), update)
