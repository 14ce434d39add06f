"""Metadata tables of versions, refs, operations and changes say what a repository holds.

Repositories are written with this project's own sessions, in memory, so that what each row must
say is known from what was written.
"""

import json
from datetime import UTC, datetime

import pytest
from helpers.builder import new_repository
from helpers.raised import raises
from helpers.spark.inspected_repositories import GROUP, add_array, rows_of

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.tables import resolve_change


def test_history_is_newest_first_and_at_any_version(weather):
    repository, first, second = weather
    rows = rows_of(repository, "history", snapshot_id=second)
    assert [row["message"] for row in rows[:2]] == ["change it", "write it"]
    assert [row["position"] for row in rows] == [0, 1, 2]
    assert rows[0]["parent_id"] == rows[1]["snapshot_id"] == str(first)
    assert rows[2]["parent_id"] is None
    assert json.loads(rows[1]["metadata"])["by"] == "us"
    assert abs((datetime.now(UTC) - rows[0]["committed_at"]).total_seconds()) < 60
    assert rows_of(repository, "history", snapshot_id=first)[0]["message"] == "write it"


def test_snapshots_name_their_refs_and_include_those_off_main(weather):
    repository, first, second = weather
    repository.create_branch("dev", first)
    session = repository.writable_session("dev")
    session.delete("/height")
    third = session.commit("elsewhere").snapshot_id
    rows = rows_of(repository, "snapshots")
    assert [row["snapshot_id"] for row in rows[:3]] == [str(third), str(second), str(first)]
    assert [(row["branches"], row["tags"]) for row in rows] == [
        (["dev"], []),
        (["main"], []),
        ([], ["v1"]),
        ([], []),
    ]
    assert [row["pruned_logs"] for row in rows] == [0] * 4
    if repository.spec_version == 2:
        # Version 2 lists what no ref reaches any more.
        repository.delete_branch("dev")
        assert len(rows_of(repository, "snapshots")) == 4


def test_refs_with_a_deleted_tag(weather):
    repository, first, second = weather
    repository.create_tag("gone", first)
    repository.delete_tag("gone")
    rows = rows_of(repository, "refs")
    assert [(row["name"], row["type"], row["snapshot_id"]) for row in rows] == [
        ("main", "branch", str(second)),
        ("v1", "tag", str(first)),
        ("gone", "deleted tag", None),
    ]
    assert rows[1]["committed_at"] < rows[0]["committed_at"]
    assert rows[2]["committed_at"] is None


def test_freshness_has_the_age_of_each_branch(weather, monkeypatch):
    repository, first, second = weather
    repository.create_branch("dev", first)
    later = repository.snapshot_info(second).flushed_at + 90_500_000
    monkeypatch.setattr("icechunk_format.tables.metadata_tables.history.time", Clock(later))
    rows = rows_of(repository, "freshness")
    assert [(row["branch"], row["snapshot_id"], row["message"]) for row in rows] == [
        ("dev", str(first), "write it"),
        ("main", str(second), "change it"),
    ]
    assert rows[1]["age_seconds"] == 90
    assert rows[0]["age_seconds"] >= 90
    early = Clock(repository.snapshot_info(first).flushed_at - 1)
    monkeypatch.setattr("icechunk_format.tables.metadata_tables.history.time", early)
    assert rows_of(repository, "freshness")[0]["age_seconds"] == 0


class Clock:
    def __init__(self, at):
        self.at = at

    def time_ns(self):
        return self.at * 1000


def test_operations_are_the_log(weather):
    repository, first, second = weather
    rows = rows_of(repository, "operations")
    if repository.spec_version == 1:
        assert rows == []
        return
    assert [row["kind"] for row in rows] == [
        "new_commit",
        "tag_created",
        "new_commit",
        "repo_initialized",
    ]
    assert (rows[0]["branch"], rows[0]["snapshot_id"]) == ("main", str(second))
    assert (rows[1]["tag"], rows[1]["branch"]) == ("v1", None)
    assert json.loads(rows[2]["details"]) == {"branch": "main", "new_snap_id": str(first)}
    assert rows[0]["backup_path"] is None
    assert rows[1]["backup_path"].startswith("repo.")


def test_changes_by_node(weather):
    repository, first, second = weather
    assert resolve_change(repository) == (first, second)
    assert resolve_change(repository, older="v1", newer=str(second)) == (first, second)
    found = rows_of(repository, "changes", older_id=first, snapshot_id=second)
    assert [
        (row["path"], row["node_type"], row["change"], row["chunk_count"]) for row in found
    ] == [
        ("/sea", "group", "updated", None),
        ("/t", "array", "chunks", 1),
    ]


def test_a_move_is_a_change():
    repository = new_repository()
    session = repository.writable_session()
    session.create_group("/", GROUP)
    session.create_group("/a", GROUP)
    add_array(session, "/a/x", (2,), (1,))
    session.commit("before")
    session = repository.writable_session()
    session.move("/a/x", "/y")
    session.commit("after")
    older, newer = resolve_change(repository)
    (row,) = rows_of(repository, "changes", older_id=older, snapshot_id=newer)
    assert (row["path"], row["change"], row["moved_from"]) == ("/y", "moved", "/a/x")
    assert row["node_type"] == "array"


def test_versions_of_changes_that_cannot_be_compared(weather):
    repository, first, second = weather
    with raises(
        NotFoundError, match=r"no branch or tag 'v2' in memory.*v1, main", kind="version", name="v2"
    ):
        resolve_change(repository, newer="v2")
    unknown = str(SnapshotId(bytes(range(12))))
    with raises(NotFoundError, kind="snapshot", name=unknown):
        resolve_change(repository, newer=unknown)
    root = rows_of(repository, "history", snapshot_id=first)[-1]["snapshot_id"]
    with pytest.raises(InvalidInputError, match="first of its history"):
        resolve_change(repository, newer=root)
    repository.create_branch("v1", second)
    with raises(InvalidInputError, name="v1"):
        resolve_change(repository, older="v1")
    with raises(InvalidInputError, older=...):
        rows_of(repository, "changes", older_id=second, snapshot_id=first)


def test_a_version_without_nodes_has_no_rows():
    repository = new_repository()
    root = repository.resolve()
    for name in ("groups", "variables", "manifests", "chunks"):
        assert rows_of(repository, name, snapshot_id=root) == []
    assert len(rows_of(repository, "snapshots")) == 1


def test_a_group_that_is_not_there(weather):
    repository, _, second = weather
    with raises(NotFoundError, match="no group", kind="node", name="/see") as raised:
        rows_of(repository, "chunks", snapshot_id=second, group="/see")
    assert raised.value.facts["name"] == "/see"
    assert raised.value.facts["existing"][0] == "/sea"
    with raises(InvalidInputError, table="snapshots"):
        rows_of(repository, "snapshots", group="/sea")


@pytest.mark.parametrize("table", METADATA_TABLES.values(), ids=lambda table: table.name)
def test_every_column_is_documented(table):
    assert len(set(table.names)) == len(table.names)
    for column in table.columns:
        assert column.about.endswith("."), column.name
        assert column.about[0].isupper() or column.about[0] == "`", column.name
