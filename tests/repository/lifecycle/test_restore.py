"""Restoring commits an earlier version again, and its log lists exactly the changes.

Random histories are restored to random versions: contents are those of the old version, and the
difference from the tip is what a comparison of both contents finds.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
from helpers.builder import add_array, commit_to, new_repository
from helpers.raised import raises
from helpers.sessions.model import Model, OurDriver, RandomChanges, array_document, stored_contents

from icechunk_format.encoding.manifest.chunk_refs import virtual_refs
from icechunk_format.encoding.repo_info.updates import Availability, GCRanUpdate
from icechunk_format.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
)
from icechunk_format.maintenance import verify
from icechunk_format.repository.lifecycle import difference, restore
from icechunk_format.repository.state.publish import update_repo
from icechunk_format.repository.state.transitions import Transition


def with_array(repository, shape=(10,)):
    session = repository.writable_session()
    add_array(session, "/a", shape)
    session.set_chunks("/a", [[i] for i in range(shape[0])], [b"\x01"] * shape[0])
    return session.commit("array").snapshot_id


def changed_keys(before, after):
    """Return the chunks that differ between two contents, of arrays that both have."""
    found = set()
    for key in before.keys() | after.keys():
        path, mark, place = key.rpartition("/c/") if "/c/" in key else key.rpartition("/c")
        if mark and before.get(key) != after.get(key):
            coords = tuple(int(i) for i in place.split("/")) if place else ()
            found.add((f"/{path}", coords))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_are_restored_and_the_difference_is_the_truth(seed):
    chooser = random.Random(seed)
    repository = new_repository(1 + seed % 2)
    changes = RandomChanges(Model(), seed)
    kept = []
    for number in range(5):
        session = repository.writable_session()
        changes.session(OurDriver(session), 8)
        done = session.commit(f"{number}", allow_empty=True)
        kept.append((done.snapshot_id, changes.model.copy()))
        if repository.spec_version == 2:
            session = repository.writable_session()
            if changes.move(OurDriver(session)):
                done = session.commit("move")
                kept.append((done.snapshot_id, changes.model.copy()))
    for _ in range(4):
        tip = repository.resolve()
        old_id, model = chooser.choice(kept[:-1])
        before = stored_contents(repository, tip)
        if before == model.keys():
            continue
        done = repository.restore("main", old_id)
        assert done.parent_id == tip
        after = stored_contents(repository, done.snapshot_id)
        assert after == model.keys()
        difference = repository.diff(tip, done.snapshot_id)
        was = {n.id: n for n in repository.snapshot(tip).nodes}
        now = {n.id: n for n in repository.snapshot(done.snapshot_id).nodes}
        paths = lambda ids, nodes, arrays: sorted(  # noqa: E731
            nodes[i].path for i in ids if (nodes[i].array is not None) == arrays
        )
        assert list(difference.new_arrays) == paths(now.keys() - was.keys(), now, True)
        assert list(difference.new_groups) == paths(now.keys() - was.keys(), now, False)
        assert list(difference.deleted_arrays) == paths(was.keys() - now.keys(), was, True)
        assert list(difference.deleted_groups) == paths(was.keys() - now.keys(), was, False)
        both = was.keys() & now.keys()
        updated = [i for i in both if was[i].user_data != now[i].user_data]
        assert list(difference.updated_arrays) == paths(updated, now, True)
        assert list(difference.updated_groups) == paths(updated, now, False)
        moved = {(was[i].path, now[i].path) for i in both if was[i].path != now[i].path}
        assert {(move.from_path, move.to_path) for move in difference.moved_nodes} == moved
        logged = {
            (path, tuple(place))
            for path, coords in difference.updated_chunks.items()
            for place in coords.tolist()
        }
        # By the paths of now; chunks of a new array are all listed.
        names = {was[i].path: now[i].path for i in both}
        before_now = {}
        for key, data in before.items():
            owner = max(
                (
                    p
                    for p in {n.path for n in was.values()}
                    if p != "/" and f"/{key}".startswith(f"{p}/")
                ),
                key=len,
                default="/",
            )
            if owner in names and owner != "/":
                before_now[names[owner][1:] + f"/{key}"[len(owner) :]] = data
        grid = {n.path: n.array.num_chunks for n in now.values() if n.array is not None}
        expected = {
            (path, place)
            for path, place in changed_keys(before_now, after)
            if path in grid and all(i < max(n, 1) for i, n in zip(place, grid[path], strict=True))
        }
        assert logged == expected
        kept.append((done.snapshot_id, model.copy()))


@pytest.mark.parametrize("spec_version", [1, 2])
def test_history_stays_and_others_commit_on_top(spec_version):
    repository = new_repository(spec_version)
    first = with_array(repository)
    second = commit_to(repository, "main", lambda s: s.set_chunk("/a", [3], b"bad"))
    done = repository.restore("main", str(first), metadata={"why": "bad"})
    info = next(iter(repository.ancestry()))
    assert (info.id, info.parent_id) == (done.snapshot_id, second)
    assert info.message == f"Restore snapshot {first}"
    assert info.metadata == {"why": "bad"}
    assert done.files_written == {"snapshots": 1, "transactions": 1}
    commit_to(repository, "main", lambda s: s.set_chunk("/a", [4], b"new"))
    contents = stored_contents(repository, repository.resolve())
    assert (contents["a/c/3"], contents["a/c/4"]) == (b"\x01", b"new")
    assert [i.message for i in repository.ancestry()][:4] == [
        "change",
        f"Restore snapshot {first}",
        "change",
        "array",
    ]


def test_equal_references_are_not_logged_however_they_are_stored():
    repository = new_repository()
    with_array(repository)
    url = "s3://bucket/file.nc"

    def refs(length, etag=None, modified=0):
        return virtual_refs(
            np.arange(10)[:, None],
            [url] * 10,
            np.arange(10),
            np.full(10, length),
            etags=[etag] * 10,
            last_modified=[modified] * 10,
        )

    old = commit_to(repository, "main", lambda s: s.set_refs("/a", refs(4, "x", 9)))
    commit_to(repository, "main", lambda s: s.delete_chunks("/a", [[i] for i in range(10)]))

    def again(session):
        session.set_refs("/a", refs(4, "x", 9))
        session.set_refs("/a", refs(4, "y", 9).take(np.array([2])))
        session.set_refs("/a", refs(4, "x", 8).take(np.array([4])))
        session.set_refs("/a", refs(5, "x", 9).take(np.array([6])))
        session.set_refs("/a", refs(4, None, 9).take(np.array([8])))

    tip = commit_to(repository, "main", again)
    done = repository.restore("main", old)
    changed = repository.diff(tip, done.snapshot_id).updated_chunks["/a"]
    assert changed[:, 0].tolist() == [2, 4, 6, 8]


def test_what_lies_in_many_manifests_is_compared_in_pieces(monkeypatch):
    monkeypatch.setattr(difference, "MAX_REFS_PER_MANIFEST", 4)
    repository = new_repository()
    old = with_array(repository, (60,))
    commit_to(repository, "main", lambda s: s.set_chunks("/a", [[7], [31]], [b"x", b"y"]))
    tip = commit_to(repository, "main", lambda s: s.delete_chunks("/a", [[50]]))
    done = repository.restore("main", old)
    assert repository.diff(tip, done.snapshot_id).updated_chunks["/a"][:, 0].tolist() == [7, 31, 50]


def test_a_rival_of_the_restored_chunks_finds_its_conflict():
    repository = new_repository()
    first = with_array(repository)
    commit_to(repository, "main", lambda s: s.set_chunk("/a", [3], b"bad"))
    rival, other = repository.writable_session(), repository.writable_session()
    rival.set_chunk("/a", [3], b"mine")
    other.set_chunk("/a", [5], b"mine")
    repository.restore("main", first)
    other.commit("disjoint")
    with raises(ConflictError, branch="main", kinds=("CHUNKS_WRITTEN_TWICE",), paths=("/a",)):
        rival.commit("the same chunk")
    assert stored_contents(repository, repository.resolve())["a/c/3"] == b"\x01"


def test_a_branch_that_moved_meanwhile_is_a_conflict(monkeypatch):
    repository = new_repository()
    first = with_array(repository)
    commit_to(repository, "main", lambda s: s.set_chunk("/a", [3], b"bad"))
    compare = restore.difference

    def slowly(*given, **options):
        log = compare(*given, **options)
        commit_to(repository, "main", lambda s: s.set_chunk("/a", [9], b"late"))
        return log

    monkeypatch.setattr(restore, "difference", slowly)
    with raises(ConflictError, match="nothing was changed", branch="main"):
        repository.restore("main", first)
    assert stored_contents(repository, repository.resolve())["a/c/9"] == b"late"


def test_a_version_that_is_collected_meanwhile_is_not_restored(monkeypatch):
    repository = new_repository()
    with_array(repository)
    session = repository.writable_session()
    session.set_chunk("/a", [3], b"loose")
    loose = session.flush("detached")
    compare = restore.difference

    def collected(*given, **options):
        def without(info):
            left = {i: s for i, s in info.snapshots.items() if i != loose}
            return Transition(info=replace(info, snapshots=left), details=GCRanUpdate())

        update_repo(repository.storage, without)
        return compare(*given, **options)

    monkeypatch.setattr(restore, "difference", collected)
    tip = repository.resolve()
    with raises(NotFoundError, match="was removed by garbage collection", kind="snapshot"):
        repository.restore("main", loose)
    assert repository.resolve() == tip


def test_what_cannot_be_restored_is_said():
    repository = new_repository()
    first = with_array(repository)
    with raises(InvalidInputError, match="nothing to restore", branch="main"):
        repository.restore("main", first)
    with raises(NotFoundError, kind="branch", name="nowhere"):
        repository.restore("nowhere", first)
    with pytest.raises(NotFoundError):
        repository.restore("main", "0" * 20)
    repository.set_status(Availability.READ_ONLY, "closed")
    with raises(ReadOnlyError, reason="closed"):
        repository.restore("main", first)


def test_another_branch_is_restored_to_a_version_it_never_had():
    repository = new_repository()
    root = list(repository.ancestry())[-1].id
    first = with_array(repository)
    repository.create_branch("other", root)
    done = repository.restore("other", first)
    assert stored_contents(repository, done.snapshot_id) == stored_contents(repository, first)
    assert repository.branches()["main"] == first


def moved_and_changed(repository):
    """Commit an array, move it, and change it; return the version before the move."""
    first = with_array(repository)
    commit_to(repository, "main", lambda s: s.move("/a", "/b"), "move")
    commit_to(repository, "main", lambda s: s.set_chunk("/b", [3], b"bad"))
    return first


def test_moves_and_changes_are_not_in_one_log():
    repository = new_repository()
    first = moved_and_changed(repository)
    tip = repository.resolve()
    done = repository.restore("main", first).snapshot_id
    log = repository.transaction_log(done)
    assert log.moved_nodes == ()
    assert log.relocated_nodes == set(log.new_arrays) == set(log.deleted_arrays)
    found = repository.diff(tip, done)
    assert [(m.from_path, m.to_path) for m in found.moved_nodes] == [("/b", "/a")]
    assert found.new_arrays == found.deleted_arrays == ()
    assert found.updated_chunks["/a"].tolist() == [[3]]
    whole = repository.diff(first, done)
    moves = [(m.from_path, m.to_path) for m in whole.moved_nodes]
    assert moves == [("/a", "/b"), ("/b", "/a")]
    assert whole.new_arrays == whole.deleted_arrays == ()


def test_moves_alone_are_moves():
    repository = new_repository()
    first = with_array(repository)
    commit_to(repository, "main", lambda s: s.move("/a", "/b"), "move")
    log = repository.transaction_log(repository.restore("main", first).snapshot_id)
    assert [(m.from_path, m.to_path) for m in log.moved_nodes] == [("/b", "/a")]
    assert log.new_arrays == log.deleted_arrays == ()


def test_a_restored_version_can_be_amended():
    repository = new_repository()
    first = moved_and_changed(repository)
    tip = repository.resolve()
    repository.restore("main", first)
    assert {row["severity"] for row in verify(repository.location).to_pylist()} == {"info"}
    session = repository.writable_session()
    session.set_chunk("/a", [4], b"more")
    session.update_metadata("/a", array_document((10,), (1,), version=5))
    done = session.amend("more").snapshot_id
    found = repository.diff(tip, done)
    assert [(m.from_path, m.to_path) for m in found.moved_nodes] == [("/b", "/a")]
    assert found.updated_arrays == ("/a",)
    contents = stored_contents(repository, done)
    assert (contents["a/c/3"], contents["a/c/4"]) == (b"\x01", b"more")
    session = repository.writable_session()
    session.delete("/a")
    amended = repository.transaction_log(session.amend("without").snapshot_id)
    assert amended.new_arrays == ()
    assert len(amended.deleted_arrays) == 1


def test_a_rival_of_a_relocated_array_finds_its_conflict():
    repository = new_repository()
    first = moved_and_changed(repository)
    rival = repository.writable_session()
    rival.set_chunk("/b", [7], b"mine")
    repository.restore("main", first)
    with raises(ConflictError, branch="main", kinds=("MOVED_THERE",), paths=("/b",)):
        rival.commit("elsewhere")
