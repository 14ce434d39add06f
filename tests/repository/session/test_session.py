"""A version holds what its session changed, and a session ends with its commit.

Random changes are compared with a model after every commit, under several ways of splitting
manifests; single properties that a user relies on have tests of their own.
"""

import pickle

import numpy as np
import pytest
from helpers.builder import new_repository
from helpers.grids.sessions import grid_session, set_block, split_manifests
from helpers.raised import raises
from helpers.sessions.model import (
    Model,
    OurDriver,
    RandomChanges,
    array_document,
    group_document,
    stored_contents,
)

from icechunk_format.encoding.manifest.chunk_refs import inline_refs
from icechunk_format.encoding.repo_info.updates import Availability
from icechunk_format.errors import InvalidInputError, NotFoundError, ReadOnlyError
from icechunk_format.repository.commit import manifest_plan

# -- random changes ----------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [{}, {"any": 2}, {"axis0": 3}, {"axis1": 1}], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_versions_hold_what_the_sessions_changed(splits, seed, monkeypatch):
    monkeypatch.setattr(manifest_plan, "MAX_SMALL_MANIFESTS", 4)
    repository = new_repository()
    if splits:
        split_manifests(repository, **splits)
    model = Model()
    changes = RandomChanges(model, seed)
    versions = {}
    for number in range(12):
        session = repository.writable_session()
        before = session.snapshot_id
        if number % 5 == 4 and changes.move(OurDriver(session)):
            changes.move(OurDriver(session))
        else:
            changes.session(OurDriver(session), steps=8)
        result = session.commit(f"commit {number}", allow_empty=True)
        assert result.parent_id == before
        versions[result.snapshot_id] = model.keys()
    for snapshot_id, keys in versions.items():
        assert stored_contents(repository, snapshot_id) == keys


@pytest.mark.parametrize("seed", range(3))
def test_versions_of_spec_version_1_hold_what_the_sessions_changed(seed):
    repository = new_repository(spec_version=1)
    model = Model()
    changes = RandomChanges(model, seed)
    for number in range(8):
        session = repository.writable_session()
        changes.session(OurDriver(session), steps=8)
        result = session.commit(f"commit {number}", allow_empty=True)
        assert stored_contents(repository, result.snapshot_id) == model.keys()
    assert [info.message for info in repository.ancestry()] == [
        *(f"commit {n}" for n in reversed(range(8))),
        "Repository initialized",
    ]


@pytest.mark.parametrize("spec_version", [1, 2])
def test_spec_version_1_refuses_other_grids_before_the_commit(spec_version):
    session = new_repository(spec_version=spec_version).writable_session()
    session.create_group("/", {})
    grid = b'{"chunk_grid": {"name": "%s", "configuration": {"kind": "inline"}}}'
    session.create_array("/even", grid % b"regular", shape=(4,), num_chunks=(2,))
    changes = [
        lambda: session.create_array("/odd", grid % b"rectilinear", shape=(4,), num_chunks=(3,)),
        lambda: session.update_metadata("/even", grid % b"rectilinear"),
    ]
    for change in changes:
        if spec_version == 2:
            change()
        else:
            with raises(InvalidInputError, found="rectilinear", match="only 'regular' grids"):
                change()
    session.commit("arrays")


@pytest.mark.parametrize("seed", range(4))
def test_a_session_sees_its_own_changes(seed):
    repository = new_repository()
    model = Model()
    changes = RandomChanges(model, seed)
    source = repository.chunk_source()
    for _ in range(4):
        session = repository.writable_session()
        for _ in range(4):
            changes.session(OurDriver(session), steps=3)
            assert [node.path for node in session.nodes()] == sorted(model.nodes)
            for path in model.arrays():
                node = model.nodes[path]
                grid = [max(n, 1) for n in node.num_chunks]
                refs = session.chunk_refs(path, [0] * len(grid), grid)
                payloads = source.fetch(refs, np.arange(len(refs)))
                places = map(tuple, refs.coords.tolist())
                assert dict(zip(places, payloads, strict=True)) == node.chunks
        session.commit("more", allow_empty=True)


# -- the life of a session ---------------------------------------------------------------------


def test_after_a_commit_a_session_can_only_be_read(repository):
    session = grid_session(repository, (2,))
    set_block(session, range(2))
    result = session.commit("first")
    assert session.snapshot_id == result.snapshot_id
    assert len(session.chunk_refs("/a", [0], [2])) == 2
    edited = repository.writable_session()
    edited.create_group("/h", group_document())
    document = array_document((2,), (1,), version=1)
    for act in (
        lambda: session.create_group("/g", group_document()),
        lambda: session.create_array("/b", document, shape=[2], num_chunks=[2]),
        lambda: session.update_metadata("/a", document),
        lambda: session.set_attributes("/a", {"units": "K"}),
        lambda: session.delete("/a"),
        lambda: session.move("/a", "/b"),
        lambda: session.set_chunk("/a", [0], b"x"),
        lambda: session.set_refs("/a", inline_refs([[0]], [b"x"])),
        lambda: session.add_manifests("/a", []),
        lambda: session.delete_chunks("/a", [[0]]),
        lambda: session.drop_chunks_beyond("/a", [1]),
        lambda: session.shift("/a", [1]),
        lambda: session.take_over(edited.changes),
        lambda: session.discard(),
        lambda: session.rebase(),
        lambda: session.commit("again", allow_empty=True),
        lambda: session.amend("again", allow_empty=True),
        lambda: session.flush("again", allow_empty=True),
    ):
        with pytest.raises(ReadOnlyError, match="committed as snapshot"):
            act()
    assert [node.path for node in session.nodes()] == ["/", "/a"]
    assert not session.has_changes


def test_only_a_session_without_changes_takes_those_of_another(repository):
    grid_session(repository, (2,)).commit("base")
    other = repository.writable_session()
    set_block(other, [1])
    session = repository.writable_session()
    set_block(session, [0])
    with raises(InvalidInputError, match="has changes"):
        session.take_over(other.changes)
    assert session.chunk_refs("/a", [0], [2]).coords.tolist() == [[0]]
    session.discard()
    session.take_over(other.changes)
    assert session.chunk_refs("/a", [0], [2]).coords.tolist() == [[1]]


def test_a_session_shows_its_branch_and_its_base(repository):
    session = repository.writable_session()
    shown = f"WriteSession({repository.storage.root_url!r}, 'main', base={session.snapshot_id})"
    assert repr(session) == shown


def test_discarded_changes_are_gone(repository):
    session = grid_session(repository, (2,))
    session.discard()
    assert session.nodes() == []
    assert not session.has_changes


def test_sessions_stay_where_they_are_and_change_sets_travel(repository):
    session = grid_session(repository, (2,))
    set_block(session, range(2))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(session)
    log = session.changes.transaction_log(session.snapshot_id)
    copy = pickle.loads(pickle.dumps(session.changes))
    assert copy.transaction_log(session.snapshot_id).new_arrays == log.new_arrays
    touched = session.changes.touched()
    assert [len(chunks.coords()) for chunks in touched.values()] == [2]
    assert {n: c.coords().tolist() for n, c in copy.touched().items()} == {
        n: c.coords().tolist() for n, c in touched.items()
    }


def test_history_knows_what_was_committed(repository):
    session = grid_session(repository, (2,))
    first = session.commit("first", metadata={"app": "test", "n": [1, 2.5, None]})
    session = repository.writable_session()
    set_block(session, range(2))
    second = session.commit("second")
    infos = list(repository.ancestry())
    assert [info.message for info in infos] == ["second", "first", "Repository initialized"]
    assert infos[1].metadata == {"app": "test", "n": [1, 2.5, None]}
    assert infos[0].parent_id == first.snapshot_id == second.parent_id
    times = [info.flushed_at for info in infos]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 3
    assert repository.diff(first.snapshot_id, second.snapshot_id).updated_chunks["/a"].tolist() == [
        [0],
        [1],
    ]


def test_a_flushed_version_has_no_branch(repository):
    session = grid_session(repository, (4,))
    set_block(session, range(2))
    flushed = session.flush("aside")
    assert flushed not in repository.branches().values()
    assert len(stored_contents(repository, flushed)) == 4
    repository.create_tag("kept", flushed)
    assert repository.resolve(tag="kept") == flushed


def test_a_closed_repository_takes_no_changes(repository_v2):
    session = grid_session(repository_v2, (4,))
    repository_v2.set_status(Availability.READ_ONLY, "moving house")
    with raises(ReadOnlyError, reason="moving house"):
        repository_v2.writable_session()
    with raises(ReadOnlyError, reason="moving house"):
        session.commit("late")
    with raises(ReadOnlyError, reason="moving house"):
        repository_v2.create_branch("b", repository_v2.resolve())
    repository_v2.set_status(Availability.ONLINE)
    session.commit("in time")


def test_moves_can_be_switched_off(repository_v2):
    grid_session(repository_v2, (4,)).commit("first")
    repository_v2.set_feature_flag(3, False)
    session = repository_v2.writable_session()
    with raises(ReadOnlyError, flag=3):
        session.move("/a", "/b")
    repository_v2.set_feature_flag(3, None)
    session.move("/a", "/b")
    session.commit("moved")


def test_sessions_need_their_branch(repository):
    with raises(NotFoundError, kind="branch", name="develop"):
        repository.writable_session("develop")
    repository.create_branch("develop", repository.resolve())
    session = repository.writable_session("develop")
    session.create_group("/", group_document())
    result = session.commit("there")
    assert repository.branches()["develop"] == result.snapshot_id
    assert repository.branches()["main"] != result.snapshot_id
