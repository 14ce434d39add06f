"""Verification finds every damage that is planted, names it, and finds nothing in what is sound.

Each damage changes one thing in a sound repository. The kinds of errors and warnings must be
exactly those that the damage leads to, so that nobody is sent after what is not broken.
"""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest
from helpers.damage.files import damaged_files
from helpers.damage.planted import DAMAGES
from helpers.damage.repository import LINES, Damaged, build_sound
from helpers.sessions.model import Model, OurDriver, RandomChanges

from icechunk_format.encoding.envelope import FileType
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.maintenance import verify
from icechunk_format.maintenance.verifying.finding_kinds import KINDS
from icechunk_format.maintenance.verifying.findings import (
    FINDINGS_SCHEMA,
    REPORT_SCHEMA,
    Finding,
    Report,
)
from icechunk_format.repository import Repository


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "repository"
    build_sound(path)
    return path


@pytest.fixture
def damaged(sound, tmp_path):
    return Damaged(sound, tmp_path / "repository")


def kinds(table, *severities):
    return {row["kind"] for row in table.to_pylist() if row["severity"] in severities}


def rows_of(table, kind):
    return [row for row in table.to_pylist() if row["kind"] == kind]


def authorized_of(path):
    containers = Repository.open(str(path)).config.virtual_chunk_containers
    return [container.url_prefix for container in containers]


def test_a_sound_repository(sound):
    shallow = verify(str(sound))
    assert shallow.schema == FINDINGS_SCHEMA
    assert kinds(shallow, "info", "warning", "error") == {"verified", "virtual-unchecked"}
    (seen,) = rows_of(shallow, "verified")
    assert "4 snapshots" in seen["problem"]
    assert "18 native references" in seen["problem"]
    deep = verify(str(sound), deep=True, authorized=authorized_of(sound))
    assert kinds(deep, "info", "warning", "error") == {"verified"}
    # Two manifests of one array share seven chunks, each decoded for each of them.
    assert "24 chunks decoded" in rows_of(deep, "verified")[0]["problem"]


@pytest.mark.parametrize("planted", DAMAGES, ids=lambda d: d.name)
def test_planted_damage(planted, sound, tmp_path):
    copy = Damaged(sound, tmp_path / "repository")
    authorized = authorized_of(copy.path) if planted.authorized else ()
    planted.apply(copy)
    table = verify(str(copy.path), deep=planted.deep, authorized=authorized)
    assert kinds(table, "error", "warning") == planted.kinds
    for row in table.to_pylist():
        assert row["problem"]
        assert row["advice"]


def test_there_are_many_kinds_of_damage():
    assert len({kind for planted in DAMAGES for kind in planted.kinds}) >= 40
    untested = set(KINDS) - {kind for planted in DAMAGES for kind in planted.kinds}
    assert {kind for kind in untested if KINDS[kind].severity != "info"} == {"ref-damaged"}


def test_where_a_damage_is(damaged):
    damaged.file(damaged.chunk_key(LINES, 2)).unlink()
    (row,) = rows_of(verify(str(damaged.path)), "chunk-missing")
    # Both manifests of the array refer to it; the newest version names it.
    assert row["object_key"] == damaged.chunk_key(LINES, 2)
    assert row["snapshot_id"] == str(damaged.tip)
    assert row["node_path"] == LINES
    assert row["chunk"] == [1, 0]


def test_one_version_alone(damaged):
    damaged.file(damaged.chunk_key(LINES, 7)).unlink()
    assert rows_of(verify(str(damaged.path), branch="main"), "chunk-missing")
    for chosen in ({"tag": "v1"}, {"branch": "side"}, {"snapshot": str(damaged.first)}):
        table = verify(str(damaged.path), **chosen)
        assert kinds(table, "error", "warning") == set()
        assert "1 snapshots" in rows_of(table, "verified")[0]["problem"]


def test_what_nobody_refers_to_is_counted(damaged):
    for prefix, name in (("chunks", "0" * 20), ("manifests", "0" * 20), ("snapshots", "0" * 20)):
        damaged.file(f"{prefix}/{name}").write_bytes(b"123")
    damaged.file("chunks/notes.txt").write_bytes(b"hello")
    damaged.file("overwritten/repo.1.x").write_bytes(b"")
    table = verify(str(damaged.path))
    assert kinds(table, "error", "warning") == set()
    found = {row["object_key"]: row["problem"] for row in rows_of(table, "unreferenced")}
    assert set(found) == {"chunks/", "manifests/", "snapshots/", "overwritten/"}
    assert "1 objects of 3 bytes" in found["chunks/"]
    assert [row["object_key"] for row in rows_of(table, "foreign-objects")] == ["chunks/"]
    damaged.file(damaged.manifest_key(LINES)).unlink()
    for row in rows_of(verify(str(damaged.path)), "unreferenced"):
        assert "repair the files before a garbage collection" in row["problem"]


def test_all_damages_at_once_are_all_found(sound, tmp_path):
    copy = Damaged(sound, tmp_path / "repository")
    copy.file(copy.chunk_key(LINES, 0)).unlink()
    copy.truncate(copy.chunk_key(LINES, 1), 3)
    copy.file(copy.manifest_key("/small")).unlink()
    copy.truncate(f"transactions/{copy.tip}", 50)
    copy.edit_repo(lambda info: info.__class__(**{**fields_of(info), "config": b"\xff"}))
    table = verify(str(copy.path), deep=True)
    assert kinds(table, "error") >= {
        "chunk-missing", "chunk-too-short", "manifest-missing", "log-damaged", "config-damaged"
    }  # fmt: skip


def fields_of(value):
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def test_findings_are_bounded(damaged):
    for row in range(8):
        damaged.file(damaged.chunk_key(LINES, row)).unlink()
    table = verify(str(damaged.path), max_findings=3)
    assert table.num_rows == 4
    assert [row["kind"] for row in table.to_pylist()] == [*["chunk-missing"] * 3, "left-out"]
    problem = table.to_pylist()[-1]["problem"]
    assert "chunk-missing" in problem
    with pytest.raises(InvalidInputError, match="max_findings"):
        verify(str(damaged.path), max_findings=0)


def test_only_a_missing_repository_or_version_raises(damaged, tmp_path):
    with pytest.raises(NotFoundError):
        verify(str(tmp_path / "nothing"))
    with pytest.raises(NotFoundError):
        verify(str(damaged.path), branch="nope")
    with pytest.raises(InvalidInputError):
        verify(str(damaged.path), branch="main", tag="v1")
    with pytest.raises(InvalidInputError):
        verify(str(damaged.path), authorized=["s3://"])


@pytest.mark.parametrize(
    ("file_type", "key"),
    [
        (FileType.REPO_INFO, lambda d: "repo"),
        (FileType.SNAPSHOT, lambda d: f"snapshots/{d.tip}"),
        (FileType.TRANSACTION_LOG, lambda d: f"transactions/{d.first}"),
        (FileType.MANIFEST, lambda d: d.manifest_key(LINES)),
        (FileType.MANIFEST, lambda d: d.manifest_key("/remote")),
    ],
    ids=["repo", "snapshot", "log", "native", "virtual"],
)
def test_damage_of_any_kind_never_raises(damaged, file_type, key):
    file = damaged.file(key(damaged))
    for number, data in enumerate(damaged_files(file.read_bytes(), file_type, count=16, seed=11)):
        file.write_bytes(data)
        verify(str(damaged.path), deep=number % 3 == 0)


def test_version_1(tmp_path):
    path = tmp_path / "v1"
    repository = Repository.create(str(path), spec_version=1)
    session = repository.writable_session("main")
    OurDriver(session)
    RandomChanges(Model(), 3).session(OurDriver(session), 10)
    session.commit("first")
    repository.create_tag("t", repository.branches()["main"])
    assert kinds(verify(str(path)), "error", "warning") == set()
    (path / "refs/tag.t/ref.json").write_bytes(b"{}")
    assert kinds(verify(str(path)), "error", "warning") == {"ref-damaged"}
    assert kinds(verify(str(path), branch="main"), "error", "warning") == set()
    assert kinds(verify(str(path), tag="t"), "error", "warning") == {"ref-damaged"}
    tip = repository.branches()["main"]
    (path / f"snapshots/{tip}").write_bytes(b"no snapshot")
    assert kinds(verify(str(path)), "error", "warning") == {"ref-damaged", "snapshot-damaged"}


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_of_ours_are_sound(tmp_path, seed):
    path = tmp_path / "random"
    repository = Repository.create(str(path), spec_version=1 + seed % 2)
    changes = RandomChanges(Model(), seed)
    for number in range(6):
        session = repository.writable_session("main")
        if number == 4 and seed % 2:
            changes.move(OurDriver(session))
        else:
            changes.session(OurDriver(session), 8)
        if session.has_changes:
            session.commit(f"commit {number}")
    assert kinds(verify(str(path)), "error", "warning") == set()


def test_reports_travel_and_add_up():
    first, second = Report(2), Report(2)
    for rank, report in ((5, first), (1, second)):
        report.add(
            "chunk-missing", "gone", object_key="chunks/A", snapshot_id=f"s{rank}", rank=rank
        )
        report.count("snapshots", 2, 10)
    second.add_many(
        "log-missing", 5, lambda i: Finding(kind="log-missing", problem=str(i), chunk=(i, 2))
    )
    batch = second.to_batch()
    assert batch.schema == REPORT_SCHEMA
    first.absorb(batch.to_pylist())
    (newest,) = [row for row in first.findings() if row.kind == "chunk-missing"]
    assert newest.snapshot_id == "s1"
    assert first.totals == Counter(snapshots=4)
    assert first.total_bytes["snapshots"] == 20
    assert first.left_out == Counter({"log-missing": 3})
    assert [row.chunk for row in first.findings()[1:]] == [(0, 2), (1, 2)]


def test_a_copied_repository_needs_nothing_else(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "copy")
    assert verify(str(tmp_path / "copy")).num_rows == 2
    assert np.all([KINDS[k].advice for k in KINDS])
