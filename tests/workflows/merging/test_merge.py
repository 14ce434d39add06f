"""Merges: the changes of one branch since the common ancestor, on top of another branch."""

import json
import random

import pytest
from helpers.builder import add_array, commit_to, new_repository
from helpers.raised import raises
from helpers.sessions.model import (
    Model,
    OurDriver,
    RandomChanges,
    array_document,
    group_document,
    stored_contents,
)

from icechunk_format import Repository
from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError
from icechunk_format.maintenance import collect_garbage, verify
from icechunk_format.repository.commit import commit as commits
from icechunk_format.repository.files import metadata_cache
from icechunk_format.workflows.merging import merge


def begun(spec_version=2, length=10):
    """Return a repository with arrays /a and /b of chunks, and a branch dev."""
    repository = new_repository(spec_version)
    session = repository.writable_session()
    for path in ("/a", "/b"):
        add_array(session, path, (length,))
        session.set_chunks(path, [[i] for i in range(length)], [b"base" * 200] * length)
    repository.create_branch("dev", session.commit("base").snapshot_id)
    return repository


def chunk(path, place, data):
    return lambda session: session.set_chunk(path, [place], data)


def contents(repository, branch="main"):
    return stored_contents(repository, repository.resolve(branch=branch))


def assert_sound(repository):
    """Assert that verification finds nothing but files of other snapshots."""
    found = verify(repository.location).to_pylist()
    assert {row["severity"] for row in found} <= {"info"}, found


def three_way(base, ours, theirs):
    """Return contents with the changes of ours since the base, and the keys that both changed."""
    keys = base.keys() | ours.keys() | theirs.keys()
    changed = {key for key in keys if ours.get(key) != base.get(key)}
    also = {key for key in keys if theirs.get(key) != base.get(key)}
    both = {key for key in changed & also if ours.get(key) != theirs.get(key)}
    merged = {key: (ours if key in changed else theirs).get(key) for key in keys}
    return {key: data for key, data in merged.items() if data is not None}, both


def merged_at_random(seed):
    """Merge random histories and check the result; return True if there was no conflict."""
    repository = new_repository(1 + seed % 2)
    start = RandomChanges(Model(), seed)
    session = repository.writable_session()
    start.session(OurDriver(session), 12)
    base = session.commit("base").snapshot_id
    repository.create_branch("dev", base)
    found = {}
    for branch, steps in (("dev", 1 + seed % 4), ("main", seed // 4 % 5)):
        changes = RandomChanges(start.model.copy(), 1000 * seed + len(branch))
        for number in range(2):
            session = repository.writable_session(branch)
            changes.session(OurDriver(session), steps)
            session.commit(f"{branch} {number}", allow_empty=True)
        found[branch] = changes.model.keys()
    expected, both = three_way(start.model.keys(), found["dev"], found["main"])
    tip = repository.resolve(branch="main")
    preview = repository.merge("dev", dry_run=True)
    assert repository.resolve(branch="main") == tip
    if preview.conflicts:
        with pytest.raises(ConflictError) as caught:
            repository.merge("dev")
        assert repository.resolve(branch="main") == tip
        assert caught.value.facts["conflicts"] == tuple(map(str, preview.conflicts))
        return False
    done = repository.merge("dev")
    assert not both
    assert contents(repository) == expected
    assert_sound(repository)
    assert done.commit is None or done.commit.parent_id == tip
    assert repository.merge("dev").commit is None
    return True


@pytest.mark.parametrize("seed", range(60))
def test_random_histories_are_merged_as_their_contents_are(seed):
    merged_at_random(seed)


def test_random_histories_merge_and_conflict():
    assert {merged_at_random(seed) for seed in range(12)} == {True, False}


def test_chunks_and_manifests_are_used_again():
    repository = begun()
    commit_to(
        repository, "dev", lambda s: [s.set_chunk("/a", [i], b"new" * 300) for i in range(10)]
    )
    commit_to(repository, "main", chunk("/b", 0, b"theirs" * 200))
    before = set(repository.storage.list("chunks/"))
    manifests = set(repository.storage.list("manifests/"))
    done = repository.merge("dev")
    assert set(repository.storage.list("chunks/")) == before
    assert {o.key for o in repository.storage.list("manifests/")} == {o.key for o in manifests}
    assert set(map(str, done.changes.updated_chunks)) == {"/a"}
    assert contents(repository)["a/c/3"] == b"new" * 300
    assert contents(repository)["b/c/0"] == b"theirs" * 200


@pytest.mark.parametrize(("length", "merges"), [(12, True), (10, False), (8, False)])
def test_chunks_merge_beside_an_append_and_no_other_change_of_the_array(length, merges):
    repository = begun()
    commit_to(repository, "dev", chunk("/a", 1, b"dev"))
    document = array_document((length,), (1,))
    if length == 10:
        document = document.replace(b'"fill_value": 0', b'"fill_value": 1')
    sizes = {"shape": (length,), "num_chunks": (length,)}
    commit_to(repository, "main", lambda s: s.update_metadata("/a", document, **sizes))
    if merges:
        repository.merge("dev")
        assert contents(repository)["a/c/1"] == b"dev"
        assert contents(repository)["a/zarr.json"] == document
    else:
        with raises(ConflictError, kinds=("CHUNKS_OF_UPDATED_ARRAY",), paths=("/a",)):
            repository.merge("dev")


@pytest.mark.parametrize("resolve", [None, "ours", "theirs"])
def test_chunks_that_both_changed_are_resolved(resolve):
    repository = begun()
    commit_to(repository, "dev", lambda s: [s.set_chunk("/a", [i], b"dev") for i in (1, 2)])
    theirs = commit_to(repository, "main", chunk("/a", 1, b"main"))
    if resolve is None:
        with raises(
            ConflictError, kinds=("CHUNKS_WRITTEN_TWICE",), snapshots=(str(theirs),), paths=("/a",)
        ):
            repository.merge("dev")
        return
    repository.merge("dev", resolve=resolve)
    found = contents(repository)
    assert found["a/c/1"] == {"ours": b"dev", "theirs": b"main"}[resolve]
    assert found["a/c/2"] == b"dev"


def test_what_both_changed_alike_is_no_conflict():
    repository = begun()
    for branch in ("dev", "main"):
        commit_to(repository, branch, lambda s: s.update_metadata("/", group_document(7)))
        commit_to(repository, branch, lambda s: s.delete("/b"))
        commit_to(repository, branch, lambda s: s.delete_chunks("/a", [[3]]))
    commit_to(repository, "dev", chunk("/a", 1, b"dev"))
    repository.merge("dev")
    assert contents(repository) == contents(repository, "dev")


def test_merges_in_both_directions_begin_where_the_last_one_ended():
    repository = begun()
    random_places = random.Random(1)
    expected = contents(repository)
    for number in range(6):
        for branch, path in (("dev", "/a"), ("main", "/b")):
            place, data = random_places.randrange(10), f"{branch} {number}".encode()
            commit_to(repository, branch, chunk(path, place, data))
            expected[f"{path[1:]}/c/{place}"] = data
        first, second = ("dev", "main") if number % 2 else ("main", "dev")
        repository.merge(first, second)
        assert contents(repository, second) == expected
        back = repository.merge(second, first)
        assert back.base != back.source
        assert contents(repository, first) == expected
    assert repository.merge("dev").commit is None


@pytest.mark.parametrize("side", ["dev", "main"])
def test_moves_and_edits_of_other_nodes_are_merged(side):
    other = {"dev": "main", "main": "dev"}[side]
    repository = begun()
    commit_to(repository, side, lambda s: s.move("/a", "/moved"))
    commit_to(repository, other, chunk("/b", 1, b"edited"))
    done = repository.merge("dev")
    moved = [str(move.to_path) for move in done.changes.moved_nodes]
    assert moved == (["/moved"] if side == "dev" else [])
    found = contents(repository)
    assert found["moved/c/2"] == b"base" * 200
    assert "a/zarr.json" not in found
    assert found["b/c/1"] == b"edited"


def test_a_branch_that_moves_a_node_and_edits_it_is_merged():
    repository = begun()
    commit_to(repository, "dev", lambda s: s.move("/a", "/moved"))
    commit_to(repository, "dev", chunk("/moved", 4, b"dev"))
    commit_to(repository, "dev", lambda s: s.update_metadata("/", group_document(3)))
    commit_to(repository, "main", chunk("/b", 1, b"main"))
    expected = contents(repository, "dev") | {"b/c/1": b"main"}
    done = repository.merge("dev")
    assert contents(repository) == expected
    assert_sound(repository)
    log = repository.transaction_log(done.commit.snapshot_id)
    assert not log.moved_nodes
    assert log.relocated_nodes == {
        n.id for n in repository.snapshot(done.source).nodes if n.path == "/moved"
    }
    assert repository.restore("main", done.commit.parent_id).parent_id == done.commit.snapshot_id


def test_one_snapshot_is_picked():
    repository = begun()
    commit_to(repository, "dev", chunk("/a", 1, b"first"))
    picked = commit_to(repository, "dev", chunk("/a", 2, b"second"), "the second")
    commit_to(repository, "dev", chunk("/a", 3, b"third"))
    commit_to(repository, "main", chunk("/b", 3, b"main"))
    done = repository.cherry_pick(picked)
    found = contents(repository)
    assert [found[f"a/c/{i}"] for i in (1, 2, 3)] == [b"base" * 200, b"second", b"base" * 200]
    assert repository.snapshot_info(done.commit.snapshot_id).message == "the second"
    assert repository.cherry_pick(picked).commit is None
    repository.merge("dev")
    assert contents(repository) == contents(repository, "dev") | {"b/c/3": b"main"}
    root = list(repository.ancestry())[-1].id
    with raises(InvalidInputError, snapshot=str(root)):
        repository.cherry_pick(root)


def test_the_branch_that_takes_the_changes_moves_during_the_merge(monkeypatch):
    repository = begun()
    commit_to(repository, "dev", chunk("/a", 1, b"dev"))
    real = merge.changes_onto

    rivals = iter([5])

    def rivalled(*args):
        for place in rivals:
            commit_to(repository, "main", chunk("/b", place, b"rival"))
        return real(*args)

    monkeypatch.setattr(merge, "changes_onto", rivalled)
    done = repository.merge("dev")
    assert done.commit.rebased
    found = contents(repository)
    assert (found["a/c/1"], found["b/c/5"]) == (b"dev", b"rival")


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_commit_between_two_reads_of_the_repository_is_merged_with(monkeypatch, spec_version):
    repository = begun(spec_version)
    commit_to(repository, "dev", chunk("/a", 0, b"ours"))
    other, real = Repository.open(repository.location), Repository.writable_tip

    def moving(opened, branch):
        if opened is repository and not moved:
            moved.append(commit_to(other, "main", chunk("/b", 1, b"theirs")))
        return real(opened, branch)

    moved = []
    monkeypatch.setattr(Repository, "writable_tip", moving)
    repository.merge("dev")
    assert moved
    found = contents(repository)
    assert (found["a/c/0"], found["b/c/1"]) == (b"ours", b"theirs")


def test_a_source_that_is_collected_meanwhile_is_not_merged(monkeypatch):
    repository = begun()
    commit_to(repository, "dev", chunk("/a", 1, b"dev" * 300))
    tip = repository.resolve()
    real = merge.changes_onto

    def collected(*args):
        found = real(*args)
        Repository.open(repository.location).delete_branch("dev")
        collect_garbage(repository.location, older_than="0s")
        return found

    monkeypatch.setattr(merge, "changes_onto", collected)
    with raises(NotFoundError, kind="snapshot"):
        repository.merge("dev")
    assert repository.resolve() == tip


def test_a_source_without_branch_keeps_its_files_by_a_marker(monkeypatch):
    repository = begun()
    commit_to(repository, "dev", chunk("/a", 1, b"dev" * 300))
    source = repository.resolve(branch="dev")
    real = merge.changes_onto

    def deleted(*args):
        Repository.open(repository.location).delete_branch("dev")
        return real(*args)

    monkeypatch.setattr(merge, "changes_onto", deleted)
    repository.merge("dev")
    assert [info.parent_id for info in repository.snapshots()].count(source) == 1
    collect_garbage(repository.location, older_than="0s")
    assert contents(repository)["a/c/1"] == b"dev" * 300


def test_an_expired_ancestor_is_found_as_long_as_its_file_exists():
    repository = begun()
    commit_to(repository, "dev", chunk("/a", 1, b"dev"))
    commit_to(repository, "main", chunk("/b", 1, b"main"))
    repository.expire_snapshots("0s")
    preview = repository.merge("dev", dry_run=True)
    assert not preview.conflicts
    collect_garbage(repository.location, older_than="0s")
    metadata_cache().clear()
    with pytest.raises(ConflictError) as caught:
        Repository.open(repository.location).merge("dev")
    assert caught.value.facts["source"] == str(repository.resolve(branch="dev"))


def test_a_branch_that_does_not_exist_is_named():
    repository = begun()
    with pytest.raises(NotFoundError):
        repository.merge("nothing")
    with pytest.raises(NotFoundError):
        repository.merge("dev", "nothing")
    with pytest.raises(InvalidInputError):
        repository.merge("dev", resolve="mine")


def test_a_fast_forward_that_is_refused_points_to_merge():
    repository = begun()
    commit_to(repository, "dev", chunk("/a", 1, b"dev"))
    commit_to(repository, "main", chunk("/b", 1, b"main"))
    with raises(ConflictError, branch="main", tip=...):
        repository.fast_forward("main", "dev")


def test_a_merge_that_fails_leaves_the_branch(monkeypatch):
    repository = begun()
    commit_to(repository, "dev", chunk("/a", 1, b"dev"))
    tip = repository.resolve()

    def broken(*args, **kwargs):
        raise OSError("power cut")

    monkeypatch.setattr(commits, "snapshot_objects", broken)
    with pytest.raises(OSError, match="power cut"):
        repository.merge("dev")
    monkeypatch.undo()
    assert repository.resolve() == tip
    repository.merge("dev")
    assert contents(repository)["a/c/1"] == b"dev"


def test_a_commit_is_picked_again_after_a_restore():
    repository = begun()
    good = repository.resolve()
    commit_to(repository, "main", chunk("/a", 1, b"bad"))
    edited = repository.set_attributes("/a", {"long_name": "count"})
    repository.restore("main", good)
    picked = repository.cherry_pick(edited.snapshot_id, onto="main")
    assert not picked.conflicts
    found = json.loads(contents(repository)["a/zarr.json"])
    assert found["attributes"]["long_name"] == "count"
    assert contents(repository).get("a/c/1") != b"bad"
