"""Verification with Spark gives the rows of verification without Spark.

One repository with many damages at once is verified in both ways, so that findings of every stage
of the job are compared at the price of few jobs; a sound one shows that the stages add up.
Spark Connect is in ``tests/spark/test_spark_connect.py``.
"""

from __future__ import annotations

import logging

import pytest
from helpers.damage.repository import LINES, REMOTE, SMALL, Damaged, build_sound
from helpers.sessions.model import Model, OurDriver, RandomChanges

from icechunk_format import maintenance
from icechunk_format.errors import InvalidInputError, NotFoundError, StorageError
from icechunk_format.repository import Repository
from icechunk_spark.maintenance import verify
from icechunk_spark.maintenance.verify import _counted


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "repository"
    build_sound(path)
    return path


def rows(found):
    return [row.asDict() for row in found.collect()]


def prefixes(path):
    return [c.url_prefix for c in Repository.open(str(path)).config.virtual_chunk_containers]


def test_a_sound_repository(spark, sound, caplog):
    caplog.set_level(logging.INFO, logger="icechunk_spark")
    found = verify(spark, str(sound))
    begun, done = (record.getMessage() for record in caplog.records)
    assert done.startswith(f"{begun}: done, ")
    manifests = list(Repository.open(str(sound)).storage.list("manifests/"))
    # One listing of each first character; each manifest and snapshot is read once.
    assert int(done.split()[-6 if "hit" in done else -5].replace(",", "")) > len(manifests)
    assert rows(found) == maintenance.verify(str(sound)).to_pylist()
    assert {row.severity for row in found.collect()} == {"info"}


def test_many_damages_deep_and_authorized(spark, sound, tmp_path):
    copy = Damaged(sound, tmp_path / "repository")
    copy.file("chunks/notes.txt").write_bytes(b"hello")
    for prefix in ("chunks", "manifests", "snapshots"):
        copy.file(f"{prefix}/{'0' * 20}").write_bytes(b"123")
    copy.file(copy.chunk_key(LINES, 0)).unlink()
    copy.truncate(copy.chunk_key(LINES, 1), 3)
    copy.flip(copy.chunk_key(LINES, 2), 500)
    copy.file(copy.manifest_key(SMALL)).unlink()
    copy.truncate(f"transactions/{copy.tip}", 50)
    name = sorted(file.name for file in copy.file("overwritten").iterdir())[0]
    copy.truncate(f"overwritten/{name}", 120)
    copy.edit_array(REMOTE, shape=(5, 1024))
    authorized = prefixes(copy.path)
    expected = maintenance.verify(str(copy.path), deep=True, authorized=authorized).to_pylist()
    assert {row["kind"] for row in expected} >= {
        "chunk-missing", "chunk-too-short", "chunk-undecodable", "manifest-missing",
        "log-damaged", "backup-damaged", "array-shape-mismatch", "unreferenced", "foreign-objects",
    }  # fmt: skip
    found = verify(spark, str(copy.path), deep=True, **{"virtual.authorize": ",".join(authorized)})
    assert rows(found) == expected
    bounded = rows(verify(spark, str(copy.path), max_findings=2, branch="main"))
    assert len(bounded) == 3
    assert bounded[-1]["kind"] == "left-out"


def test_a_long_history_of_version_1(spark, tmp_path):
    path = tmp_path / "v1"
    repository = Repository.create(str(path), spec_version=1)
    changes = RandomChanges(Model(), 9)
    for number in range(12):
        session = repository.writable_session("main")
        changes.session(OurDriver(session), 6)
        if session.has_changes:
            session.commit(f"commit {number}")
    victims = sorted((path / "chunks").iterdir())[::3]
    for victim in victims:
        victim.unlink()
    found = rows(verify(spark, str(path)))
    assert found == maintenance.verify(str(path)).to_pylist()
    assert {row["object_key"] for row in found if row["kind"] == "chunk-missing"} <= {
        f"chunks/{victim.name}" for victim in victims
    }


def test_mistakes(spark, sound, tmp_path):
    with pytest.raises(NotFoundError):
        verify(spark, str(tmp_path / "nothing"))
    with pytest.raises(NotFoundError):
        verify(spark, str(sound), tag="nope")
    with pytest.raises(InvalidInputError):
        verify(spark, str(sound), layout="cells")


def test_an_error_of_a_counted_task_is_on_one_line():
    def step(batches):
        yield from batches
        raise StorageError("no answer\nfrom the server")

    with pytest.raises(StorageError) as caught:
        list(_counted(step)(iter(())))
    assert caught.value.message == "no answer; from the server"
